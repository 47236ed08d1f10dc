"""A stand-in for a cloud that cannot be opened, so that the other clouds keep working."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from slurm_elastic.base.errors import ConfigError, UnopenedError
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.protocols import Provider

log = logging.getLogger(__name__)


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


class OpenedWhenRead(RefusedProvider):
    """Stands for a cloud whose machines and notices are only read. Each reading opens the cloud,
    until that succeeds.
    """

    def __init__(self, name: str, reason: str, open_again: Callable[[], Provider]) -> None:
        super().__init__(name, reason)
        self._open_again = open_again
        self._provider: Provider | None = None

    def instances(self) -> Sequence[Instance]:
        """The machines. UnopenedError if the cloud cannot be opened."""
        return self._opened().instances()

    def notices(self) -> Sequence[Notice]:
        """The notices. UnopenedError if the cloud cannot be opened."""
        return self._opened().notices()

    def _opened(self) -> Provider:
        provider = self._provider
        if provider is None:
            try:
                provider = self._open_again()
            except ConfigError as error:
                raise UnopenedError(self.name, "Unusable", str(error)) from error
            log.info("cloud can be used again cloud=%s", self.name)
            self._provider = provider
        return provider
