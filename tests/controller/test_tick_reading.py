"""Slurm's nodes are read once a tick, however many clouds there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.tick_reading import READING_TTL_S, TickReading
from tests.controller.world import World, many_clouds


def readings(directory: Path, clouds: int) -> int:
    """Readings of Slurm's nodes in one quiet tick."""
    world = World(directory, **many_clouds(clouds))
    try:
        world.advance(120)
        before = world.slurm.calls["nodes"]
        world.now += world.config.timings.reconcile_interval
        world.tick()
        return world.slurm.calls["nodes"] - before
    finally:
        world.close()


def test_seven_clouds_cost_as_many_readings_as_two(tmp_path: Path) -> None:
    found = {}
    for count in (1, 2, 7):
        (directory := tmp_path / str(count)).mkdir()
        found[count] = readings(directory, count)
    assert found == {1: 1, 2: 2, 7: 2}, "from two on, the order of clouds has its own reading"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_round_that_waited_reads_anew(world: World) -> None:
    clock = [0.0]
    reading = TickReading(dataclasses.replace(world.site, monotonic=lambda: clock[0]))
    before = world.slurm.calls["nodes"]
    assert reading.nodes() is reading.nodes()
    clock[0] = READING_TTL_S + 1
    reading.nodes()
    assert world.slurm.calls["nodes"] == before + 2


def test_a_slurmctld_that_does_not_answer_is_asked_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    def fails() -> None:
        asked.append(None)
        raise SlurmError(("sinfo",), 1, "Unable to contact slurm controller")

    monkeypatch.setattr(world.slurm, "nodes", fails)
    reading = TickReading(dataclasses.replace(world.site, monotonic=lambda: 0.0))
    for _ in range(7):
        with pytest.raises(SlurmError, match="Unable to contact"):
            reading.nodes()
    assert len(asked) == 1


def test_a_cloud_that_served_a_request_since_reads_anew(world: World) -> None:
    """By the older one Slurm had no use for the node of a machine that was bought just now."""
    clock = [10.0]
    reading = TickReading(dataclasses.replace(world.site, monotonic=lambda: clock[0]))
    before = world.slurm.calls["nodes"]
    reading.nodes()
    clock[0] = 11.0
    reading.nodes(since=10.5)
    assert world.slurm.calls["nodes"] == before + 2
    reading.nodes(since=10.5)
    assert world.slurm.calls["nodes"] == before + 2, "another cloud that did, too"


def test_the_round_after_a_request_does_not_go_by_the_nodes_of_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    nodes = TickReading.nodes
    monkeypatch.setattr(
        TickReading, "nodes", lambda self, since: (asked.append(since), nodes(self, since))[1]
    )
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    served = world.now
    world.now += world.config.timings.reconcile_interval
    world.tick()
    assert served in asked
