"""The jobs that may start, or never start, when a run ends (``--dependency``)."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words.dependencies import jobs_to_end, waits_for_name


def dependents_of(job: SlurmJob, slurm: Slurm) -> Sequence[SlurmJob]:
    """The waiting jobs of the same user that wait for the end of ``job``. Jobs of other users do
    not count: any user may submit a job that depends on it. SlurmError if Slurm does not answer.
    """
    labels = {str(job.id), job.label} | ({f"{job.array}_*"} if job.array else set())
    dependencies = slurm.dependencies()
    may_wait = {
        number
        for number, words in dependencies.items()
        if number != job.id and (waits_for_name(words) or labels & jobs_to_end(words))
    }
    # Only squeue's own records say whose the jobs are: a text of a user stands in none of them.
    queue = slurm.jobs() if may_wait else ()
    return [
        other
        for other in queue
        if other.id in may_wait
        and other.uid == job.uid
        and (other.name == job.name or labels & jobs_to_end(dependencies[other.id]))
    ]
