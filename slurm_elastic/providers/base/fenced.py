"""A cloud that is called by the head that acts, and by no other (``state.heads``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from slurm_elastic.base.errors import TransientError
from slurm_elastic.model.protocols import Provider


def fenced(provider: Provider, require: Callable[[], None]) -> Provider:
    """The provider, each call of which asks ``require`` first: its OSError is a TransientError,
    after which nothing is known of the machines, and nothing was asked of the cloud. So is one of
    ``base.asking``, between two exchanges of a call.
    """

    def asked(name: str) -> Callable[..., object]:
        def call(_: object, *args: object, **kwargs: object) -> object:
            try:
                require()
                return getattr(provider, name)(*args, **kwargs)
            except OSError as error:
                raise TransientError(provider.name, "Fenced", str(error)) from error

        return call

    def read(name: str) -> property:
        return property(lambda _: getattr(provider, name))

    # In the class itself: what a provider can do is told by what its class has.
    names = [name for name in dir(provider) if not name.startswith("_")]
    methods = {n for n in names if callable(getattr(provider, n))}
    body: dict[str, Any] = {n: asked(n) if n in methods else read(n) for n in names}
    return cast("Provider", type("Fenced", (), body)())
