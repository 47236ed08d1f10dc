"""Jobs that Slurm has forgotten and the records still have, as ``slurm-elastic mine`` lists them.

Slurm forgets an ended job after MinJobAge (default: five minutes). After that it can no longer say
which job number the task ``17_2`` of an array had.
"""

from __future__ import annotations

import contextlib
import time

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.local_time import minute
from slurm_elastic.config import Config
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.watch.door.client import own_jobs_of
from slurm_elastic.watch.door.questions import OwnJobsAsk
from slurm_elastic.watch.door.records import may_read, opened
from slurm_elastic.watch.view.own_jobs import ENDED, OwnJob

SINCE_S = 30 * 86400.0
TIMEOUT_S = 8.0


def number_of(config: Config, slurm: Slurm, label: str) -> int | None:
    """The number of the newest job that was called ``label``, such as ``17_2``; None if unknown."""
    if may_read(config):
        with contextlib.suppress(SlurmElasticError), opened(config) as ledger:
            if (number := ledger.usage.job_called(label)) is not None:
                return number
    row = own_job(config, slurm, label)
    return None if row is None else row.id


def own_job(config: Config, slurm: Slurm, label: str) -> OwnJob | None:
    """The newest job of this user with this label or number, from ``mine``; None if it has none."""
    now = time.time()
    with contextlib.suppress(SlurmElasticError):
        jobs = own_jobs_of(config, slurm, OwnJobsAsk(since=now - SINCE_S), now, TIMEOUT_S).jobs
        rows = [row for row in jobs if label in (row.label, str(row.id))]
        return max(rows, key=lambda row: (row.ended, row.id), default=None)
    return None


def sentence(job: OwnJob) -> str:
    """A sentence such as ``job 17_2 of ann ended at 2026-11-29 08:12 (COMPLETED) on st1``."""
    owner = f" of {job.user}" if job.user else ""
    where = f" on {job.nodes}" if job.nodes else ""
    state = f" ({job.slurm_state})" if job.slurm_state else ""
    ended = f" ended at {minute(job.ended)}" if job.state == ENDED and job.ended else ""
    return f"job {job.label}{owner}{ended}{state}{where}; Slurm's queue no longer has it"
