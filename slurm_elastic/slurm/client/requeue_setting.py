"""The only place that changes whether a job may be requeued (``--no-requeue``, scontrol's Requeue).

Slurm ends a ``--no-requeue`` job with its node. A job that has not started, or that has an image to
go on from, loses nothing by waiting again, so both services lift the setting for such a job. A
setting that is lifted only until the job runs stands in the ledger.
"""

from __future__ import annotations

from slurm_elastic.base.faults import reach
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ledger import Ledger


def lift_until_it_runs(slurm: Slurm, ledger: Ledger, job: SlurmJob, now: float) -> None:
    """Allow one requeue of ``job``; ``put_back`` ends it. ``now`` is Unix time (s).

    Raises SlurmError where Slurm refuses or does not answer: the job may not be requeued then, and
    the ledger's row only makes a later ``put_back`` look once more.
    """
    # The row first, so that whoever serves after a crash puts the setting back.
    ledger.requeues.lift(job.id, job.restarts, now)
    reach("refuse.lifted")
    slurm.set_requeue(job.id, requeue=True)


def lift_for_good(slurm: Slurm, job: int) -> None:
    """Allow requeues of a job that has an image, from which it goes on. SlurmError if not."""
    slurm.set_requeue(job, requeue=True)


def put_back(slurm: Slurm, ledger: Ledger, number: int, job: SlurmJob | None) -> None:
    """Give the job its user's ``--no-requeue`` again; ``job`` is None where Slurm has forgotten it.

    Raises SlurmError where Slurm refuses or does not answer; the ledger keeps the row then.
    """
    if job is not None and job.requeue:
        slurm.set_requeue(job.id, requeue=False)
    reach("refuse.put-back")
    ledger.requeues.put_back(number)
