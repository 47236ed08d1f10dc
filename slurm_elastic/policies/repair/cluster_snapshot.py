"""All that a pass over one cloud decides on, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property

from msgspec import Struct, field

from slurm_elastic.model.cluster import Instance, Offer, Pool
from slurm_elastic.model.directive import Directive
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import Drained, Launch, Machine
from slurm_elastic.model.slurm import Request, SlurmNode
from slurm_elastic.policies.growth.stopped import NO_RECIPES, Recipes
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope
from slurm_elastic.policies.nodes.out_of_service import DrainTerms
from slurm_elastic.policies.repair.cloud_view import Thresholds


class Rule(Enum):
    """The rules, in the order in which they are asked."""

    REPAIR = "repair"
    READ = "read"
    ADDRESSES = "addresses"
    NAMES = "names"
    REGISTRATIONS = "registrations"
    DRAINS = "drains"
    HOLDS = "holds"


BOOKS = (Rule.READ, Rule.ADDRESSES, Rule.NAMES, Rule.REGISTRATIONS, Rule.DRAINS, Rule.HOLDS)
"""The rules of a cloud's pass that go by the ledger as it is after the repairs."""


class Terms(Struct, frozen=True, kw_only=True):
    """The part of the configuration that a pass over one cloud goes by: ``clouds`` are those that
    are configured; ``pools`` and ``pool_of`` are of all of them. ``served`` is how long (s) a
    machine is in service until it proves that its pool works, ``first`` whether the cloud is the
    first one: what is done once a round is done with that. ``looks_names_up``: whether slurmctld
    looks up the names of nodes without an address.
    """

    cloud: str
    clouds: frozenset[str]
    pools: Mapping[str, Pool]
    pool_of: Mapping[str, Pool]
    resume_timeout: float
    suspend_timeout: float
    patience: Thresholds
    served: float
    drain_terms: DrainTerms
    tells_addresses: bool = False
    looks_names_up: bool = False
    first: bool = False
    keys: Sequence[str] = DEFAULT_KEYS


class ClusterSnapshot(Struct, frozen=True, kw_only=True, dict=True):
    """Slurm, the ledger and a cloud, read once for one pass, which began at ``now``.

    ``machines`` are the ledger's live ones, ``launches`` its open ones, of all clouds; ``recent``
    also those that ended in the last day, where a rule asks for them. ``listed`` is the cloud's
    list, None where it could not be read; ``read_whole`` whether an earlier one was taken in.
    ``answered``: by generation, when launches were answered whose machines are missing. ``offers``
    and ``scopes`` are there, by pool, where holds are to be looked at; ``drains`` are the ledger's
    that go on, ``stopped`` its stopped machines, of all clouds, and ``recipes`` those of the pass's
    cloud. ``writable``: whether the ledger can be written; one that cannot may lack what is in its
    file. ``request``: the one that the pass is for; ``nodes`` has its nodes alone then.
    """

    now: float
    terms: Terms
    nodes: Mapping[str, SlurmNode]
    machines: tuple[Machine, ...]
    launches: tuple[Launch, ...]
    exclusions: tuple[Exclusion, ...]
    listed: tuple[Instance, ...] | None = None
    read_whole: bool = True
    writable: bool = True
    slurmd_timeout: float = 0.0
    answered: Mapping[str, float] = field(default_factory=dict)
    recent: tuple[Machine, ...] = ()
    drains: tuple[Drained, ...] = ()
    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    stopped: tuple[Machine, ...] = ()
    directives: tuple[Directive, ...] = ()
    recipes: Recipes = NO_RECIPES
    request: Request | None = None

    @cached_property
    def mine(self) -> list[Machine]:
        """The live machines of the pass's cloud."""
        return [m for m in self.machines if m.instance.cloud == self.terms.cloud]

    @cached_property
    def own_pools(self) -> list[Pool]:
        """The pools of the pass's cloud."""
        return [pool for pool in self.terms.pools.values() if pool.cloud == self.terms.cloud]

    def home(self, node: str) -> str | None:
        """The cloud that has the node by the configuration."""
        pool = self.terms.pool_of.get(node)
        return None if pool is None else pool.cloud
