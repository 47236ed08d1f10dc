"""The states of a launch: one class per state, with the fields that this state has and no others.
Which ledger call changes which state is the table in ``slurm_elastic.state.ledger.launches``.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class _State(Struct, frozen=True, kw_only=True, tag_field="state", tag=str.lower):
    """The base of all states."""


class Intended(_State, frozen=True, kw_only=True):
    """It is written down. The call of the cloud is not known to have been answered."""


class Done(_State, frozen=True, kw_only=True):
    """The cloud has answered: what it made are machines of the ledger."""

    finished_at: float


class Failed(_State, frozen=True, kw_only=True):
    """Nothing was started, in the cloud's words ``error``."""

    finished_at: float
    error: str


LaunchState = Intended | Done | Failed
INTENDED = Intended()

_INTENT, _DONE, _FAILED = "intent", "done", "failed"
"""The words of the ledger's column ``state``."""
WORDS: dict[type[LaunchState], str] = {Intended: _INTENT, Done: _DONE, Failed: _FAILED}


class LaunchColumns(NamedTuple):
    """A state as the ledger's columns have it."""

    state: str = _INTENT
    finished: float | None = None
    error: str | None = None


def launch_columns_of(state: LaunchState) -> LaunchColumns:
    """The columns of a state: ``launch_state_of`` makes the same state of them."""
    match state:
        case Done():
            return LaunchColumns(_DONE, state.finished_at)
        case Failed():
            return LaunchColumns(_FAILED, state.finished_at, state.error)
    return LaunchColumns()


def launch_state_of(
    word: str, finished: float | None, error: str | None, created: float
) -> LaunchState:
    """The state that a row's columns mean. Any columns mean some state, so that every journal
    opens: a launch without the time of its answer has that of its intent (``created``).
    """
    at = created if finished is None else finished
    if word == _DONE:
        return Done(finished_at=at)
    return Failed(finished_at=at, error=error or "") if word == _FAILED else INTENDED
