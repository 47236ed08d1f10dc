"""Write the cost of each ended job into its AdminComment in slurmdbd, if the site wants that
(``admin_comment``). The site's own text in the comment is kept. If slurmdbd refuses, the
cost is not noted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.features.money.job_costs import costs_of_jobs
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.cost_note import noted

log = logging.getLogger(__name__)


def note_costs(site: Site, runs: Iterable[ChargedRun], jobs: Iterable[SlurmJob]) -> None:
    """Note the cost of the ended jobs among ``jobs`` whose end is in ``runs`` (just recorded)."""
    ended_runs = {run.job for run in runs if run.end is not None}
    newly_ended = {job.id: job.uid for job in jobs if job.has_ended and job.id in ended_runs}
    if not newly_ended:
        return
    try:
        for job, (micro, markets) in costs_of(site, newly_ended).items():
            text = site.slurm.accounted_comment(job)
            new_text = noted(text, micro, markets)
            if new_text != text:
                site.slurm.set_accounted_comment(site.config.cluster.name, job, new_text)
    except SlurmError as error:
        log.info("costs are not noted in AdminComment jobs=%d error=%s", len(newly_ended), error)


def costs_of(site: Site, jobs: Mapping[int, int]) -> dict[int, tuple[int, set[str]]]:
    """By job id: micro-dollars of all its runs, and the markets of their machines. ``jobs``: the
    uid of each job's user.
    """
    costs = costs_of_jobs(site.config, site.ledger, jobs, site.now())
    return {job: (cost.micro, set(cost.markets)) for job, cost in costs.items()}
