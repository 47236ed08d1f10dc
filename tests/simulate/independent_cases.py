"""Random small sites and histories, and what the engine and the independent simulator make of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from slurm_elastic.model import Limits
from slurm_elastic.policies.capacity import OnDemand, Slurm
from slurm_elastic.policies.release import AtOnce, Delayed, Idle, Order
from slurm_elastic.simulate.billing import Billing, Curve, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.jobs import Job, Jobs
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.outcome import Outcome
from slurm_elastic.simulate.scenario import BootCap, CoolDownTimes, PoolModel, Scenario
from tests.simulate.independent import Found, independent

PRICE = 0.9


@st.composite
def jobs(draw: st.DrawFn, most: int, cores: int, memory: bool) -> Jobs:
    """1 to 12 jobs that need at most so many processors."""
    count = draw(st.integers(1, 12))
    found = []
    for number in range(count):
        run = draw(st.integers(0, 400))
        limit = draw(st.one_of(st.just(max(run, 1)), st.integers(1, 600)))
        small = draw(st.booleans())
        procs = draw(st.integers(1, cores if small else most))
        used = draw(st.sampled_from((0, 300, 600))) if memory else 0
        submit = draw(st.integers(0, 900))
        found.append(Job(number, submit, run, limit, procs, memory=used if procs <= cores else 0))
    return Jobs(found)


@st.composite
def spot(draw: st.DrawFn, machines: int) -> SpotMarket:
    """A market whose stock or price moves."""
    times = sorted(draw(st.sets(st.integers(1, 2500), max_size=4)))
    prices = [draw(st.sampled_from((0.2, 0.3, 0.5, 1.2))) for _ in (0, *times)]
    curve = Curve([0, *times], prices)
    bid = draw(st.sampled_from((None, PRICE)))
    steps = sorted(draw(st.sets(st.integers(1, 2500), max_size=4)))
    stock = [draw(st.integers(0, machines)) for _ in (0, *steps)]
    available = list(zip([0, *steps], stock, strict=True))
    return SpotMarket(curve, bid=bid, available=available if draw(st.booleans()) else ())


billings = st.one_of(
    st.just(PerSecond()),
    st.just(PerSecond(minimum=0)),
    st.just(Hourly()),
    st.builds(Hourly, refund=st.booleans(), seconds=st.sampled_from((600, 1800))),
)


@st.composite
def cloud(draw: st.DrawFn, number: int, cores: int, shared: bool, memory: int) -> PoolModel:
    """A pool of a cloud, with standing machines of its own at times."""
    machines = draw(st.integers(1, 6))
    billing: Billing = draw(billings)
    release = draw(
        st.one_of(
            st.builds(Idle, seconds=st.integers(1, 300)),
            st.just(AtOnce()),
            st.just(Delayed(before_end=180)),
        )
    )
    boot = draw(st.sampled_from((((1, 0),), ((1, 10),), ((1, 60),), ((1, 20), (4, 90)))))
    model = PoolModel(
        name=f"cloud{number}", machines=machines, procs=cores, memory=memory, shared=shared, price=PRICE,
        billing=billing, release=release, boot=BootTimes(boot),
        standing=draw(st.integers(0, machines)) if draw(st.integers(0, 3)) == 0 else 0,
        spot=draw(spot(machines)) if draw(st.booleans()) else None,
        check=draw(st.sampled_from((1, 1, 60))),
        max_booting=draw(st.sampled_from((None, None, 1, 2))),
        public=draw(st.sampled_from((True, True, True, False))),
    )  # fmt: skip
    if not model.public and model.spot is not None:
        model = PoolModel(
            **{name: getattr(model, name) for name in model.__struct_fields__ if name != "spot"}
        )
    return model


@st.composite
def cases(draw: st.DrawFn) -> tuple[Jobs, Scenario]:
    """A site and a history that some pool can serve."""
    cores = draw(st.sampled_from((1, 2, 4)))
    shared = cores > 1 and draw(st.integers(0, 2)) < 2
    memory = draw(st.sampled_from((0, 1000))) if shared else 0
    pools = []
    if draw(st.booleans()):
        own = draw(st.integers(1, 6))
        pools.append(
            PoolModel(
                name="own",
                limited=draw(st.integers(0, 3)) == 0,
                machines=own,
                standing=own,
                procs=cores,
                memory=memory,
                shared=shared,
                public=False,
            )
        )
    clouds = draw(st.integers(0 if pools else 1, 3 - len(pools)))
    pools += [draw(cloud(n, cores, shared, memory)) for n in range(clouds)]
    most = max(pool.machines for pool in pools)
    history = draw(jobs(most * cores, cores, bool(memory)))
    growth: Slurm | OnDemand = Slurm()
    if all(p.boot.seconds(1) > 0 for p in pools) and all(
        isinstance(p.release, Idle) or p.standing == p.machines for p in pools
    ):
        growth = draw(st.sampled_from((Slurm(), OnDemand())))
    limits, cloud_limits = Limits(), {}
    if clouds and draw(st.integers(0, 2)) == 0:
        limits = draw(bounds(most))
    if clouds and draw(st.integers(0, 2)) == 0:
        cloud_limits = {"cloud0": draw(bounds(most))}
    caps = (
        (BootCap(pools=("cloud0", "cloud1"), machines=2),) if draw(st.integers(0, 5)) == 0 else ()
    )
    return history, Scenario(
        pools=tuple(pools), growth=growth, limits=limits, cloud_limits=cloud_limits, boot_caps=caps,
        cool_downs=CoolDownTimes(capacity=draw(st.sampled_from((20, 50, 180))), longest=draw(st.sampled_from((1, 400)))),
        order=draw(st.sampled_from([o for o in Order if o is not Order.RANDOM])),
        depth=draw(st.sampled_from((None, None, 1, 2, 3))),
        requeue_delay=draw(st.sampled_from((0, 0, 30))),
    )  # fmt: skip


@st.composite
def bounds(draw: st.DrawFn, most: int) -> Limits:
    """Limits that leave room for the largest job on demand."""
    return Limits(
        nodes=draw(st.one_of(st.none(), st.integers(most, most + 3))),
        spot=draw(st.one_of(st.none(), st.integers(0, 4))),
        on_demand=draw(st.one_of(st.none(), st.integers(most, most + 3))),
        dollars_per_hour=draw(
            st.one_of(st.none(), st.integers(most, most + 3).map(lambda n: n * PRICE))
        ),
    )


def engine_found(found: Outcome) -> Found:
    """The engine's result as the independent simulator has it."""
    leases: Counter[tuple[int, int | None, int, int, bool]] = Counter()
    for number, machines in enumerate(found.pools):
        rows = zip(
            machines.lease_batch,
            machines.lease_end,
            machines.lease_count,
            machines.lease_reclaimed,
            strict=True,
        )
        for batch, end, count, taken in rows:
            standing = batch == 0 and machines.pool.standing
            offer = None if standing else machines.batch_offer[batch]
            leases[number, offer, machines.batch_start[batch], end, bool(taken)] += count
    dollars = [sum(machines.dollars.values()) for machines in found.pools]
    return Found(list(found.starts), list(found.ends), leases, dollars, found.figures.interruptions)


def differences(history: Jobs, scenario: Scenario) -> list[str]:
    """What the two do not agree on."""
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
