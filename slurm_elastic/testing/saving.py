"""The duties of every checkpoint method, both ours and those of plug-ins, according to
``protocols.Checkpointer``.

A method brings a bed. Its tests inherit the classes that its bed supports, and define the fixture
``bed``.
"""

from __future__ import annotations

import time
from typing import Protocol

import pytest

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.protocols import Checkpointer
from slurm_elastic.testing.patience import awake, stretched

SAVE_TIMEOUT_S = 60.0
SHORT_S = 2.0
"""Seconds given to a save that takes longer. They are enough for it to begin."""


class SavingBed(Protocol):
    """A checkpoint method, and running jobs that it can save."""

    checkpointer: Checkpointer

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        """Return a running job. The same numbers return the same job."""
        ...

    def reopen(self) -> Checkpointer:
        """Open the method over the same images, as a new service does."""
        ...


class SpoilingBed(SavingBed, Protocol):
    def spoil(self, image: Image) -> None:
        """Damage the image: truncate, change or remove it."""
        ...


class StuckBed(SavingBed, Protocol):
    def stick(self, run: JobRun) -> None:
        """Let saves of this run never end."""
        ...


class HoldingBed(SavingBed, Protocol):
    def works(self, run: JobRun) -> bool:
        """Return True if the run works now."""
        ...


def save(
    bed: SavingBed, run: JobRun, *, stop: bool = False, within: float = SAVE_TIMEOUT_S
) -> Image:
    return bed.checkpointer.checkpoint(run, deadline=time.time() + within, stop=stop)


class SaveContract:
    """The contents, order and lifetime of images."""

    def test_an_image_says_whose_it_is_and_is_whole(self, bed: SavingBed) -> None:
        before = time.time()
        run = bed.run()
        image = save(bed, run)
        assert (image.job, image.label, image.attempt) == (run.job, run.label, run.attempt)
        assert image.method == bed.checkpointer.name
        assert before - 1 <= image.taken <= time.time() + 1
        assert image.seconds >= 0
        assert image.size >= 0
        bed.checkpointer.verify(image)

    def test_images_come_newest_first_and_the_last_good_one_is_there(self, bed: SavingBed) -> None:
        run = bed.run()
        older, newer = save(bed, run), save(bed, run)
        assert newer.number > older.number
        images = bed.checkpointer.images(run)
        assert images[0] == newer
        assert [i.number for i in images] == sorted((i.number for i in images), reverse=True)

    def test_a_job_without_images_has_none(self, bed: SavingBed) -> None:
        assert list(bed.checkpointer.images(bed.run(8))) == []

    def test_the_next_run_goes_on_from_the_images_of_the_last(self, bed: SavingBed) -> None:
        image = save(bed, bed.run(), stop=True)
        assert image in bed.checkpointer.images(bed.run(attempt=1))

    def test_images_outlive_the_service(self, bed: SavingBed) -> None:
        run = bed.run()
        image = save(bed, run)
        reopened = bed.reopen()
        assert next(iter(reopened.images(run))) == image
        reopened.verify(image)

    def test_removing_takes_all_images_of_one_job(self, bed: SavingBed) -> None:
        run, other = bed.run(), bed.run(8)
        save(bed, run)
        kept = save(bed, other)
        bed.checkpointer.remove(run.job)
        assert list(bed.checkpointer.images(run)) == []
        assert list(bed.checkpointer.images(other)) == [kept]
        bed.checkpointer.remove(run.job)
        bed.checkpointer.remove(4711)


class Spoils:
    """Damaged images are recognised."""

    def test_a_spoilt_image_does_not_verify(self, bed: SpoilingBed) -> None:
        image = save(bed, bed.run())
        bed.spoil(image)
        with pytest.raises(CheckpointError):
            bed.checkpointer.verify(image)


class Deadlines:
    """Saves that take longer than their deadline fail, and the last good image stays."""

    def test_a_save_that_takes_too_long_ends_by_its_deadline(self, bed: StuckBed) -> None:
        run = bed.run()
        bed.stick(run)
        with awake() as took:
            with pytest.raises(CheckpointError):
                save(bed, run, within=SHORT_S)
            assert took() < stretched(SAVE_TIMEOUT_S)

    def test_the_last_good_image_stays(self, bed: StuckBed) -> None:
        run = bed.run()
        image = save(bed, run)
        bed.stick(run)
        with pytest.raises(CheckpointError):
            save(bed, run, within=SHORT_S)
        assert image in bed.checkpointer.images(run)
        bed.checkpointer.verify(image)


class Holds:
    """After a save a run continues, or does nothing until it is released."""

    def test_a_run_goes_on_after_a_save(self, bed: HoldingBed) -> None:
        run = bed.run()
        save(bed, run)
        assert bed.works(run)

    def test_a_stopped_run_does_nothing_until_it_is_released(self, bed: HoldingBed) -> None:
        run = bed.run()
        save(bed, run, stop=True)
        assert not bed.works(run)
        bed.checkpointer.release(run)
        assert bed.works(run)
