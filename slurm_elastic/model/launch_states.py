"""The states of a launch: one class per state, with the fields that this state has and no others.
The table in ``slurm_elastic.state.ledger.launches`` shows which ledger call changes which state.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class _State(Struct, frozen=True, kw_only=True, tag_field="state", tag=str.lower):
    """The base of all states."""


class Intended(_State, frozen=True, kw_only=True):
    """The intent is recorded. No answer of the cloud is known."""


class Done(_State, frozen=True, kw_only=True):
    """The cloud has answered, and its machines are in the ledger."""

    finished_at: float


class Failed(_State, frozen=True, kw_only=True):
    """No machine was started. ``error``: the cloud's error text."""

    finished_at: float
    error: str


LaunchState = Intended | Done | Failed
INTENDED = Intended()

_INTENT, _DONE, _FAILED = "intent", "done", "failed"
"""The values of the ledger's column ``state``."""
WORDS: dict[type[LaunchState], str] = {Intended: _INTENT, Done: _DONE, Failed: _FAILED}


class LaunchColumns(NamedTuple):
    """A state as columns of the ledger. ``finished``: Unix time."""

    state: str = _INTENT
    finished: float | None = None
    error: str | None = None


def launch_columns_of(state: LaunchState) -> LaunchColumns:
    """The columns of a state. ``launch_state_of`` converts them back to the same state."""
    match state:
        case Done():
            return LaunchColumns(_DONE, state.finished_at)
        case Failed():
            return LaunchColumns(_FAILED, state.finished_at, state.error)
    return LaunchColumns()


def launch_state_of(
    word: str, finished: float | None, error: str | None, created: float
) -> LaunchState:
    """The state of a row. Every combination of columns yields a state, so that every journal can be
    opened. If the time of the answer is missing, the time of the intent (``created``) is used.
    """
    finished_at = created if finished is None else finished
    if word == _DONE:
        return Done(finished_at=finished_at)
    return Failed(finished_at=finished_at, error=error or "") if word == _FAILED else INTENDED
