"""A run that dies of the signal of a save in place is requeued: nobody wanted it to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_elastic.checkpointers.signal import SignalCheckpointer
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld, told_lines
from tests.controller.world import Killed

COMMENT = "ckpt=signal,saved=file:state"


class SignalWorld(CkptWorld):
    """Jobs whose batch scripts die of the signal, although one has a trap for a later time."""

    deaths = 0

    def start_ckptman(self) -> None:
        super().start_ckptman()
        self.ckpt.checkpointers["signal"] = SignalCheckpointer(  # type: ignore[index]
            self.settings.signal, self.dir / "signal-saves", self.slurm, self.ckpt.jobs.find,
            lambda: self.now, self.pause,
        )  # fmt: skip
        self.slurm.on_signal = self.die

    def die(self, job: int, name: str) -> None:
        assert name == "USR1"
        self.deaths += 1
        self.slurm.set_job(job, "FAILED", killed_by=10, end=self.now)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[SignalWorld]:
    made = SignalWorld(policy=getattr(request, "param", "on_notice"))
    made.slurm.scripts[7] = "#!/bin/bash\npython3 setup.py\ntrap save USR1\npython3 prog.py\n"
    yield made
    made.close()


def begin(world: SignalWorld, **fields: object) -> None:
    world.runs(7, comment=COMMENT, directory=str(world.dir), uid=1000, **fields)


def test_an_ordered_save_that_kills_the_job_requeues_it(world: SignalWorld) -> None:
    begin(world)
    world.order("save", job=7)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: world.migrations()[0].step is MigrationStep.BACK)
    assert world.migrations()[0].cause is ThreatCause.SAVE
    assert "ckpt-ended" in world.told(7)
    assert any("the signal to save itself ended it" in line for line in told_lines(world.slurm))


@pytest.mark.parametrize("world", ["hour(every=300,margin=100)"], indirect=True)
def test_a_job_that_died_of_a_save_is_not_signalled_again(world: SignalWorld) -> None:
    begin(world)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: 7 in world.state.unsavable(), 2000)
    world.advance(1200)
    assert (world.deaths, world.job(7).restarts) == (1, 1)
    assert any("start its program by exec" in line for line in told_lines(world.slurm))


def test_the_requeue_comes_also_after_a_crash_behind_the_signal(world: SignalWorld) -> None:
    def crash(job: int, name: str) -> None:
        world.die(job, name)
        raise Killed(name)

    begin(world)
    world.slurm.on_signal = crash
    world.order("save", job=7)
    world.until(lambda: world.service is None)
    assert world.deaths == 1
    world.start_ckptman()
    world.until(lambda: world.back(7, 1))


@pytest.mark.parametrize("fields", [{"states": "CANCELLED"}, {"killed_by": 9}, {"killed_by": 0}])
def test_another_end_during_a_save_is_left_alone(
    world: SignalWorld, fields: dict[str, object]
) -> None:
    begin(world)
    state = str(fields.pop("states", "FAILED"))
    end = {"killed_by": 10, "end": world.now, **fields}
    world.slurm.on_signal = lambda job, _: world.slurm.set_job(job, state, **end)
    world.order("save", job=7)
    world.advance(60)
    assert world.migrations() == []
    assert world.job(7).restarts == 0


def test_a_no_requeue_job_that_died_of_a_save_keeps_its_users_word(world: SignalWorld) -> None:
    begin(world, requeue=False)
    world.order("save", job=7)
    world.advance(60)
    assert world.job(7).restarts == 0
    assert "ckpt-no-requeue" in world.told(7)


def test_a_script_that_would_certainly_die_is_never_signalled(world: SignalWorld) -> None:
    world.slurm.scripts[7] = "#!/bin/bash\npython3 prog.py\n"
    begin(world)
    world.order("save", job=7)
    world.advance(60)
    assert (world.deaths, world.job(7).restarts) == (0, 0)
    assert "ckpt-failed" in world.told(7)
