"""Texts that earlier releases stored in place of causes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Struct

from slurm_elastic.model.causes.cause import Quoted


def with_quoted(stored: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """The decoded JSON object of a ``kind``, with each text in place of a cause as the cause that
    quotes it. An empty text becomes None, for no cause.
    """
    return {name: _quoted(value) if name in _cause_keys(kind) else value
            for name, value in stored.items()}  # fmt: skip


def _quoted(value: object) -> object:
    if not isinstance(value, str):
        return value
    return msgspec.to_builtins(Quoted(text=value)) if value else None


@cache
def _cause_keys(kind: type[Struct]) -> frozenset[str]:
    """The keys of the fields that may hold a quoted text."""
    fields = msgspec.structs.fields(kind)
    return frozenset(f.encode_name for f in fields if Quoted in get_args(f.type))
