"""Budgets of accounts in the simulator: whose jobs wait, what each has spent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    GroupBursts,
    OnDemand,
    SemiElastic,
    Slurm,
)
from slurm_elastic.policies.growth.release import AtOnce, Idle
from slurm_elastic.policies.money.account_budgets import NONE
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queues.budget_queue import BudgetQueue
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

CLOUD = PoolModel(
    name="cloud", machines=20, price=1.0, boot=BootTimes(((1, 100),)), release=AtOnce()
)
RACK = PoolModel(name="rack", machines=2, standing=2, public=False)
DAY = 86400
PHYSICS, CHEMISTRY = 1, 2
RICH = Bounds(per_day=1e6)


def jobs(*rows: tuple[int, int, int, int]) -> Jobs:
    """(submit, run, nodes, account), the limit as long as the run."""
    return Jobs(Job(i, s, r, r, n, account=a) for i, (s, r, n, a) in enumerate(rows))


def run(history: Jobs, *pools: PoolModel, origin: int = 0, **changes: object) -> RunResult:
    return Engine(history, replace(Scenario(pools=pools), **changes), origin).run()


@pytest.mark.parametrize("growth", [Slurm(), OnDemand(), SemiElastic(wait_limit=1)])
def test_an_account_over_its_budget_waits_for_the_next_day_and_others_do_not(
    growth: AnyGrowth,
) -> None:
    history = jobs(
        (0, 7200, 1, PHYSICS), (7000, 100, 4, PHYSICS), (7010, 100, 4, CHEMISTRY),
        (7020, 100, 1, -1),
    )  # fmt: skip
    pool = replace(CLOUD, release=Idle(0) if growth == Slurm() else Idle(60))
    found = run(history, pool, growth=growth, payers={"account:1": Bounds(per_day=1.0)})
    assert found.starts[0] <= 115
    assert DAY <= found.starts[1] <= DAY + 160
    assert found.starts[2] <= 7200
    assert found.starts[3] <= 7400
    assert found.figures.unserved == 0


def test_days_and_months_are_those_of_utc() -> None:
    history = jobs((0, 7200, 1, PHYSICS), (7000, 100, 4, PHYSICS))
    january = 1_767_225_600 + 20 * DAY + 3600
    day = run(history, CLOUD, origin=january, payers={"account:1": Bounds(per_day=1.0)})
    month = run(history, CLOUD, origin=january, payers={"account:1": Bounds(per_month=1.0)})
    assert day.starts[1] == DAY - 3600 + 100
    assert month.starts[1] == 11 * DAY - 3600 + 100


def test_its_jobs_go_on_with_the_sites_own_machines() -> None:
    history = jobs(
        (0, 9000, 2, CHEMISTRY), (1, 7200, 1, PHYSICS), (7100, 500, 1, PHYSICS),
        (7110, 500, 3, PHYSICS), (7120, 10, 1, CHEMISTRY),
    )  # fmt: skip
    found = run(history, RACK, CLOUD, payers={"account:1": Bounds(per_day=1.0)})
    assert [pool.jobs for pool in found.figures.pools] == [2, 3]
    assert found.starts[2] == 9000, "when the rack is free"
    assert found.starts[3] == DAY + 100, "the rack could never hold it"
    assert found.starts[4] == 7220


def test_a_job_that_waits_when_the_money_runs_out_waits_on() -> None:
    """The pool is full until then."""
    pool = replace(CLOUD, machines=1)
    history = jobs((0, 7200, 1, PHYSICS), (10, 50, 1, PHYSICS), (20, 50, 1, CHEMISTRY))
    found = run(history, pool, payers={"account:1": Bounds(per_day=1.0)})
    assert found.starts[1] == DAY + 100
    assert found.starts[2] == 7300, "it does not stand behind the other"


def test_with_several_reservations_too() -> None:
    pool = replace(CLOUD, machines=2)
    history = jobs((0, 7200, 2, PHYSICS), (10, 50, 2, PHYSICS), (20, 50, 2, CHEMISTRY))
    found = run(history, RACK, pool, payers={"account:1": Bounds(per_day=1.0)}, reservations=3)
    assert found.starts[0] == 0
    assert found.figures.unserved == 0


def test_the_clusters_budget_stops_public_machines_only() -> None:
    rack = replace(CLOUD, name="rack", public=False, price=0.0, machines=2)
    history = jobs((0, 7200, 3, -1), (7000, 100, 2, -1), (7000, 100, 4, -1))
    found = run(history, rack, CLOUD, bounds=Bounds(per_day=1.0))
    assert found.starts[1] == 7100
    assert found.starts[2] == DAY + 100, "but for the three that are up"


histories = st.lists(
    st.builds(
        Job,
        number=st.just(1),
        submit=st.integers(0, 5000),
        run=st.integers(0, 4000),
        limit=st.integers(1, 4000),
        procs=st.integers(1, 6),
        user=st.just(1),
        partition=st.just(1),
        memory=st.just(0),
        gpus=st.just(0),
        nodes=st.just(1),
        account=st.sampled_from((-1, PHYSICS, CHEMISTRY)),
    ),
    min_size=1,
    max_size=25,
).map(Jobs)


@settings(max_examples=60, deadline=None)
@given(
    history=histories,
    growth=st.sampled_from((Slurm(), OnDemand(), GroupBursts(group=2), SemiElastic())),
    tight=st.sampled_from((0.05, 0.5, 5.0)),
    clock=st.sampled_from(tuple(Clock)),
    market=st.booleans(),
    rack=st.booleans(),
)
def test_the_accounts_together_spend_what_the_cluster_does_and_no_job_is_lost(
    history: Jobs, growth: AnyGrowth, tight: float, clock: Clock, market: bool, rack: bool
) -> None:
    pool = replace(CLOUD, machines=6, clock=clock, release=Idle(300))
    if market:
        fall = SpotMarket(Curve([0, 3000, 3600], [0.1, 9.0, 0.1]), bid=1.0)
        pool = replace(pool, spot=fall)
    pools = (RACK, pool) if rack else (pool,)
    payers = {"account:1": Bounds(per_day=tight), "account:2": RICH}
    engine = Engine(history, Scenario(pools=pools, growth=growth, payers=payers))
    found = engine.run()
    if isinstance(growth, Slurm) or tight > 0.1:  # else not even a boot can be paid in a day
        assert found.figures.unserved == 0
    assert isinstance(engine.queue, BudgetQueue)
    spent = engine.queue.purses.total(10**8)
    hours = sum(
        p.hours * m.pool.price for p, m in zip(found.figures.pools, engine.pools, strict=True)
    )
    spent = {scope: dollars for scope, dollars in spent.items() if scope.startswith("account:")}
    assert sum(spent.values()) == pytest.approx(hours, abs=0.001)
    assert set(spent) <= {f"account:{NONE}", "account:1", "account:2"}


@settings(max_examples=30, deadline=None)
@given(history=histories, growth=st.sampled_from((Slurm(), OnDemand(), GroupBursts())))
def test_budgets_that_are_never_spent_change_nothing(history: Jobs, growth: AnyGrowth) -> None:
    pools = (RACK, replace(CLOUD, machines=6, release=Idle(300)))
    plain = run(history, *pools, growth=growth)
    rich = run(history, *pools, growth=growth, payers={"account:1": RICH, "account:2": RICH})
    assert (rich.starts, rich.ends, rich.figures) == (plain.starts, plain.ends, plain.figures)
