"""Random small sites and histories, and what the engine and the independent simulator make of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Location, Market, Offer
from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth.capacity import OnDemand, Slurm
from slurm_elastic.policies.growth.release import AtOnce, Delayed, Idle, IdleOrder
from slurm_elastic.simulate.bills.billing import Curve, Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import (
    BootCap,
    Clock,
    CoolDownTimes,
    PoolModel,
    Scenario,
    Sold,
)
from tests.simulate.independent import Found, independent

PRICE, DEARER = 0.9, 1.4


@st.composite
def jobs(draw: st.DrawFn, most: int, like: PoolModel, crowded: bool) -> Jobs:
    """1 to 12 jobs that need at most so many processors, within a minute to half an hour."""
    count = draw(st.integers(6 if crowded else 1, 12))
    span = draw(st.sampled_from((60, 300) if crowded else (60, 300, 1800)))
    cores, memory, gpus = like.procs, like.memory, like.gpus
    found = []
    for number in range(count):
        run = draw(st.one_of(st.integers(0, 400), st.integers(100, 800)))
        limit = draw(st.one_of(st.just(max(run, 1)), st.integers(1, 900)))
        procs = draw(st.one_of(st.integers(1, cores), st.integers(1, most), st.just(most)))
        alone = procs <= cores
        found.append(
            Job(
                number, draw(st.integers(0, span)), run, limit, procs,
                memory=draw(st.sampled_from((0, 300, 600))) if memory and alone else 0,
                gpus=draw(st.integers(0, gpus)) if gpus and alone else 0,
                nodes=draw(st.sampled_from((1, 1, 1, 2, 3))),
            )
        )  # fmt: skip
    return Jobs(found)


@st.composite
def spot(draw: st.DrawFn, machines: int) -> SpotMarket:
    """A market whose stock or price moves."""
    times = sorted(draw(st.sets(st.integers(1, 2000), max_size=4)))
    prices = [draw(st.sampled_from((0.2, 0.3, 0.31, 0.5, 1.2))) for _ in (0, *times)]
    curve = Curve([0, *times], prices)
    bid = draw(st.sampled_from((None, PRICE)))
    steps = sorted(draw(st.sets(st.integers(1, 2000), max_size=8)))
    stock = [draw(st.integers(0, machines)) for _ in (0, *steps)]
    available = list(zip([0, *steps], stock, strict=True))
    return SpotMarket(curve, bid=bid, available=available if draw(st.integers(0, 3)) else ())


@st.composite
def offers(draw: st.DrawFn, cloud: str, machines: int, price: float) -> tuple[Sold, ...]:
    """Spot machines in two zones, of one stock at times, and those on demand, as a cloud lists them."""
    stock = draw(st.sampled_from(("", "both")))
    market = draw(spot(machines))
    markets = (market, market if stock else draw(spot(machines)))
    zones = [
        Sold(offer=offer(cloud, zone, Market.SPOT, price), market=one, stock=stock)
        for zone, one in zip(("a", "b"), markets, strict=True)
    ]
    return (*zones, Sold(offer=offer(cloud, "a", Market.ON_DEMAND, price)))


NO_ORDER = (IdleOrder.RANDOM, IdleOrder.PACKED)
"""Without hosts, which the simulator does not know, both mean any machine."""


def offer(cloud: str, zone: str, market: Market, price: float) -> Offer:
    """A machine."""
    return Offer(
        cloud=cloud, location=Location.PUBLIC, instance_type="machine", zone=zone, market=market,
        price=price, cpus=1, memory=1, on_demand_price=price,
    )  # fmt: skip


billings = st.one_of(
    st.just(PerSecond()),
    st.just(PerSecond(minimum=0)),
    st.just(Hourly()),
    st.builds(Hourly, refund=st.booleans(), seconds=st.sampled_from((600, 1800))),
)


@st.composite
def cloud(
    draw: st.DrawFn, number: int, like: PoolModel, largest: int, *, apart: bool = False
) -> PoolModel:
    """A pool of a cloud, with standing machines of its own at times; its machines may be larger
    than those of other pools, dearer, and without GPUs. ``apart``: of a public cloud of its own.
    """
    machines = draw(st.integers(1, largest))
    release = draw(
        st.one_of(
            st.builds(Idle, seconds=st.integers(1, 300)),
            st.just(AtOnce()),
            st.just(Delayed(before_end=180)),
        )
    )
    of = f"cloud{number if apart else draw(st.sampled_from((0, number)))}"
    public = apart or draw(st.integers(0, 5)) > 0
    bought = draw(st.integers(0, 3)) if public else 0
    size, gpus = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from((1, 1, 2, 0)))
    price = draw(st.sampled_from((PRICE, PRICE, DEARER)))
    boot = draw(st.sampled_from((((1, 0),), ((1, 10),), ((1, 60),), ((1, 20), (4, 90)))))
    return replace(
        like, name=f"cloud{number}", cloud=of, limited=True, machines=machines, price=price, public=public,
        procs=size * like.procs, memory=size * like.memory, gpus=gpus * like.gpus,
        billing=draw(billings), release=release, boot=BootTimes(boot),
        standing=draw(st.integers(0, machines)) if draw(st.integers(0, 3)) == 0 else 0,
        spot=draw(spot(machines)) if bought in (1, 2) else None,
        offers=draw(offers(of, machines, price)) if bought == 3 else (),
        check=draw(st.sampled_from((1, 1, 60))),
        refuses_parts=draw(st.booleans()),
        max_booting=draw(st.sampled_from((None, None, 1, 2))),
        clock=draw(st.sampled_from((Clock.REQUEST, Clock.REQUEST, Clock.REQUEST, Clock.READY))),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, *, competing: bool = False) -> tuple[Jobs, Scenario]:
    """A site and a history that some pool can serve. ``competing``: with two or three clouds."""
    crowded = draw(st.booleans())
    largest = 3 if crowded else 6
    cores = draw(st.sampled_from((1, 2, 4, 4)))
    shared = cores > 1 and draw(st.integers(0, 2)) < 2
    own = PoolModel(
        name="own", machines=draw(st.integers(1, largest)), procs=cores, shared=shared, public=False,
        memory=draw(st.sampled_from((0, 1000))) if shared else 0,
        gpus=draw(st.sampled_from((0, 0, 2))) if shared else 0,
        limited=draw(st.integers(0, 3)) == 0,
    )  # fmt: skip
    own = replace(own, standing=own.machines)
    pools = [own] if draw(st.booleans()) else []
    least_clouds = 2 if competing else 1 - len(pools)
    pools += [
        draw(cloud(n, own, largest, apart=competing))
        for n in range(draw(st.integers(least_clouds, max(3 - len(pools), least_clouds))))
    ]
    most = max(pool.machines for pool in pools)
    history = draw(jobs(most * cores, own, crowded))
    growth: Slurm | OnDemand = Slurm()
    growing = [pool for pool in pools if pool.standing < pool.machines]
    if all(pool.boot.seconds(1) > 0 and not isinstance(pool.release, AtOnce) for pool in growing):
        growth = draw(st.sampled_from((Slurm(), OnDemand())))
    least = most + sum(pool.standing for pool in pools if pool.limited)
    no_limits = st.just(Limits())
    caps = BootCap(pools=("cloud0", "cloud1"), machines=2)
    saves = Checkpoints(
        policy=Hour(margin=60, every=300), dump=draw(st.sampled_from((0, 20))), restart=10
    )
    return history, Scenario(
        pools=tuple(pools), growth=growth,
        limits=draw(st.one_of(no_limits, bounds(least))),
        cloud_limits={"cloud0": draw(st.one_of(no_limits, bounds(least)))},
        boot_caps=draw(st.sampled_from(((), (), (), (caps,)))),
        cool_downs=CoolDownTimes(capacity=draw(st.sampled_from((20, 50, 180))), longest=draw(st.sampled_from((1, 400)))),
        order=draw(st.sampled_from([o for o in IdleOrder if o not in NO_ORDER])),
        depth=draw(st.sampled_from((None, None, None, 1, 2, 3))),
        requeue_delay=draw(st.sampled_from((0, 0, 30))),
        checkpoints=draw(st.sampled_from((Checkpoints(), Checkpoints(), saves))),
    )  # fmt: skip


@st.composite
def bounds(draw: st.DrawFn, most: int) -> Limits:
    """Limits that leave room for the largest job on demand."""
    return Limits(
        nodes=draw(st.one_of(st.none(), st.integers(most, most + 3))),
        spot=draw(st.one_of(st.none(), st.integers(0, 4))),
        on_demand=draw(st.one_of(st.none(), st.integers(most, most + 3))),
        dollars_per_hour=draw(
            st.one_of(st.none(), st.integers(most, most + 3).map(lambda n: n * DEARER))
        ),
    )


def engine_found(found: RunResult) -> Found:
    """The engine's result as the independent simulator has it."""
    leases: Counter[tuple[int, int | None, int, int, bool]] = Counter()
    for number, machines in enumerate(found.pools):
        rows = zip(
            machines.leases.batch,
            machines.leases.end,
            machines.leases.count,
            machines.leases.reclaimed,
            strict=True,
        )
        for batch, end, count, taken in rows:
            standing = batch == 0 and machines.pool.standing
            offer = None if standing else machines.batch_offer[batch]
            leases[number, offer, machines.batch_start[batch], end, bool(taken)] += count
    dollars = [sum(machines.leases.dollars.values()) for machines in found.pools]
    return Found(list(found.starts), list(found.ends), leases, dollars, found.figures.interruptions)


def differences(history: Jobs, scenario: Scenario) -> list[str]:
    """The results on which the two do not agree."""
    theirs = engine_found(simulate(history, scenario))
    mine = independent(history, scenario)
    found = []
    for name in ("starts", "ends", "interruptions"):
        one, other = getattr(theirs, name), getattr(mine, name)
        if one != other:
            found.append(f"{name}: engine {one}, rules {other}")
    if min(theirs.ends) < 0:
        return found  # the queue was given up after a long time
    if theirs.leases != mine.leases:
        found.append(
            f"leases: engine alone {dict(theirs.leases - mine.leases)}, rules alone {dict(mine.leases - theirs.leases)}"
        )
    rounded = [[round(1e6 * d) for d in one.dollars] for one in (theirs, mine)]
    if any(abs(a - b) > 1 for a, b in zip(*rounded, strict=True)):
        found.append(f"micro-dollars: engine {rounded[0]}, rules {rounded[1]}")
    return found
