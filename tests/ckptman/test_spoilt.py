"""An image that is not whole moves no job: its run goes on where it is, and is saved anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import ROOT_PART

from slurm_elastic.base.errors import CheckpointError, UnreadableError
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.ckptman.moves import migration
from slurm_elastic.model.causes.moves import MethodGone
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.testing.saving import save
from tests.checkpointers.node_bed import USER, NodeBed
from tests.ckptman.world import CkptWorld

ALL = {(7, number) for number in range(1, 100)}


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def test_a_save_that_is_not_whole_is_made_anew_before_the_job_moves(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.spoilt.add((7, 1))
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.number == 2
    assert [image.number for image in world.state.images(7)] == [2]
    kinds = [k for k in world.told(7) if k.startswith("ckpt-")]
    assert kinds[1:] == [
        "ckpt-bad-image", "ckpt-failed", "ckpt-saved", "ckpt-requeued", "ckpt-back",
    ]  # fmt: skip
    calls = [call for call, _ in world.saver.calls]
    assert calls[:5] == ["checkpoint", "verify", "release", "checkpoint", "verify"]


def test_an_image_that_cannot_be_read_now_is_kept_for_later(world: CkptWorld) -> None:
    world.runs(7)
    world.save_before(7)
    (image,) = world.state.images(7)
    world.saver.verify = fail(UnreadableError("the directory cannot be read now"))  # type: ignore[method-assign]
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: "ckpt-no-image" in world.told(7))
    assert image in world.state.images(7)


def fail(error: Exception) -> Callable[..., None]:
    def raising(*_: object) -> None:
        raise error

    return raising


def test_a_run_of_which_no_save_is_whole_works_until_its_node_is_lost(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.spoilt |= ALL
    world.interrupt(node)
    world.until(lambda: "ckpt-no-image" in world.told(7))
    assert world.saver.held == {}, "nothing keeps it from its work"
    world.until(lambda: world.now > world.migrations()[0].deadline)
    assert world.job(7).restarts == 0
    world.take(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert (moved.step, moved.image) == (MigrationStep.BACK, None)


def test_a_run_of_which_no_new_save_is_whole_goes_on_from_an_older_one(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.spoilt |= ALL - {(7, 1)}
    world.interrupt(node, notice=10.0)
    world.until(lambda: "ckpt-older-image" in world.told(7))
    assert world.saver.held == {}, "it works until the last moment"
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.number == 1


def test_a_run_that_cannot_go_on_after_such_a_save_is_told_of_and_saved_anew(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_run: object) -> None:
        raise CheckpointError("kill on pub1: no route to host")

    node = world.runs(7).nodes[0]
    world.saver.spoilt.add((7, 1))
    monkeypatch.setattr(world.saver, "release", cannot)
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    assert "ckpt-not-released" in world.told(7)
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.number == 2


# with a method whose images are files of a job that runs


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def of_image(image: Path) -> Path:
    return next(image.glob("ckpt_*"))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def put(image: Path, other: Path) -> None:
    shutil.rmtree(image)
    shutil.copytree(other, image)


SPOILT: dict[str, Callable[[Path, Path], object]] = {
    "truncated": lambda image, _: change(of_image(image), lambda content: content[:-1]),
    "empty": lambda image, _: change(of_image(image), lambda content: b""),
    "a byte is another": lambda image, _: change(of_image(image), flip),
    "a file is gone": lambda image, _: of_image(image).unlink(),
    "its manifest is gone": lambda image, _: (image / "manifest.json").unlink(),
    "its manifest is cut": lambda image, _: change(image / "manifest.json", lambda c: c[:99]),
    "its manifest is another job's": lambda image, other: shutil.copy(
        other / "manifest.json", image
    ),
    "it is another job's": put,
    "it is not there": lambda image, _: shutil.rmtree(image),
}
"""Each with what is done to an image between its save and the look at it; the other one is whole."""


@pytest.fixture
def bed() -> Iterator[NodeBed]:
    made = NodeBed()
    yield made
    made.close()


@ROOT_PART
@pytest.mark.parametrize("how", SPOILT)
def test_what_was_spoilt_between_save_and_look_is_not_gone_on_from(
    world: CkptWorld, bed: NodeBed, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = bed.home / "shared/t"
    saver = LaunchedCheckpointer("dmtcp", shared, poll=0.05, clock=lambda: world.now)
    other = Path(save(bed, bed.run(8)).path)
    spoilt: list[Path] = []

    def reach(point: str) -> None:
        if point == "migration.after-save" and not spoilt:
            spoilt.append(shared / "7/images/2")
            SPOILT[how](*spoilt, other)

    monkeypatch.setattr(migration, "reach", reach)
    world.ckpt.checkpointers["dmtcp"] = saver
    bed.run(7)
    bed.wait(lambda: len(bed.steps(7)) > 3, "it works")
    assert save(bed, bed.run(7)).number == 1
    node = world.runs(7, comment="ckpt=dmtcp", uid=USER, gid=USER).nodes[0]
    world.interrupt(node)
    world.until(lambda: world.job(7).restarts == 1)
    (moved,) = world.migrations()
    assert "ckpt-failed" in world.told(7)
    assert moved.image is not None
    saver.verify(moved.image)


def test_a_move_whose_method_can_be_used_no_more_leaves_its_run_at_work(world: CkptWorld) -> None:
    """Its package was removed, say, before the service started anew."""
    node = world.runs(7).nodes[0]
    world.saver.fail_next.append(CheckpointError("not now"))
    world.interrupt(node)
    world.until(lambda: "ckpt-failed" in world.told(7))
    world.restart_ckptman()
    del world.ckpt.checkpointers["fake"]  # type: ignore[attr-defined]
    world.until(lambda: "ckpt-no-image" in world.told(7))
    (move,) = world.migrations()
    assert move.note == MethodGone(method="fake")
    assert world.job(7).restarts == 0
