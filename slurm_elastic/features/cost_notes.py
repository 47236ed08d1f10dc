"""Write the cost of each ended job into its AdminComment in slurmdbd, if the site wants that
(``admin_comment``). The site's own text in the comment is kept. If slurmdbd refuses, the
cost is not noted.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.features.books import charges, of_jobs, read_books
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.cost_note import noted
from slurm_elastic.policies.money.cost_split import Unused

log = logging.getLogger(__name__)


def note_costs(site: Site, runs: Iterable[ChargedRun], jobs: Iterable[SlurmJob]) -> None:
    """Note the cost of the ended jobs among ``jobs`` whose end is in ``runs`` (just recorded)."""
    ended_jobs = {job.id for job in jobs if job.has_ended}
    newly_ended = {run.job for run in runs if run.end is not None} & ended_jobs
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


def costs_of(site: Site, jobs: Collection[int]) -> dict[int, tuple[int, set[str]]]:
    """By job id: micro-dollars of all its runs, and the markets of their machines."""
    now = site.now()
    # Read the runs job by job. The ledger may keep millions of runs, and a reading holds its lock.
    begins = (run.begin for job in jobs for run in site.ledger.usage.runs_of(job))
    begin = min(begins, default=now)
    books = read_books(site.config, site.ledger, begin, None, now)
    # With reservations all machines are read, because they share the price.
    books = books if books.held else of_jobs(books, jobs)
    micro: defaultdict[int, int] = defaultdict(int)
    markets: defaultdict[int, set[str]] = defaultdict(set)
    for charge in charges(books):
        for hour in charge.hours:
            for key, share_micro in hour.parts.items():
                if not isinstance(key, Unused) and books.runs[key].job in jobs:
                    job = books.runs[key].job
                    micro[job] += share_micro
                    markets[job].add(str(charge.machine.instance.market))
    return {job: (micro[job], markets[job]) for job in micro}
