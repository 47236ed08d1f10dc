"""The ledger's row of the head that the journal belongs to, and the finding that another head works
for this cluster. While the finding stands, no intent to buy, start, stop or end can be recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from slurm_elastic.base.errors import OtherHeadError
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.exclusion import OTHER_HEAD, Exclusion
from slurm_elastic.model.journal_owner import Host, JournalOwner
from slurm_elastic.state.ledger.exclusions import Exclusions
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

_COLUMNS = "knows_since, origin, host, accepted"
_SCOPE = "cluster"
MAX_ABOUT = 1000
"""How many machines of another head a finding names. A person who lets this head continue gives it
these machines.
"""


def _owner_from(row: sqlite3.Row) -> JournalOwner:
    return JournalOwner(
        knows_since=row["knows_since"],
        origin=row["origin"],
        host=msgspec.json.decode(row["host"], type=Host),
        accepted=msgspec.json.decode(row["accepted"], type=tuple[str, ...]),
    )


TABLES: Mapping[str, Table] = {"owner": (f"select {_COLUMNS} from owner", _owner_from)}


class OwnerRow:
    """The row of the journal's owner. Each method is one transaction."""

    def __init__(self, store: Store, exclusions: Exclusions) -> None:
        self._store, self._exclusions = store, exclusions

    def get(self) -> JournalOwner | None:
        """The head that the journal belongs to; None in a journal that no service has used yet."""
        rows = self._store.tables("owner")[0]
        return rows[0] if rows else None

    def record(self, owner: JournalOwner) -> None:
        """Record whose journal this is, in place of the earlier owner."""
        row = (
            owner.knows_since, owner.origin, to_json(msgspec.to_builtins(owner.host)),
            to_json(owner.accepted),
        )  # fmt: skip
        with self._store.transaction("owner"):
            self._store.insert("insert or replace into owner", _COLUMNS, [row])

    def known_machines(self, cloud: str, ids: Sequence[str]) -> frozenset[str]:
        """Return which of these machines of the cloud the ledger has, also ended ones."""
        sql = f"select id from machines where cloud = ? and id in {OF_LIST}"
        return frozenset(row["id"] for row in self._store.select(sql, cloud, to_json(ids)))

    def known_launches(self, generations: Sequence[str]) -> frozenset[str]:
        """Return which of these launches the ledger has, in any state."""
        sql = f"select generation from launches where generation in {OF_LIST}"
        return frozenset(row["generation"] for row in self._store.select(sql, to_json(generations)))

    def other_head(self) -> Exclusion | None:
        """The finding that another head works for this cluster; None if nothing says so."""
        return next((row for row in self._exclusions.all() if row.kind == OTHER_HEAD), None)

    def record_other_head(self, cause: AnyCause, machines: Sequence[str], now: float) -> bool:
        """Record a finding, or add these machines to the earlier one. Return whether it is new."""
        earlier = self.other_head()
        about = tuple(dict.fromkeys((*(earlier.about if earlier else ()), *machines)))[:MAX_ABOUT]
        if earlier is not None and about == earlier.about:
            return False
        self._exclusions.add(
            Exclusion(
                kind=OTHER_HEAD,
                scope=_SCOPE,
                until=inf,
                cause=earlier.cause if earlier else cause,
                since=earlier.since if earlier else now,
                about=about,
            )
        )
        return earlier is None

    def clear_other_head(self) -> None:
        """Delete the finding, because a person has decided which head continues."""
        self._exclusions.readmit(OTHER_HEAD, _SCOPE)

    def require_only(self) -> None:
        """Raise OtherHeadError if another head works for this cluster."""
        if (finding := self.other_head()) is not None:
            raise OtherHeadError(str(finding.cause))
