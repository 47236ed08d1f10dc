"""Where notices come from: what counts, what is passed over, and when it is acknowledged."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from moto import mock_aws

from slurm_elastic.base.errors import TransientError
from slurm_elastic.ckptman.event_bridge import INTERRUPTION, REBALANCE, SqsQueue, reading_of_event
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.sources import DropDirectory, NodeComments
from slurm_elastic.model.cluster import NoticeKind
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate.orders import NoticeOrder, SaveOrder, drop
from tests.ckptman.world import CkptWorld
from tests.controller.world import Killed


def event(instance: str = "i-1", kind: str = INTERRUPTION, **more: Any) -> str:
    """As EC2's user guide shows it."""
    return json.dumps(
        {
            "version": "0", "id": "12345678-1234-1234-1234-123456789012", "detail-type": kind,
            "source": "aws.ec2", "account": "123456789012", "time": "2026-11-20T08:00:00Z",
            "region": "us-east-1", "resources": [f"arn:aws:ec2:us-east-1b:instance/{instance}"],
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        } | more
    )  # fmt: skip


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def poller(world: CkptWorld, source: Any) -> Poller:
    assert world.service is not None
    return Poller(
        world.ckpt, source, 1.0, world.service.reader.machines, lambda: None, world.service.orders
    )


def test_what_an_agent_put_on_its_node_warns_of_its_machine() -> None:
    slurm = FakeSlurm()
    alive = {"i-1", "i-2", "pub_7-1f.a"}
    source = NodeComments(slurm, lambda: alive)
    for node, comment in {
        "pub1": "slurm-elastic:notice:interruption:1795162920:i-1",
        "pub2": "slurm-elastic:notice:rebalance:0:i-2",
        "pub3": "slurm-elastic:notice:interruption:1795162920:i-gone",
        "pub4": "an admin's own: slurm-elastic:notice:interruption:1:i-1",
        "pub5": "slurm-elastic:notice:end:1:i-1",
        "pub6": "",
        "pub_7": "slurm-elastic:notice:interruption:0:pub_7-1f.a",
    }.items():
        slurm.set_node(node, "IDLE", "CLOUD", comment=comment)
    told = [t.notice for t in source.read(7.0)]
    assert [(n.instance, n.kind, n.deadline) for n in told if n] == [
        ("i-1", NoticeKind.INTERRUPTION, 1795162920.0),
        ("i-2", NoticeKind.REBALANCE, None),
        ("pub_7-1f.a", NoticeKind.INTERRUPTION, None),
    ]
    alive.clear()
    calls = slurm.calls["nodes"]
    assert source.read(8.0) == []
    assert slurm.calls["nodes"] == calls


def test_an_interruption_warning_has_a_deadline_two_minutes_after_its_time() -> None:
    told = reading_of_event(event(), "h", 5.0)
    assert told.notice is not None
    assert told.notice.kind is NoticeKind.INTERRUPTION
    assert told.notice.deadline == 1795161600.0 + 120
    assert reading_of_event(event(kind=REBALANCE), "h", 5.0).notice.deadline is None  # type: ignore[union-attr]
    wrapped = json.dumps({"Type": "Notification", "Message": event("i-2")})
    assert reading_of_event(wrapped, "h", 5.0).notice.instance == "i-2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    ["", "[]", "7", "{}", "not json", event(kind="EC2 Instance State-change Notification"),
     event(detail={}), event(time="yesterday"), event(detail={"instance-id": 7})],
)  # fmt: skip
def test_what_is_no_notice_is_passed_over_and_does_not_come_again(body: str) -> None:
    told = reading_of_event(body, "h", 5.0)
    assert told.notice is None
    assert told.wrong
    assert told.handle == "h"


class Queue:
    """SQS by moto, and a count of what was asked of it."""

    def __init__(self) -> None:
        self.client: Any = boto3.client(
            "sqs", "us-east-1", aws_access_key_id="emulated", aws_secret_access_key="emulated"
        )
        self.url = self.client.create_queue(QueueName="notices")["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.client.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    # The tests' environment sends every call to a dead endpoint; moto answers before any is made.
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    with mock_aws():
        made = Queue()
        yield made
        made.client.close()


def test_messages_are_deleted_once_they_are_known_here(world: CkptWorld, queue: Queue) -> None:
    node = world.runs(7).nodes[0]
    machine = world.machine(node)
    when = datetime.fromtimestamp(world.now, UTC).isoformat()
    queue.send(*(event(f"i-{n}") for n in range(23)), event(machine, time=when), "rubbish")
    source = poller(world, SqsQueue(queue.url, lambda: queue.client))
    assert source.poll()
    assert queue.left() == 0
    assert len(world.state.notices()) == 24
    world.until(lambda: world.job(7).restarts == 1)


def test_a_crash_before_the_acknowledgement_has_them_come_again(
    world: CkptWorld, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.patch(monkeypatch)
    queue.send(event("i-1"))
    source = SqsQueue(queue.url, lambda: queue.client)
    world.die_at = "notice.after-record"
    with pytest.raises(Killed):
        poller(world, source).poll()
    assert queue.left() == 1
    queue.client.set_queue_attributes(QueueUrl=queue.url, Attributes={"VisibilityTimeout": "0"})
    queue.send(event("i-1"))
    assert poller(world, source).poll()
    assert len(world.state.notices()) == 1


def test_a_queue_that_is_down_is_said_and_stops_nothing(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]

    def no_client() -> Any:
        raise ConnectionError("no route to the queue")

    source = poller(world, SqsQueue("http://127.0.0.1:1/q", no_client))
    assert not source.poll()
    (trouble,) = [h for h in world.ledger.health.all() if h.name == "notices in SQS"]
    assert trouble.error is not None
    assert "no route" in trouble.error
    world.interrupt(node)
    world.until(lambda: world.job(7).restarts == 1)


def test_a_queue_is_opened_anew_after_an_error(world: CkptWorld) -> None:
    """A client keeps the credentials that it started with, and they may have been renewed."""
    opened: list[int] = []

    class Client:
        def receive_message(self, **_: object) -> dict[str, list[dict[str, str]]]:
            if len(opened) == 1:
                raise PermissionError("ExpiredToken")
            return {}

    def open_client() -> Any:
        opened.append(1)
        return Client()

    source = poller(world, SqsQueue("https://q", open_client))
    assert [source.poll(), source.poll(), source.poll()] == [False, True, True]
    assert len(opened) == 2


def test_a_throttled_cloud_is_said_and_asked_again(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.clouds["pub"].fail_next(TransientError, 3, "notices")
    world.interrupt(node)
    world.until(lambda: world.job(7).restarts == 1)


def test_a_drop_directory_takes_whole_files_of_its_owner(tmp_path: Path) -> None:
    source = DropDirectory(tmp_path / "drops", create=True)
    place = tmp_path / "drops"
    drop(place, NoticeOrder(node="pub1", deadline=9.0, reason="fan"), 1.0)
    drop(place, SaveOrder(job=7), 2.0)
    (place / "half.json").write_text('{"kind": "not')
    (place / "link.json").symlink_to(place / "half.json")
    (place / "pipe.json.tmp").write_text("")
    now = time.time()
    told = {os.path.basename(t.handle): t for t in source.read(now)}
    assert "half.json" not in told, "somebody may be writing it yet"
    assert told["link.json"].wrong
    orders = [t for t in told.values() if t.order]
    assert {type(t.order) for t in orders} == {NoticeOrder, SaveOrder}
    notice = next(t.notice for t in orders if t.notice)
    assert (notice.node, notice.deadline, notice.reason) == ("pub1", 9.0, "fan")
    later = {os.path.basename(t.handle): t for t in source.read(now + 60)}
    assert later["half.json"].wrong
    source.done([t.handle for t in source.read(now + 60)])
    assert source.read(now + 60) == []


def test_a_file_that_replaces_another_before_its_removal_is_read(tmp_path: Path) -> None:
    """An agent's warning gets worse while the first one is written to our disk."""
    source = DropDirectory(tmp_path)
    path = drop(tmp_path, NoticeOrder(node="pub1", rebalance=True), 1.0)
    (first,) = source.read(time.time())
    draft = tmp_path / "draft"
    draft.write_bytes(msgspec.json.encode(NoticeOrder(node="pub1", deadline=9.0)))
    draft.rename(path)
    source.done([first.handle])
    (second,) = source.read(time.time())
    assert second.notice is not None
    assert second.notice.deadline == 9.0
    source.done([second.handle])
    assert not list(tmp_path.iterdir())


def test_a_file_of_somebody_else_counts_for_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's file can only be made by root")
    source = DropDirectory(tmp_path)
    path = drop(tmp_path, NoticeOrder(node="pub1"), 1.0)
    os.chown(path, 65534, 65534)
    (told,) = source.read(time.time())
    assert told.wrong
    assert told.notice is None


def test_a_notice_that_cannot_be_read_now_stays_and_is_reported(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file of mode 0600 that root's agent wrote, or on a file server that restarts."""
    path = world.dir / "shared"
    path.mkdir()
    source = poller(world, DropDirectory(path, "agents"))
    closed = drop(path, NoticeOrder(node="pub1", deadline=world.now + 99), 1.0)
    drop(path, NoticeOrder(node="pub2", deadline=world.now + 99), 2.0)
    real_open = os.open

    def refused(name: Any, *args: Any, **options: Any) -> int:
        if name == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return real_open(name, *args, **options)

    def trouble() -> str | None:
        return next(h.error for h in world.ledger.health.all() if h.name == "agents")

    with monkeypatch.context() as patch:
        patch.setattr("slurm_elastic.ckptman.sources.os.open", refused)
        assert source.poll(), "a pause would delay the other files"
    assert list(path.iterdir()) == [closed]
    assert [w.notice.node for w in world.state.notices()] == ["pub2"]
    assert trouble() == f"{closed}: Permission denied: SlurmUser must be able to read it"
    assert source.poll()
    assert {w.notice.node for w in world.state.notices()} == {"pub1", "pub2"}
    assert trouble() is None


def test_a_directory_of_notices_that_is_missing_is_reported(world: CkptWorld) -> None:
    """A typing error, or a file system that is not mounted."""
    path = world.dir / "not-mounted"
    source = poller(world, DropDirectory(path, "agents"))
    assert not source.poll()
    (trouble,) = [h for h in world.ledger.health.all() if h.name == "agents"]
    assert str(path) in (trouble.error or "")
    path.mkdir()
    assert source.poll()
    (trouble,) = [h for h in world.ledger.health.all() if h.name == "agents"]
    assert trouble.error is None


def test_the_operators_directory_is_made_again(tmp_path: Path) -> None:
    source = DropDirectory(tmp_path / "drops", create=True)
    (tmp_path / "drops").rmdir()
    assert source.read(time.time()) == []
    assert (tmp_path / "drops").is_dir()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_directory_among_the_notices_keeps_none_back(tmp_path: Path) -> None:
    source = DropDirectory(tmp_path)
    (tmp_path / "0.json").mkdir()
    os.mkfifo(tmp_path / "00.json")
    drop(tmp_path, NoticeOrder(node="pub1"), 1.0)
    before = _open_files()
    for _ in range(20):
        odd, pipe, told = source.read(time.time())
    assert _open_files() == before
    assert odd.wrong == f"{tmp_path}/0.json is no file of root or SlurmUser"
    assert pipe.wrong
    assert told.notice is not None
    source.done([odd.handle, pipe.handle, told.handle])
    assert source.read(time.time()) == [], "a directory stays, and is not told again"
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_a_notice_that_cannot_be_removed_is_read_once_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a directory that SlurmUser may read, and not write."""

    def refused(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    source = DropDirectory(tmp_path)
    path = drop(tmp_path, SaveOrder(job=7), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("slurm_elastic.ckptman.sources.os.unlink", refused)
        for _ in range(3):
            source.done([told.handle for told in source.read(time.time())])
    said = f"a file was read but cannot be removed path={path}: Permission denied"
    assert [record.getMessage() for record in caplog.records] == [said]
    path.write_bytes(msgspec.json.encode(SaveOrder(job=8)))
    (told,) = source.read(time.time())
    assert told.order == SaveOrder(job=8), "one that was changed is news"


def test_a_poller_goes_on_where_notices_cannot_be_removed(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    path = world.dir / "shared"
    path.mkdir()
    one = poller(world, DropDirectory(path))
    drop(path, NoticeOrder(node="pub1", deadline=world.now + 99), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("slurm_elastic.ckptman.sources.os.unlink", refused)
        assert one.poll()
        assert one.poll()
    assert [w.notice.node for w in world.state.notices()] == ["pub1"]


@pytest.mark.parametrize("trouble", [errno.EMFILE, errno.ENFILE])
def test_a_notice_is_not_removed_as_we_have_no_descriptor_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: int
) -> None:
    def none_left(*_: object) -> int:
        raise OSError(trouble, os.strerror(trouble))

    source = DropDirectory(tmp_path)
    drop(tmp_path, NoticeOrder(node="pub1"), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("slurm_elastic.ckptman.sources.os.open", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            source.read(time.time())
    assert len(source.read(time.time())) == 1
