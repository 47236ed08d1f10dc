"""Where notices come from. A source is read by a poller of its own, so that a slow or dead one
holds up neither the others nor the jobs; what it tells is on the disk before it is acknowledged.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic import statedir
from slurm_elastic.ckptman.nodes import cool_down, machine_of
from slurm_elastic.ckptman.orders import Asked, Orders
from slurm_elastic.ckptman.site import Site
from slurm_elastic.ckptstate import RecordedNotice
from slurm_elastic.ckptstate.orders import AnyOrder, NoticeOrder, WithdrawOrder
from slurm_elastic.faults import reach
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Notice, NoticeKind
from slurm_elastic.protocols import Provider, Slurm

log = logging.getLogger(__name__)

MAX_BYTES = 65_536
_COMMENT = re.compile(
    r"slurm-elastic:notice:(?P<kind>interruption|rebalance):(?P<time>[0-9]{1,12})"
    r":(?P<instance>[A-Za-z0-9-]+)"
)
SETTLED = 1.0
"""Seconds after which a file that cannot be read is not being written any more."""


class Told(Struct, frozen=True, kw_only=True):
    """The result of one reading of a source; ``handle`` acknowledges it. ``wrong``: what could not
    be understood, and is acknowledged all the same, as it would come back for ever.

    Without a deadline ``announced`` (Unix time) tells one announcement from the next:
    whenever the same one is told, it is the same (0: it is told as long as it stands; None: when it
    was seen).
    """

    handle: str = ""
    announced: float | None = None
    notice: Notice | None = None
    order: AnyOrder | None = None
    wrong: str = ""


class Source(Protocol):
    """Somewhere that notices come from."""

    name: str

    def read(self, now: float) -> Sequence[Told]:
        """The news there; any exception means that it cannot be read now."""
        ...

    def done(self, handles: Sequence[str]) -> None:
        """These are on the disk here: they need not come again."""
        ...


class CloudNotices:
    """The notices that a cloud itself gives of our machines. It says so until they are gone."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = f"notices of {provider.name}"

    def read(self, now: float) -> Sequence[Told]:  # noqa: ARG002
        """All standing ones."""
        return [Told(notice=notice, announced=0.0) for notice in self._provider.notices()]

    def done(self, handles: Sequence[str]) -> None:
        """Nothing to acknowledge."""


class NodeComments:
    """The comments that agents on EC2's machines (programs/agent.py) put on their Slurm nodes.

    Root on a node may do that, over munge, and no user. ``machines`` gives the live ones by id: a
    comment outlives its machine, and the next machine of that node is not meant.
    """

    name = "notices on Slurm's nodes"

    def __init__(self, slurm: Slurm, machines: Callable[[], Collection[str]]) -> None:
        self._slurm = slurm
        self._machines = machines

    def read(self, now: float) -> Sequence[Told]:
        """All that stand; Slurm is only asked while there are machines."""
        alive = set(self._machines())
        if not alive:
            return []
        told = [comment_notice(node.comment, now) for node in self._slurm.nodes().values()]
        return [t for t in told if t and t.notice and t.notice.instance in alive]

    def done(self, handles: Sequence[str]) -> None:
        """Nothing to acknowledge."""


def comment_notice(comment: str, seen: float) -> Told | None:
    """The warning in ``slurm-elastic:notice:KIND:TIME:INSTANCE``; None for other comments."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    kind, when = NoticeKind(found["kind"]), float(found["time"])
    deadline = when or None if kind is NoticeKind.INTERRUPTION else None
    notice = Notice(instance=found["instance"], kind=kind, seen=seen, deadline=deadline)
    return Told(notice=notice, announced=when)


class DropDirectory:
    """Files ``*.json`` of operators and agents. Only root's and SlurmUser's own count.

    A thing that cannot be removed, such as a directory, is told once and left alone until it
    changes.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.name = f"notices in {path}"
        self._path = path
        self._staying: dict[str, tuple[int, int]] = {}
        if create:
            path.mkdir(mode=statedir.DIRECTORY, exist_ok=True)

    def read(self, now: float) -> Sequence[Told]:
        """Each file, oldest name first."""
        paths = sorted(self._path.glob("*.json"))
        there = {str(path) for path in paths}
        self._staying = {name: was for name, was in self._staying.items() if name in there}
        fresh = [path for path in paths if self._staying.get(str(path)) != _version(path)]
        return [told for path in fresh if (told := _file(path, now))]

    def done(self, handles: Sequence[str]) -> None:
        """The files go. Their orders are kept by now: one that stays is no failed reading."""
        for handle in handles:
            try:
                os.unlink(handle)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._staying[handle] = _version(Path(handle))
                log.warning("read, but cannot be removed path=%s: %s", handle, error.strerror)


def _version(path: Path) -> tuple[int, int]:
    """The mark that changes with the file; (0, 0) where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _file(path: Path, now: float) -> Told | None:
    handle = str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # our own trouble, not the file's: it is not to be removed for that
        return Told(handle=handle, wrong=f"{path}: {error.strerror}")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            return Told(handle=handle, wrong=f"{path} is no file of root or SlurmUser")
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    try:
        order = msgspec.json.decode(text, type=AnyOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Whoever writes there without renaming may be in the middle of it.
        half = now - found.st_mtime < SETTLED
        return None if half else Told(handle=handle, wrong=f"{path}: {error}")
    if isinstance(order, NoticeOrder):
        return Told(handle=handle, notice=_notice(order, now), order=order)
    return Told(handle=handle, order=order)


def _notice(order: NoticeOrder, seen: float) -> Notice:
    kind = NoticeKind.REBALANCE if order.rebalance else NoticeKind.INTERRUPTION
    return Notice(
        instance="", node=order.node, kind=kind, seen=seen, deadline=order.deadline,
        reason=order.reason,
    )  # fmt: skip


# EventBridge

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
_LEAD = 120.0
"""Seconds from the interruption warning to the interruption (EC2 user guide)."""


class _Detail(Struct, frozen=True, kw_only=True):
    instance: str = field(name="instance-id")


class _Event(Struct, frozen=True, kw_only=True):
    kind: str = field(name="detail-type")
    time: str
    detail: _Detail


def from_event(body: str, handle: str, now: float) -> Told:
    """A message of EventBridge as EC2's user guide has it; other events are not for us."""
    try:
        raw = json.loads(body)
        if isinstance(raw, dict) and isinstance(raw.get("Message"), str):
            raw = json.loads(raw["Message"])  # by way of an SNS topic
        kind = raw.get("detail-type") if isinstance(raw, dict) else None
        if kind not in (INTERRUPTION, REBALANCE):
            return Told(handle=handle, wrong=f"an event that is no notice: {str(kind)[:80]}")
        event = msgspec.convert(raw, _Event)
        when = datetime.fromisoformat(event.time).timestamp()
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        return Told(handle=handle, wrong=f"a message that cannot be read: {error}")
    if kind == REBALANCE:
        notice = Notice(instance=event.detail.instance, kind=NoticeKind.REBALANCE, seen=now)
        return Told(handle=handle, notice=notice, announced=when)
    notice = Notice(
        instance=event.detail.instance, kind=NoticeKind.INTERRUPTION, seen=now,
        deadline=when + _LEAD,
    )  # fmt: skip
    return Told(handle=handle, notice=notice)


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

    def read(self, now: float) -> Sequence[Told]:
        """All that is there, up to MOST; nothing is deleted yet."""
        self._client = self._client or self._open()
        found: list[Told] = []
        while len(found) < self.MOST:
            answer = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=self.BATCH, WaitTimeSeconds=0,
                VisibilityTimeout=60,
            )  # fmt: skip
            messages = answer.get("Messages", [])
            found += [from_event(m["Body"], m["ReceiptHandle"], now) for m in messages]
            if not messages:
                break
        return found

    def done(self, handles: Sequence[str]) -> None:
        """Delete them, ten a call. A message that fails comes again, and is known by then."""
        client = self._client
        for start in range(0, len(handles), self.BATCH):
            part = handles[start : start + self.BATCH]
            entries = [{"Id": str(n), "ReceiptHandle": h} for n, h in enumerate(part)]
            if client is not None:
                client.delete_message_batch(QueueUrl=self._url, Entries=entries)


MOST_PAUSE = 60.0


class Poller:
    """``machines`` gives the live machines by id, for ids that must be among them; ``woken`` is
    called when there is news; every order that is no notice is for ``orders``.
    """

    def __init__(
        self,
        site: Site,
        source: Source,
        every: float,
        machines: Callable[[Collection[str]], Mapping[str, Machine]],
        woken: Callable[[], None],
        orders: Orders,
    ) -> None:
        self._site, self._source, self._every = site, source, every
        self._machines, self._woken, self._orders = machines, woken, orders
        self._thread = threading.Thread(target=self._run, name=source.name, daemon=True)

    def start(self) -> None:
        """Until the site stops."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the reading that is under way."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = self._every
        while not self._site.stop.wait(pause if pause else self._every):
            ok = self.poll()
            pause = self._every if ok else min(max(pause, 1.0) * 2, MOST_PAUSE)

    def poll(self) -> bool:
        """Read once; say whether that went well. News is kept before the source is told so."""
        site = self._site
        try:
            told, carried = self._sort(self._source.read(site.now()))
            try:
                if carried:
                    self._source.done([asked.handle for asked in carried])
                    self._orders.forget(carried)
            finally:  # an order that cannot be acknowledged keeps nothing from being heard
                self._take_in(told)
            if handles := [t.handle for t in told if t.handle]:
                self._source.done(handles)
        except sqlite3.Error as error:
            log.error("notices cannot be kept, they stay where they are: %s", error)  # noqa: TRY400
            return False
        except Exception as error:  # noqa: BLE001 - whatever a source raises, the others go on
            site.journal.health(self._source.name, f"{type(error).__name__}: {error}")
            return False
        site.journal.health(self._source.name, None)
        return True

    def _sort(self, told: Sequence[Told]) -> tuple[list[Told], list[Asked]]:
        """The notices, and the orders that were carried out. A person's word on a node
        after a withdrawal waits until that was carried out, which would take it back, too.
        """
        rest: list[Told] = []
        carried: list[Asked] = []
        taken_back: set[str] = set()
        for one in told:
            order = one.order
            if order is None or isinstance(order, NoticeOrder):
                if order is None or order.node not in taken_back:
                    rest.append(one)
            elif self._orders.tell(asked := Asked(one.handle, order)):
                carried.append(asked)
            elif isinstance(order, WithdrawOrder):
                taken_back.add(order.node)
        return rest, carried

    def _take_in(self, told: Sequence[Told]) -> None:
        for one in told:
            if one.wrong:
                log.warning("passed over source=%s: %s", self._source.name, one.wrong)
        notices = [one.notice for one in told if one.notice]
        if not notices:
            return
        machines = self._machines([one.instance for one in notices])
        warned = [self._warned(t, t.notice, machines) for t in told if t.notice is not None]
        if fresh := self._site.state.warn(*warned, now=self._site.now()):
            reach("notice.after-record")
            cool_down(self._site, fresh)
            self._tell(fresh, machines)
            self._woken()

    def _warned(
        self, told: Told, notice: Notice, machines: Mapping[str, Machine]
    ) -> RecordedNotice:
        """A node's machine is looked up at once: the next one of that node is not meant."""
        if notice.node and not notice.instance:
            found = machine_of(notice.node, machines)
            notice = replace(notice, instance=found.instance.id) if found else notice
        machine = machines.get(notice.instance)
        subject = _life(told, machine) or notice.instance or f"node:{notice.node}"
        return RecordedNotice(
            key=f"{self._source.name}:{notice.kind}:{subject}:{_announcement(told, notice)}",
            notice=notice,
            source=self._source.name,
            offer=machine.instance.offer_key if machine else "",
        )

    def _tell(self, fresh: Sequence[RecordedNotice], machines: Mapping[str, Machine]) -> None:
        now = self._site.now()
        for one in fresh:
            notice = one.notice
            left = "" if notice.deadline is None else f", {notice.deadline - now:.0f} s left"
            machine = machines.get(notice.instance)
            subject = machine.instance.node if machine else notice.node or notice.instance
            text = notice.reason or f"{notice.kind} notice from {one.source}"
            self._site.journal.note("notices", "ckpt-notice", (subject,), f"{text}{left}")
            self._site.journal.count("ckpt_notices_total", kind=str(notice.kind))


def _life(told: Told, machine: Machine | None) -> str:
    """The machine and its launch, of one that was stopped since and started: what a cloud told of
    it before, as long as that stood, is over, and the same word is news now.
    """
    one = machine.instance if machine and machine.born is not None else None
    stands = told.announced == 0.0 and told.notice is not None and told.notice.deadline is None
    return f"{one.id}:{one.generation}" if one and stands else ""


def _announcement(told: Told, notice: Notice) -> str:
    """The key that is the same whenever one announcement is told, and of no other of that machine:
    a queue delivers a message twice, a cloud tells a notice as long as it stands; but another
    deadline, or another time of a recommendation, is news.
    """
    if told.order is not None:
        return os.path.basename(told.handle)
    if notice.deadline is not None:
        return f"{notice.deadline:.0f}"
    return f"at {notice.seen if told.announced is None else told.announced:.0f}"
