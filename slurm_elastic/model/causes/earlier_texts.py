"""Texts that earlier releases stored in place of causes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.composed import AnyCause

_KINDS: Mapping[object, type[Cause]] = {
    kind.__struct_config__.tag: kind for kind in get_args(AnyCause)
}


def with_quoted(stored: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """The decoded JSON object of a ``kind``, with each text in place of a cause as the cause that
    quotes it, also in causes inside of it.
    """
    optional_by_key = _cause_keys(kind)
    return {
        key: _quoted(value, is_optional=optional_by_key[key])
        if isinstance(value, str) and key in optional_by_key
        else converted(value)
        for key, value in stored.items()
    }


def converted(value: object) -> object:
    """Convert decoded JSON with causes at any depth. For example, the cause of a hold has a cause
    for each group of refused offers.
    """
    if isinstance(value, list):
        return [converted(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get("kind")
    # Other objects may have a key "kind", too, with a value that cannot be looked up.
    kind = _KINDS.get(tag) if isinstance(tag, str) else None
    return with_quoted(value, kind or Struct)


def _quoted(text: str, *, is_optional: bool) -> object:
    # Where no cause is allowed, these releases wrote an empty text for it.
    return msgspec.to_builtins(Quoted(text=text)) if text or not is_optional else None


@cache
def _cause_keys(kind: type[Struct]) -> Mapping[str, bool]:
    """The keys of the fields that may hold a quoted text, with whether they may hold None."""
    types_by_key = {f.encode_name: get_args(f.type) for f in msgspec.structs.fields(kind)}
    return {key: NoneType in types for key, types in types_by_key.items() if Quoted in types}
