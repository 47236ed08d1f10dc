"""Calls that Slurm or a node refuses are repeated, but not at every look, nor with a line each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.ckptman.moves.requeueing import REQUEUE_TIMEOUT_S
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld

AWAY = SlurmError(("scontrol",), 1, "Unable to contact slurm controller")
DENIED = SlurmError(("scontrol", "update"), 1, "Invalid node state specified")
BOUND = 45.0
"""Seconds within which a node that Slurm releases again has to be released."""


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


class Stuck:
    """Slurm refuses the requeue of a stopped run, and its node cannot let it go on."""

    def __init__(self, world: CkptWorld) -> None:
        self.world = world
        self.requeues: list[float] = []
        self.releases: list[float] = []
        self.why: Exception = CheckpointError("no image could be brought back")
        self.slurm, self.saver = pytest.MonkeyPatch(), pytest.MonkeyPatch()
        self.slurm.setattr(world.slurm, "requeue", self._requeue)
        self.saver.setattr(world.saver, "release", self._release)
        world.saver.hold_s = float("inf")
        world.interrupt(world.runs(7).nodes[0], notice=20_000.0)
        world.advance(REQUEUE_TIMEOUT_S + 60, step=1.0)

    def _requeue(self, _job: int) -> None:
        self.requeues.append(self.world.now)
        raise AWAY

    def _release(self, _run: object) -> None:
        self.releases.append(self.world.now)
        raise self.why

    def restore(self) -> None:
        self.slurm.undo()
        self.saver.undo()


@pytest.fixture
def stuck(world: CkptWorld) -> Iterator[Stuck]:
    made = Stuck(world)
    yield made
    made.restore()


def pauses(times: Sequence[float]) -> list[float]:
    return [later - before for before, later in itertools.pairwise(times)]


def told(world: CkptWorld) -> Counter[str]:
    return Counter(world.told(7))


def test_a_stopped_run_that_cannot_go_on_is_tried_ever_less_often_and_told_once(
    stuck: Stuck,
) -> None:
    world = stuck.world
    world.advance(1800, step=2.0)
    assert 4 <= len(stuck.releases) <= 12
    assert pauses(stuck.releases) == sorted(pauses(stuck.releases))
    assert max(pauses(stuck.releases)) < 400, "it goes on in minutes once it can"
    assert min(pauses(stuck.requeues)) >= 2, "Slurm is not asked at every look either"
    assert max(pauses(stuck.requeues)) <= 20
    assert told(world)["ckpt-not-released"] == told(world)["ckpt-not-yet"] == 1
    stuck.why = OSError("stale file handle")
    world.advance(600, step=2.0)
    assert told(world)["ckpt-not-released"] == 2, "there is another reason"
    assert "OSError: stale file handle" in {
        str(d.reason) for d in world.ledger.decisions.about("job:7")
    }


def test_a_service_that_starts_anew_keeps_the_pause(stuck: Stuck) -> None:
    world = stuck.world
    world.advance(600, step=2.0)
    before = len(stuck.releases)
    for _ in range(5):
        world.restart_ckptman()
        world.advance(5, step=1.0)
    assert len(stuck.releases) - before <= 1
    assert told(world)["ckpt-not-released"] == told(world)["ckpt-not-yet"] == 1


def test_it_moves_soon_after_slurm_takes_the_requeue(stuck: Stuck) -> None:
    world = stuck.world
    world.advance(1200, step=2.0)
    stuck.slurm.undo()
    world.until(lambda: world.job(7).restarts == 1, 30)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    assert world.migrations()[0].step is MigrationStep.BACK


def test_it_goes_on_where_it_is_once_its_node_can(stuck: Stuck) -> None:
    world = stuck.world
    world.advance(1200, step=2.0)
    stuck.saver.undo()
    world.until(lambda: (7, 0) not in world.saver.held, 400)
    assert world.migrations()[0].step is MigrationStep.STAYED


def test_a_run_that_continued_after_a_release_that_came_late_stays(stuck: Stuck) -> None:
    """The restore has taken longer than the head waits for the answer to its release."""
    world = stuck.world
    world.saver.held.clear()
    world.advance(30, step=1.0)
    assert "ckpt-stayed" in told(world)
    assert "ckpt-again" not in told(world)
    stuck.slurm.undo()
    world.advance(600, step=5.0)
    assert world.job(7).restarts == 0, "it works until the last moment"
    assert world.saver.calls.count(("checkpoint", 7)) == 1


class Keeps:
    """Slurm does not release a drained node whose notice was withdrawn."""

    def __init__(self, world: CkptWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.asked: list[float] = []
        self.why: SlurmError | None = DENIED
        self.node = world.runs(7).nodes[0]
        world.saver.broken = CheckpointError("cannot")
        world.order("notice", node=self.node, reason="x", deadline=world.now + 20_000)
        world.advance(20)
        self.update = world.slurm.update_nodes
        monkeypatch.setattr(world.slurm, "update_nodes", self._update)
        world.order("withdraw", node=self.node)

    def _update(self, names: Sequence[str], **fields: str | None) -> None:
        if fields.get("state") == "RESUME" and self.node in names:
            self.asked.append(self.world.now)
            if self.why is not None:
                raise self.why
        self.update(names, **fields)

    @property
    def free(self) -> bool:
        return "DRAIN" not in self.world.slurm.node(self.node).states


def test_a_node_that_slurm_does_not_release_is_tried_with_pauses_and_told_once(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeps = Keeps(world, monkeypatch)
    with caplog.at_level("WARNING"):
        world.advance(600, step=1.0)
        assert 10 <= len(keeps.asked) <= 40
        assert max(pauses(keeps.asked)) <= BOUND
        assert caplog.text.count("stay drained") == 1
        keeps.why = SlurmError(("scontrol", "update"), 1, "Access denied")
        world.advance(BOUND, step=1.0)
        assert caplog.text.count("stay drained") == 2, "there is another reason"
    keeps.why = None
    world.until(lambda: keeps.free, BOUND)
    assert world.state.releases() == ()


def test_a_slurm_that_does_not_answer_is_not_asked_for_nodes_at_every_look(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeps = Keeps(world, monkeypatch)
    world.until(lambda: bool(keeps.asked))
    read, asked = world.slurm.nodes, list[float]()

    def away(names: Sequence[str] | None = None) -> object:
        if names is None or keeps.node not in names:
            return read(names)
        asked.append(world.now)
        raise AWAY

    with monkeypatch.context() as outage, caplog.at_level("WARNING"):
        outage.setattr(world.slurm, "nodes", away)
        world.advance(600, step=1.0)
        assert 10 <= len(asked) <= 60
        assert max(pauses(asked)) <= BOUND
        assert caplog.text.count(str(AWAY)) == 1
    keeps.why = None
    world.until(lambda: keeps.free, 2 * BOUND)
