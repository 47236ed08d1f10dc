"""When a growth policy and the queue are looked at: as often as said, and once at a time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import Flagged, Idle
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.events import LOOK
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario

POOL = PoolModel(name="a", machines=8, price=1.0, release=Idle(300), boot=BootTimes(((1, 120),)))
LIMITS = Limits(nodes=12)
NEVER_SPENT = Bounds(per_day=1e9)


def history(count: int) -> Jobs:
    source, at, found = random.Random(1), 0, Jobs()
    for number in range(count):
        at += source.randrange(1200)
        run = source.randrange(60, 3600)
        found.append(Job(number, at, run, run, source.choice((1, 2, 4, 8))))
    return found


def site(growth: AnyGrowth, **changes: object) -> Scenario:
    release = Flagged() if isinstance(growth, SteadyStream) else POOL.release
    pools = tuple(replace(POOL, name=name, release=release) for name in "ab")
    return replace(Scenario(pools=pools, growth=growth), **changes)


@pytest.mark.parametrize("growth", [Slurm(), OnDemand(period=15)])
def test_bounds_and_shared_limits_do_not_multiply_the_looks(growth: AnyGrowth) -> None:
    jobs = history(100)
    engine = Engine(jobs, site(growth, bounds=Bounds(per_day=20.0), limits=LIMITS, depth=500))
    looks: Counter[int] = Counter()
    look = engine._look

    def counted(event: int, now: int) -> None:
        looks[now] += event >> 48 & 7 == LOOK
        look(event, now)

    engine._look = counted  # type: ignore[method-assign]
    found = engine.run()
    assert found.figures.unserved == 0
    assert max(looks.values()) == 1, "one at a time"
    machines = found.figures.api_calls
    assert looks.total() <= found.figures.makespan / 60 + 3 * len(jobs) + machines


@pytest.mark.parametrize(
    "growth",
    [OnDemand(), SemiElastic(), Ratio(), Bursts(), GroupBursts(), SteadyStream()],
    ids=lambda growth: type(growth).__name__,
)
def test_a_budget_that_is_never_spent_changes_nothing(growth: AnyGrowth) -> None:
    plain = Engine(history(60), site(growth)).run()
    rich = Engine(history(60), site(growth, bounds=NEVER_SPENT)).run()
    assert (rich.starts, rich.ends, rich.figures) == (plain.starts, plain.ends, plain.figures)
