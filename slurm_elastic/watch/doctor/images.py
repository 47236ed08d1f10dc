"""Images of jobs that slurmctld may have lost with its state."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies.checkpoint.lost_state import LOST_STATE_TIMEOUT_S, may_be_lost
from slurm_elastic.watch.door.records import read_facts


def lost_jobs(config: Config, slurm: Slurm, now: float) -> Iterator[Finding]:
    """Report images of jobs that Slurm has forgotten although it has given no later number. Yield
    nothing if the records or Slurm cannot be read, because another check reports that.
    """
    facts = read_facts(config, now)
    images = facts.checkpoints.images if facts.checkpoints else ()
    if not images:
        return
    try:
        listed_numbers = {job.id for job in slurm.jobs()}
    except SlurmError:
        return
    numbers = sorted({image.job for image in images if may_be_lost(image.job, listed_numbers)})
    if numbers:
        yield Finding.note(
            "saved jobs",
            f"Slurm does not know the last {len(numbers)} saved jobs, the first is {numbers[0]},"
            " and has given no later number",
            expected="a slurmctld that has its state",
            advice="if slurmctld lost its state, restore its StateSaveLocation: the jobs then"
            " continue from their images. slurm-elastic-ckptman removes these images"
            f" {brief(LOST_STATE_TIMEOUT_S)} after it has missed the jobs, or after Slurm has given"
            " a later number",
        )
