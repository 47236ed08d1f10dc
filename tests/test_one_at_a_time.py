"""No two threads do these at once: the one that comes later waits (see ``meanwhile.py``)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_cases import instance, offer, spec
from meanwhile import Meanwhile, Watched
from patience import patience

from slurm_elastic.checkpointers import ssh
from slurm_elastic.config import Cluster
from slurm_elastic.config.sections.checkpoint import BlcrSettings
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.providers.aws import rate_limit
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.hosts.host_rows import Tagged
from slurm_elastic.providers.docker.provider import DockerProvider
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Decision, Health, Ledger

GENERATION = spec().generation


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    made: Any = Ledger(tmp_path / "ledger.db")
    made.store.lock = Watched(threading.RLock)
    made.launches.record_intent(spec(), "r1", 5.0)
    yield made
    made.close()


@pytest.mark.parametrize("reading", ["select", "tables"])
def test_a_pass_goes_by_a_ledger_of_one_moment(
    ledger: Any, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    cold = Exclusion(
        kind=COOL_DOWN, scope="c/t/z/spot", cause=Quoted(text="none"), since=5.0, until=9.0
    )
    other = Meanwhile(ledger.store.lock, lambda: ledger.exclusions.add(cold))
    monkeypatch.setattr(ledger.store, reading, other.before(getattr(ledger.store, reading)))
    state = ledger.state()
    other.end()
    assert (state.exclusions, ledger.exclusions.all()) == ((), (cold,))


@pytest.mark.parametrize("tables", list(itertools.permutations(["launches", "machines"])))
@pytest.mark.parametrize("is_other_process", [False, True])
def test_a_launch_that_is_answered_meanwhile_is_open_or_has_its_machine(
    ledger: Any, tmp_path: Path, tables: Sequence[str], is_other_process: bool
) -> None:
    """In whatever order the tables are read, and whether the other one is a thread or a process."""
    ledger.refresh()
    lock = ledger.store.lock
    daemon = Ledger(tmp_path / "ledger.db") if is_other_process else ledger

    def answer() -> None:
        daemon.machines.record_launch(GENERATION, [instance()], 6.0)

    other, select = Meanwhile(lock, answer), ledger.store.select
    sql, _ = ledger.store._read[tables[1]]

    def second(statement: str, *values: object) -> Any:
        if statement == sql:
            other()
        return select(statement, *values)

    ledger.store.select = second
    rows = dict(zip(tables, ledger.store.tables(*tables), strict=True))
    other.end()
    assert (len(rows["launches"]), len(rows["machines"])) == (1, 0)
    ledger.refresh()
    state = ledger.state()
    assert (len(state.launches), len(state.machines)) == (0, 1)
    if is_other_process:
        daemon.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_reads_that_belong_together_are_of_one_moment(
    ledger: Any, tmp_path: Path, read_only: bool
) -> None:
    reader = Ledger(tmp_path / "ledger.db", read_only=read_only)
    with reader.moment():
        assert reader.machines.live() == ()
        ledger.machines.record_launch(GENERATION, [instance()], 6.0)
        assert len(reader.launches.open()) == 1
    assert (len(reader.machines.live()), reader.launches.open()) == (1, ())
    reader.close()


def test_reads_of_one_moment_refuse_a_write_that_would_be_lost(ledger: Any) -> None:
    writes: tuple[Callable[[], object], ...] = (
        lambda: ledger.machines.record_launch(GENERATION, [instance()], 6.0),
        lambda: ledger.health.beat("somebody", 1.0, 1),
        lambda: ledger.decisions.record(
            Decision(at=1.0, correlation="c", kind="k", subjects=(), cause=Quoted(text="r"))
        ),
    )
    for write in writes:
        with (
            pytest.raises(RuntimeError, match="a write is not possible inside reads"),
            ledger.moment(),
        ):
            write()
    ledger.machines.record_launch(GENERATION, [instance()], 6.0)
    assert len(ledger.machines.live()) == 1


def test_what_two_report_at_once_is_all_remembered(
    ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.refresh()
    mine, others = Health(name="a", checked=1.0), Health(name="b", checked=1.0)
    other = Meanwhile(ledger.store.lock, lambda: ledger.health.report(others))
    monkeypatch.setattr(ledger.store, "passing", other.before(ledger.store.passing))
    ledger.health.report(mine)
    other.end()
    assert ledger.health.all() == (mine, others)


class Read(frozenset[str]):
    """``add`` is called while one is added."""

    add: Callable[[], None]

    def __or__(self, more: Any) -> Any:
        self.add()
        return frozenset(self).union(more)


def test_two_clouds_that_were_read_at_once_are_both_known(ledger: Any) -> None:
    other = Meanwhile(ledger.store.lock, lambda: ledger.machines.record_whole_list("b", 5.0))
    ledger.machines._clouds_read = Read()
    Read.add = other
    ledger.machines.record_whole_list("a", 5.0)
    other.end()
    assert ledger.machines.clouds_read() == {"a", "b"}


def test_of_two_whose_writes_fail_at_once_both_go_on_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = CheckpointState.enduring(tmp_path / "checkpoints.db")
    state.lock = Watched(threading.RLock)
    state._db.execute(
        "create temp trigger t before insert on counters begin select raise(abort, 'no room'); end"
    )
    other = Meanwhile(state.lock, lambda: state.count({"others": 1.0}))
    monkeypatch.setattr(state, "give_up", other.before(state.give_up))
    state.count({"mine": 1.0})
    other.end()
    assert state.counters() == {"mine": 1.0, "others": 1.0}
    state.close()


class Alone:
    """A call that one thread makes at a time: the second one comes while the first is in it."""

    def __init__(self, lock: Watched, again: Callable[[], object]) -> None:
        self.second = Meanwhile(lock, again)
        self._inside = False

    def __call__(self, *_: object) -> None:
        assert not self._inside, "both at once"
        self._inside = True
        if not self.second.begun:
            self.second()
        self._inside = False


def test_a_host_is_told_one_command_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shells: Any = ssh.Shells(BlcrSettings())
    lock = shells._hosts["h"] = Watched()

    def run() -> None:
        shells.run("h", ["true"], deadline=time.time() + patience(60))

    alone = Alone(lock, run)
    nothing: Any = SimpleNamespace(renew=lambda _: None, rest=lambda _: None, close=lambda: None)
    monkeypatch.setattr(shells, "_client", lambda *_: (7, True))
    monkeypatch.setattr(shells, "_links", {7: nothing})
    monkeypatch.setattr(ssh, "_channel", lambda *_: nothing)
    monkeypatch.setattr(ssh, "_execute", alone)
    run()
    alone.second.end()


def test_a_hosts_room_is_counted_for_one_launch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = DockerType(cpus=2, memory=1024, price=0.02)
    cloud = DockerCloud(
        name="aws", location=Location.ON_PREMISES, image="node", network="n", types={"small": kind},
        hosts={"h": DockerHost(url="unix:///nowhere")}, api_timeout=patience(60),
    )  # fmt: skip
    boxes: Any = DockerProvider(cloud, Cluster(name="c", uuid="u"))
    lock = boxes._launching["h"] = Watched()
    one = spec(bought=offer(type_="small", zone="h"))
    alone = Alone(lock, lambda: boxes.launch(one))
    monkeypatch.setattr(boxes, "_launch", alone)
    boxes.launch(one)
    alone.second.end()


class Slow(dict[str, object]):
    """A mapping in which another thread comes between the look and the read."""

    look: Callable[[], None]

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.look()
        return found


def test_a_machine_that_is_tidied_away_while_it_is_ended_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud = DockerCloud(
        name="aws", location=Location.ON_PREMISES, image="node", network="n", types={},
        hosts={"h": DockerHost(url="unix:///nowhere")}, api_timeout=patience(60),
    )  # fmt: skip
    boxes: Any = DockerProvider(cloud, Cluster(name="c", uuid="u"))
    box = Tagged(machine=instance(), name="b", host="h", unstarted=False, tags={})
    known, rows = boxes._known_rows, Slow({box.short: box})
    known._lock, known._rows_by_host = Watched(), {"h": rows}
    ended: list[object] = []
    monkeypatch.setattr(boxes, "_end", ended.append)
    monkeypatch.setattr(boxes, "_search_hosts", lambda _: ())
    other = Meanwhile(known._lock, lambda: known.note("h", []))
    rows.look = other
    boxes.terminate([box.short])
    other.end()
    assert ended == [box]
    assert known.of([box.short]) == {}


def test_the_clouds_of_an_account_share_one_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Watched()
    found: list[object] = []
    cloud = AwsCloud(name="a", location=Location.PUBLIC, region="r", image="ami-1", types={})
    other = Meanwhile(lock, lambda: found.append(rate_limit.pace_of(cloud)))
    shared: Any = rate_limit.SharedPaces()
    shared._lock = lock
    monkeypatch.setattr(rate_limit, "_shared", shared)
    monkeypatch.setattr(rate_limit, "RateLimits", other.before(rate_limit.RateLimits))
    found.append(rate_limit.pace_of(cloud))
    other.end()
    assert found[0] is found[1]
