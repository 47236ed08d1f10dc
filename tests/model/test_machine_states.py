"""A machine's state has the fields that this state has, whatever the columns of its row are."""

from __future__ import annotations

import itertools
import typing

import msgspec
import pytest
from ledger_cases import T0, instance

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.machine_ends import NodePoweredDown
from slurm_elastic.model.machine_states import (
    BOOTING,
    Columns,
    Ended,
    Ending,
    Lost,
    MachineState,
    Serving,
    Stopped,
    Stopping,
    columns_of,
    state_of,
)
from slurm_elastic.model.memory import Machine

IDLE = NodePoweredDown(for_s=300)
COLUMNS = [
    Columns(*(value if is_set else None for value, is_set in zip(values, chosen, strict=True)))
    for values in [(T0 + 1, T0 + 2, IDLE, T0 + 3, T0 + 4, T0 + 5)]
    for chosen in itertools.product((False, True), repeat=6)
]
"""Every combination of columns that are set: most of them mean nothing."""
ENDING = Ending(retired_at=T0, cause=IDLE, registered_at=T0 - 9)
STOPPING = Stopping(retired_at=T0, cause=IDLE)
STOPPED = Stopped(since=T0, cause=IDLE)
STATES: tuple[MachineState, ...] = (
    BOOTING,
    Serving(registered_at=T0),
    ENDING,
    STOPPING,
    STOPPED,
    Lost(ended_at=T0, cause=IDLE, registered_at=T0 - 9),
    *(Ended(ended_at=T0 + 9, before=before) for before in (ENDING, STOPPING, STOPPED)),
)


@pytest.mark.parametrize("columns", COLUMNS)
def test_any_columns_are_one_state_that_keeps_its_columns(columns: Columns) -> None:
    state = state_of(**columns._asdict())
    assert (state.ended_at is None) == (columns.ended is None)
    assert state_of(**columns_of(state)._asdict()) == state


@pytest.mark.parametrize("state", STATES)
def test_a_states_columns_are_its_own(state: MachineState) -> None:
    assert state_of(**columns_of(state)._asdict()) == state


@pytest.mark.parametrize("state", STATES)
def test_a_state_passes_from_one_program_to_another(state: MachineState) -> None:
    machine = Machine(instance=instance("i-1"), pool="burst", life=state)
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


def test_every_state_answers_the_same_questions() -> None:
    kinds = typing.get_args(MachineState)
    assert {type(state) for state in STATES} == set(kinds)
    for kind in kinds:
        assert all(hasattr(kind, name) for name in ("registered_at", "retired_at", "ended_at"))
        assert hasattr(kind, "cause")


def test_the_cause_of_a_row_that_has_none_is_empty() -> None:
    assert state_of(suspending=T0) == Ending(retired_at=T0, cause=Quoted(text=""))
    assert Machine(instance=instance("i-1"), pool="", life=state_of(ended=T0)).cause_text is None


@pytest.mark.parametrize("state", STATES)
def test_a_machine_is_asked_by_the_name_of_its_state(state: MachineState) -> None:
    machine = Machine(instance=instance("i-1"), pool="burst", life=state)
    columns = columns_of(state)
    over, retired = columns.ended is not None, columns.suspending is not None
    assert machine.has_ended == over
    assert machine.is_wanted == (not over and not retired)
    assert machine.boots == (machine.is_wanted and columns.registered is None)
    assert machine.is_off == (columns.stopped is not None)
    assert machine.is_stopping == (columns.stopping is not None and not over)
    assert (machine.retired_at, machine.ended_at) == (columns.suspending, columns.ended)
    assert (machine.registered_at, machine.cause) == (columns.registered, columns.cause)
