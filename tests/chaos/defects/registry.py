"""The defects that a test of its own finds, by name: how each is put in, and its test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

PutIn: TypeAlias = Callable[[Any], None]

PUT_IN: dict[str, PutIn] = {}
ATTACKS: dict[str, tuple[str, ...]] = {}
"""The tests that find each defect: ``path::name``."""


def found_by(*tests: str) -> Callable[[PutIn], PutIn]:
    """Name the tests that find the defect."""

    def register(put_in: PutIn) -> PutIn:
        PUT_IN[put_in.__name__] = put_in
        ATTACKS[put_in.__name__] = tests
        return put_in

    return register
