"""Why machines of a pool count as failed, and what is known of one that failed."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class BootsFailed(Cause, frozen=True, kw_only=True):
    """The pool's last machines failed, ``in_a_row`` of them once the pool is paused (0 before):
    they never registered, or Slurm took them out of service for ``node_reason``, against which
    ``remedy`` helps ("" where none is known).
    """

    in_a_row: int = 0
    node_reason: str = ""
    remedy: str = ""

    @property
    def reason_with_remedy(self) -> str:
        """Slurm's reason with what to do."""
        return f"{self.node_reason}; do: {self.remedy}" if self.remedy else self.node_reason

    @property
    def finding(self) -> str:
        """The sentence without what to do."""
        before = f"{self.in_a_row} machines in a row " if self.in_a_row else ""
        how = "booted but never registered with Slurm"
        if self.node_reason:
            how = f"were taken out of service by Slurm: {self.node_reason}"
        return f"{before}{how}"

    @property
    def sentence(self) -> str:
        return f"{self.finding}; do: {self.remedy}" if self.remedy else self.finding


class NodeFailed(Cause, frozen=True, kw_only=True):
    """Slurm took a node with this ``machine`` out of service; ``explanation`` says why."""

    machine: str
    explanation: str

    @property
    def sentence(self) -> str:
        return f"{self.machine}: {self.explanation}"


class KeyNotBrought(Cause, frozen=True, kw_only=True):
    """The machine got no key of Slurm's; ``error`` says why."""

    machine: str
    error: str

    @property
    def sentence(self) -> str:
        return f"{self.machine}: {self.error}"


PoolFailure = BootsFailed | NodeFailed | KeyNotBrought
"""All causes that count against a pool or explain its failed machines."""
