"""A stand-in for a cloud that cannot be opened, so that the other clouds keep working."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from slurm_elastic.base.errors import UnopenedError
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Notice, Offer, Pool


class RefusedProvider:
    """Stands for a cloud that cannot be opened. Each call raises UnopenedError with the reason, so
    the cloud is skipped and reported, and its machines do not count as lost.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Raise UnopenedError."""
        del pool
        self._refuse()

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Raise UnopenedError."""
        del spec
        self._refuse()

    def instances(self) -> Sequence[Instance]:
        """Raise UnopenedError."""
        self._refuse()

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Raise UnopenedError."""
        del ids
        self._refuse()

    def notices(self) -> Sequence[Notice]:
        """Raise UnopenedError."""
        self._refuse()

    def check(self) -> None:
        """Raise UnopenedError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnopenedError(self.name, "Unusable", self._reason)
