"""The cluster's budget in the simulator: days, months and dollars as the daemon has them."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.launching.budget import read_spending
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.growth.capacity import AnyGrowth, OnDemand, SemiElastic, Slurm
from slurm_elastic.policies.growth.release import AtOnce, Idle
from slurm_elastic.policies.money.bounds import Bounds, Spent
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario
from slurm_elastic.state.ledger import Ledger
from tests.controller.world import SHAPE, make_config
from tests.test_spending import machine

HOUR, DAY, MINUTE = 3600, 86400, 60
CLOUD = PoolModel(name="pub", machines=5, price=1.0, boot=BootTimes(((1, 60),)), release=Idle(60))
PLENTY = 1e9


def jobs(*rows: tuple[int, int]) -> Jobs:
    """(submit, run), each of one node."""
    return Jobs(Job(i, s, r, r, 1) for i, (s, r) in enumerate(rows))


def run(history: Jobs, bounds: Bounds, origin: int = 0, pool: PoolModel = CLOUD) -> RunResult:
    return Engine(history, Scenario(pools=(pool,), bounds=bounds), origin).run()


def unix(month: int, day: int) -> int:
    return int(datetime(2026, month, day, tzinfo=UTC).timestamp())


def test_what_a_day_cost_is_counted_from_midnight_and_not_from_its_first_look() -> None:
    history = jobs((22 * HOUR, 12 * HOUR), (DAY + 10 * HOUR + 1800, HOUR))
    found = run(history, Bounds(per_day=5.0))
    assert found.starts[1] == 2 * DAY + 60, "ten dollars since midnight"


@pytest.mark.parametrize(
    ("first", "asked", "started"),
    [
        ((1, 2), (1, 4), (2, 1)),
        ((1, 2), (1, 25), (2, 1)),
        ((1, 28), (2, 2), (2, 2)),
    ],
)
def test_a_month_is_one_of_the_calendar(
    first: tuple[int, int], asked: tuple[int, int], started: tuple[int, int]
) -> None:
    origin = unix(*first)
    history = jobs((0, 20 * HOUR), (unix(*asked) - origin, HOUR))
    found = run(history, Bounds(per_month=15.0), origin)
    assert found.starts[1] == unix(*started) - origin + 60


def test_a_policy_that_is_asked_when_jobs_come_and_go_is_asked_again_on_the_next_day() -> None:
    history = Jobs([Job(1, 0, 7200, 7200, 1), Job(2, 7000, 100, 100, 4)])
    pool = replace(CLOUD, release=AtOnce())
    scenario = Scenario(pools=(pool,), growth=SemiElastic(), bounds=Bounds(per_day=1.0))
    found = Engine(history, scenario).run()
    assert found.figures.unserved == 0
    assert DAY <= found.starts[1] <= DAY + 120


@pytest.mark.parametrize("growth", [Slurm(), SemiElastic()])
@pytest.mark.parametrize(("finishes", "on_first_day"), [(False, 8), (True, 4)])
def test_machines_take_no_new_jobs_once_their_jobs_may_spend_the_budget(
    growth: AnyGrowth, finishes: bool, on_first_day: int
) -> None:
    """One machine at $1 an hour for $4 a day, and eight jobs of an hour."""
    pool = replace(CLOUD, machines=1)
    bounds = Bounds(per_day=4.0)
    scenario = Scenario(pools=(pool,), growth=growth, bounds=bounds, finishes=finishes)
    found = Engine(jobs(*[(0, HOUR)] * 8), scenario, unix(1, 1)).run()
    assert sum(start < DAY for start in found.starts) == on_first_day
    assert found.figures.unserved == 0


def test_jobs_that_end_before_their_limits_leave_the_money_to_others() -> None:
    """The first job may use all of the budget, and takes ten minutes."""
    history = Jobs([Job(0, 0, 600, 8 * HOUR, 1), Job(1, 60, 600, HOUR, 1)])
    scenario = Scenario(pools=(CLOUD,), bounds=Bounds(per_day=4.0), finishes=True)
    found = Engine(history, scenario, unix(1, 1)).run()
    assert found.starts[1] > found.ends[0], "its limit counts while it runs"
    assert found.starts[1] < HOUR


def minutes(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most).map(lambda count: count * MINUTE)


histories = st.lists(
    st.builds(
        lambda gap, run, nodes: (gap, run, nodes),
        minutes(4 * 24 * 60),
        minutes(2 * 24 * 60),
        st.integers(1, 4),
    ),
    min_size=2,
    max_size=20,
)


@settings(max_examples=20, deadline=None)
@given(
    rows=histories,
    origin=minutes(60 * 24 * 60).map(lambda later: unix(1, 1) + later),
    growth=st.sampled_from((Slurm(), OnDemand(period=60))),
    clock=st.sampled_from(tuple(Clock)),
)
def test_at_any_look_it_has_spent_what_the_daemons_ledger_says(
    rows: list[tuple[int, int, int]], origin: int, growth: AnyGrowth, clock: Clock
) -> None:
    """All happens at whole minutes, the least that the ledger counts of a machine."""
    at, history = 0, Jobs()
    for number, (gap, length, nodes) in enumerate(rows):
        at += gap
        history.append(Job(number, at, length, length, nodes))
    bounds = Bounds(per_day=PLENTY, per_month=PLENTY)
    pool = replace(CLOUD, clock=clock)
    engine = Engine(history, Scenario(pools=(pool,), growth=growth, bounds=bounds), origin)
    looks: dict[int, Spent] = {}
    ours = engine.grower.spent

    def spent(now: int) -> Spent:
        looks[now] = ours(now)
        return looks[now]

    engine.grower.spent = spent  # type: ignore[method-assign]
    engine.run()
    assert looks
    with tempfile.TemporaryDirectory() as directory:
        theirs = by_ledger(Path(directory), engine, origin, list(looks))
    for now, found in looks.items():
        assert found.day == pytest.approx(theirs[now].day, abs=1e-6)
        assert found.month == pytest.approx(theirs[now].month, abs=1e-6)


def by_ledger(place: Path, engine: Engine, origin: int, looks: list[int]) -> dict[int, Spent]:
    """The spending that the daemon's budget would have counted at these times."""
    cloud = FakeCloud(name="pub", location=Location.PUBLIC, types=SHAPE)
    plain = make_config(place)
    policies = SitePolicies(budget=Budget(per_day=PLENTY, per_month=PLENTY))
    config = replace(plain, clouds=(cloud,), pools=plain.pools[1:], policies=policies)
    (pool,) = engine.pools
    rows = zip(pool.leases.batch, pool.leases.end, pool.leases.count, strict=True)
    machines = [(pool.batch_start[batch], end) for batch, end, n in rows for _ in range(n)]
    found, up, over = {}, set(), set()
    ledger = Ledger(place / "ledger.db")
    for now in sorted(looks):
        for number, (start, end) in enumerate(machines):
            if start < min(now, end) and number not in up:
                ledger.machines.adopt(
                    machine(number, 1.0, origin + start, "pub"), "burst", origin + now
                )
                up.add(number)
            if number in up and end <= now and number not in over:
                ledger.machines.record_end(
                    "pub", [f"i-{number}"], Quoted(text="over"), float(origin + end)
                )
                over.add(number)
        found[now] = read_spending(config, ledger, float(origin + now))[""]
    ledger.close()
    return found
