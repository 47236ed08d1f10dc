"""An object behind a fence can do what it could, if the guard lets it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

import slurm_elastic
from slurm_elastic.base.fence import behind_fence

PACKAGE = Path(slurm_elastic.__file__).parent


class Door:
    name = "front"

    def __init__(self) -> None:
        self.opened = 0

    def open(self, times: int, *, wide: bool = False) -> str:
        self.opened += times
        return "wide" if wide else "narrow"

    def look(self) -> int:
        return self.opened


@runtime_checkable
class Opens(Protocol):
    def open(self, times: int, *, wide: bool = False) -> str: ...


@runtime_checkable
class Locks(Protocol):
    def lock(self) -> None: ...


def test_the_guard_makes_the_call_and_gives_its_result() -> None:
    calls: list[str] = []

    def guard(name: str, call: Callable[[], object]) -> object:
        calls.append(name)
        return call()

    door = Door()
    fenced = behind_fence(door, guard, free={"look"})
    assert fenced.open(2, wide=True) == "wide"
    assert (calls, fenced.look(), fenced.name, fenced.opened) == (["open"], 2, "front", 2)
    door.name = "back"
    assert fenced.name == "back", "attributes are those of this moment"


def test_a_guard_that_raises_keeps_the_call_from_the_object() -> None:
    def guard(name: str, _: Callable[[], object]) -> object:
        raise PermissionError(name)

    door = Door()
    with pytest.raises(PermissionError, match="open"):
        behind_fence(door, guard).open(1)
    assert door.opened == 0


def test_a_fence_changes_nothing_in_what_an_object_can_do() -> None:
    fenced = behind_fence(Door(), lambda _, call: call())
    assert isinstance(fenced, Opens)
    assert not isinstance(fenced, Locks)


def test_no_other_module_makes_a_class_of_methods_that_it_collects() -> None:
    makers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "type(" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "type"
        if len(call.args) == 3 and not isinstance(call.args[2], ast.Dict)
    }
    assert makers == {"base/fence.py"}
