"""The table of ranking keys: ours, and keys of other packages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from slurm_elastic.model.protocols import RankingKey


class KeySource(Protocol):
    """Where the keys of other packages come from (``config/ranking_kinds.py``)."""

    def names(self) -> tuple[str, ...]: ...

    def function(self, name: str) -> RankingKey:
        """The key, which raises nothing. KeyError if no package has it."""
        ...


class KeyTable(Mapping[str, RankingKey]):
    """The keys by name. Ours win over keys of the same name.

    ``others``: the source of other packages' keys. The configuration sets it, because policies
    import no packages.
    """

    def __init__(self, own: Mapping[str, RankingKey]) -> None:
        self._own = dict(own)
        self.others: KeySource | None = None

    def __getitem__(self, name: str) -> RankingKey:
        if name in self._own or self.others is None:
            return self._own[name]
        return self.others.function(name)

    def __contains__(self, name: object) -> bool:
        # Mapping.__contains__ would import the package to answer.
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> dict[str, None]:
        foreign_names = () if self.others is None else self.others.names()
        return dict.fromkeys((*self._own, *foreign_names))
