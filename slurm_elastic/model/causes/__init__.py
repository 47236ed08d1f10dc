"""The causes of decisions, as data. Each cause is a class with the fields that program logic reads,
and it builds its sentence when it is shown. The ledger stores causes as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.composed import AnyCause
from slurm_elastic.model.causes.earlier_texts import with_quoted
from slurm_elastic.model.causes.machine_ends import MachineEnd
from slurm_elastic.model.causes.repairs import Repair
from slurm_elastic.model.causes.saves import JobSave

_KINDS: Mapping[object, type[Cause]] = {
    kind.__struct_config__.tag: kind for kind in get_args(AnyCause)
}
_DECODER: msgspec.json.Decoder[AnyCause] = msgspec.json.Decoder(AnyCause)


def encoded(cause: Cause) -> str:
    """The cause as JSON text for the ledger."""
    return msgspec.json.encode(cause).decode()


def decoded(text: str) -> AnyCause:
    """Decode a text of ``encoded``, also of an earlier release that had a text in place of a cause
    inside of a cause. msgspec.ValidationError for any other text.
    """
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(text, type=dict[str, Any])
        kind = _KINDS.get(fields.get("kind"))
        if kind is None:
            raise
        cause: AnyCause = msgspec.convert(with_quoted(fields, kind), AnyCause)
        return cause


__all__ = [
    "AnyCause",
    "Cause",
    "JobSave",
    "MachineEnd",
    "Quoted",
    "Repair",
    "decoded",
    "encoded",
    "with_quoted",
]
