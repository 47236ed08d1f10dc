"""A comparison of two policies in words."""

from __future__ import annotations

import io

import pytest
from msgspec import Struct
from rich.console import Console

from slurm_elastic.cli.planning.simulate_tables import cells, comparison_text, render
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.studies.certainty import Comparison, Interval, Unlike


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


class Row(Struct, frozen=True):
    policy: str
    figures: Figures


def row(policy: str, cost: float) -> Row:
    figures = Figures(
        jobs=1, unserved=0, too_large=0, cost=cost, on_demand=cost, spot=0.0, mean_wait=1.0,
        p95_wait=1, slowdown=1.0, utilisation=0.5, makespan=9, lost_hours=0.0, overhead_hours=0.0,
        interruptions=0, checkpoints=0, api_calls=0, peak=1, pools=(),
    )  # fmt: skip
    return Row(policy, figures)


def test_savings_compare_with_the_first_policy_that_costs_anything() -> None:
    rows = [row("none", 0.0), row("slurm", 8.0), row("bursts", 2.0)]
    head, lines = cells(rows)
    savings = [line[head.index("saving")] for line in lines]
    assert savings == ["100.0%", "0.0%", "75.0%"]
    console = Console(file=io.StringIO(), width=300)
    render(rows, console)
    assert "none costs nothing: savings compare with slurm." in console.file.getvalue()  # type: ignore[attr-defined]
    assert [line[head.index("saving")] for line in cells(rows[:1])[1]] == [""]


def test_halves_that_are_unlike_each_other_are_named_in_place_of_a_range() -> None:
    text = comparison_text(Unlike(savings=(0.5, -0.01), waits=(60.0, 0.0), weeks=20))
    assert text.startswith(
        "in the first half of these 20 weeks 50.0 % cheaper, and jobs wait 60 s longer; in the "
        "second half 1.0 % dearer, and jobs wait 0 s longer. The halves"
    )


def test_a_short_history_has_no_range() -> None:
    assert comparison_text(None).startswith("the history has fewer than 8 whole weeks with costs")
