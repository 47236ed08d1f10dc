"""The table of what five papers have and what the product has: complete, and its places exist."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "data" / "papers-audit.csv"
ROWS_BY_PAPER = {
    "EC3 (FGCS 2016)": 70,
    "Elastic Site (CCGrid 2010)": 48,
    "SEC (SC 2013)": 58,
    "VHEC (2014)": 39,
    "vcluster (2013)": 38,
}
MARKS = {"Y+", "Y", "D+", "D", "D-", "P", "N"}
LESS = {"D-", "P", "N"}
"""Marks of rows in which the paper has more."""
REASONS = {"scope", "input", "design", "outlook", "ended", "later", "open"}
"""Why a row is less: out of the product's scope; the paper does not print the input; on purpose; the
paper has it as an outlook, too; what it used has ended; planned; not done.
"""
MOST_WORDS = 12


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_row_of_each_paper_is_there_once() -> None:
    assert Counter(row["paper"] for row in rows()) == ROWS_BY_PAPER
    numbers = [(row["paper"], int(row["row"])) for row in rows()]
    assert len(set(numbers)) == len(numbers) == 253
    assert all(1 <= number <= ROWS_BY_PAPER[paper] for paper, number in numbers)


def test_marks_before_are_those_of_the_audit() -> None:
    before = Counter(row["before"] for row in rows())
    different = sum(before[mark] for mark in ("D+", "D", "D-"))
    assert (before["Y+"], before["Y"], different, before["P"], before["N"]) == (34, 120, 17, 45, 37)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['paper'].split()[0]}-{row['row']}")
def test_a_row_is_short_and_its_place_exists(row: dict[str, str]) -> None:
    assert {row["before"], row["now"]} <= MARKS
    assert row["subject"]
    assert len(row["remark"].split()) <= MOST_WORDS
    assert (ROOT / row["where"]).exists(), row["where"]
    # A row in which the paper has more says why.
    assert (row["reason"] in REASONS and bool(row["remark"])) == (row["now"] in LESS)
