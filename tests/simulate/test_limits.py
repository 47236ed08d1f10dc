"""Limits that pools share, and those of a market."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from simulate.histories import histories

from slurm_elastic.config.configfile import load
from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import Bursts, OnDemand, Slurm
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.availability import HistorySpan
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.site import World, pools_of

EXAMPLE = Path(__file__).parents[2] / "etc" / "slurm-elastic.yaml"
BOOT = BootTimes(((1, 10),))


def pool(
    name: str, machines: int, *, spot: SpotMarket | None = None, price: float = 1.0
) -> PoolModel:
    return PoolModel(
        name=name, machines=machines, price=price, boot=BOOT, release=Idle(60), spot=spot
    )


def jobs(*rows: tuple[int, int, int]) -> Jobs:
    """(submit, run, nodes), the limit as long as the run."""
    return Jobs(Job(i, s, r, r, n) for i, (s, r, n) in enumerate(rows))


def peak(pools: list[PoolMachines], *, spot: bool | None = None) -> int:
    """Most machines that were paid for at a time."""
    steps: dict[int, int] = {}
    for one in pools:
        for batch, end, count in zip(
            one.leases.batch, one.leases.end, one.leases.count, strict=True
        ):
            start = one.batch_start[batch]
            if start < end and spot in (None, bool(one.batch_spot[batch])):
                steps[start] = steps.get(start, 0) + count
                steps[end] = steps.get(end, 0) - count
    level = most = 0
    for when in sorted(steps):
        level += steps[when]
        most = max(most, level)
    return most


def market(*steps: tuple[int, int]) -> SpotMarket:
    return SpotMarket(Curve.flat(0.1), available=steps)


def test_on_demand_machines_end_where_their_limit_is() -> None:
    spot = market((0, 2), (500, 9))
    limits = Limits(on_demand=3)
    found = simulate(
        jobs((0, 100, 5), (1, 100, 6)), Scenario(pools=(pool("a", 20, spot=spot),), limits=limits)
    )
    assert found.starts[0] == 10
    assert found.starts[1] == 730, "the spot offer refused until 360 and cooled down until 720"
    assert peak(list(found.pools), spot=False) <= 3


def rack(machines: int) -> PoolModel:
    """Nodes that the site has anyway."""
    return PoolModel(name="rack", machines=machines, standing=machines, public=False, limited=False)


def test_the_sites_own_nodes_do_not_count(tmp_path: Path) -> None:
    """More of them than the limit of cloud machines: the cloud is used, up to its limit."""
    scenario = Scenario(pools=(rack(30), pool("a", 20)), limits=Limits(nodes=4))
    found = simulate(jobs((0, 100, 30), (1, 100, 3), (2, 100, 3)), scenario)
    assert list(found.starts) == [0, 11, 100]
    assert found.figures.cost > 0
    config = load(EXAMPLE)
    static, *_ = pools_of(config, World(span=HistorySpan(0, 0, 1), static=(100, 16)))[0]
    assert not static.limited


def test_reserved_machines_count_as_their_clouds() -> None:
    config = load(EXAMPLE)
    world = World(span=HistorySpan(0, 0, 1), reserved=(("compute", 3, 0.02),))
    _, reserved, rest, *_ = pools_of(config, world)[0]
    assert reserved.limited
    assert reserved.sold[0].offer.cloud == rest.sold[0].offer.cloud
    three = PoolModel(name="a reserved", machines=3, standing=3, cloud="a")
    scenario = Scenario(pools=(three, pool("a", 20)), cloud_limits={"a": Limits(nodes=4)})
    found = simulate(jobs((0, 100, 3), (1, 100, 1), (2, 100, 1)), scenario)
    assert list(found.starts) == [0, 11, 100]


def test_a_limit_of_spot_machines_leaves_the_rest_to_on_demand() -> None:
    pools = (pool("a", 20, spot=market((0, 99))),)
    found = simulate(jobs((0, 100, 6)), Scenario(pools=pools, cloud_limits={"a": Limits(spot=4)}))
    assert (peak(list(found.pools), spot=True), peak(list(found.pools), spot=False)) == (4, 2)


def test_idle_machines_of_one_pool_make_room_for_another_although_a_job_waits() -> None:
    """The second job fits into pool b alone, beside nothing."""
    pools = (pool("a", 3), pool("b", 6))
    scenario = Scenario(pools=pools, limits=Limits(nodes=6))
    found = simulate(jobs((0, 100, 3), (5, 100, 6)), scenario)
    assert list(found.starts) == [10, 195], "its pool was held for 180 s when it was refused"
    assert list(found.ends) == [110, 295]


def test_the_sites_own_nodes_make_no_limit_scarce() -> None:
    """The clouds' pools never reach it: idle machines stay as long as a job waits for the rack."""
    scenario = Scenario(pools=(rack(30), pool("a", 3), pool("b", 3)), limits=Limits(nodes=6))
    found = simulate(jobs((0, 5000, 30), (1, 100, 3), (3, 100, 30), (1000, 100, 3)), scenario)
    assert list(found.starts) == [0, 11, 5000, 1000]


def test_dollars_an_hour_are_shared() -> None:
    pools = (pool("a", 4, price=1.0), pool("b", 4, price=2.0))
    found = simulate(
        jobs((0, 100, 4), (0, 100, 1), (0, 100, 1)),
        Scenario(pools=pools, limits=Limits(dollars_per_hour=6.0)),
    )
    assert list(found.starts) == [10, 10, 110]


def test_what_a_cap_cut_off_comes_when_there_is_room() -> None:
    """2 + 4 idle machines are not the 6 that the last job needs in pool b."""
    pools = (pool("a", 2), pool("b", 6, spot=market((0, 0), (1000, 9))))
    history = jobs((0, 100, 2), (0, 100, 4), (60, 100, 6))
    limits = {"b": Limits(on_demand=4)}
    found = simulate(history, Scenario(pools=pools, growth=OnDemand(), cloud_limits=limits))
    assert found.starts[2] > 1000
    assert found.figures.unserved == 0


@settings(max_examples=60, deadline=None)
@given(
    histories,
    st.sampled_from([Slurm(), OnDemand(), Bursts(waste=20)]),
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 9)), max_size=6, unique_by=lambda s: s[0]
    ),
)
def test_no_limit_is_ever_exceeded_and_every_job_ends(
    history: Jobs, growth: Slurm, steps: list[tuple[int, int]]
) -> None:
    spot = market(*sorted(steps)) if steps else market((0, 5))
    pools = (pool("a", 9, spot=spot), pool("b", 9))
    scenario = Scenario(
        pools=pools,
        limits=Limits(nodes=10, on_demand=8),
        cloud_limits={"a": Limits(spot=3)},
        growth=growth,
    )
    found: RunResult = simulate(history, scenario)
    assert found.figures.unserved == 0
    both = list(found.pools)
    assert peak(both) <= 10
    assert peak(both, spot=False) <= 8
    assert peak(both[:1], spot=True) <= 3


def test_a_pool_has_as_many_machines_as_its_nodes_and_every_limit_allow() -> None:
    models, _ = pools_of(load(EXAMPLE), World(span=HistorySpan(0, 0, 100)))
    assert [model.machines for model in models] == [4, 8]
