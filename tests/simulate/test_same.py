"""Results that must not move when the engine is made faster: every start, end and lease."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.policies.checkpoint.checkpoint import Hour, OnNotice
from slurm_elastic.policies.growth.capacity import OnDemand, SemiElastic
from slurm_elastic.policies.growth.release import AtOnce, Delayed, Idle, IdleOrder
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Clock, CoolDownTimes, PoolModel, Scenario

JOBS = swf.load(Path(__file__).parent.parent / "data" / "synthetic.swf").jobs
BEGIN = JOBS.submit[0]
FALLS = [(BEGIN + 3000 * step, room) for step, room in enumerate((40, 6, 40, 0, 12) * 6)]
SPOT = SpotMarket(Curve.flat(0.6), available=FALLS)
CLOUD = PoolModel(
    name="cloud",
    machines=60,
    procs=2,
    price=2.4,
    release=Idle(600),
    boot=BootTimes(((1, 126), (8, 270))),
    spot=SPOT,
    check=60,
    clock=Clock.READY,
)
RACK = PoolModel(name="rack", machines=8, standing=8, procs=2, public=False)
SCENARIOS = {
    "slurm": Scenario(pools=(CLOUD,)),
    "rack first": Scenario(
        pools=(
            RACK,
            PoolModel(
                name="small",
                machines=20,
                procs=2,
                price=2.4,
                release=AtOnce(),
                spot=SPOT,
                clock=Clock.READY,
            ),
        ),
        checkpoints=Checkpoints(policy=Hour(margin=200)),
        requeue_delay=30,
    ),
    "leases": Scenario(
        pools=(
            RACK,
            PoolModel(
                name="cloud",
                machines=60,
                procs=2,
                price=1.0,
                billing=Hourly(),
                release=Delayed(before_end=60),
                clock=Clock.REQUEST,
                check=60,
            ),
        ),
        growth=SemiElastic(),
    ),
    "two reservations": Scenario(
        pools=(RACK, CLOUD),
        growth=OnDemand(),
        reservations=2,
        order=IdleOrder.MIN_IDLE,
        checkpoints=Checkpoints(policy=OnNotice()),
    ),
}
NONE = CoolDownTimes(capacity=1, longest=1)
"""A cloud that refuses is asked again at once, as before there were cool-downs here."""
EXPECTED = {
    "slurm": "995546f8c974b0ee",
    "rack first": "ed8819416204b442",
    "leases": "5cb4979378a71d39",
    "two reservations": "9f2404adfb5e2c75",
}


def digest(outcome: RunResult) -> str:
    """A hash of whole numbers only, which are the same on every machine."""
    found = hashlib.sha256()
    columns = [outcome.starts, outcome.ends]
    for pool in outcome.pools:
        columns += [pool.batch_start, pool.leases.batch, pool.leases.end, pool.leases.count]
    for column in columns:
        found.update(str(list(column)).encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", SCENARIOS)
def test_starts_ends_and_leases_are_those_of_before(name: str) -> None:
    found = simulate(JOBS, replace(SCENARIOS[name], cool_downs=NONE))
    assert digest(found) == EXPECTED[name]
