"""Changes of waiting jobs by scontrol."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.model.slurm import SlurmJob

log = logging.getLogger(__name__)


def change_pending(
    site: Site,
    jobs: Sequence[SlurmJob],
    *,
    partitions: Sequence[str] = (),
    begin_in: float | None = None,
) -> set[int]:
    """Change the jobs in one command, or one by one if the command fails. Return the jobs that
    Slurm refuses to change. SlurmError if Slurm does not answer.

    ``begin_in``: seconds until the job may begin. See ``model.protocols.Slurm.change_pending``.
    """
    ids = [job.id for job in jobs]
    try:
        site.slurm.change_pending(ids, partitions=partitions, begin_in=begin_in)
    except SlurmError as error:
        if error.unanswered:
            raise
        if len(jobs) > 1:
            refused_sets = (
                change_pending(site, [j], partitions=partitions, begin_in=begin_in) for j in jobs
            )
            return set().union(*refused_sets)
        log.warning("job not changed job=%s error=%s", jobs[0].label, error)
        return set(ids)
    return set()
