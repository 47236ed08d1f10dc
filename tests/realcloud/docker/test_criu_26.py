"""The same on Slurm 26.05 with CRIU 4.2: a move, and a power cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, announced, needed, power_cut
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, forky: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, forky, nodes=2) as running:
        needed(running)
        yield running


def test_an_announced_move_and_then_a_power_cut(world: CriuWorld) -> None:
    assert " 26." in world.slurm("scontrol", "-V").stdout
    assert len(announced(world, moves=1)) == 2
    world.resume("n1", "n2")
    power_cut(world)
