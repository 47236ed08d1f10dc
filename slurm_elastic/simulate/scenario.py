"""A scenario: the pools of a site, and the rules by which they grow, shrink and serve."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.policies.capacity import AnyGrowth, Bounds, Slurm, misfits
from slurm_elastic.policies.release import AnyRelease, Delayed, Idle, Order
from slurm_elastic.simulate.billing import Billing, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.market import SpotMarket


class Clock(StrEnum):
    """When a machine's bill begins: clouds count from its launch, papers from its readiness."""

    REQUEST = "request"
    READY = "ready"


class PoolModel(Struct, frozen=True, kw_only=True):
    """Equal machines of one cloud; a job runs within one pool.

    ``machines``: most at a time, of which ``standing`` are always there and never released;
    ``procs``: processors of one; ``price``: on demand, $/h; ``spot``: the spot market (None: not
    used); ``check``: seconds between two looks for machines to release; ``min_idle``: so many are
    kept up without work until the last job has ended; ``max_booting``: most that boot at a time.
    """

    name: str
    machines: int
    procs: int = 1
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

    @property
    def grid(self) -> int:
        """The seconds between two looks; no longer than the margin that a look must fall into."""
        if isinstance(self.release, Delayed) and self.billing.lease > 1 and self.public:
            return max(1, min(self.check, self.release.before_end))
        return max(1, self.check)


class Cap(Struct, frozen=True, kw_only=True):
    """An upper bound on machines of these ``pools`` together, by name; of them on the ``spot``
    market and ``on_demand`` in public clouds; and on ``dollars`` per hour at the on-demand price.
    """

    pools: tuple[str, ...]
    machines: int | None = None
    spot: int | None = None
    on_demand: int | None = None
    dollars: float | None = None


class BootCap(Struct, frozen=True, kw_only=True):
    """So many ``machines`` of these ``pools`` together, by name, boot at a time."""

    pools: tuple[str, ...]
    machines: int


class Scenario(Struct, frozen=True, kw_only=True):
    """A site and its rules. ``pools`` in the order in which they are used. Budgets stop public
    machines: those of ``bounds`` all, those of ``accounts`` (by the history's number, as text) the
    jobs of one.

    ``reservations``: jobs at the head that backfill may not delay; ``depth``: after so many jobs
    that cannot start one look ends (None: never; 1: no backfill), and growth policies see no more
    than so many; ``reuse``: a machine may serve a second job; ``requeue_delay``: seconds from an
    interruption until the job may start again.
    """

    pools: tuple[PoolModel, ...]
    growth: AnyGrowth = field(default_factory=Slurm)
    bounds: Bounds = field(default_factory=Bounds)
    caps: tuple[Cap, ...] = ()
    boot_caps: tuple[BootCap, ...] = ()
    accounts: Mapping[str, Bounds] = field(default_factory=dict)
    order: Order = Order.MAX_MARGIN
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
