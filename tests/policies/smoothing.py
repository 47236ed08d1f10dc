"""A whole series smoothed, as one week after the other is by the daemon."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.policies.growth.forecast import Smoothed


def smoothed(values: Iterable[float]) -> Smoothed:
    """The state after all values (one at least)."""
    first, *rest = values
    state = Smoothed(first, highest=first)
    for value in rest:
        state = state.after(value)
    return state
