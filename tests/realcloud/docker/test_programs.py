"""A sample of the matrix of real programs, one of a class each: `scripts/bench programs` has them all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .engine import Engine
from .program_matrix import (
    EARLY,
    MOVES,
    Found,
    MatrixWorld,
    Outcome,
    Program,
    clear,
    matrix_world,
    programs,
    sample,
)

pytestmark = [pytest.mark.e2e, pytest.mark.release]

WANTED = {
    "bash-pipeline": Outcome.WORKS,
    "tmp-directory": Outcome.WORKS,
    "deleted-large": Outcome.WORKS,
    "sysv-shm": Outcome.WORKS,
    "python-spawn-pool": Outcome.WORKS,
    "asyncio-sleep": Outcome.WORKS,
    "connected-tcp": Outcome.REFUSED,
}
"""They need no more than a Slurm host has."""


def test_real_programs_go_on_byte_for_byte_or_it_is_known_in_time(
    docker_engine: Engine, trixie: str
) -> None:
    chosen = [program for program in programs() if program.name in WANTED]
    with matrix_world(docker_engine, trixie, 2) as world:
        found = tried(world, chosen)
    told = {one.program.name: (one.outcome, one.why) for one in found}
    assert {name: outcome for name, (outcome, _) in told.items()} == WANTED, told
    assert "network connection" in told["connected-tcp"][1]
    assert all(one.moves for one in found if one.outcome is Outcome.WORKS)
    (clock,) = [one for one in found if one.program.moves]
    assert len(clock.way) == MOVES + 1
    assert len(set(clock.way)) == 3, "its nodes have run for different times"


def tried(world: MatrixWorld, chosen: Sequence[Program], tries: int = 3) -> list[Found]:
    """A busy machine may come to a program only when it is over: that one is begun anew."""
    found = world.try_all(chosen, seed=1)
    early = [one.program for one in found if one.why.startswith(EARLY)]
    if not early or tries == 1:
        return found
    for program in early:
        clear(world, program.name)
    return [one for one in found if one.program not in early] + tried(world, early, tries - 1)


def test_the_matrix_has_programs_of_many_classes() -> None:
    found = programs()
    assert len(found) >= 60
    classes = {program.kind for program in found}
    chosen = sample(found, len(classes), seed=3)
    assert {program.kind for program in chosen} == classes
    assert sample(found, 5, seed=3) == chosen[:5]


def test_programs_that_wait_by_a_clock_must_be_moved_three_times() -> None:
    found = {program.name for program in programs() if program.kind == "clock"}
    assert found == {program.name for program in programs() if program.moves == MOVES}
    assert found >= {
        "time-monotonic", "time-budget", "asyncio-sleep", "queue-timeout", "event-wait",
        "java-scheduler", "go-ticker",
    }  # fmt: skip
