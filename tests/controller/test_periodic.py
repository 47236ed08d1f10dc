"""Tasks that are done again and again: when the next look is due, and what a failure does."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.launching import boot_timeouts
from slurm_elastic.controller.periodic import SiteTask, run_guarded, start_due_tasks
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.state.ledger import LedgerState
from slurm_elastic.watch.causes import service_errors
from tests.controller.world import Inline, World

BROKEN = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")


class Bed:
    """Looks on a clock that only the test moves."""

    def __init__(self, world: World) -> None:
        self.clock = 1000.0
        self.site = replace(world.site, monotonic=lambda: self.clock)
        self.looks: list[float] = []
        self.takes = 0.0
        self.wrong: Exception | None = None

    def task(self, **settings: Any) -> SiteTask:
        return SiteTask(self.site, Inline(), self.look, "looking", **settings)  # type: ignore[arg-type]

    def look(self) -> None:
        self.looks.append(self.clock)
        self.clock += self.takes
        if self.wrong is not None:
            raise self.wrong

    def until(self, end: float, *tasks: SiteTask) -> list[float]:
        """The looks that are begun by then, ticking each second."""
        while self.clock < end:
            start_due_tasks(tasks, self.site.ledger.state)
            self.clock += 1.0
        return self.looks


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def bed(world: World) -> Bed:
    return Bed(world)


def test_the_first_look_is_due_at_once_and_the_next_a_period_later(bed: Bed) -> None:
    assert bed.until(1025.0, bed.task(period=10.0)) == [1000.0, 1010.0, 1020.0]


def test_a_look_that_takes_long_is_done_less_often(bed: Bed) -> None:
    bed.takes = 2.0
    assert bed.until(1065.0, bed.task(period=10.0, pace=20.0)) == [1000.0, 1042.0]


def test_after_a_failure_the_next_look_may_be_due_sooner(bed: Bed) -> None:
    bed.wrong = BROKEN
    task = bed.task(period=10.0, again=3.0)
    bed.until(1004.0, task)
    bed.wrong = None
    assert bed.until(1020.0, task) == [1000.0, 1003.0, 1006.0, 1016.0]


def test_without_such_a_word_it_is_due_as_ever(bed: Bed) -> None:
    bed.wrong = BROKEN
    assert bed.until(1015.0, bed.task(period=10.0)) == [1000.0, 1010.0]


def test_one_that_is_at_an_end_looks_no_more(bed: Bed) -> None:
    task = bed.task(period=10.0)
    task.end()
    assert bed.until(1030.0, task) == []


def test_one_that_ends_while_it_looks_does_so_for_the_last_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = bed.task(period=10.0)
    look: Callable[[], None] = bed.look
    monkeypatch.setattr(task, "_look", lambda: (look(), task.end()))
    assert bed.until(1030.0, task) == [1000.0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (BROKEN, "slurm cannot be read or changed: "),
        (sqlite3.OperationalError("database is locked"), "looking: the ledger cannot be used: "),
        (
            OSError(errno.ESTALE, "Stale file handle"),
            "looking: the state directory cannot be used: ",
        ),
        (
            RuntimeError("nobody thought of that"),
            "looking: a round failed; the next one starts over",
        ),
    ],
    ids=["slurm", "ledger", "disk", "unknown"],
)
def test_a_failure_is_told_and_ends_neither_the_task_nor_its_neighbours(
    bed: Bed, caplog: pytest.LogCaptureFixture, wrong: Exception, told: str
) -> None:
    bed.wrong = wrong
    other: list[float] = []
    beside = SiteTask(
        bed.site,
        Inline(),
        lambda: other.append(bed.clock),
        "beside",
        period=10.0,  # type: ignore[arg-type]
    )
    bed.until(1015.0, bed.task(period=10.0), beside)
    assert bed.looks == other == [1000.0, 1010.0]
    assert told in caplog.text
    assert str(wrong) in caplog.text


def test_a_slurm_that_fails_is_in_the_status(bed: Bed, world: World) -> None:
    bed.wrong = BROKEN
    bed.until(1001.0, bed.task(period=10.0))
    (health,) = [one for one in world.ledger.health.all() if one.name == "slurm"]
    assert (health.code, health.checked) == ("slurm", world.now)
    assert "Unable to contact" in (health.error or "")


def test_status_shows_a_task_that_fails_at_each_look(bed: Bed, world: World) -> None:
    """An error that no code foresaw. The task may be the one that ends machines."""
    bed.wrong = KeyError("pub2")
    task = bed.task(period=10.0)
    bed.until(1001.0, task)
    (row,) = [one for one in world.ledger.health.all() if one.name.startswith("task ")]
    assert "KeyError('pub2')" in (row.error or "")
    shown = service_errors(world.ledger.health.all(), (), set())
    assert [one.name for one in shown] == ["task looking"]
    bed.wrong = None
    bed.until(1020.0, task)
    assert not [h for h in world.ledger.health.all() if h.name.startswith("task ") and h.error]


def _faults(world: World) -> list[str]:
    return [h.name for h in world.ledger.health.all() if h.name.startswith("task ") and h.error]


def _fail(*_args: Any, **_settings: Any) -> None:
    raise KeyError("a bug")


def test_a_good_repair_of_one_cloud_does_not_hide_the_fault_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.daemon is not None
    with monkeypatch.context() as patched:
        patched.setattr(world.daemon.rounds["onp"], "run", _fail)
        world.advance(60)
        assert _faults(world) == ["task repair of onp"]
    world.advance(60)
    assert _faults(world) == []


def test_a_fault_of_a_task_that_no_longer_exists_ends_at_the_next_start(world: World) -> None:
    run_guarded(world.site, _fail, "a removed feature")
    assert _faults(world) == ["task a removed feature"]
    world.restart()
    assert _faults(world) == []


def test_a_fault_at_the_end_of_late_machines_stands_until_a_good_repair(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.daemon is not None
    world.unheard = {"op1"}
    world.slurm.submit(1, ("op1",))
    shown = list[str]()
    monkeypatch.setattr(boot_timeouts, "terminate", _fail)
    for _ in range(140):
        world.advance(5)
        shown += _faults(world)
    assert set(shown) == {"task repair of onp"}
    assert _faults(world) == []


def test_a_task_that_is_idle_by_the_ledger_is_looked_at_once_it_is_not(bed: Bed) -> None:
    task = bed.task(period=10.0, idle=lambda state: not state.directives)
    assert bed.until(1015.0, task) == []
    word = Directive(word=Pause(scope=""), who="root", since=bed.clock, starts=bed.clock)
    bed.site.ledger.directives.give(word)
    assert bed.until(1036.0, task) == [1020.0, 1030.0], "looks are a period apart"


def test_an_event_hurries_a_task_that_has_never_looked(bed: Bed) -> None:
    """Nothing was slow yet, so there is nothing to rest from."""
    is_idle, events = [True], list[float]()
    task = bed.task(
        period=10.0, pace=20.0, idle=lambda _: is_idle[0], hurried=lambda clock: clock in events
    )
    bed.until(1003.0, task)
    is_idle[0] = False
    events.append(1005.0)
    assert bed.until(1008.0, task) == [1005.0]


def test_the_ledger_is_read_once_and_only_where_a_task_is_due(bed: Bed) -> None:
    reads: list[float] = []

    def read() -> LedgerState:
        reads.append(bed.clock)
        return bed.site.ledger.state()

    tasks = [bed.task(period=10.0, idle=lambda _: False), bed.task(period=10.0)]
    for _ in range(11):
        start_due_tasks(tasks, read)
        bed.clock += 1.0
    assert reads == [1000.0, 1010.0]
    assert bed.looks == [1000.0, 1000.0, 1010.0, 1010.0]
