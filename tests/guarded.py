"""What threads share is touched under its lock alone: no method forgets that, whichever thread comes
first in it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import pytest

PRODUCT = "slurm_elastic."


class Guard(NamedTuple):
    """``attributes`` of a class (module:name) that belong to ``lock``; the functions ``free`` look at
    them without, where one word is read that may be of a moment ago.
    """

    of: str
    lock: str
    attributes: tuple[str, ...]
    free: tuple[str, ...] = ()


GUARDS = (
    Guard("store.store:Store", "_lock", ("_db", "_memory", "_depth", "_version")),
    Guard("store.store:Store", "_gather", ("_tickets",)),
    Guard("controller.requeues:Requeues", "_lock", ("_expected",), free=("__bool__", "tick")),
    Guard("providers.base.unconfirmed:UnconfirmedOrders", "_lock", ("_since",)),
    Guard("ckptman.executor:KeyedExecutor", "_lock", ("_busy",)),
    Guard("ckptman.executor:_Lane", "_wake", ("_waiting", "_idle")),
    Guard("ckptman.journal:Journal", "_lock", ("_decisions", "_counts")),
    Guard("ckptman.orders:Orders", "_lock", ("_waiting", "_begun", "_carried")),
    Guard("ckptman.site:JobList", "_lock", ("_jobs", "_begun"), free=("last", "knows")),
)


class _Guarded:
    """An attribute that is there from the constructor on, and then the lock's."""

    def __init__(self, name: str, guard: Guard) -> None:
        self._name, self._guard = name, guard

    def __get__(self, one: Any, _: object) -> Any:
        self._check(one)
        try:
            return one.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, one: Any, value: Any) -> None:
        self._check(one)
        one.__dict__[self._name] = value

    def _check(self, one: Any) -> None:
        frame = sys._getframe(2)
        free = ("__init__", *self._guard.free)
        if not frame.f_globals["__name__"].startswith(PRODUCT) or frame.f_code.co_name in free:
            return
        lock = getattr(one, self._guard.lock)
        held = getattr(lock, "_is_owned", None) or lock.locked
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        assert held(), f"{self._name} is touched without {self._guard.lock} in {where}"


def guard_all(patch: pytest.MonkeyPatch) -> None:
    """For one test, of one thread."""
    for guard in GUARDS:
        module, _, name = guard.of.partition(":")
        owner = getattr(importlib.import_module(PRODUCT + module), name)
        for attribute in guard.attributes:
            patch.setattr(owner, attribute, _Guarded(attribute, guard), raising=False)
