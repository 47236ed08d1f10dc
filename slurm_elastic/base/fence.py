"""Puts a check before each call of an object, whatever methods it has."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar, cast

T = TypeVar("T")
Guard = Callable[[str, Callable[[], object]], object]
"""Gets the method's name and the call. It makes the call, or raises an error instead."""


def behind_fence(target: T, guard: Guard, free: Container[str] = ()) -> T:
    """An object with the methods of ``target``, each called through ``guard``. The methods in
    ``free`` and the attributes bypass ``guard``.
    """

    def guarded(name: str) -> Callable[..., object]:
        def call(_: object, *args: object, **kwargs: object) -> object:
            return guard(name, lambda: getattr(target, name)(*args, **kwargs))

        return call

    def passed_through(name: str) -> property:
        return property(lambda _: getattr(target, name))

    # On the class, because isinstance() with a protocol looks a method up on the class.
    names = [name for name in dir(target) if not name.startswith("_")]
    methods = {n for n in names if n not in free and callable(getattr(target, n))}
    body: dict[str, Any] = {n: guarded(n) if n in methods else passed_through(n) for n in names}
    return cast("T", type("Fenced", (), body)())
