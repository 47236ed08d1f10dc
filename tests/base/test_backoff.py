"""Pauses between tries: they double, and no count of failures makes them overflow."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.backoff import Backoff

PAUSES = st.floats(0.0, 1e9)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(2.0, 30.0)
    assert [backoff.after(n) for n in range(7)] == [0, 2, 4, 8, 16, 30, 30]
    pauses, pause = [], 0.0
    for _ in range(6):
        pause = backoff.longer(pause)
        pauses.append(pause)
    assert pauses == [2, 4, 8, 16, 30, 30]


@given(PAUSES, PAUSES, st.integers(0, sys.maxsize))
def test_no_count_of_failures_is_too_large(first: float, longest: float, failures: int) -> None:
    backoff = Backoff(first, longest)
    assert 0.0 <= backoff.after(failures) <= backoff.after(failures + 1) <= longest
    assert backoff.after(10**400) <= longest


@given(PAUSES, PAUSES, st.floats(0.0, sys.float_info.max))
def test_no_pause_is_too_long(first: float, longest: float, pause: float) -> None:
    assert Backoff(first, longest).longer(pause) <= longest
