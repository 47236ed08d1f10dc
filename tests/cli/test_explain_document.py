"""``explain --json`` has each cause as data for programs, and as a sentence."""

from __future__ import annotations

from ledger_cases import T0, instance
from machine_cases import machine_with

from slurm_elastic.cli.jobs.explain import document
from slurm_elastic.cli.jobs.explain_text import Explanation
from slurm_elastic.model.causes.machine_ends import NodePoweredDown
from slurm_elastic.model.memory import Decision, Machine


def test_a_cause_is_data_and_a_sentence() -> None:
    cause = NodePoweredDown(for_s=300)
    decision = Decision(
        at=T0, correlation="reconcile", kind="terminated", subjects=("pub1",), cause=cause
    )
    ended = machine_with(instance=instance("i-1"), pool="pub", ended=T0, cause=cause)
    serving = Machine(instance=instance("i-2"), pool="pub")
    found = document(
        Explanation(
            subject="pub1", about="node", now="", machines=(ended, serving), decisions=(decision,)
        )
    )
    (row,) = found["decisions"]
    assert row["cause"] == {"kind": "node-powered-down", "for_s": 300, "was_stopped": False}
    assert row["reason"] == "Slurm has its node powered down for 5m"
    assert [one["end_reason"] for one in found["machines"]] == [row["reason"], None]
