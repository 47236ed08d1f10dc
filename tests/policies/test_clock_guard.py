"""Times that were written down before the head's clock was set back."""

from __future__ import annotations

from math import inf

import pytest

from slurm_elastic.policies.clock_guard import age, set_back

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("since", "seconds"),
    [(NOW - 60, 60.0), (NOW, 0.0), (NOW + 900, 0.0), (NOW + 901, inf)],
)
def test_what_is_dated_over_a_quarter_of_an_hour_ahead_is_older_than_anything(
    since: float, seconds: float
) -> None:
    assert age(since, NOW) == seconds


@pytest.mark.parametrize(
    ("times", "minutes"),
    [
        ([], None),
        ([NOW - 1e6], None),
        ([NOW + 900, NOW - 5], None),
        ([NOW + 1200, NOW - 5, NOW + 960], 20),
        ([NOW - 5, NOW + 960], 16),
    ],
)
def test_a_step_back_is_told_by_the_last_time_that_was_written_down(
    times: list[float], minutes: int | None
) -> None:
    said = set_back(times, NOW)
    if minutes is None:
        assert said is None
    else:
        assert str(said).startswith(f"The clock of this host is {minutes} min behind the times")
        assert "do: timedatectl" in str(said)
