"""A growth policy starts machines for a job of several nodes, and the cloud has only some of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.config import Limits, PoolSettings, Timings
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.model.cluster import Location, Market
from tests.controller.world import SHAPE, FakeCloud, World

NODES = tuple(f"pub{i}" for i in range(1, 7))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
    )
    pool = PoolSettings(
        name="a", cloud="pub", nodes="pub[1-6]", cpus=2, memory=4096,
        markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    made = World(
        tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits(),
        policies=SitePolicies(poll_interval=15.0, growth="on_demand", release="idle(seconds=300)"),
        timings=Timings(suspend_time=600, suspend_timeout=30, resume_timeout=600),
    )  # fmt: skip
    for node in NODES:
        made.slurm.set_node(node, partitions=("pub",))
    made.clouds["pub"].tells_free = False
    _call_programs_once_a_round(made)
    made.advance(60)
    yield made
    made.close()


def _call_programs_once_a_round(world: World) -> None:
    """As slurmctld, which names all nodes of a round in one call."""
    waiting: dict[Any, tuple[list[str], dict[Any, Any]]] = {}
    call, live = world.program, world.live

    def gather(kind: Any, nodes: Any, jobs: Any, **_: Any) -> None:
        names, of_jobs = waiting.setdefault(kind, ([], {}))
        names.extend(node for node in nodes if node not in names)
        of_jobs.update(jobs)

    def live_and_call() -> None:
        live()
        for kind, (names, jobs) in list(waiting.items()):
            call(kind, names, jobs)
        waiting.clear()

    world.programs = gather  # type: ignore[method-assign]
    world.live = live_and_call  # type: ignore[method-assign]


def machine_hours(world: World) -> float:
    rows = world.ledger.machines.live(ended_since=0.0)
    return sum((m.ended_at or world.now) - m.instance.launched for m in rows) / 3600


def test_too_few_machines_for_their_job_end_at_once_and_are_tried_less_and_less(
    world: World,
) -> None:
    """Slurm powers them up without a job, so no refused job ends them."""
    world.clouds["pub"].limit("*", 2)
    world.slurm.submit(1, NODES, 4, partitions=("pub",), limit=3600, node_count=4)
    world.advance(4 * 3600, step=15.0)
    assert machine_hours(world) < 0.1
    launches = {m.instance.generation for m in world.ledger.machines.live(ended_since=0.0)}
    assert 3 <= len(launches) <= 9, "a launch each three minutes would be 80"
    assert world.ledger.machines.live() == ()


def test_machines_of_which_each_serves_a_job_stay(world: World) -> None:
    world.clouds["pub"].limit("*", 2)
    for job in range(1, 5):
        world.slurm.submit(job, NODES, 1, partitions=("pub",), limit=3600)
    world.advance(300, step=15.0)
    assert len(world.ledger.machines.live()) == 2
