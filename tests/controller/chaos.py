"""How much chaos a test draws: as much as it has a processor's time for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROUND = 5
"""Examples drawn at a time, and at least."""
SECONDS = float(os.environ.get("SLURM_ELASTIC_CHAOS_SECONDS", "5"))
"""After so many of a processor no other round begins, whatever else this machine does; scripts/release
gives more.
"""
ASKED = os.environ.get("SLURM_ELASTIC_EXAMPLES", "")
"""So many examples instead, whatever time they take."""


def draw(
    machine: type[RuleBasedStateMachine],
    examples: int,
    steps: int,
    clock: Callable[[], float] = time.process_time,
) -> int:
    """Run up to ``examples`` of the machine, a round at a time, while there is time; how many it ran."""
    wanted = int(ASKED) if ASKED else examples
    until = clock() + SECONDS
    size = settings(
        max_examples=min(ROUND, wanted), stateful_step_count=steps, deadline=None,
        derandomize=False,  # else each round would draw the same
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    drawn = 0
    while drawn < wanted and (drawn == 0 or ASKED or clock() < until):
        run_state_machine_as_test(machine, settings=size)
        drawn += size.max_examples
    return drawn
