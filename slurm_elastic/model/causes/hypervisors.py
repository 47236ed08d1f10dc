"""Why hosts of virtual machines are switched on and off (``features.hypervisors``)."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.causes.cause import Cause


class HostSwitchedOff(Cause, frozen=True, kw_only=True):
    """The host ``host`` is shut down because it has had no machine for ``empty_s`` seconds."""

    host: str
    empty_s: float

    @property
    def words(self) -> str:
        return f"host {self.host} is shut down: no machine on it for {brief(self.empty_s)}"


class HostSwitchedOn(Cause, frozen=True, kw_only=True):
    """The host ``host`` is switched on: machines lack room (``is_needed``), or fewer than ``keep``
    hosts are free.
    """

    host: str
    is_needed: bool
    keep: int

    @property
    def words(self) -> str:
        reason = (
            "machines wait for room"
            if self.is_needed
            else f"fewer than {counted(self.keep, 'host')} would be free"
        )
        return f"host {self.host} is switched on: {reason}"


class HostNotSwitched(Cause, frozen=True, kw_only=True):
    """The power of ``host`` could not be switched, with an ``error``. The next look tries again."""

    host: str
    error: str

    @property
    def words(self) -> str:
        return f"host {self.host} could not be switched: {self.error}"


HostPowerStep = HostSwitchedOff | HostSwitchedOn | HostNotSwitched
"""All causes about the power of hosts."""
