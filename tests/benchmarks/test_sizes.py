"""The benchmark of sizes says what it saw; its jobs are those of the containers' tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import sizes


def held(**changes: object) -> SimpleNamespace:
    """A job whose save was said to fit, and was made in time."""
    one = {"case": "1 x 1 GiB", "job": 7, "save": 4.0, "size": 1 << 30, "still": 3.0,
           "predicted": 5.0, "fits": True, "late": 6.0, "image": 2, "fresh": True, "whole": True,
           "away": 9.0, "why": ""}  # fmt: skip
    return SimpleNamespace(**{**one, **changes})


def goals(*found: SimpleNamespace) -> list[bool]:
    """Whether each goal is met: in time where it fits, its last image where not, nothing anew."""
    return [row.ok for row in sizes._sums(found) if row.ok is not None]


def test_a_save_that_fits_is_to_come_in_time_and_any_other_job_keeps_its_image() -> None:
    kept = held(fits=False, fresh=False, late=0.0, image=1)
    assert goals(held(), kept) == [True, True, True]
    assert goals(held(fresh=False, image=1)) == [False, True, True]
    assert goals(held(fits=False, fresh=False, image=None)) == [True, False, True]
    assert goals(held(whole=False)) == [True, True, False]


def test_the_slowest_save_is_told_beside_its_prediction() -> None:
    rows = sizes._rows("case", [held(), held(late=8.0, predicted=5.0, save=4.5)], 120.0)
    beside = next(row for row in rows if row.reference is not None)
    assert (beside.ours, beside.reference, rows[0].ours, rows[3].ours) == (8.0, 5.0, 4.5, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes", "big"], "big: expected a size in GiB, 0.000976562 to 1024"),
        (["--counts", "9"], "9: expected a number of jobs up to 8, 1 to 8"),
        (["--notice", "0"], "0: expected a number of seconds, 1 to 3600"),
        (["--contents", "zeros"], "choose from 'incompressible', 'compressible'"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sizes.main(words)
    assert said in capsys.readouterr().err
