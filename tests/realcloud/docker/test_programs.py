"""A sample of the matrix of real programs, one of a class each: `scripts/bench programs` has them all."""

from __future__ import annotations

import pytest

from .engine import Engine
from .program_matrix import Outcome, matrix_world, programs, sample

pytestmark = pytest.mark.e2e

WANTED = {
    "bash-pipeline": Outcome.WORKS,
    "tmp-directory": Outcome.WORKS,
    "deleted-large": Outcome.WORKS,
    "sysv-shm": Outcome.WORKS,
    "python-spawn-pool": Outcome.WORKS,
    "connected-tcp": Outcome.REFUSED,
}
"""They need no more than a Slurm host has."""


def test_real_programs_go_on_byte_for_byte_or_it_is_known_in_time(
    docker_engine: Engine, trixie: str
) -> None:
    chosen = [program for program in programs() if program.name in WANTED]
    with matrix_world(docker_engine, trixie, 2) as world:
        found = world.try_all(chosen, seed=1)
    told = {one.program.name: (one.outcome, one.why) for one in found}
    assert {name: outcome for name, (outcome, _) in told.items()} == WANTED, told
    assert "network connection" in told["connected-tcp"][1]
    assert all(one.moves for one in found if one.outcome is Outcome.WORKS)


def test_the_matrix_has_programs_of_many_classes() -> None:
    found = programs()
    assert len(found) >= 60
    classes = {program.kind for program in found}
    chosen = sample(found, len(classes), seed=3)
    assert {program.kind for program in chosen} == classes
    assert sample(found, 5, seed=3) == chosen[:5]
