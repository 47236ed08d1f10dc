"""A machine of any cloud, as the runner wants to know it."""

from __future__ import annotations

from msgspec import Struct

ALIVE = frozenset({"pending", "running"})
"""The states of a machine that is on, or about to be."""


class CloudMachine(Struct, frozen=True, kw_only=True):
    """A machine as the cloud has it; ``launched`` is Unix time, ``generation`` its launch's tag."""

    id: str
    node: str
    state: str
    launched: float
    generation: str = ""
