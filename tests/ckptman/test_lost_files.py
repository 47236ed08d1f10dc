"""Images of runs whose files are lost with their machine: the job's next run does not use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.copying import CopyState, JobCopy
from tests.ckptman.world import CkptWorld
from tests.controller.world import make_config


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    """Job 7 runs in a cloud that copies files, and its first run was saved."""
    clouds = tuple(
        msgspec.structs.replace(cloud, data=Data.COPY)
        for cloud in make_config(Path("/nowhere")).clouds
    )
    made = CkptWorld({"clouds": clouds})
    made.ckpt.checkpointers["criu"] = made.saver
    job = made.runs(7, comment="ckpt=criu")
    made.state.add_image(
        Image(
            job=7, label="7", attempt=0, number=1, method="criu", node=job.nodes[0],
            taken=made.now, seconds=1.0, uid=job.uid, submitted=job.submit,
        )
    )  # fmt: skip
    yield made
    made.close()


def requeue(world: CkptWorld, state: CopyState, *, later: JobCopy | None = None) -> None:
    """The first run is over, and its files are in this state."""
    job = world.job(7)
    world.ledger.copies.put(
        JobCopy(
            job=7, restarts=0, node=job.nodes[0], machine="pub-1", uid=job.uid, directory="/w",
            outputs={}, state=state, since=world.now,
        )
    )  # fmt: skip
    if later is not None:
        world.ledger.copies.put(later)
    world.slurm.requeue(7)
    world.advance(60)


def images(world: CkptWorld) -> list[int]:
    return [image.number for image in world.state.images(7)]


def test_an_image_whose_files_are_lost_is_forgotten_and_the_reason_recorded(
    world: CkptWorld,
) -> None:
    requeue(world, CopyState.LOST)
    assert images(world) == []
    assert ("forget", 7) in world.saver.calls
    causes = [str(d.cause) for d in world.ledger.decisions.about("job:7")]
    assert "save 1 is not used: the files of its run are lost with pub-1" in causes


@pytest.mark.parametrize("state", [CopyState.BACK, CopyState.OWED])
def test_an_image_whose_files_came_back_or_may_come_stays(
    world: CkptWorld, state: CopyState
) -> None:
    requeue(world, state)
    assert images(world) == [1]


def test_an_image_stays_if_a_person_was_asked_what_becomes_of_the_job(world: CkptWorld) -> None:
    job = world.job(7)
    lost = JobCopy(
        job=7, restarts=0, node="pub1", machine="pub-1", uid=job.uid, directory="/w", outputs={},
        state=CopyState.LOST, since=world.now,
    )  # fmt: skip
    asked = msgspec.structs.replace(
        lost, restarts=1, node="pub2", state=CopyState.REFUSED, reason=lost.cause_to_hold
    )
    requeue(world, CopyState.BACK, later=asked)
    world.ledger.copies.put(
        msgspec.structs.replace(world.ledger.copies.of(7)[0], state=CopyState.LOST)
    )
    world.slurm.requeue(7)
    world.advance(60)
    assert images(world) == [1]


def test_the_launcher_is_asked_to_use_no_image_of_that_run(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "request").touch()
    run = JobRun(
        job=7, label="7", attempt=1, user="ann", uid=1000, gid=1000, nodes=("n1",), partition="p",
        started=0.0,
    )  # fmt: skip
    LaunchedCheckpointer("criu", tmp_path).forget(run, 0, "its files are lost")
    request = json.loads((tmp_path / "7" / "request").read_text())
    assert (request["verb"], request["attempt"]) == ("forget", 0)
    assert request["reason"] == "its files are lost"
