"""The only place that changes whether a job may be requeued (``--no-requeue``, scontrol's Requeue).

Slurm ends a ``--no-requeue`` job with its node. A job loses nothing if it waits again, as long as
it has not started or can continue from an image. So both services lift the setting for such a job.
If it is lifted only until the job runs, the ledger has a row about that.
"""

from __future__ import annotations

from slurm_elastic.base.faults import reach
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ledger import Ledger


def lift_until_it_runs(
    slurm: Slurm, ledger: Ledger, job: int, restarts: int, counted_from: float
) -> None:
    """Allow one requeue of the run of ``job`` that has this number of ``restarts``. ``put_back``
    forbids it again. ``counted_from``: slurm-elasticd puts back what is unused REQUEUE_TIMEOUT_S
    after this time (Unix s).

    Raises SlurmError if Slurm refuses or does not answer. Then the job may not be requeued, and the
    ledger's row only makes a later ``put_back`` check once more.
    """
    # The row comes first, so that after a crash the next head puts the setting back.
    ledger.requeues.lift(job, restarts, counted_from)
    reach("refuse.lifted")
    slurm.set_requeue(job, requeue=True)


def lift_for_good(slurm: Slurm, job: int) -> None:
    """Allow requeues of a job with an image to continue from. SlurmError if Slurm refuses."""
    slurm.set_requeue(job, requeue=True)


def put_back(slurm: Slurm, ledger: Ledger, number: int, job: SlurmJob | None) -> None:
    """Set the user's ``--no-requeue`` again. ``job`` is None if Slurm has forgotten it.

    Raises SlurmError if Slurm refuses or does not answer. The ledger then keeps the row.
    """
    if job is not None and job.requeue:
        slurm.set_requeue(job.id, requeue=False)
    reach("refuse.put-back")
    ledger.requeues.forget(number)
