"""A job's cost beside what the site wrote."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.money.cost_note import noted

NOTE = "[slurm-elastic cost=$1.234567 market=spot]"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", NOTE),
        ("ticket 7: a=b [x]", f"ticket 7: a=b [x] {NOTE}"),
        ("[slurm-elastic cost=$0.100000 market=spot]", NOTE),
        ("before [slurm-elastic cost=$0.1 market=spot] after", f"before after {NOTE}"),
        ("  kept\tas it is ", f"  kept\tas it is  {NOTE}"),
    ],
)
def test_only_our_own_part_is_replaced(text: str, after: str) -> None:
    assert noted(text, 1_234_567, ["spot"]) == after
    assert noted(after, 1_234_567, ["spot"]) == after


def test_markets_of_several_machines_are_all_named() -> None:
    assert noted("", 0, ["spot", "on-demand", "spot"]).endswith("market=on-demand+spot]")
