"""A machine of any cloud, in the form that the runner needs."""

from __future__ import annotations

from msgspec import Struct

ALIVE = frozenset({"pending", "running"})
"""The states of a machine that is on or booting."""


class CloudMachine(Struct, frozen=True, kw_only=True):
    """A machine in a cloud's list. ``launched`` is Unix time; ``generation`` is the launch's
    tag. ``metadata``: how its agent reads warnings, "" if it reads none.
    """

    id: str
    node: str
    state: str
    launched: float
    generation: str = ""
    metadata: str = ""
