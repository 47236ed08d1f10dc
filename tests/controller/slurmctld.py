"""The Slurm of a World, with what tests do to it that neither users nor the daemon can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.slurm.client.fake_timed import TimedSlurm


class Slurmctld(TimedSlurm):
    """``before_command`` is called with the name of each command, and may have it fail."""

    before_command: Callable[[str], None] = staticmethod(lambda _name: None)

    def set_node(self, name: str, *states: str, **fields: Any) -> None:
        super().set_node(name, *states, **fields)
        self._since.setdefault(name, self.clock())

    def set_since(self, name: str, since: float) -> None:
        """The node counts as in its phase since then."""
        self._since[name] = since

    def remove_node(self, name: str) -> None:
        """slurm.conf has it no more."""
        del self._nodes[name]

    def set_suspend_time(self, seconds: float) -> None:
        """As by another slurm.conf."""
        for name in list(self._nodes):
            self.set_times([name], replace(self._times[name], suspend_time=seconds))

    def set_wish(self, job: int, among: Sequence[str], count: int = 1) -> None:
        """The job, which is there, wants ``count`` of these nodes."""
        self._wishes[job] = (among, count)

    def requeue_jobs_of(self, name: str) -> None:
        """As when slurmctld takes a node out."""
        self._requeue_jobs_of(name)

    def give_up(self, name: str) -> None:
        """ResumeTimeout is over."""
        self._fail(name, "ResumeTimeout reached", {"POWERED_DOWN"})

    def set_state(self, name: str, state: str) -> None:
        """As an admin's scontrol update, also while the daemon gets no answer."""
        self._update(name, state)

    def _command(self, name: str, **changes: Any) -> None:
        self.before_command(name)
        super()._command(name, **changes)
