"""A host of virtual machines whose power we may switch."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class HostState(StrEnum):
    """``UNKNOWN``: the host or its BMC does not answer, so nothing is done with it."""

    ON = "on"
    STOPPING = "shutting down"
    OFF = "off"
    STARTING = "starting"
    UNKNOWN = "unknown"


class HostView(Struct, frozen=True, kw_only=True):
    """One host. ``occupants``: its machines, also stopped ones and those of other people; 0 unless
    it is ON.
    """

    host: str
    state: HostState
    occupants: int = 0
