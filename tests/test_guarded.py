"""No method forgets the lock of what threads share: see guarded.py."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from guarded import (
    classes_of,
    declarations,
    declared,
    declared_or_derived,
    locks_of_modules,
    own_declarations,
    product_classes,
    product_texts,
    undeclared,
    unguarded,
)
from ledger_cases import spec
from patience import patience

from slurm_elastic.base.errors import SlurmError, UnsettledError
from slurm_elastic.base.guards import Guarded
from slurm_elastic.checkpointers.ssh import Shells
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.ckptman.site import JobList
from slurm_elastic.config.sections.checkpoint import BlcrSettings
from slurm_elastic.controller.requeues import REQUEUE_TIMEOUT_S, ExpectedRequeues
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.features.money.usage_counters import CALLS, CallTimes
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.checkpoints import SavedByMove
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.providers.base.hosts.hosts import Hosts
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.tags import CLUSTER
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep, RecordedNotice
from slurm_elastic.state.ckptstate.orders import SaveOrder
from slurm_elastic.state.ledger import Health, Ledger

NOTICE = RecordedNotice(
    key="k1", source="cloud", offer="spot",
    notice=Notice(instance="i-1", kind=NoticeKind.INTERRUPTION, seen=1.0),
)  # fmt: skip
MOVE = Migration(
    run=JobRun(
        job=7, label="7", attempt=0, user="u", uid=1, gid=1, nodes=("n1",), partition="p",
        started=1.0,
    ),
    method="fake", threatened=("n1",), reason=Quoted(text="r"), step=MigrationStep.PLANNED, began=1.0, changed=1.0,
    stopped=True,
)  # fmt: skip
PENDING = SlurmJob(id=7, states=frozenset({"PENDING"}), restarts=1, start=126.0)


pytestmark = pytest.mark.usefixtures("guarded")


@pytest.mark.parametrize("kind", [Ledger, Ledger.enduring])
def test_the_ledger(tmp_path: Path, kind: Any) -> None:
    ledger = kind(tmp_path / "ledger.db")
    ledger.refresh()
    ledger.machines.record_whole_list("c", 4.0)
    ledger.launches.record_intent(spec(), "r1", 5.0)
    with ledger.together():
        ledger.launches.record_intent(spec(), "r1", 5.0)
    assert len(ledger.state().launches) == 1
    ledger.launches.record_failure(spec().generation, "no", 6.0)
    ledger.health.beat("somebody", 1.0, 1)
    ledger.check()
    ledger.give_up(OSError("broken"))
    ledger.compact(7.0)
    assert ledger.decisions.about("n1") == ()
    ledger.health.report(Health(name="slurm", checked=1.0))
    ledger.close()


def test_clouds_that_are_read_whole_are_noted_in_turn(tmp_path: Path) -> None:
    """Two clouds' workers do that at the same time."""

    class Read(frozenset[str]):
        def __or__(self, others: Any) -> frozenset[str]:
            assert ledger.store.lock._is_owned()
            return super().__or__(others)

    ledger: Any = Ledger(tmp_path / "ledger.db")
    ledger.machines._clouds_read = Read()
    ledger.machines.record_whole_list("c", 4.0)
    assert ledger.machines.clouds_read() == {"c"}
    ledger.close()


def test_machines_that_may_be_of_several_clouds() -> None:
    owners = Ownership(cluster="u", clouds=frozenset({"a", "b"}))
    ours = Ours("a", owners)
    assert ours.among(["i-1"], lambda _: {CLUSTER: "u"}, str) == []
    assert ours.unclear == {"i-1"}


def test_what_is_written_together(tmp_path: Path) -> None:
    state = CheckpointState(tmp_path / "checkpoints.db")
    state.count({"a": 1.0, "b": 2.0})
    state.refresh()
    state.close()


def test_the_ledger_of_the_other_service(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    followed = Ledger.followed(tmp_path / "ledger.db")
    assert followed.machines.live() == ()
    followed.requeues.lift(8, 0, 1.0)
    assert followed.requeues.lifted()
    followed.usage.settle(5.0, {})
    assert followed.usage.settled() == 5.0
    followed.close()
    ledger.close()


@pytest.mark.parametrize("kind", [CheckpointState, CheckpointState.enduring])
def test_the_state_of_checkpoints(tmp_path: Path, kind: Any) -> None:
    state = kind(tmp_path / "checkpoints.db")
    state.refresh()
    (warned,) = state.add_notices(NOTICE, now=1.0)
    assert state.notices() == (warned,)
    state.close_notice(warned, 2.0, release="n1")
    assert state.releases() == ("n1",)
    state.put(MOVE)
    assert state.migrations() == (MOVE,)
    assert state.open_migration(7, 0) == MOVE
    assert state.was_stopped(7, 0)
    assert state.renewals(7, 1) == 0
    assert state.images() == ()
    assert state.unsavable() == {}
    assert state.suspensions() == {}
    state.close()


def test_a_state_that_goes_on_in_memory(tmp_path: Path) -> None:
    state = CheckpointState.enduring(tmp_path / "checkpoints.db")
    state.check()
    state._home._found.db.close()
    assert state.counters() == {}
    assert state.disk_trouble[0]
    state.close()


def test_connections_to_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    shells = Shells(BlcrSettings())
    connection = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(shells, "_connect", lambda *_: connection)
    with shells._turn("h", time.time() + 60):
        assert shells._client("h", 0.0) == (connection, False)
        assert shells._client("h", 0.0) == (connection, True)
    shells.close()


class Doors(Hosts[str]):
    def _opened(self, host: str) -> str:
        return host

    def _close(self, connection: str) -> None:
        """It was none."""


def test_connections_of_a_cloud() -> None:
    doors = Doors("c", ("h",), 60.0)
    assert doors.connection("h") == "h"
    assert doors.connection("h") == "h"
    doors.forget("h")


def test_times_of_calls() -> None:
    times, cloud = CallTimes(), SimpleNamespace(check=lambda: None)
    for name in CALLS:
        setattr(cloud, name, cloud.check)
    provider: Any = cloud
    times.watch("c", provider)
    getattr(provider, min(CALLS))()
    assert times.take()


def test_a_reading_of_all_clouds() -> None:
    slurm = SimpleNamespace(nodes=lambda: {"n1": "node"})
    site: Any = SimpleNamespace(slurm=slurm, monotonic=lambda: 5.0)
    assert TickReading(site).nodes()


def test_requeues(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.requeues.lift(8, 0, 1.0)
    requeues, slurm = ExpectedRequeues(), FakeSlurm(jobs=[PENDING])
    requeues.expect(PENDING, 0.0, ["n1"])
    requeues.recall(ledger, 5.0, 0.0)
    requeues.expect_lifted(8, 0, 0.0)
    requeues.recall_left(ledger, 2 * REQUEUE_TIMEOUT_S, 0.0)
    requeues.tick(slurm, ledger, 5.0, 1.0)
    slurm.fail_next.append(SlurmError(("x",), 1, "no"))
    requeues.expect(PENDING, 0.0, ["n1"])
    with pytest.raises(SlurmError):
        requeues.tick(slurm, ledger, 5.0, 1.0)
    requeues.tick(slurm, ledger, 5.0, 2 * REQUEUE_TIMEOUT_S)
    ledger.close()


def test_a_postponed_requeue(tmp_path: Path) -> None:
    class Refusing(FakeSlurm):
        def start_now(self, job: int) -> None:
            raise SlurmError(("scontrol",), 1, "no")

    ledger = Ledger(tmp_path / "ledger.db")
    requeues = ExpectedRequeues()
    before = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",))
    requeues.expect(before, 0.0, ["n1"])
    asked = 0
    for clock in range(1, 300):
        try:
            requeues.tick(Refusing(jobs=[PENDING]), ledger, 5.0, float(clock))
        except SlurmError:
            asked += 1
    assert asked
    ledger.close()


def test_unconfirmed_orders() -> None:
    orders = UnconfirmedOrders("c", 60.0, lambda: 5.0)
    one = spec()
    with orders.order(one.generation, one.nodes, lambda _: False):
        pass
    with pytest.raises(UnsettledError):
        orders.require(one, one.nodes)
    orders.listed(one.generation, one.nodes)
    orders.require(one, one.nodes)


def test_orders_of_people() -> None:
    orders = Orders(lambda: None)
    asked = ReceivedOrder("h", SaveOrder(job=1))
    assert not orders.receive(asked)
    assert orders.waiting() == [asked]
    orders.mark_begun(asked)
    orders.mark_done(asked)
    assert orders.receive(asked)
    orders.forget([asked])


def test_work_of_a_job() -> None:
    crew = KeyedExecutor(0)
    assert crew.submit(1, (0.0, 0.0), lambda: None)
    assert not crew.is_busy(1)
    crew.close()


def test_work_in_a_thread() -> None:
    crew, done = KeyedExecutor(1), threading.Event()
    assert crew.submit(1, (0.0, 0.0), done.set)
    assert done.wait(patience(60))
    crew.close()


def test_decisions_that_wait_for_the_ledger(tmp_path: Path) -> None:
    ledger, state = Ledger(tmp_path / "ledger.db"), CheckpointState(tmp_path / "checkpoints.db")
    recorder = BufferedRecorder(ledger, state, lambda: 5.0)
    recorder.record("c", "saved", ["job:7"], SavedByMove())
    ledger.close()
    recorder.flush()
    assert state.counters() == {'ckpt_decisions_total{kind="saved"}': 1.0}
    state.close()
    again = Ledger(tmp_path / "ledger.db")
    recorder._ledger = again
    recorder.flush()
    assert [one.cause for one in again.decisions.about("job:7")] == [SavedByMove()]
    again.close()


def test_the_list_of_jobs() -> None:
    jobs = JobList(FakeSlurm(jobs=[PENDING]), fresh=-1.0)
    assert jobs.find(7) is not None
    assert jobs.read_new(7) is not None


def test_each_class_says_what_its_locks_guard() -> None:
    missing = [where for one in product_classes() for where in undeclared(one)]
    assert not missing, "a class that makes a lock says in guarded_by what that guards"
    strays = [w for name, text in product_texts().items() for w in locks_of_modules(name, text)]
    assert not strays, "a lock belongs to a class, which can say what it guards"
    assert len(declared()) > 40


def test_each_method_takes_the_lock_of_what_it_touches() -> None:
    classes = product_classes()
    derived = declared_or_derived()
    assert not [w for one in derived for w in unguarded(one, declarations(one), classes)]


def test_each_declaration_names_attributes_that_are_there() -> None:
    for one in declared():
        names = {n.attr for n in ast.walk(one.tree) if isinstance(n, ast.Attribute)}
        methods = one.methods.keys()
        for lock, guard in own_declarations(one):
            where = f"{one.module}.{one.tree.name}"
            assert {*lock.split("."), *guard.attributes} <= names, where
            assert guard.unguarded_readers | guard.callers_hold_lock <= methods, where


LOCKED = """
import threading
from slurm_elastic.base.guards import Guarded

class Shared:
    guarded_by = {"_lock": Guarded("_rows", unguarded_readers=["last"])}

    def __init__(self):
        self._lock = threading.Lock()
        self._rows = {}

    def last(self):
        return self._rows

    def good(self):
        with self._lock:
            self._change()

    def _change(self):
        self._rows = {}

class More(Shared):
"""


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("def get(self):\n        return self._rows", "get, line 24"),
        ("def put(self):\n        self._rows = 1", "put, line 24"),
        ("def again(self):\n        self._change()", "_change, line 20"),
        ("def later(self):\n        return self._change", "_change, line 20"),
        ("def later(self):\n        with self._lock:\n            return lambda: self._rows",
         "later, line 25"),
        ("def after(self):\n        with self._lock:\n            pass\n        self._rows = 1",
         "after, line 26"),
    ],
)  # fmt: skip
def test_a_method_without_the_lock_is_found(method: str, where: str) -> None:
    guarded_by = [("_lock", Guarded("_rows", unguarded_readers=["last"]))]
    classes = classes_of("m", f"{LOCKED}    {method}\n")
    found = [w for one in classes for w in unguarded(one, guarded_by, classes)]
    assert found == [f"m.More.{where}: _rows without _lock"]


@pytest.mark.parametrize(
    "method",
    [
        "def get(self):\n        with self._lock:\n            return [r for r in self._rows]",
        "def both(self, other):\n        with other, self._lock:\n            self._change()",
        "def __init__(self):\n        self._rows = 1",
    ],
)
def test_a_method_with_the_lock_is_fine(method: str) -> None:
    guarded_by = [("_lock", Guarded("_rows", unguarded_readers=["last"]))]
    classes = classes_of("m", f"{LOCKED}    {method}\n")
    assert not [w for one in classes for w in unguarded(one, guarded_by, classes)]


@pytest.mark.parametrize(
    "made",
    [
        "self._lock = threading.Lock()",
        "self._lock = RLock()",
        "self._wake = threading.Condition(lock)",
        "self._hosts = {h: threading.Lock() for h in hosts}",
        "turn = self._hosts.setdefault(host, threading.Lock())",
        "fcntl.flock(self._file, fcntl.LOCK_EX)",
    ],
)
def test_a_lock_without_a_declaration_is_found(made: str) -> None:
    text = "import fcntl, threading\nfrom threading import RLock\nclass A:\n"
    (one,) = classes_of("m", f"{text}    def make(self):\n        {made}\n")
    assert list(undeclared(one)) == ["m.A, line 5"]
    name = next(word for word in ("_lock", "_wake", "_hosts", "_file") if word in made)
    declaration = f"    guarded_by = {{{name!r}: 'the work'}}\n"
    (one,) = classes_of("m", f"{text}{declaration}    def make(self):\n        {made}\n")
    assert not list(undeclared(one))


def test_a_lock_that_is_a_field_or_a_modules_is_found() -> None:
    text = "from dataclasses import field\nimport threading\n"
    field = "    lock: threading.Lock = field(default_factory=threading.Lock)\n"
    (one,) = classes_of("m", f"{text}class A:\n{field}")
    assert list(undeclared(one)) == ["m.A, line 4"]
    assert list(locks_of_modules("m", f"{text}lock = threading.Lock()\n")) == ["m, line 3"]
    assert not list(locks_of_modules("m", f"{text}class A:\n{field}"))
