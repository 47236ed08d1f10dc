"""The hosts of virtual machines whose power we may switch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct


class HostState(StrEnum):
    """``UNKNOWN``: the host or its BMC does not answer, so nothing is done with it."""

    ON = "on"
    STOPPING = "shutting down"
    OFF = "off"
    STARTING = "starting"
    UNKNOWN = "unknown"


class HostView(Struct, frozen=True, kw_only=True):
    """One host. ``occupants``: its machines, including stopped machines and machines of other
    people; 0 unless it is ON. ``failed_boots``: how often in a row it did not come up in time after
    we switched it on.
    """

    host: str
    state: HostState
    occupants: int = 0
    failed_boots: int = 0


class SwitchRules(Struct, frozen=True, kw_only=True):
    """``idle_s``: a host goes off after so long without a machine. ``keep``: so many free hosts
    stay on for new machines.
    """

    idle_s: float
    keep: int


@runtime_checkable
class SwitchesHosts(Protocol):
    """A provider that can shut down the hosts of its machines and switch them on again. Every call
    may raise the five ProviderErrors.
    """

    @property
    def switch_rules(self) -> SwitchRules | None:
        """The rules by which hosts are switched; None if no host may be switched."""
        ...

    def host_views(self) -> Sequence[HostView]:
        """The state of the hosts that may be switched. From now on a host is used again if it has
        come back.
        """
        ...

    def switch_host_off(self, host: str) -> bool:
        """Shut the host down if it has no machine, not even a stopped machine or a machine of other
        people. False if it stays on. After TransientError it may shut down.
        """
        ...

    def switch_host_on(self, host: str) -> bool:
        """Switch the host on. False if we have not switched it off, so that it is not ours to
        switch.
        """
        ...
