"""A Slurm that the head which acts changes, and no other (``state.heads``)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.fence import behind_fence
from slurm_elastic.model.protocols import Slurm

READS = frozenset({
    "version", "slurmd_timeout", "nodes", "jobs", "owners", "excluded_nodes", "reservations",
    "excluded_by_job", "default_times", "max_times", "free_licenses", "partition_states",
    "suspend_exclusions", "slurmctld_started", "finished", "accounted_comment", "output",
})  # fmt: skip
"""Commands that change nothing: a head that acts no more may look."""


class NotActingError(SlurmError):
    """Another head acts, or that cannot be told: slurmctld was asked nothing."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__((command,), 0, why)

    @property
    def unanswered(self) -> bool:
        """It has refused nothing."""
        return True


def fenced(slurm: Slurm, require: Callable[[], None]) -> Slurm:
    """The same Slurm, each change of which asks ``require`` first: one that wakes would power down
    a node whose machine the other head has bought, or requeue a job that runs on it.
    """

    def guard(name: str, call: Callable[[], object]) -> object:
        try:
            require()
        except OSError as error:
            raise NotActingError(name, str(error)) from error
        return call()

    return behind_fence(slurm, guard, free=READS)
