"""The same chaos where the on-premises machines boot one after the other: nodes wait for a turn."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.controller.chaos import draw
from tests.controller.test_world_machine import Chaos, WatchedWorld
from tests.controller.world import make_config


class InTurns(Chaos):
    def make_world(self) -> WatchedWorld:
        onp, pub = make_config(Path()).clouds
        return WatchedWorld(clouds=(replace(onp, max_booting=1), pub))


def test_chaos_where_machines_boot_in_turns() -> None:
    draw(InTurns, examples=40, steps=30)
