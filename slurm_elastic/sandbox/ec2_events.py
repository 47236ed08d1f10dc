"""Spot interruptions as EventBridge tells them: the queue is moto's SQS, the events are ours.

The queue ``interruptions`` is in every region from the start, as if a rule filled it.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

ACCOUNT = "123456789012"
TARGET = "AmazonSQS."
"""The beginning of SQS's actions in the header X-Amz-Target."""
JSON = "application/x-amz-json-1.0"
QUEUE = "interruptions"
LEAD = 120.0
"""Seconds from the warning to the interruption (EC2 user guide): an event has no other deadline."""


class EventQueue:
    """Not thread-safe, as moto is not; without use it does not even import moto's part."""

    def __init__(self) -> None:
        self._used = False

    def reset(self) -> None:
        """Forget all messages and the queues."""
        if self._used:
            for backends in _backends().values():
                backends.reset()

    def ready(self, region: str) -> Any:  # noqa: ANN401 - moto's backend
        """The region's queues, ours among them."""
        self._used = True
        backend = _backends()[ACCOUNT][region]
        if QUEUE not in backend.queues:
            backend.create_queue(QUEUE, {})
        return backend

    def warn(self, region: str, instance: str, deadline: float) -> None:
        """Tell of a machine of the region that is taken at ``deadline`` (Unix time)."""
        self.ready(region).send_message(QUEUE, warning(region, instance, deadline))


def warning(region: str, instance: str, deadline: float) -> str:
    """The event of EC2's user guide ("Spot Instance interruption notices")."""
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
