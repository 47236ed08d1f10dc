"""The same chaos where the on-premises machines boot one after the other: nodes wait for a turn."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings
from msgspec.structs import replace

from tests.controller.test_world_machine import Chaos, WatchedWorld
from tests.controller.world import make_config


class InTurns(Chaos):
    def make_world(self) -> WatchedWorld:
        onp, pub = make_config(Path()).clouds
        return WatchedWorld(clouds=(replace(onp, max_booting=1), pub))


InTurns.TestCase.settings = settings(
    max_examples=int(os.environ.get("SLURM_ELASTIC_EXAMPLES", "40")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestInTurns(InTurns.TestCase):  # type: ignore[misc]
    pass
