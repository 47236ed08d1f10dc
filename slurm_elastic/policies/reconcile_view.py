"""The snapshot that repair decides on: one cloud's part of the world, as values; and what can be
read off it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.model import Instance
from slurm_elastic.model_slurm import SlurmNode


class TrackedInstance(Struct, frozen=True, kw_only=True):
    """A live machine by the ledger. ``decided`` is when its launch was decided (head's clock);
    ``shown`` whether any read of the cloud has had it, ``registered`` whether its node was up.
    ``double_of``: where the configuration has given its node to another cloud, the machine of that
    at whose address the node is, if it is.
    """

    id: str
    node: str
    generation: str
    decided: float
    misses: int = 0
    suspending: bool = False
    address: str | None = None
    max_age: float | None = None
    shown: bool = True
    registered: bool = False
    double_of: str = ""


class Intent(Struct, frozen=True, kw_only=True):
    """An open launch: its call is not known to have answered."""

    generation: str
    nodes: tuple[str, ...]
    created: float


class CloudView(Struct, frozen=True, kw_only=True):
    """One cloud's part of the world at ``now``. ``seen`` is None where the cloud could not be read.

    ``nodes`` are the cloud's nodes by Slurm, and those of ``known``, which may be of no pool any
    more: one that is not there is not listed by Slurm. ``held`` are kept from Slurm on purpose;
    ``elsewhere`` are served by machines or open launches of other clouds; ``at_others`` have the
    address of another node or its machine (``power_state.is_anothers_address``). ``pings``: whether
    slurmctld finds out by itself, and soon, that a node does not answer
    (``inventory_check.is_pinged``).
    ``slurm_user`` is as whom slurmctld itself takes nodes out of service.
    """

    now: float
    nodes: Mapping[str, SlurmNode]
    known: tuple[TrackedInstance, ...]
    intents: tuple[Intent, ...]
    seen: tuple[Instance, ...] | None
    held: frozenset[str] = field(default_factory=frozenset)
    elsewhere: frozenset[str] = field(default_factory=frozenset)
    at_others: frozenset[str] = field(default_factory=frozenset)
    pings: bool = True
    slurm_user: str = ""


class Thresholds(Struct, frozen=True, kw_only=True):
    """How long (s) a finding must stand before it is acted on, and how many reads must miss.

    ``visibility``: after that a launch without an answer has made nothing; ``fresh``: after that a
    machine that no read has had is gone. ``unlisted``: how old a machine must be to end because
    Slurm does not list its node, as after a pool or all of us was taken out of slurm.conf.
    """

    grace: float = 120.0
    misses: int = 3
    visibility: float = 600.0
    fresh: float = 300.0
    unlisted: float = 3600.0
