"""A small `scripts/bench sizes`: jobs of 100 MiB on Slurm 24.11 with CRIU, whose node is taken after a
notice in which a save fits, and after one in which none does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from patience import awake

from .criu_world import needed
from .engine import Engine
from .sizes_world import CONTENTS, GIB, MIB, Case, SizesWorld, sizes_world

pytestmark = [pytest.mark.e2e, pytest.mark.release]

SIZE = 100 * MIB
TOO_SHORT = 4.0
"""Seconds: fewer than `checkpoint.deadline_margin`, so that no save fits, however fast it is."""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[SizesWorld]:
    with sizes_world(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.mark.parametrize(("count", "content"), [(1, CONTENTS[1]), (3, CONTENTS[0])])
def test_a_save_that_is_said_to_fit_comes_in_time(
    world: SizesWorld, count: int, content: str
) -> None:
    with awake() as clock:
        found = world.attempt(Case(SIZE, content, count))
    assert len(found) == count
    for one in found:
        assert one.fits, one
        assert one.fresh, one
        assert not one.lost, one
        assert one.size > SIZE
        assert one.predicted == pytest.approx(1.25 * one.save)
        assert one.still <= one.save + 5.0 + clock.longest, one


def test_a_save_that_is_said_not_to_fit_is_not_made_and_the_last_image_counts(
    world: SizesWorld,
) -> None:
    (one,) = world.attempt(Case(SIZE, CONTENTS[0], 1), notice=TOO_SHORT)
    assert not one.fits, one
    assert not one.fresh, one
    assert not one.lost, one
    assert (one.image, one.late) == (1, 0.0)
    assert "which does not fit into 0s" in world.told(one.job)


def test_what_the_machine_cannot_hold_is_told() -> None:
    assert not Case(MIB, CONTENTS[0], 1).lacks("/tmp")
    why = Case(1 << 20 << 30, CONTENTS[0], 1).lacks("/tmp")
    assert "of memory needed" in why
    assert str(Case(GIB, CONTENTS[0], 8)) == "8 x 1 GiB incompressible"
