"""Machines in any state, given by the columns of the ledger's row, for several test modules."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from slurm_elastic.model.machine_states import Columns, columns_of, state_of
from slurm_elastic.model.memory import Machine


def machine_with(**values: Any) -> Machine:
    """A machine with these fields and columns (``suspending``, ``ended``, ``registered`` ...)."""
    columns = {name: values.pop(name) for name in Columns._fields if name in values}
    return Machine(**values, life=state_of(**columns))


def changed(machine: Machine, **values: Any) -> Machine:
    """The machine with other fields and columns."""
    columns = {name: values.pop(name) for name in Columns._fields if name in values}
    life = state_of(**columns_of(machine.life)._replace(**columns)._asdict())
    return replace(machine, **values, life=life)
