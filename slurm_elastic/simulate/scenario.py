"""A scenario: the pools of a site, and its rules of growth, release and scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Pool
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.growth.capacity import AnyGrowth, Slurm, misfits
from slurm_elastic.policies.growth.release import AnyRelease, Delayed, Idle, IdleOrder
from slurm_elastic.policies.launch.pool_order import FREE_TRAFFIC, TrafficTerms
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.bills.billing import Billing, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints


class Clock(StrEnum):
    """When the lease of a machine begins. Clouds count from its launch, some papers from the end of
    its boot.
    """

    REQUEST = "request"
    READY = "ready"


class Sold(Struct, frozen=True, kw_only=True):
    """An offer of a simulated cloud. ``market``: the price over time and the stock of a spot offer
    (None: a constant price, and any number). Offers of a pool with the same ``stock`` share one
    stock ("": a stock of its own).
    """

    offer: Offer
    market: SpotMarket | None = None
    stock: str = ""


class PoolModel(Struct, frozen=True, kw_only=True):
    """Equal machines of one cloud. A job runs within one pool.

    ``machines``: the maximum at a time; ``standing`` of them always exist and are never released.
    Each has ``procs``, ``memory`` (MiB; 0: enough for any job) and ``gpus``. In a ``shared`` pool,
    jobs that need less than a machine share one, with ``by_user`` only jobs of one user at a time.
    ``offers``: the offers from which machines are bought. If empty, there is an on-demand offer at
    ``price`` ($/h) and, unless ``spot`` is None, a spot offer. ``wanted``: the pool in the form of
    the ranking (None: any offer suits). ``check``: seconds between two checks for machines to
    release. ``min_idle``: machines that stay up without work until the last job has ended.
    ``max_booting``: the maximum of booting machines. ``cloud``: the cloud whose limits apply
    (empty: the cloud of the first offer, or a cloud of its own). ``limited``: False for nodes that
    the site has anyway, to which no limits apply. ``traffic``: of jobs that say how much data they
    move. ``watts``: the power of a machine that is up. ``resume_timeout``: the seconds that
    slurm-elasticd allows for a boot before a reservation ends. ``refuses_parts``: the cloud starts
    no machine of a launch that has too few for any job.
    """

    name: str
    machines: int
    procs: int = 1
    memory: int = 0
    gpus: int = 0
    shared: bool = False
    by_user: bool = False
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
    traffic: TrafficTerms = FREE_TRAFFIC
    watts: float = 0.0
    resume_timeout: float = 0.0
    refuses_parts: bool = False

    @property
    def sold(self) -> tuple[Sold, ...]:
        """The offers from which machines of the pool may be bought."""
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
        """True if machines of the pool may be bought on a spot market."""
        return any(sold.market is not None for sold in self.sold)

    @property
    def grid(self) -> int:
        """Seconds between two checks. They are no more than ``before_end``, so that a check falls
        into that margin before each lease ends.
        """
        if isinstance(self.release, Delayed) and self.billing.lease > 1 and self.public:
            return max(1, min(self.check, self.release.before_end))
        return max(1, self.check)


class CoolDownTimes(Struct, frozen=True, kw_only=True):
    """Seconds of an offer's cool-down after a first refusal for lack of ``capacity``. They double
    with each further refusal in a row, up to ``longest``.
    """

    capacity: float = 180.0
    longest: float = 3600.0


class BootCap(Struct, frozen=True, kw_only=True):
    """A limit on the ``machines`` of these ``pools`` (by name) that boot at a time."""

    pools: tuple[str, ...]
    machines: int


class Scenario(Struct, frozen=True, kw_only=True):
    """A site and its rules. ``pools`` are in the order in which they are used; if several clouds
    compete, each job has an order of its own (``cloud_order``).

    Budgets stop public machines: ``bounds`` for all jobs, ``payers`` for the jobs of one payer
    (``account:3`` or ``user:7``, with the history's numbers). Offers are ranked by the keys
    ``ranking``, within the ``limits`` of all pools and of each cloud (``cloud_limits`` by name).

    ``reservations``: the number of jobs at the head of the queue that backfill may not delay.
    ``depth``: a pass over the queue ends after so many jobs that cannot start (None: never; 1: no
    backfill), and growth policies see only so many jobs. ``reuse``: a machine may serve a second
    job. ``requeue_delay``: seconds from an interruption until the job may start again. ``held``:
    the site's reservations, in seconds of the history; offers of machines on them are in the pools.
    ``guarded``: growth policies stop counting jobs whom machines do not help, as slurm-elasticd's
    do; those of papers do not. ``finishes``: machines take no new jobs when the cluster's budget is
    spent (``budget.when_spent``).
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
    held: tuple[Held, ...] = ()
    guarded: bool = False
    finishes: bool = False
    seed: int = 0

    def problems(self) -> list[str]:
        """Return a sentence for each reason why the scenario makes no sense."""
        sentences = [
            f"pool {pool.name}: {sentence}"
            for pool in self.pools
            if pool.machines > pool.standing
            for sentence in misfits(
                self.growth, pool.release, pool.billing.lease, pool.boot.seconds(1), pool.min_idle
            )
        ]
        if not self.pools:
            sentences.append("there are no pools")
        if self.depth is not None and self.depth < 1:
            sentences.append(f"depth is {self.depth}, expected 1 or more")
        if self.reservations < 1:
            sentences.append(f"reservations is {self.reservations}, expected 1 or more")
        if not self.reuse and not isinstance(self.growth, Slurm):
            # The others start machines for no job in particular, so without reuse no job would get
            # them, and the policy would start more until the simulation gives the queue up.
            sentences.append("machines that serve one job each need growth slurm")
        at_once = [pool.max_booting for pool in self.pools if pool.max_booting is not None]
        if any(limit < 1 for limit in (*at_once, *(cap.machines for cap in self.boot_caps))):
            sentences.append("no machine could ever boot: max_booting is less than 1")
        sentences += [
            f"pool {pool.name}: {pool.standing} standing machines of {pool.machines}, {pool.procs}"
            " processors each, are impossible"
            for pool in self.pools
            if not 0 <= pool.standing <= pool.machines or pool.procs < 1
        ]
        return sentences
