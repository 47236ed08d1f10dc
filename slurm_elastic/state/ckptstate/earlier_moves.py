"""Moves and verdicts as earlier releases stored them: with sentences in place of causes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from slurm_elastic.model.causes import with_quoted
from slurm_elastic.state.ckptstate.facts import FailedRelease, Migration, UnsavableRun


@functools.cache
def _decoder() -> msgspec.json.Decoder[Migration]:
    """Made at first use: it takes 10 ms, which a command without a move to show need not wait."""
    return msgspec.json.Decoder(Migration)


def decoded_move(text: str) -> Migration:
    """Decode a stored move, of this release or of an earlier one."""
    try:
        return _decoder().decode(text)
    except msgspec.ValidationError:
        return converted_move(msgspec.json.decode(text, type=dict[str, Any]))


def converted_move(stored: Mapping[str, Any]) -> Migration:
    """Convert the object of a stored move. msgspec.ValidationError if it is none."""
    fields = with_quoted(stored, Migration)
    if isinstance(failed_release := fields.get("held"), dict):
        fields["held"] = with_quoted(failed_release, FailedRelease)
    return msgspec.convert(fields, Migration)


def decoded_verdict(text: str) -> UnsavableRun:
    """Decode a stored verdict, of this release or of an earlier one."""
    stored = msgspec.json.decode(text, type=dict[str, Any])
    return msgspec.convert(with_quoted(stored, UnsavableRun), UnsavableRun)
