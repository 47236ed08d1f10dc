"""A stand-in for a cloud that cannot be opened, so that the other clouds keep working."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from slurm_elastic.base.errors import AuthError
from slurm_elastic.model.cluster import Instance, LaunchSpec, Notice, Offer, Pool


class RefusedProvider:
    """Stands for a cloud that cannot be opened. Each call raises AuthError with the reason, so the
    cloud is skipped and reported, and its machines do not count as lost.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Raise AuthError."""
        del pool
        self._refuse()

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Raise AuthError."""
        del spec
        self._refuse()

    def instances(self) -> Sequence[Instance]:
        """Raise AuthError."""
        self._refuse()

    def terminate(self, ids: Sequence[str]) -> None:
        """Raise AuthError."""
        del ids
        self._refuse()

    def notices(self) -> Sequence[Notice]:
        """Raise AuthError."""
        self._refuse()

    def check(self) -> None:
        """Raise AuthError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        # AuthError: callers report it as a thing that only an administrator can mend, and never
        # take this cloud's machines for lost.
        raise AuthError(self.name, "Unusable", self._reason)
