"""A slow scheduler is not taken for a full cloud."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.providers.base.tags import GENERATION
from slurm_elastic.providers.opennebula.convert import ACTIVE, PENDING, VmFields
from slurm_elastic.providers.opennebula.scheduling import given_up, in_line

T0 = 1_800_000_000.0
LIMIT = 60.0
NOT_NOW = "Sat Nov 21 03:35:07 2026: Cannot dispatch VM to any Host. Possible reasons: ..."


def vm(number: int, placed: float | None, launch: str = "g1", started: float = T0) -> VmFields:
    waits = placed is None
    tags = {GENERATION: launch} | ({"SCHED_MESSAGE": NOT_NOW} if waits else {})
    state, lcm = (PENDING, 0) if waits else (ACTIVE, 3)
    return VmFields(id=number, state=state, lcm=lcm, started=started, tags=tags, address=None,
              placed=placed)  # fmt: skip


def at(now: float, size: int, each: int, cycle: float) -> Sequence[VmFields]:
    """A launch of which the scheduler places so many each cycle."""
    times = [T0 + cycle * (n // each + 1) for n in range(size)]
    return [vm(n, t if t <= now else None) for n, t in enumerate(times)]


@given(
    size=st.integers(1, 300),
    each=st.integers(1, 30),
    cycle=st.floats(1.0, LIMIT),
    when=st.floats(0.0, 1.0),
)
def test_no_machine_of_a_launch_that_makes_progress_is_given_up(
    size: int, each: int, cycle: float, when: float
) -> None:
    now = T0 + when * cycle * (size // each + 1)
    assert given_up(at(now, size, each, cycle), now, LIMIT) == {}


def test_forty_machines_placed_four_at_a_time_all_come_up() -> None:
    """Measured on oned 6.10.5: four every 16 s."""
    for age in range(0, 170, 5):
        assert not given_up(at(T0 + age, 40, 4, 16.0), T0 + age, LIMIT)


def test_when_nothing_has_moved_for_the_limit_the_rest_is_given_up() -> None:
    last = T0 + 32
    machines = [*(vm(n, T0 + 16 * (1 + n // 4)) for n in range(8)), vm(8, None), vm(9, None)]
    assert not given_up(machines, last + LIMIT, LIMIT)
    assert set(given_up(machines, last + LIMIT + 1, LIMIT)) == {8, 9}


def test_a_launch_of_which_nothing_was_placed_is_given_up_after_the_limit() -> None:
    machines = [vm(n, None) for n in range(3)]
    assert not given_up(machines, T0 + LIMIT, LIMIT)
    assert set(given_up(machines, T0 + LIMIT + 1, LIMIT)) == {0, 1, 2}


def test_machines_ahead_in_line_are_waited_for() -> None:
    """Another launch of ours was first, and the scheduler is busy with it."""
    before = [vm(n, T0 + 16 * (n + 1)) for n in range(6)]
    later = vm(10, None, "g2", started=T0 + 1)
    assert not given_up([*before, later], T0 + 96 + LIMIT, LIMIT)
    assert set(given_up([*before, later], T0 + 97 + LIMIT, LIMIT)) == {10}


def test_the_last_of_a_launch_that_was_placed_while_it_was_ordered_are_in_line() -> None:
    machines = [vm(0, T0 + 1), vm(1, None), vm(2, None, started=T0 + 2)]
    assert in_line(machines) == {1, 2}


def test_a_machine_that_the_scheduler_comes_to_next_is_in_line_before_it_has_a_message() -> None:
    """The message may come between the list and the next question."""
    tried, untried = vm(1, None), replace(vm(2, None), tags={GENERATION: "g1"})
    assert in_line([vm(0, T0 + 1), tried, untried]) == {1, 2}
    assert set(given_up([vm(0, T0 + 1), tried, untried], T0 + LIMIT + 2, LIMIT)) == {1}


def test_what_is_placed_behind_a_machine_is_no_progress_of_its_own() -> None:
    passed_over = vm(1, None, "g1")
    small = [vm(2 + n, T0 + 10 * (n + 1), "g2") for n in range(9)]
    assert set(given_up([passed_over, *small], T0 + 91, LIMIT)) == {1}


def test_a_scheduler_slower_than_the_limit_sets_the_pace() -> None:
    machines = [vm(0, T0 + 100), vm(1, T0 + 200), vm(2, None)]
    assert not given_up(machines, T0 + 400, LIMIT)
    assert set(given_up(machines, T0 + 401, LIMIT)) == {2}


def test_only_machines_of_a_line_that_moves_stand_in_it() -> None:
    moving = [vm(0, T0 + 16), vm(1, None)]
    full = [vm(5, None, "g2", started=T0 + 60), vm(6, None, "g2", started=T0 + 60)]
    assert in_line([*moving, *full]) == {1}
