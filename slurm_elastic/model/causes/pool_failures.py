"""Why machines of a pool count as failed, and details about a failed machine."""

from __future__ import annotations

from slurm_elastic.base.units import brief
from slurm_elastic.model.causes.cause import Cause


def ended_by_others(count: int) -> str:
    """The end of a sentence about ``count`` machines."""
    was = "was" if count == 1 else "were"
    return f"{was} ended in the cloud by others, minutes after the start"


class BootsFailed(Cause, frozen=True, kw_only=True):
    """The pool's last machines never registered, or Slurm took them out of service for
    ``node_reason``, or others ended them soon after their start (``ended_by_others``).
    ``in_a_row``: their number if the pool is paused, else 0. ``remedy``: the action for a person,
    "" if none is known.
    """

    in_a_row: int = 0
    node_reason: str = ""
    remedy: str = ""
    ended_by_others: bool = False

    @property
    def is_after_registration(self) -> bool:
        """Whether the machines may have registered first, so that a registration proves nothing."""
        return self.ended_by_others or bool(self.node_reason)

    @property
    def reason_with_remedy(self) -> str:
        """Slurm's reason with the remedy."""
        return f"{self.node_reason}; do: {self.remedy}" if self.remedy else self.node_reason

    @property
    def finding(self) -> str:
        """The sentence without the remedy."""
        machines = {0: "", 1: "1 machine "}.get(
            self.in_a_row, f"{self.in_a_row} machines in a row "
        )
        how = "booted but never registered with Slurm"
        if self.ended_by_others:
            how = ended_by_others(self.in_a_row)
        elif self.node_reason:
            was = "was" if self.in_a_row == 1 else "were"
            how = f"{was} taken out of service by Slurm: {self.node_reason}"
        return f"{machines}{how}"

    @property
    def words(self) -> str:
        return f"{self.finding}; do: {self.remedy}" if self.remedy else self.finding


class KeyNotBrought(Cause, frozen=True, kw_only=True):
    """The machine did not get Slurm's key. ``error``: why."""

    machine: str
    error: str

    @property
    def words(self) -> str:
        return f"{self.machine}: {self.error}"


class SecretMissing(Cause, frozen=True, kw_only=True):
    """A machine did not register because it got no secret. ``name``: the secret (the munge key,
    slurm.jwks). ``error``: why it did not get it.
    """

    name: str
    error: str

    @property
    def words(self) -> str:
        return f"{self.name} not brought: {self.error}"


class CheckFailed(Cause, frozen=True, kw_only=True):
    """A machine did not register because the site's own check (``join.check``) failed.
    ``check_output``: the check's output.
    """

    check_output: str

    @property
    def words(self) -> str:
        return f"its check failed: {self.check_output}"


class MachineNotPrepared(Cause, frozen=True, kw_only=True):
    """A machine did not register because a directory of ``join.mounts`` could not be mounted.
    ``error``: which one, and why.
    """

    error: str

    @property
    def words(self) -> str:
        return f"its slurmd did not start: {self.error}"


BootDetail = SecretMissing | CheckFailed | MachineNotPrepared
"""All details about a machine that did not register."""


class BootsCounted(Cause, frozen=True, kw_only=True):
    """``in_a_row`` machines of a ``pool`` have failed. ``failure``: their failure. ``detail``:
    details about one of them, None if there are none.
    """

    pool: str
    in_a_row: int
    failure: BootsFailed
    detail: BootDetail | None = None

    @property
    def words(self) -> str:
        how = "booted but not registered in time"
        if self.failure.ended_by_others:
            how = "ended in the cloud by others, minutes after its start"
        elif self.failure.node_reason:
            how = f"Slurm took it out of service: {self.failure.reason_with_remedy}"
        detail = f"; {self.detail}" if self.detail else ""
        return f"{how}; {self.in_a_row} in a row in pool {self.pool}{detail}"


class MachinesFailed(Cause, frozen=True, kw_only=True):
    """The machines of ``nodes`` (a hostlist of ``count`` nodes) failed. ``failure``: their failure.
    ``detail``: details about one of them, None if there are none.
    """

    nodes: str
    count: int
    failure: BootsFailed
    detail: BootDetail | None = None

    @property
    def words(self) -> str:
        if self.failure.node_reason:
            return f"Slurm took {self.nodes} out of service: {self.failure.reason_with_remedy}"
        machines = "machine" if self.count == 1 else "machines"
        if self.failure.ended_by_others:
            return f"the {machines} of {self.nodes} {ended_by_others(self.count)}"
        detail = f"; {self.detail}" if self.detail else ""
        return f"the {machines} of {self.nodes} did not register{detail}"


class ConsoleRead(Cause, frozen=True, kw_only=True):
    """The last ``lines`` of the console of a machine that did not register. Only operators may see
    them.
    """

    machine: str
    lines: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"the console of {self.machine} ends with: {self.last_line}"

    @property
    def last_line(self) -> str:
        """The last line; "" if there are none."""
        return self.lines[-1] if self.lines else ""


class LaunchUnanswered(Cause, frozen=True, kw_only=True):
    """The cloud never answered the launch for the node, and the time to boot is over."""

    @property
    def words(self) -> str:
        return "its launch has no answer, and its time to boot is over"


class BootTimeOver(Cause, frozen=True, kw_only=True):
    """The nodes (a hostlist) did not register within ``after_s`` seconds, shortly before
    ResumeTimeout (``timeout_s``). ``slurm_was_away``: they could not, because slurmctld did not
    answer.
    """

    nodes: str
    after_s: float
    timeout_s: float
    slurm_was_away: bool = False

    @property
    def words(self) -> str:
        timeout = brief(self.timeout_s)
        if self.slurm_was_away:
            away = "could not register while slurmctld was away"
            return f"{self.nodes} {away}, and its ResumeTimeout ({timeout}) is nearly over"
        late = f"did not register within {brief(self.after_s)}"
        return f"{self.nodes} {late} (ResumeTimeout is {timeout})"


PoolFailure = (
    BootTimeOver
    | BootsFailed
    | KeyNotBrought
    | SecretMissing
    | CheckFailed
    | MachineNotPrepared
    | BootsCounted
    | MachinesFailed
    | LaunchUnanswered
    | ConsoleRead
)
"""All causes that count against a pool or explain its failed machines, except ``NodeFailed``."""
