"""A cloud that cannot be opened, beside others that go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from slurm_elastic.base.errors import AuthError
from slurm_elastic.model.cluster import Instance, LaunchSpec, Notice, Offer, Pool


class Refused:
    """Each call is an AuthError with the reason: the cloud is skipped and told of, its machines are
    not taken for lost.
    """

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """AuthError."""
        del pool
        self._refuse()

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """AuthError."""
        del spec
        self._refuse()

    def instances(self) -> Sequence[Instance]:
        """AuthError."""
        self._refuse()

    def terminate(self, ids: Sequence[str]) -> None:
        """AuthError."""
        del ids
        self._refuse()

    def notices(self) -> Sequence[Notice]:
        """AuthError."""
        self._refuse()

    def check(self) -> None:
        """AuthError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AuthError(self.name, "Unusable", self._why)
