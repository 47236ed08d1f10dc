"""A Slurm that only the acting head may change (``state.heads``)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.fence import behind_fence
from slurm_elastic.model.protocols import Slurm

READS = frozenset({
    "version", "slurmd_timeout", "nodes", "jobs", "owners", "excluded_nodes", "reservations",
    "excluded_by_job", "default_times", "max_times", "free_licenses", "partition_states",
    "default_partition", "admin_comments",
    "suspend_exclusions", "slurmctld_started", "finished", "accounted_comment", "job",
    "mail_of", "batch_script", "dependencies",
})  # fmt: skip
"""Commands that change nothing. A head that no longer acts may still read."""


class NotActingError(SlurmError):
    """Another head acts, or we cannot tell which one. Nothing was sent to slurmctld."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__((command,), 0, reason)

    @property
    def unanswered(self) -> bool:
        """True, because slurmctld has refused nothing."""
        return True


def fenced(slurm: Slurm, require: Callable[[], None]) -> Slurm:
    """Return the client with a call of ``require`` before each change. Otherwise a head that wakes
    up could power down a node whose machine the other head has bought, or requeue a job that runs.
    """

    def guard(name: str, call: Callable[[], object]) -> object:
        try:
            require()
        except OSError as error:
            raise NotActingError(name, str(error)) from error
        return call()

    return behind_fence(slurm, guard, free=READS)
