"""Translate rows that earlier releases wrote into the journal to rows of this release. Until schema
18 the ledger kept sentences. No other module reads sentences that slurm-elastic wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from slurm_elastic.model.causes import AnyCause, Quoted, encoded
from slurm_elastic.model.causes.composed import NodeFailed
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.machine_ends import OutOfService, SuspendedBySlurm
from slurm_elastic.model.causes.pool_failures import BootsFailed, KeyNotBrought

_OUT_OF_SERVICE = "Slurm took it out of service: "
_REMEDY = "; do: "
_FAILED_BOOTS = re.compile(
    r"(?:(?P<count>\d+) machines in a row )?"
    r"(?:booted but never registered with Slurm"
    r"|were taken out of service by Slurm: (?P<taken_out>.*))",
    re.DOTALL,
)

Row = Mapping[str, Any]


def _machine_end(sentence: str) -> AnyCause:
    """Return the cause of a machine's end that an earlier release stored as a sentence. Later
    decisions read the fields of two causes. Every other sentence becomes a Quoted cause.
    """
    if sentence == "suspended by Slurm":
        return SuspendedBySlurm()
    if sentence.startswith(_OUT_OF_SERVICE):
        return OutOfService(node_reason=sentence.removeprefix(_OUT_OF_SERVICE))
    return Quoted(text=sentence)


def _pool_failure(sentence: str) -> AnyCause:
    """Return the cause of a breaker. Its fields decide how the breaker closes."""
    match = _FAILED_BOOTS.fullmatch(sentence)
    if match is None:
        return Quoted(text=sentence)
    node_reason, _, remedy = (match["taken_out"] or "").partition(_REMEDY)
    return BootsFailed(in_a_row=int(match["count"] or 0), node_reason=node_reason, remedy=remedy)


def _decided(kind: str, sentence: str) -> AnyCause:
    """Return the cause of a decision. Rounds read the fields of two causes again while the machine
    exists. Every other sentence becomes a Quoted cause.
    """
    machine, colon, explanation = sentence.partition(": ")
    if colon and kind == "node-failed":
        return NodeFailed(machine=machine, cause=Quoted(text=explanation))
    if colon and kind in ("key-refused", "key-failed"):
        return KeyNotBrought(machine=machine, error=explanation)
    return Quoted(text=sentence)


def _exclusion_cause(kind: str, sentence: str) -> AnyCause:
    if kind == "breaker":
        return _pool_failure(sentence)
    if sentence == str(GrowthStartsIt()):
        return GrowthStartsIt()
    return Quoted(text=sentence)


def _machine(row: Row) -> Row:
    if "why" not in row:
        return row
    sentence = row["why"]
    cause = None if sentence is None else encoded(_machine_end(sentence))
    return {**_without(row, "why"), "cause": cause}


def _decision(row: Row) -> Row:
    if "reason" not in row:
        return row
    cause = _decided(row["kind"], row["reason"])
    return {**_without(row, "reason"), "cause": encoded(cause)}


def _exclusion(row: Row) -> Row:
    if "cause" not in row:
        return row
    cause = _exclusion_cause(row["kind"], row["cause"])
    return {**_without(row, "cause"), "because": encoded(cause)}


def _without(row: Row, column: str) -> Row:
    return {name: value for name, value in row.items() if name != column}


EARLIER_ROWS: Mapping[str, Callable[[Row], Row]] = {
    "machines": _machine,
    "decisions": _decision,
    "exclusions": _exclusion,
}
"""By table the function that translates an earlier row. Such a function leaves a row of this
release as it is.
"""
