"""A cloud that only the acting head may call (``state.heads``)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_elastic.base.errors import TransientError
from slurm_elastic.base.fence import behind_fence
from slurm_elastic.model.protocols import Provider


def fenced(provider: Provider, require: Callable[[], None]) -> Provider:
    """The same provider, but each call first calls ``require``. If that raises OSError, the caller
    gets a TransientError: the cloud was not called, and nothing is known about the machines. An
    OSError of ``base.asking`` in the middle of a call, between two exchanges, is translated in the
    same way.
    """

    def guard(_name: str, call: Callable[[], object]) -> object:
        try:
            # Before each call, not once: another head may take over at any moment between two
            # calls.
            require()
            return call()
        except OSError as error:
            raise TransientError(provider.name, "Fenced", str(error)) from error

    return behind_fence(provider, guard)
