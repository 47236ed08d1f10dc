"""Interruption notices of EC2 by EventBridge and SQS."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec import Struct, field

from slurm_elastic.ckptman.sources import SourceReading
from slurm_elastic.model.cluster import Notice, NoticeKind

log = logging.getLogger(__name__)


INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
_INTERRUPTION_LEAD_S = 120.0
"""Seconds from the interruption warning to the interruption (EC2 user guide)."""


class _Detail(Struct, frozen=True, kw_only=True):
    instance: str = field(name="instance-id")


class _Event(Struct, frozen=True, kw_only=True):
    kind: str = field(name="detail-type")
    time: str
    detail: _Detail


def reading_of_event(body: str, handle: str, now: float) -> SourceReading:
    """A message of EventBridge as EC2's user guide has it; other events are not for us."""
    try:
        raw = json.loads(body)
        if isinstance(raw, dict) and isinstance(raw.get("Message"), str):
            raw = json.loads(raw["Message"])  # by way of an SNS topic
        kind = raw.get("detail-type") if isinstance(raw, dict) else None
        if kind not in (INTERRUPTION, REBALANCE):
            return SourceReading(
                handle=handle, wrong=f"an event that is no notice: {str(kind)[:80]}"
            )
        event = msgspec.convert(raw, _Event)
        when = datetime.fromisoformat(event.time).timestamp()
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        return SourceReading(handle=handle, wrong=f"a message that cannot be read: {error}")
    if kind == REBALANCE:
        notice = Notice(instance=event.detail.instance, kind=NoticeKind.REBALANCE, seen=now)
        return SourceReading(handle=handle, notice=notice, announced=when)
    notice = Notice(
        instance=event.detail.instance, kind=NoticeKind.INTERRUPTION, seen=now,
        deadline=when + _INTERRUPTION_LEAD_S,
    )  # fmt: skip
    return SourceReading(handle=handle, notice=notice)


class SqsClient(Protocol):
    """The part of boto3's client that is used."""

    def receive_message(self, **request: object) -> dict[str, list[dict[str, str]]]:
        """Up to ten messages."""
        ...

    def delete_message_batch(self, **request: object) -> object:
        """Up to ten of them."""
        ...


class SqsQueue:
    """An SQS queue that an EventBridge rule fills (docs/checkpointing.md has the rule)."""

    BATCH = 10
    MOST = 2000

    def __init__(self, url: str, open_client: Callable[[], SqsClient]) -> None:
        self.name = "notices in SQS"
        self._url = url
        self._open = open_client
        self._client: SqsClient | None = None

    def read(self, now: float) -> Sequence[SourceReading]:
        """All that is there, up to MOST; nothing is deleted yet."""
        self._client = self._client or self._open()
        found: list[SourceReading] = []
        while len(found) < self.MOST:
            answer = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=self.BATCH, WaitTimeSeconds=0,
                # What a crash leaves undeleted comes again after that.
                VisibilityTimeout=60,
            )  # fmt: skip
            messages = answer.get("Messages", [])
            found += [reading_of_event(m["Body"], m["ReceiptHandle"], now) for m in messages]
            if not messages:
                break
        return found

    def done(self, handles: Sequence[str]) -> None:
        """Delete them, ten a call."""
        client = self._client
        for start in range(0, len(handles), self.BATCH):
            part = handles[start : start + self.BATCH]
            entries = [{"Id": str(n), "ReceiptHandle": h} for n, h in enumerate(part)]
            # A message that fails comes again, and is known by then.
            if client is not None:
                client.delete_message_batch(QueueUrl=self._url, Entries=entries)
