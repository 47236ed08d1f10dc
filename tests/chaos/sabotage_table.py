"""Which defects are found, and by what: by drawn runs, after how many, or by a test of their own."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.defects.all_rooms import ATTACKS
from tests.chaos.sabotage import ALL, OF_TWO_HEADS

DRAWINGS = {
    "limits_of_operators_unheard": 186, "pauses_unheard": 27,
    "a_fence_that_always_passes": 3, "a_fence_that_passes_in_doubt": 3,
    "a_new_head_that_does_not_wait": 6, "a_new_head_that_knows_nothing": 1,
    "an_old_suspend_ends_a_new_machine": 4,
    "any_image_is_whole": 2, "bought_from_an_unread_cloud": 5, "ended_without_an_end": 1,
    "intents_unwritten": 1, "launched_again": 49, "more_are_stopped_than_a_pool_keeps": 4,
    "one_missing_answer_is_an_end": 3, "orders_without_a_fence": 21, "orphans_stay": 22,
    "spending_unlocked": 4, "spot_for_any_job": 56, "spot_on_any_node": 43, "started_before_it_is_written_down": 4, "started_beyond_the_limits": 4,
    "stopped_machines_cost_nothing": 4, "stopped_machines_stay": 4, "synced_now_and_then": 5,
}  # fmt: skip
"""How many runs found the defect, from seed 1 on; with two heads: how many runs of such sites. A
change of the code shifts what a seed meets, so the number only says how rare the defect is.
"""


def lines() -> Iterator[str]:
    """The table: a line for each defect."""
    yield "| sabotage | found by | after how many drawings |"
    yield "|---|---|---|"
    for name in sorted(ALL):
        by, count = _found_by(name), DRAWINGS.get(name)
        yield f"| {name} | {by} | {'' if count is None else count} |"
    yield ""
    drawn, attacked = len(DRAWINGS.keys() & ALL.keys()), len(ATTACKS.keys() - DRAWINGS.keys())
    yield f"{len(ALL)} defects: {drawn} found by drawings, {attacked} by a test of their own"


def _found_by(name: str) -> str:
    if name in DRAWINGS:
        return "drawings of sites with two heads" if name in OF_TWO_HEADS else "drawings"
    return " and ".join(ATTACKS.get(name, ("nothing yet",)))
