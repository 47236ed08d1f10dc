"""Who does what first: a save with a deadline never waits behind periodic ones."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from slurm_elastic.ckptman.decide import NO_DEADLINE
from slurm_elastic.ckptman.executor import KeyedExecutor, WorkKind

PATIENCE = 60.0


class Bench:
    """A crew, and work that lasts until the test lets it end."""

    def __init__(self, size: int) -> None:
        self.crew = KeyedExecutor(size)
        self.go = threading.Event()
        self.begun: list[int] = []
        self._more = threading.Condition()

    def lasting(self, job: int) -> None:
        with self._more:
            self.begun.append(job)
            self._more.notify_all()
        self.go.wait(PATIENCE)

    def submit(
        self, job: int, deadline: float, kind: WorkKind = WorkKind.URGENT, user: str = ""
    ) -> bool:
        work = lambda: self.lasting(job)  # noqa: E731
        return self.crew.submit(job, (deadline, 0.0), work, user=user, kind=kind)

    def wait(self, count: int) -> list[int]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.begun) >= count, PATIENCE), self.begun
            return list(self.begun)


@pytest.fixture(params=[1, 2, 4])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    made.size = request.param  # type: ignore[attr-defined]
    yield made
    made.go.set()
    made.crew.close()


def test_urgent_work_begins_however_many_periodic_saves_run(bench: Bench) -> None:
    size: int = bench.size  # type: ignore[attr-defined]
    most = max(size // 2, 1)
    for job in range(10):
        assert bench.submit(job, NO_DEADLINE, WorkKind.PERIODIC)
    assert bench.wait(most) == list(range(most))
    urgent = list(range(100, 100 + size))
    for job in urgent:
        assert bench.submit(job, 0.0)
    assert sorted(bench.wait(most + size)) == [*range(most), *urgent]
    bench.go.set()
    assert sorted(bench.wait(10 + size)) == [*range(10), *urgent]


@pytest.mark.parametrize("kind", [WorkKind.URGENT, WorkKind.PERIODIC])
def test_work_of_one_user_that_lasts_leaves_threads_to_the_others(kind: WorkKind) -> None:
    """As saves of programs that do not answer, at a reclaim of many machines."""
    bench = Bench(8)
    size = 8 if kind is WorkKind.URGENT else 4
    share = size // 2
    try:
        for job in range(20):
            assert bench.submit(job, 0.0, kind, user="ann")
        assert bench.wait(size) == list(range(size)), "a user alone may have all"
        for job in range(100, 110):
            assert bench.submit(job, 0.0, kind, user="bob")
        assert bench.wait(size + share)[size:] == list(range(100, 100 + share))
    finally:
        bench.go.set()
        bench.crew.close()


def test_removals_one_at_a_time_keep_nothing_from_being_saved(bench: Bench) -> None:
    for job in range(3):
        assert bench.submit(job, NO_DEADLINE, WorkKind.REMOVAL)
    assert bench.submit(10, NO_DEADLINE, WorkKind.PERIODIC)
    assert bench.submit(11, 0.0)
    assert sorted(bench.wait(3)) == [0, 10, 11]
    bench.go.set()
    assert sorted(bench.wait(5)) == [0, 1, 2, 10, 11]


def test_one_piece_of_work_a_job_whatever_its_kind(bench: Bench) -> None:
    assert bench.submit(7, NO_DEADLINE, WorkKind.PERIODIC)
    assert bench.crew.is_busy(7)
    assert not bench.submit(7, 0.0)
    bench.go.set()


def test_a_periodic_save_that_waits_makes_way_and_one_that_runs_does_not(bench: Bench) -> None:
    most = max(bench.size // 2, 1)  # type: ignore[attr-defined]
    for job in range(most):
        assert bench.submit(job, NO_DEADLINE, WorkKind.PERIODIC)
    bench.wait(most)
    cancelled: list[int] = []
    for job in (20, 21):
        bench.crew.submit(
            job, (NO_DEADLINE, 0.0), lambda j=job: bench.lasting(j), kind=WorkKind.PERIODIC,  # type: ignore[misc]
            on_cancelled=lambda j=job: cancelled.append(j),  # type: ignore[misc]
        )  # fmt: skip
    assert bench.crew.cancel_periodic(20) is None
    assert cancelled == [20]
    assert bench.submit(20, 0.0)
    assert bench.crew.cancel_periodic(0) is WorkKind.PERIODIC
    assert bench.crew.cancel_periodic(20) is WorkKind.URGENT
    assert bench.crew.cancel_periodic(22) is None
    bench.wait(most + 1)
    bench.go.set()
    assert sorted(bench.wait(most + 2)) == [*range(most), 20, 21]


def test_the_most_urgent_is_taken_first() -> None:
    bench = Bench(1)
    bench.submit(1, 0.0)
    bench.wait(1)
    for job, deadline in ((2, NO_DEADLINE), (3, 50.0), (4, 40.0)):
        bench.submit(job, deadline)
    bench.go.set()
    assert bench.wait(4) == [1, 4, 3, 2]
    bench.crew.close()


def test_what_waits_when_it_is_closed_is_forgotten() -> None:
    bench = Bench(1)
    bench.submit(1, 0.0)
    bench.wait(1)
    bench.submit(2, 0.0)
    closing = threading.Thread(target=bench.crew.close)
    closing.start()
    others = itertools.count(3)
    while bench.crew.submit(next(others), (0.0, 0.0), lambda: None):  # until it is closed
        time.sleep(0.01)
    bench.go.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert bench.begun == [1]


def test_a_crew_of_none_does_it_at_once() -> None:
    done: list[int] = []
    assert KeyedExecutor(0).submit(1, (0.0, 0.0), lambda: done.append(1), kind=WorkKind.PERIODIC)
    assert done == [1]
