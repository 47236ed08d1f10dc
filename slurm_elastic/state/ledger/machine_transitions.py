"""Which call of the ledger changes the state of a machine: ``TRANSITIONS`` is the whole list.

The conditions of the ledger's SQL statements come from this table as well (``where_allowed``), so
that no statement can change a machine that the table leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.model.machine_states import (
    Booting,
    Ended,
    Ending,
    Lost,
    MachineState,
    Serving,
    Stopped,
    Stopping,
)


class LedgerCall(StrEnum):
    """The methods of ``Machines`` and ``StopRows`` that change states, by their names."""

    LAUNCHED = "record_launch"
    ADOPT = "adopt"
    OBSERVE = "observe"
    REGISTERED = "record_registration"
    SUSPENDING = "record_ending"
    ENDED = "record_end"
    STOPPING = "record_stopping"
    FAILED = "record_stop_failure"
    DONE = "record_stopped"
    START = "record_start"
    START_REFUSED = "record_start_refusal"
    RUNS_AGAIN = "record_running"
    END = "record_ending_of_stopped"


StateType = type[MachineState]
PAID = "ended is null"
"""The machine has not ended. sqlite uses the partial index ``machines_live`` only for exactly this
condition.
"""
OFF = "stopped is not null"
"""The machine is stopped in this part of its life, or was (``Machine.is_off``)."""
NOT_OFF = "stopped is null"
NOT_RETIRED = "coalesce(suspending, stopping, stopped) is null"
"""No decision to end or to stop the machine was made (before it was lost)."""
KEPT = "coalesce(stopped, stopping) is not null"
"""The machine is stopped or being stopped, or was when it ended. Its cloud may list it as stopped.
"""

CONDITIONS: Mapping[StateType, str] = {
    Booting: f"{PAID} and {NOT_RETIRED} and registered is null",
    Serving: f"{PAID} and {NOT_RETIRED} and registered is not null",
    Ending: f"{PAID} and suspending is not null and not {KEPT}",
    Stopping: f"{PAID} and stopping is not null and {NOT_OFF}",
    Stopped: f"{PAID} and {OFF}",
    Lost: f"ended is not null and {NOT_RETIRED}",
    Ended: f"ended is not null and not {NOT_RETIRED}",
}
"""For each state the SQL condition of its rows. Each row of the table ``machines`` meets exactly
one condition, and ``state_of`` returns the same state for it.
"""


class Transition(Struct, frozen=True):
    """One row: after ``call`` a machine in one of the states ``before`` is in the state ``after``.

    ``before`` is empty for a machine without a row. ``writes``: the columns that may change.
    ``by``: the caller, and its occasion. ``begins_part``: the call inserts a new row and ends the
    former row under an id of its own, so that each part of the life is charged at its own price.
    """

    call: LedgerCall
    before: tuple[StateType, ...]
    after: StateType
    writes: tuple[str, ...]
    by: str
    begins_part: bool = False


_LIST = "a complete list of the cloud"
_LISTED_ENDED = f"{_LIST} that has a machine whose row has ended"

TRANSITIONS: tuple[Transition, ...] = (
    # The cloud made machines.
    Transition(LedgerCall.LAUNCHED, (), Booting, (), "a launch: the cloud's answer"),
    Transition(LedgerCall.LAUNCHED, (), Lost, ("ended", "cause"), "a launch: it is over already"),
    Transition(LedgerCall.ADOPT, (), Booting, (), f"{_LIST} with an unknown machine of ours"),
    Transition(LedgerCall.ADOPT, (), Lost, ("ended", "cause"), f"{_LIST}: it is over already"),
    # Slurm has the node up.
    Transition(
        LedgerCall.REGISTERED, (Booting,), Serving, ("registered",), "a round that reads Slurm"
    ),
    # A decision ends it, or it has ended.
    Transition(
        LedgerCall.SUSPENDING, (Booting, Serving), Ending, ("suspending", "cause"),
        "each decision to end machines, before the call of the cloud",
    ),
    Transition(
        LedgerCall.ENDED, (Booting, Serving), Lost, ("ended", "cause"),
        "a round, if lists lack it; adoption, if it is gone; an operator (clear --gone)",
    ),
    Transition(
        LedgerCall.ENDED, (Ending, Stopping, Stopped), Ended, ("ended",),
        "the call that terminated it; a round, if lists lack it; an operator (clear --gone)",
    ),
    # It is stopped instead of ended.
    Transition(
        LedgerCall.STOPPING, (Booting, Serving), Stopping, ("suspending", "stopping", "cause"),
        "a round with idle machines of a pool that keeps some, before the call of the cloud",
    ),
    Transition(
        LedgerCall.FAILED, (Stopping,), Ending, ("stopping", "cause"),
        "a round: it cannot be stopped",
    ),
    Transition(
        LedgerCall.DONE, (Stopping,), Stopped, ("suspending", "stopping", "stopped", "registered"),
        "a round: the cloud stops it, or lists it as stopped", begins_part=True,
    ),
    # It is started again, or ends for good.
    Transition(
        LedgerCall.START, (Stopped,), Booting, ("suspending", "stopped", "cause"),
        "a request of Slurm for its node, before the call of the cloud", begins_part=True,
    ),
    Transition(
        LedgerCall.START_REFUSED, (Booting, Serving), Ending, ("suspending", "cause"),
        "a start: the cloud refuses it",
    ),
    Transition(
        LedgerCall.RUNS_AGAIN, (Stopped,), Serving,
        ("suspending", "stopped", "registered", "cause"),
        "a round: it was started outside slurm-elastic, and its node is up", begins_part=True,
    ),
    Transition(
        LedgerCall.END, (Stopped,), Ending, ("suspending", "stopped", "cause"),
        "a round or an operator: it is no longer needed; before the call of the cloud",
        begins_part=True,
    ),
    # The cloud lists machines that have a row. Both calls make the same transitions, but ``adopt``
    # revives an ended machine in any state except TERMINATED. ``observe`` revives it only if its
    # list began after the end, because an earlier list may show a machine that has ended since.
    *(
        transition
        for call in (LedgerCall.OBSERVE, LedgerCall.ADOPT)
        for transition in (
            Transition(call, (Booting, Serving), Lost, ("ended", "cause"), f"{_LIST}: TERMINATED"),
            Transition(
                call, (Ending, Stopping, Stopped), Ended, ("ended",), f"{_LIST}: TERMINATED"
            ),
            # Back to the state in which it ended.
            Transition(call, (Lost,), Booting, ("ended", "cause"), _LISTED_ENDED),
            Transition(call, (Lost,), Serving, ("ended", "cause"), _LISTED_ENDED),
            Transition(call, (Ended,), Ending, ("ended",), _LISTED_ENDED),
            Transition(call, (Ended,), Stopping, ("ended",), f"{_LISTED_ENDED}, also as stopped"),
            Transition(call, (Ended,), Stopped, ("ended",), f"{_LISTED_ENDED}, also as stopped"),
        )
    ),
)  # fmt: skip


def where_allowed(call: LedgerCall) -> str:
    """The SQL condition of the machines that ``call`` may change."""
    states = dict.fromkeys(s for row in TRANSITIONS if row.call is call for s in row.before)
    return f"({' or '.join(CONDITIONS[state] for state in states)})"
