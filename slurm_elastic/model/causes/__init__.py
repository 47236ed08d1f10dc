"""The causes of decisions, as data. Each cause is a class with the fields that program logic reads,
and it builds its sentence when it is shown. The ledger stores causes as JSON.
"""

from __future__ import annotations

import functools

import msgspec

from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.composed import AnyCause
from slurm_elastic.model.causes.machine_ends import MachineEnd
from slurm_elastic.model.causes.repairs import Repair
from slurm_elastic.model.causes.saves import JobSave


@functools.cache
def _decoder() -> msgspec.json.Decoder[AnyCause]:
    """Made at first use: it takes 10 ms, which a command without a cause to show need not wait."""
    return msgspec.json.Decoder(AnyCause)


def encoded(cause: Cause) -> str:
    """The cause as JSON text for the ledger."""
    return msgspec.json.encode(cause).decode()


def decoded(text: str) -> AnyCause:
    """Decode a text of ``encoded``. msgspec.ValidationError for any other text."""
    return _decoder().decode(text)


__all__ = [
    "AnyCause",
    "Cause",
    "JobSave",
    "MachineEnd",
    "Quoted",
    "Repair",
    "decoded",
    "encoded",
]
