"""The cost of jobs that have ended, in the AdminComment that slurmdbd keeps of them
(``books.admin_comment``). A site's own text stays; where slurmdbd refuses, nothing is
noted.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.features.books import charges, of_jobs, read_books
from slurm_elastic.model.memory import Run
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.cost_note import noted
from slurm_elastic.policies.money.cost_split import Unused

log = logging.getLogger(__name__)


def note_costs(site: Site, runs: Iterable[Run], jobs: Iterable[SlurmJob]) -> None:
    """Note the cost of jobs that have ended, whose end ``runs`` (just written down) tell."""
    over = {job.id for job in jobs if job.has_ended}
    ended = {run.job for run in runs if run.end is not None} & over
    if not ended:
        return
    try:
        for job, (micro, markets) in costs_of(site, ended).items():
            text = site.slurm.accounted_comment(job)
            fresh = noted(text, micro, markets)
            if fresh != text:
                site.slurm.set_accounted_comment(site.config.cluster.name, job, fresh)
    except SlurmError as error:
        log.info("costs are not noted in AdminComment jobs=%d error=%s", len(ended), error)


def costs_of(site: Site, jobs: Collection[int]) -> dict[int, tuple[int, set[str]]]:
    """By job, micro-dollars of all its runs and the markets of their machines."""
    now = site.now()
    # Read the runs by job. The ledger may keep millions of runs, and its lock is held meanwhile.
    begins = (run.begin for job in jobs for run in site.ledger.usage.runs_of(job))
    begin = min(begins, default=now)
    books = of_jobs(read_books(site.config, site.ledger, begin, None, now), jobs)
    micro: defaultdict[int, int] = defaultdict(int)
    markets: defaultdict[int, set[str]] = defaultdict(set)
    for charge in charges(books):
        for hour in charge.hours:
            for key, part in hour.parts.items():
                if not isinstance(key, Unused) and books.runs[key].job in jobs:
                    job = books.runs[key].job
                    micro[job] += part
                    markets[job].add(str(charge.machine.instance.market))
    return {job: (micro[job], markets[job]) for job in micro}
