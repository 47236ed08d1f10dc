"""Interruption notices of EC2, by EventBridge and SQS."""

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
    """Parse a message of EventBridge, in the form of EC2's user guide. Other events are ignored."""
    try:
        message = json.loads(body)
        if isinstance(message, dict) and isinstance(message.get("Message"), str):
            message = json.loads(message["Message"])  # by way of an SNS topic
        kind = message.get("detail-type") if isinstance(message, dict) else None
        if kind not in (INTERRUPTION, REBALANCE):
            return SourceReading(
                handle=handle, wrong=f"an event that is no notice: {str(kind)[:80]}"
            )
        event = msgspec.convert(message, _Event)
        announced_at = datetime.fromisoformat(event.time).timestamp()
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        return SourceReading(handle=handle, wrong=f"a message that cannot be read: {error}")
    if kind == REBALANCE:
        notice = Notice(instance=event.detail.instance, kind=NoticeKind.REBALANCE, seen=now)
        return SourceReading(handle=handle, notice=notice, announced=announced_at)
    notice = Notice(
        instance=event.detail.instance, kind=NoticeKind.INTERRUPTION, seen=now,
        deadline=announced_at + _INTERRUPTION_LEAD_S,
    )  # fmt: skip
    return SourceReading(handle=handle, notice=notice)


class SqsClient(Protocol):
    """The part of boto3's client that we use."""

    def receive_message(self, **request: object) -> dict[str, list[dict[str, str]]]:
        """Receive up to ten messages."""
        ...

    def delete_message_batch(self, **request: object) -> object:
        """Delete up to ten messages."""
        ...


class SqsQueue:
    """An SQS queue that an EventBridge rule fills (docs/checkpointing.md has the rule)."""

    BATCH_SIZE = 10
    MAX_MESSAGES = 2000

    def __init__(self, url: str, open_client: Callable[[], SqsClient]) -> None:
        self.name = "notices in SQS"
        self._url = url
        self._open = open_client
        self._client: SqsClient | None = None

    def read(self, now: float) -> Sequence[SourceReading]:
        """Receive all waiting messages, at most MAX_MESSAGES. ``done`` deletes them later."""
        try:
            return self._receive(self._opened(), now)
        except Exception:
            # An administrator may renew the credentials while we run, but a client keeps the
            # credentials it started with.
            self._client = None
            raise

    def _opened(self) -> SqsClient:
        self._client = self._client or self._open()
        return self._client

    def _receive(self, client: SqsClient, now: float) -> Sequence[SourceReading]:
        readings: list[SourceReading] = []
        while len(readings) < self.MAX_MESSAGES:
            answer = client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=self.BATCH_SIZE, WaitTimeSeconds=0,
                # A message that a crash leaves undeleted comes again after so many seconds.
                VisibilityTimeout=60,
            )  # fmt: skip
            messages = answer.get("Messages", [])
            readings += [
                reading_of_event(message["Body"], message["ReceiptHandle"], now)
                for message in messages
            ]
            # SQS may give fewer messages than it has, so a short answer is not the end.
            if not messages:
                break
        return readings

    def done(self, handles: Sequence[str]) -> None:
        """Delete these messages, ten per call."""
        client = self._client
        for start in range(0, len(handles), self.BATCH_SIZE):
            batch = handles[start : start + self.BATCH_SIZE]
            # SQS needs an Id per entry, unique within the call.
            entries = [
                {"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(batch)
            ]
            # If a deletion fails, the message comes again, and its notice is known already.
            if client is not None:
                client.delete_message_batch(QueueUrl=self._url, Entries=entries)
