"""A comparison of two policies in words."""

from __future__ import annotations

import pytest

from slurm_elastic.cli.planning.simulate_tables import comparison_text
from slurm_elastic.simulate.studies.certainty import Comparison, Interval


def comparison(saving: tuple[float, ...], wait: tuple[float, ...]) -> Comparison:
    return Comparison(
        saving=Interval(value=saving[0], low=saving[1], high=saving[2]),
        wait=Interval(value=wait[0], low=wait[1], high=wait[2]),
        weeks=9,
    )


@pytest.mark.parametrize(
    ("saving", "wait", "words"),
    [
        (
            (0.125, 0.1, 0.15),
            (-30.0, -45.0, -20.0),
            "12.5 % cheaper (10.0 % to 15.0 %), and jobs wait 30 s shorter (20 s to 45 s) (in",
        ),
        (
            (-0.125, -0.15, 0.01),
            (600.0, 0.0, 1200.0),
            "12.5 % dearer (1.0 % cheaper to 15.0 % dearer), and jobs wait 10 min longer (0 s to",
        ),
        ((0.0, 0.0, 0.0), (0.1, 0.0, 0.2), "the same cost, and jobs wait as long (in"),
    ],
)
def test_a_comparison_in_words(
    saving: tuple[float, ...], wait: tuple[float, ...], words: str
) -> None:
    assert comparison_text(comparison(saving, wait)).startswith(words)


def test_what_is_not_sure_is_named() -> None:
    text = comparison_text(comparison((0.1, -0.1, 0.2), (60.0, 30.0, 90.0)))
    assert text.endswith("these 9 weeks); it is not sure which way the cost would change")
