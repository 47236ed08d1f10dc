"""Spot interruption events as EventBridge sends them. moto provides the SQS queue, and this module
the events.

Each region has the queue ``interruptions`` from the start, as if a rule filled it.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

ACCOUNT = "123456789012"
TARGET = "AmazonSQS."
"""The prefix of SQS's actions in the header X-Amz-Target."""
JSON = "application/x-amz-json-1.0"
QUEUE = "interruptions"
LEAD = 120.0
"""Seconds from the warning to the interruption (EC2 user guide). The event contains no deadline, so
clients add this to its time.
"""


class EventQueue:
    """The queues of all regions. Not thread-safe, because moto is not. moto's SQS is imported at
    the first use.
    """

    def __init__(self) -> None:
        self._used = False

    def reset(self) -> None:
        """Delete all messages and queues."""
        if self._used:
            for backends in _backends().values():
                backends.reset()

    def ready(self, region: str) -> Any:  # noqa: ANN401 - moto's backend
        """Return the region's queues, including ``interruptions``."""
        self._used = True
        backend = _backends()[ACCOUNT][region]
        if QUEUE not in backend.queues:
            backend.create_queue(QUEUE, {})
        return backend

    def warn(self, region: str, instance: str, deadline: float) -> None:
        """Send the warning that a machine of the region is taken at ``deadline`` (Unix time)."""
        self.ready(region).send_message(QUEUE, warning(region, instance, deadline))


def warning(region: str, instance: str, deadline: float) -> str:
    """Return the event from EC2's user guide ("Spot Instance interruption notices")."""
    when = datetime.fromtimestamp(deadline - LEAD, UTC)
    return json.dumps(
        {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "source": "aws.ec2",
            "account": ACCOUNT,
            "time": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": region,
            "resources": [f"arn:aws:ec2:{region}:instance/{instance}"],
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
    )


def _backends() -> Any:  # noqa: ANN401 - moto's, which takes a while to import
    from moto.sqs.models import sqs_backends

    return sqs_backends
