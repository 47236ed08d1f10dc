"""Runs that ended with their machine, without a notice: kept in the decisions about their jobs.

``ckpt list`` and mail show such an end as a finished move. ckptman must not store it as a move,
because a job's next run continues from the image of its last stored move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from slurm_elastic.state.ckptstate.facts import Migration
from slurm_elastic.state.ledger import Ledger

SUBJECT = "ends:unannounced"
"""The subject by which the decisions are found."""
DETAIL = "move"
MAX_READ = 1000
"""The maximum of ends in an answer."""


def detail_of(move: Migration) -> dict[str, object]:
    """The detail of the decision about the end ``move``."""
    return {DETAIL: msgspec.to_builtins(move)}


def unannounced_ends(
    ledger: Ledger, since: float, moves: Iterable[Migration]
) -> tuple[Migration, ...]:
    """The ends after ``since`` (Unix time), oldest first, without runs that ``moves`` contain."""
    moved = {(move.run.job, move.run.attempt) for move in moves}
    ends: dict[tuple[int, int], Migration] = {}
    for decision in ledger.decisions.about(SUBJECT, MAX_READ):
        # A detail of another release may lack fields.
        with contextlib.suppress(msgspec.ValidationError):
            end = msgspec.convert((decision.detail or {}).get(DETAIL), Migration)
            key = end.run.job, end.run.attempt
            # A run with a stored move is shown as that move, and must not be shown twice.
            if decision.at >= since and key not in moved:
                ends[key] = end
    return tuple(ends.values())
