"""A scenario: the pools of a site, and the rules by which they grow, shrink and serve."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Pool
from slurm_elastic.policies.growth.capacity import AnyGrowth, Slurm, misfits
from slurm_elastic.policies.growth.release import AnyRelease, Delayed, Idle, IdleOrder
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.billing import Billing, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.market import SpotMarket


class Clock(StrEnum):
    """When a machine's bill begins: clouds count from its launch, papers from its readiness."""

    REQUEST = "request"
    READY = "ready"


class Sold(Struct, frozen=True, kw_only=True):
    """An offer of a simulated cloud. ``market``: the price over time and the stock of a spot offer
    (None: always the offer's price, and any number). Offers of a pool with the same ``stock`` sell
    the same machines (empty: only this offer's).
    """

    offer: Offer
    market: SpotMarket | None = None
    stock: str = ""


class PoolModel(Struct, frozen=True, kw_only=True):
    """Equal machines of one cloud; a job runs within one pool.

    ``machines``: most at a time, of which ``standing`` always exist and are never released. Each
    has ``procs``, ``memory`` (MiB; 0: as much as anybody wants) and ``gpus``; in a ``shared`` pool,
    jobs that need less than a machine share one. ``offers``: all from which its machines may be
    bought; without any, there is one on demand at ``price`` ($/h) and one on the market ``spot``
    (None: not used). ``wanted``: the pool as the ranking knows it (None: any offer will do).
    ``check``: seconds between two looks for machines to release. ``min_idle``: so many stay up
    without work until the last job has ended. ``max_booting``: most that boot at a time. ``cloud``:
    whose limits count its machines (empty: that of its first offer, or one of its own).
    ``limited``: whether any limits count them, which they do not for nodes that the site has
    anyway.
    """

    name: str
    machines: int
    procs: int = 1
    memory: int = 0
    gpus: int = 0
    shared: bool = False
    standing: int = 0
    public: bool = True
    price: float = 0.0
    billing: Billing = field(default_factory=PerSecond)
    release: AnyRelease = field(default_factory=Idle)
    boot: BootTimes = field(default_factory=BootTimes)
    clock: Clock = Clock.REQUEST
    spot: SpotMarket | None = None
    check: int = 1
    min_idle: int = 0
    max_booting: int | None = None
    offers: tuple[Sold, ...] = ()
    wanted: Pool | None = None
    cloud: str = ""
    limited: bool = True

    @property
    def sold(self) -> tuple[Sold, ...]:
        """All offers from which its machines may be bought."""
        if self.offers:
            return self.offers
        whole = Offer(
            cloud=self.cloud or self.name,
            location=Location.PUBLIC if self.public else Location.ON_PREMISES,
            instance_type="machine",
            zone="",
            market=Market.ON_DEMAND if self.public else Market.RESERVED,
            price=self.price,
            cpus=1,
            memory=1,
            on_demand_price=self.price,
        )
        if self.spot is None:
            return (Sold(offer=whole),)
        return Sold(offer=replace(whole, market=Market.SPOT), market=self.spot), Sold(offer=whole)

    @property
    def on_spot(self) -> bool:
        """Whether its machines may be bought on a spot market."""
        return any(sold.market is not None for sold in self.sold)

    @property
    def grid(self) -> int:
        """Seconds between two looks, no more than the margin that a look must fall into."""
        if isinstance(self.release, Delayed) and self.billing.lease > 1 and self.public:
            return max(1, min(self.check, self.release.before_end))
        return max(1, self.check)


class CoolDownTimes(Struct, frozen=True, kw_only=True):
    """Seconds that an offer cools down after a first refusal for lack of ``capacity``. They double
    with each further one in a row, up to the ``longest``.
    """

    capacity: float = 180.0
    longest: float = 3600.0


class BootCap(Struct, frozen=True, kw_only=True):
    """Only so many ``machines`` of these ``pools`` (by name) together boot at a time."""

    pools: tuple[str, ...]
    machines: int


class Scenario(Struct, frozen=True, kw_only=True):
    """A site and its rules. ``pools`` are in the order in which they are used. Budgets stop public
    machines: those of ``bounds`` for all jobs, those of ``payers`` for the jobs of one
    (``account:3``, ``user:7``, by the history's numbers). Offers are ranked by the keys
    ``ranking``, within ``limits`` of all pools and of each cloud (``cloud_limits`` by name).

    ``reservations``: how many jobs at the head of the queue backfill may not delay. ``depth``: a
    look ends after so many jobs that cannot start (None: never; 1: no backfill), and growth
    policies see no more than so many. ``reuse``: a machine may serve a second job.
    ``requeue_delay``: seconds from an interruption until the job may start again.
    """

    pools: tuple[PoolModel, ...]
    growth: AnyGrowth = field(default_factory=Slurm)
    bounds: Bounds = field(default_factory=Bounds)
    limits: Limits = field(default_factory=Limits)
    cloud_limits: Mapping[str, Limits] = field(default_factory=dict)
    ranking: tuple[str, ...] = DEFAULT_KEYS
    cool_downs: CoolDownTimes = field(default_factory=CoolDownTimes)
    boot_caps: tuple[BootCap, ...] = ()
    payers: Mapping[str, Bounds] = field(default_factory=dict)
    order: IdleOrder = IdleOrder.MAX_MARGIN
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    reservations: int = 1
    depth: int | None = None
    reuse: bool = True
    requeue_delay: int = 0
    seed: int = 0

    def problems(self) -> list[str]:
        """Why this makes no sense, one sentence each; empty if it does."""
        found = [
            f"pool {pool.name}: {sentence}"
            for pool in self.pools
            if pool.machines > pool.standing
            for sentence in misfits(
                self.growth, pool.release, pool.billing.lease, pool.boot.seconds(1), pool.min_idle
            )
        ]
        if not self.pools:
            found.append("there are no pools")
        if self.depth is not None and self.depth < 1:
            found.append(f"depth is {self.depth}, expected 1 or more")
        if self.reservations < 1:
            found.append(f"reservations is {self.reservations}, expected 1 or more")
        at_once = [pool.max_booting for pool in self.pools if pool.max_booting is not None]
        if any(most < 1 for most in (*at_once, *(cap.machines for cap in self.boot_caps))):
            found.append("no machine could ever boot: max_booting is less than 1")
        found += [
            f"pool {pool.name}: {pool.standing} standing machines of {pool.machines}, {pool.procs}"
            " processors each, cannot be"
            for pool in self.pools
            if not 0 <= pool.standing <= pool.machines or pool.procs < 1
        ]
        return found
