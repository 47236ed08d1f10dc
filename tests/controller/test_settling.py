"""The passes over holds and requeued jobs: what each looks at, and when there is none to come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller import holds
from slurm_elastic.controller.oversized import keep_job_out
from slurm_elastic.controller.requeues import ExpectedRequeues
from slurm_elastic.controller.settling import Settler
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import NeverTogether
from slurm_elastic.testing.in_memory import Inline
from tests.controller.looks import Looks
from tests.controller.world import World

TOO_LARGE = NeverTogether(cloud="pub", wanted=9, max_nodes=3, bound=None)


class Told(ExpectedRequeues):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.wrong: SlurmError | None = None

    def recall(self, *_: Any) -> None:
        self.asked.append("recall")

    def recall_left(self, *_: Any) -> None:
        self.asked.append("recall_left")

    def tick(self, *_: Any) -> None:
        self.asked.append("tick")
        if self.wrong is not None:
            raise self.wrong


class Passes:
    """One pass after the other."""

    def __init__(self, world: World) -> None:
        self.world, self.told = world, Told()
        self.site = replace(world.site, requeues=self.told)
        self.settler = Settler(self.site, Inline())

    def one(self, *, anew: bool = False) -> list[str]:
        """Do one pass; the calls that the requeued jobs got in it."""
        self.told.asked.clear()
        self.settler.must_recheck = anew
        self.world.now += 10
        self.settler.task.tick()
        return [*self.told.asked]


@pytest.fixture
def passes(world: World) -> Passes:
    world.advance(1)
    return Passes(world)


def test_what_an_earlier_daemon_lifted_is_recalled_with_the_first_pass_alone(
    passes: Passes,
) -> None:
    """And what others left, once in each round of the repair."""
    passes.world.ledger.requeues.lift(1, 0, passes.world.now)
    assert passes.one(anew=True) == ["recall", "tick"]
    assert passes.one() == ["tick"]
    assert passes.one(anew=True) == ["recall_left", "tick"]
    assert passes.one() == ["tick"]


def test_what_is_lifted_after_the_first_pass_is_its_daemons_own(passes: Passes) -> None:
    """Until somebody has left it."""
    assert passes.one(anew=True) == ["tick"]
    assert passes.one(anew=True) == ["tick"]
    passes.world.ledger.requeues.lift(1, 0, passes.world.now)
    assert passes.one() == ["tick"]
    assert passes.one(anew=True) == ["recall_left", "tick"]


def asked_for_nodes(world: World, act: Callable[[], object]) -> bool:
    before = world.slurm.calls["nodes"]
    act()
    return world.slurm.calls["nodes"] > before


def test_holds_are_looked_at_when_there_are_more_of_them_and_in_each_round(passes: Passes) -> None:
    world = passes.world
    assert not asked_for_nodes(world, passes.one)
    holds.hold_back(passes.site, ["pub1"], Quoted(text="x"))
    assert asked_for_nodes(world, passes.one)
    assert not asked_for_nodes(world, passes.one)
    assert asked_for_nodes(world, lambda: passes.one(anew=True))
    assert not passes.settler.must_recheck
    assert not asked_for_nodes(world, passes.one)


def test_holds_are_put_on_though_slurm_does_not_tell_its_jobs(passes: Passes) -> None:
    passes.told.wrong = SlurmError(("squeue",), 1, "Socket timed out")
    holds.hold_back(passes.site, ["pub1"], Quoted(text="x"))
    assert asked_for_nodes(passes.world, passes.one)
    assert "DRAIN" in passes.world.slurm.node("pub1").states


def test_it_is_busy_until_holds_are_on_their_nodes(passes: Passes) -> None:
    world = passes.world
    assert passes.settler.is_busy, "nothing was looked at yet"
    passes.one()
    assert not passes.settler.is_busy
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWER_DOWN")
    holds.hold_back(passes.site, ["pub1"], Quoted(text="x"))
    for _ in range(2):
        assert asked_for_nodes(world, passes.one)
        assert passes.settler.is_busy
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    passes.one()
    assert not passes.settler.is_busy


def test_it_is_busy_while_jobs_are_waited_for(passes: Passes) -> None:
    passes.one()
    keep_job_out(passes.site, 1, "pub", TOO_LARGE, "r1")
    assert passes.settler.is_busy
    passes.site.oversized.keep(())
    passes.world.slurm.set_job(1, "CONFIGURING", nodes=("pub1",))
    passes.told.expect(passes.world.slurm.queue()[1], 0.0, ["pub1"])
    assert passes.settler.is_busy


@pytest.mark.parametrize(
    ("took", "fails", "due"),
    [(0.0, False, 0.3), (0.0625, False, 0.3125), (0.25, False, 1.25), (0.0, True, 5.0)],
)
def test_a_pass_is_due_soon_takes_a_fifth_of_the_time_at_most_and_later_where_one_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, took: float, *, fails: bool, due: float
) -> None:
    looks = Looks(world, took, fails=fails)
    monkeypatch.setattr(Settler, "_settle", looks)
    made = Settler(world.site, Inline())  # type: ignore[arg-type]
    assert looks.begun(made.task, due) == pytest.approx([-took, due], abs=1e-6)
