"""A cloud that is called by the head that acts, and by no other (``state.heads``)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_elastic.base.errors import TransientError
from slurm_elastic.base.fence import behind_fence
from slurm_elastic.model.protocols import Provider


def fenced(provider: Provider, require: Callable[[], None]) -> Provider:
    """The provider, each call of which asks ``require`` first: its OSError is a TransientError,
    after which nothing is known of the machines, and nothing was asked of the cloud. So is one of
    ``base.asking``, between two exchanges of a call.
    """

    def guard(_: str, call: Callable[[], object]) -> object:
        try:
            require()
            return call()
        except OSError as error:
            raise TransientError(provider.name, "Fenced", str(error)) from error

    return behind_fence(provider, guard)
