"""``waste=auto``: the time that machines take to boot and to end, as the ledger has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config.growth_kinds import checked_growth
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import PoolPolicies, SitePolicies
from slurm_elastic.features.growth.waste_meter import MEASURE_EVERY_S
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Limits, Location, Market
from slurm_elastic.model.machine_states import Ended, Ending, Serving
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.growth.capacity import Bursts, Demand, SteadyStream, Waiting
from slurm_elastic.policies.growth.waste import (
    MAX_MEASURED,
    MAX_WASTE_S,
    MIN_WASTE_S,
    measured,
    with_waste,
)
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from tests.controller.world import PUB, SHAPE, T0, World, make_config


def machine(number: int, boot_s: float | None, ending_s: float | None = None) -> Machine:
    """A machine that was launched ``number`` hours after T0."""
    launched = T0 + 3600 * number
    instance = Instance(
        id=f"i-{number}", cloud="pub", node="pub1", generation="g", instance_type="small",
        zone="a", market=Market.ON_DEMAND, price=0.1, state=InstanceState.RUNNING,
        launched=launched,
    )  # fmt: skip
    if boot_s is None:
        return Machine(instance=instance, pool="burst")
    life: Serving | Ended = Serving(registered_at=launched + boot_s)
    if ending_s is not None:
        retired_at = launched + 1000
        before = Ending(
            retired_at=retired_at, cause=Quoted(text="idle"), registered_at=launched + boot_s
        )
        life = Ended(before=before, ended_at=retired_at + ending_s)
    return Machine(instance=instance, pool="burst", life=life)


def test_it_is_the_median_boot_and_end_of_the_newest_machines() -> None:
    machines = [machine(n, 100.0, 20.0) for n in range(5)] + [machine(9, 1000.0, 900.0)]
    waste = measured(machines, 120.0)
    assert (waste.seconds, waste.boots, waste.ends) == (120, 6, 6)
    newer = [machine(10 + n, 40.0, 8.0) for n in range(MAX_MEASURED)]
    assert measured([*machines, *newer], 120.0).seconds == 48


@pytest.mark.parametrize(
    ("machines", "seconds", "text"),
    [
        ([], 180, "3m: boot 2m (assumed), end 1m (assumed)"),
        ([machine(n, None) for n in range(9)], 180, "assumed"),
        ([machine(n, 30.0, 10.0) for n in range(2)], 180, "assumed"),
        ([machine(n, 30.0) for n in range(3)], 90, "measured on 3 machines), end 1m (assumed)"),
        ([machine(n, 0.5, 0.5) for n in range(3)], MIN_WASTE_S, "measured"),
        ([machine(n, 5000.0, 9000.0) for n in range(3)], MAX_WASTE_S, "measured"),
    ],
    ids=["none", "none booted", "too few", "no end", "quick", "slow"],
)
def test_it_is_bounded_and_assumed_before_there_are_measurements(
    machines: list[Machine], seconds: int, text: str
) -> None:
    waste = measured(machines, 120.0)
    assert waste.seconds == seconds
    assert text in str(waste.cause)


def test_policies_with_a_number_keep_it() -> None:
    assert with_waste(Bursts(waste=90), 30) == Bursts(waste=90)
    assert with_waste(checked_growth("bursts(waste=auto)"), 30) == Bursts(waste=30)
    assert text_of(checked_growth("steady_stream(waste=auto)")) == "steady_stream(waste=auto)"


# the papers' constants as parameters


def work(seconds: int) -> Demand:
    queue = (Waiting(1, seconds, 0),)
    return Demand(now=0, queue=queue, fresh=queue, busy=3, running=3)


def test_the_constants_are_parameters() -> None:
    steady = checked_growth("steady_stream(waste=100, more_over=2, fewer_under=1.5)")
    assert isinstance(steady, SteadyStream)
    assert [steady.grow(work(s)) is not None for s in (200, 201)] == [False, True]
    assert [steady.surplus(work(s)) for s in (149, 150)] == [2, 0]
    burst = checked_growth("bursts(waste=100, per_machine=0.5)").grow(work(1000))
    assert burst is not None
    assert burst.machines == 20
    with pytest.raises(ValueError, match="fewer_under is 3, expected at most more_over, 2"):
        checked_growth("steady_stream(more_over=2)")


# what the daemon and the simulator do


@pytest.fixture
def world() -> Iterator[World]:
    burst = replace(
        make_config(Path("/nonexistent")).pools[1], markets=(Market.ON_DEMAND,),
        policies=PoolPolicies(growth="bursts(waste=auto)", release="idle(seconds=30)"),
    )  # fmt: skip
    pub = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
    )
    made = World(
        allow=Who(accounts=("physics",)), clouds=(pub,), pools=(burst,), limits=Limits(),
        policies=SitePolicies(poll_interval=5.0),
    )  # fmt: skip
    yield made
    made.close()


def reasons(world: World, kind: str) -> list[str]:
    """The reasons of the pool's decisions of that kind, oldest first."""
    rows = sorted(world.ledger.decisions.about("pool:burst", 100), key=lambda row: row.at)
    return [str(row.reason) for row in rows if row.kind == kind]


def run_job(world: World, number: int, limit: int) -> str:
    """Run a job, and return why machines came for it."""
    world.advance(10)
    world.slurm.submit(number, PUB, 1, partitions=("pub",), limit=limit, node_count=1)
    world.advance(60)
    world.slurm.finish(number)
    reason = next(text for text in reversed(reasons(world, "policy")) if "more in pool" in text)
    world.advance(200)
    assert world.alive() == []
    return reason


def test_the_daemon_counts_with_measured_machines_and_explains_it(world: World) -> None:
    assert "2 more in pool burst: 12m of new work, 6m a machine" in run_job(world, 1, limit=720)
    for number in (2, 3):
        run_job(world, number, limit=60)
    assert reasons(world, "waste")[0] == (
        "the growth policy counts with a waste of 3m: boot 2m (assumed), end 1m (assumed)"
    )
    world.advance(MEASURE_EVERY_S)
    assert "3 more in pool burst: 12m of new work" in run_job(world, 4, limit=720)
    assert reasons(world, "waste")[-1].count("(measured on ") == 2


def test_the_simulator_counts_with_the_boot_of_its_pool() -> None:
    jobs = Jobs([Job(number=1, submit=0, procs=1, run=600, limit=720)])
    for boot_s, launched in ((120, 2), (12, 5)):
        pool = PoolModel(
            name="burst", machines=9, procs=1, public=True, boot=BootTimes(((1, float(boot_s)),))
        )
        result = simulate(
            jobs, Scenario(pools=(pool,), growth=checked_growth("bursts(waste=auto)"))
        )
        assert result.figures.pools[0].launched == launched
