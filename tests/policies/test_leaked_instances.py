"""Machines that somebody should look at."""

from __future__ import annotations

from ledger_cases import T0

from slurm_elastic.policies.leaked_instances import unending


def test_an_end_may_take_a_quarter_of_an_hour() -> None:
    assert unending(None, T0) is None
    assert unending(T0, T0 + 900) is None
    assert (
        unending(T0, T0 + 900.5)
        == "its cloud was asked again and again to end it, and still has it"
    )
