"""Put a condition before each call of an object, whatever methods it has."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar, cast

T = TypeVar("T")
Guard = Callable[[str, Callable[[], object]], object]
"""Gets a method's name and the call itself, and makes the call unless it raises instead."""


def behind_fence(target: T, guard: Guard, free: Container[str] = ()) -> T:
    """An object with the methods of ``target``, which ``guard`` calls. ``guard`` does not see the
    ``free`` methods and the attributes.
    """

    def guarded(name: str) -> Callable[..., object]:
        def call(_: object, *args: object, **kwargs: object) -> object:
            return guard(name, lambda: getattr(target, name)(*args, **kwargs))

        return call

    def own(name: str) -> property:
        return property(lambda _: getattr(target, name))

    # In the class itself: isinstance() asks the class whether an object can do what a protocol has.
    names = [name for name in dir(target) if not name.startswith("_")]
    methods = {n for n in names if n not in free and callable(getattr(target, n))}
    body: dict[str, Any] = {n: guarded(n) if n in methods else own(n) for n in names}
    return cast("T", type("Fenced", (), body)())
