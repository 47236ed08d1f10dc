"""A restart that must wait a moment goes on from its image, and not from zero."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import ROOT_PART

from slurm_elastic.machine.ckptroot.site import HelperSite
from slurm_elastic.machine.ckptroot.store import JobStore
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.testing.saving import save
from tests.checkpointers.node_bed import PATIENCE, NodeBed

pytestmark = ROOT_PART
TAKEN = " s, to continue from its images: job 7 is driven by another process already\n"
SILENT = " s, to continue from its images: slurmctld does not answer\n"


@pytest.fixture
def bed() -> Iterator[NodeBed]:
    made = NodeBed()
    yield made
    made.close()


@pytest.fixture
def image(bed: NodeBed) -> Image:
    """An image of job 7, whose first run is over: its machine is gone."""
    found = save(bed, bed.run())
    bed.jobs[7].kill()
    bed.jobs.pop(7).wait()
    bed.attempts[7] = 1
    bed.say(7, "RUNNING")
    return found


@pytest.fixture
def holder(bed: NodeBed) -> Iterator[JobStore]:
    """Has the job's lock, as a server of files has for a machine that is gone, until its lease ends."""
    site = HelperSite(
        cluster="t", directory=bed.home / "shared", key=b"k" * 64, reader=(0, 0), slurmstepd="/none"
    )  # fmt: skip
    store = JobStore(site, 7)
    yield store
    store.close()


def waits(bed: NodeBed, why: str) -> None:
    """The job says so, and nothing is done to what it has saved."""
    bed.wait(lambda: why in bed.output_path(7).read_text(), "it says that it waits")
    assert bed.jobs[7].poll() is None
    assert bed.status(7).get("attempt") == 0


def goes_on(bed: NodeBed, image: Image) -> None:
    """From the image, with an output in which nobody sees the wait."""
    bed.wait(lambda: bed.status(7).get("attempt") == 1, "the launcher answers")
    assert f"continues from image {image.number}" in " ".join(bed.status(7)["log"])  # type: ignore[arg-type]
    assert bed.works(bed.run(attempt=1))
    assert "slurm-elastic" not in bed.output_path(7).read_text()
    assert bed.end(7) == 7
    assert bed.steps(7)[0] == 0


def test_a_lock_that_is_soon_free(bed: NodeBed, image: Image, holder: JobStore) -> None:
    holder.open()
    bed.launch(7)
    waits(bed, TAKEN)
    holder.close()
    goes_on(bed, image)


@pytest.mark.parametrize("before", [True, False], ids=["at once", "after the lock"])
def test_a_slurmctld_that_is_silent_for_a_while(
    bed: NodeBed, image: Image, holder: JobStore, before: bool
) -> None:
    answer = bed.home / "slurm-7"
    if not before:
        holder.open()
        bed.launch(7)
        waits(bed, TAKEN)
    answer.rename(bed.home / "later")
    if before:
        bed.launch(7)
    else:
        holder.close()
    waits(bed, SILENT)
    (bed.home / "later").rename(answer)
    goes_on(bed, image)


@pytest.mark.parametrize("why", ["lock", "silence", "slowness"])
def test_a_cancelled_job_waits_no_longer_and_keeps_its_images_until_they_are_swept(
    bed: NodeBed, image: Image, holder: JobStore, why: str
) -> None:
    asked = bed.home / "asked"
    if why == "lock":
        holder.open()
    elif why == "silence":
        (bed.home / "slurm-7").unlink()
    else:
        (bed.home / "bin" / "squeue").write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 3600\n")
    bed.launch(7)
    if why == "slowness":
        bed.wait(asked.exists, "slurmctld was asked")
    else:
        waits(bed, {"lock": TAKEN, "silence": SILENT}[why])
    bed.jobs[7].send_signal(signal.SIGTERM)
    assert bed.jobs.pop(7).wait(PATIENCE) == -signal.SIGTERM
    assert Path(image.path).exists()


def test_a_run_that_slurm_has_given_up_starts_nothing(
    bed: NodeBed, image: Image, holder: JobStore
) -> None:
    """Its node was cut off, and the job is at home elsewhere when it gets the lock."""
    holder.open()
    bed.launch(7)
    waits(bed, TAKEN)
    bed.attempts[7] = 2
    bed.say(7, "RUNNING")
    holder.close()
    assert bed.jobs.pop(7).wait(PATIENCE) == -signal.SIGTERM
    assert bed.steps(7) == []
    assert Path(image.path).exists()


def test_a_first_run_waits_for_nothing(bed: NodeBed, holder: JobStore) -> None:
    bed.attempts[7] = 0
    bed.launch(7)  # slurmctld does not know of it
    assert bed.jobs[7].wait(PATIENCE) == 1
    assert "slurmctld does not answer" in bed.output_path(7).read_text()
    bed.say(7, "RUNNING")
    holder.open()
    bed.launch(7)
    assert bed.jobs[7].wait(PATIENCE) == 1
    assert "driven by another process" in bed.output_path(7).read_text()
