"""The input of a pass over one cloud, as values."""

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


class RoundRule(Enum):
    """The rules, in the order in which they run."""

    REPAIR = "repair"
    READ = "read"
    ADDRESSES = "addresses"
    NAMES = "names"
    REGISTRATIONS = "registrations"
    DRAINS = "drains"
    HOLDS = "holds"


BOOKS = (
    RoundRule.READ,
    RoundRule.ADDRESSES,
    RoundRule.NAMES,
    RoundRule.REGISTRATIONS,
    RoundRule.DRAINS,
    RoundRule.HOLDS,
)
"""The rules of a cloud's pass that need the ledger as it is after the repairs."""


class Terms(Struct, frozen=True, kw_only=True):
    """The part of the configuration that a pass over one cloud needs.

    ``clouds``: all configured clouds. ``pools``, ``pool_of``: the pools of all clouds, by pool and
    by node name. ``resume_timeouts``: how long a machine may take to boot (s), by cloud;
    ``resume_timeout``: the same for a cloud that has left the configuration. ``suspend_timeout``
    (s). ``proven_after_s``: how long a machine must be in service to prove that its pool works
    (s). ``tells_addresses``: nodes get their addresses from the provider. ``looks_names_up``:
    slurmctld looks up the names of nodes without an address. ``is_first_cloud``: this cloud is the
    first configured one; its pass does the work of once per round. ``offer_order``: the order of
    offers (``ranking.KEYS``).
    """

    cloud: str
    clouds: frozenset[str]
    pools: Mapping[str, Pool]
    pool_of: Mapping[str, Pool]
    resume_timeout: float
    suspend_timeout: float
    thresholds: Thresholds
    proven_after_s: float
    drain_terms: DrainTerms
    tells_addresses: bool = False
    looks_names_up: bool = False
    is_first_cloud: bool = False
    offer_order: Sequence[str] = DEFAULT_KEYS
    resume_timeouts: Mapping[str, float] = {}


class ClusterSnapshot(Struct, frozen=True, kw_only=True, dict=True):
    """Slurm, the ledger and one cloud, read once for a pass that began at ``now`` (Unix s).

    ``machines``: the ledger's live machines, ``launches`` its open launches, ``stopped`` its
    stopped machines, ``drains`` its open spans of drain, all of all clouds. ``recent``: the live
    machines and machines ended in the last day, if a rule needs them. ``listed``: the cloud's list,
    None if the cloud could not be read. ``read_whole``: an earlier list was taken in completely.
    ``answered``: by generation, when a launch was answered (Unix s), for launches with missing
    machines. ``offers`` and ``scopes``: by pool, only for pools with due holds. ``recipes``: of the
    pass's cloud. ``writable``: the ledger can be written; if not, it may lack rows of its file.
    ``request``: the request that the pass serves, None in a round; ``nodes`` then has the request's
    nodes only.
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
    def own_machines(self) -> list[Machine]:
        """The live machines of the pass's cloud."""
        return [m for m in self.machines if m.instance.cloud == self.terms.cloud]

    @cached_property
    def own_pools(self) -> list[Pool]:
        """The pools of the pass's cloud."""
        return [pool for pool in self.terms.pools.values() if pool.cloud == self.terms.cloud]

    def home(self, node: str) -> str | None:
        """Return the cloud that the configuration gives the node to; None if no pool has it."""
        pool = self.terms.pool_of.get(node)
        return None if pool is None else pool.cloud

    def may_boot(self, decided: float, cloud: str) -> bool:
        """Return whether what was decided at that time (Unix s) in that cloud may still boot."""
        limit_s = self.terms.resume_timeouts.get(cloud, self.terms.resume_timeout)
        return decided > self.now - limit_s
