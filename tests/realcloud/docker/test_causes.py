"""A sample of `scripts/bench causes`: jobs that Slurm 24.11 preempts, and jobs at their time limits,
go on each step once, and end once.
"""

from __future__ import annotations

import pytest

from .causes_world import causes_world
from .criu_world import needed
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]
JOBS = 2


def test_no_step_is_lost_or_done_twice_by_preemption_or_a_limit(
    docker_engine: Engine, trixie: str
) -> None:
    with causes_world(docker_engine, trixie, ("limit", "preemption"), room=JOBS) as world:
        needed(world)
        found = world.strike_all(JOBS, seed=1)
    assert [one.cause for one in found] == ["limit"] * JOBS + ["preemption"] * JOBS
    for one in found:
        assert one.struck, one
        assert one.image, one
        assert one.whole, one
        assert (one.lost, one.restarts) == (0.0, 1), one
