"""Machines of each hour as the weekly table that portfolios are decided by."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.policies.planning.portfolio import WEEK


def usage_of(concurrent: Sequence[int]) -> list[list[float]]:
    """The table of a history from its machines in each hour; an unfinished week is left out."""
    table = []
    for begin in range(0, len(concurrent) - WEEK + 1, WEEK):
        hours = concurrent[begin : begin + WEEK]
        row = [0.0] * max(hours)
        for count in hours:
            if count:
                row[count - 1] += 1
        for rank in range(len(row) - 2, -1, -1):
            row[rank] += row[rank + 1]
        table.append(row)
    return table
