"""Why things are decided, as data: each cause is a class with the fields that logic reads, and it
builds its sentence when a person looks. The ledger keeps causes as JSON.
"""

from __future__ import annotations

import msgspec

from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.composed import AnyCause
from slurm_elastic.model.causes.machine_ends import MachineEnd
from slurm_elastic.model.causes.repairs import Repair
from slurm_elastic.model.causes.saves import JobSave

_DECODER: msgspec.json.Decoder[AnyCause] = msgspec.json.Decoder(AnyCause)


def encoded(cause: Cause) -> str:
    """The cause as the ledger keeps it."""
    return msgspec.json.encode(cause).decode()


def decoded(text: str) -> AnyCause:
    """The cause that ``encoded`` made a text of. msgspec.ValidationError for any other text."""
    return _DECODER.decode(text)


def as_cause(reason: str | AnyCause) -> AnyCause:
    """The cause, or a quoted one for callers that have only a sentence."""
    return Quoted(text=reason) if isinstance(reason, str) else reason


__all__ = [
    "AnyCause",
    "Cause",
    "JobSave",
    "MachineEnd",
    "Quoted",
    "Repair",
    "as_cause",
    "decoded",
    "encoded",
]
