"""The ledger's rows of launches. Each launch is written before the call of the cloud. The machines
of the answer become rows of ``machines`` in the transaction that closes the launch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from slurm_elastic.base.errors import EndOnlyError, SlurmElasticError
from slurm_elastic.model.cluster import LaunchSpec, Offer
from slurm_elastic.model.launch_states import (
    WORDS,
    Done,
    Failed,
    Intended,
    LaunchState,
    launch_columns_of,
    launch_state_of,
)
from slurm_elastic.model.memory import Launch, PurchaseTerms
from slurm_elastic.state.ledger.books import BookRows
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import to_json

LAUNCH_COLUMNS = (
    "generation, request, pool, cloud, nodes, jobs, offer, state, created, finished, "
    "error, accounts, owner, recipe, least, terms"
)
IN_ORDER = "order by created, generation"
# sqlite uses the partial index ``launches_open`` only for exactly this condition.
OPEN = f"select {LAUNCH_COLUMNS} from launches where state = 'intent' {IN_ORDER}"


class LaunchCall(StrEnum):
    """The methods of ``Launches``, ``Machines`` and ``StopRows`` that change launches."""

    INTEND = "record_intent"
    FAILED = "record_failure"
    LAUNCHED = "record_launch"
    ADOPT = "adopt"
    START = "record_start"


class LaunchTransition(NamedTuple):
    """After ``call`` a launch in one of the states ``before`` is in the state ``after``. ``before``
    is empty for a new launch.
    """

    call: LaunchCall
    before: tuple[type[LaunchState], ...]
    after: type[LaunchState]
    by: str


LAUNCH_TRANSITIONS = (
    LaunchTransition(LaunchCall.INTEND, (), Intended, "a launch, before the call of the cloud"),
    LaunchTransition(LaunchCall.FAILED, (Intended,), Failed, "a launch; a round that gives it up"),
    # A launch that was given up as failed becomes Done if its machines exist after all.
    LaunchTransition(LaunchCall.LAUNCHED, (Intended, Failed), Done, "a launch; a round: machines"),
    LaunchTransition(LaunchCall.ADOPT, (Intended,), Done, "a round: its cloud has a new name"),
    LaunchTransition(LaunchCall.START, (), Done, "the start of a stopped machine"),
)


def launches_allowed(call: LaunchCall) -> str:
    """The SQL condition of the launches that ``call`` may change."""
    states = [state for row in LAUNCH_TRANSITIONS if row.call is call for state in row.before]
    return f"state in ({', '.join(repr(WORDS[state]) for state in states)})"


def launch_of_spec(
    spec: LaunchSpec,
    request: str,
    now: float,
    accounts: dict[str, dict[str, int]],
    terms: Mapping[str, PurchaseTerms] | None = None,
) -> Launch:
    """The row of a new intent."""
    return Launch(
        generation=spec.generation,
        request=request,
        pool=spec.pool.name,
        cloud=spec.offer.cloud,
        nodes=spec.nodes,
        jobs=spec.jobs,
        offer=spec.offer,
        created=now,
        alternatives=spec.alternatives,
        accounts=accounts,
        owner=spec.owner,
        least=spec.least,
        terms=dict(terms or {}),
    )


def same_call(launch: Launch, other: Launch) -> bool:
    """Whether two rows stand for the same request to the cloud."""

    def asked(row: Launch) -> tuple[object, ...]:
        return row.pool, row.cloud, row.nodes, row.jobs, row.offers, row.least

    return asked(launch) == asked(other)


def launch_row(launch: Launch) -> tuple[object, ...]:
    """Values for LAUNCH_COLUMNS."""
    offers = launch.offers if launch.alternatives else launch.offer
    columns = launch_columns_of(launch.state)
    return (
        launch.generation,
        launch.request,
        launch.pool,
        launch.cloud,
        to_json(launch.nodes),
        to_json(launch.jobs),
        to_json(offers),
        columns.state,
        launch.created,
        columns.finished,
        columns.error,
        to_json(launch.accounts),
        to_json(launch.owner),
        launch.recipe,
        launch.least,
        to_json(launch.terms),
    )


def launch_from(row: sqlite3.Row) -> Launch:
    """A row of LAUNCH_COLUMNS as a value. The column ``offer`` has a list if there are several
    offers.
    """
    decode = msgspec.json.decode
    offers = decode(row["offer"], type=Offer | tuple[Offer, ...])
    offer, *alternatives = (offers,) if isinstance(offers, Offer) else offers
    return Launch(
        generation=row["generation"],
        request=row["request"],
        pool=row["pool"],
        cloud=row["cloud"],
        nodes=decode(row["nodes"], type=tuple[str, ...]),
        jobs=decode(row["jobs"], type=tuple[int, ...]),
        offer=offer,
        alternatives=tuple(alternatives),
        created=row["created"],
        state=launch_state_of(row["state"], row["finished"], row["error"], row["created"]),
        accounts=decode(row["accounts"], type=dict[str, dict[str, int]]),
        owner=decode(row["owner"], type=dict[str, str]),
        recipe=row["recipe"],
        least=row["least"],
        terms=decode(row["terms"], type=dict[str, PurchaseTerms]),
    )


TABLES: Mapping[str, Table] = {"launches": (OPEN, launch_from)}


class Launches:
    """The rows of launches. Each method is one transaction."""

    def __init__(
        self,
        store: Store,
        books: BookRows,
        end_only: Callable[[], str],
        require_only: Callable[[], None],
    ) -> None:
        self._store, self._books, self._end_only = store, books, end_only
        self._require_only = require_only

    def record_intent(
        self,
        spec: LaunchSpec,
        request: str,
        now: float,
        terms: Mapping[str, PurchaseTerms] | None = None,
    ) -> None:
        """Record a launch before the cloud is called; ``request`` is the correlation id. ``terms``:
        of the purchase, by instance type.

        A second call with the same content changes nothing. Raises SlurmElasticError if the
        generation belongs to another launch or to a failed one (a new call needs a new generation,
        or its machines would have no open intent), EndOnlyError if the intent could not be written
        to the disk, and OtherHeadError if another head works for this cluster.
        """
        new = launch_of_spec(spec, request, now, self._books.payers_by_node(spec.nodes), terms)
        with self._store.transaction("launches"):
            # Inside the transaction: only here it is certain whether the row goes to the disk or
            # into memory. A machine whose launch is in no file would be lost with the process.
            if end_only := self._end_only():
                raise EndOnlyError(f"{end_only}; nothing is bought")
            self._require_only()
            row = launch_row(new)
            values = ", ".join("?" * len(row))
            # "or ignore": a repeated call of the same launch finds its own row, checked below.
            sql = f"insert or ignore into launches ({LAUNCH_COLUMNS}) values ({values})"
            if self._store.change(sql, *row):
                return
            earlier = self.require(spec.generation)
            if not same_call(earlier, new):
                raise SlurmElasticError(
                    f"generation {spec.generation} already stands for another launch, of "
                    f"{len(earlier.nodes)} nodes of pool {earlier.pool} from {earlier.offer.key}"
                )
            if isinstance(earlier.state, Failed):
                raise SlurmElasticError(
                    f"generation {spec.generation} has failed: {earlier.state.error}; "
                    "a new call needs a new generation"
                )

    def record_failure(self, generation: str, error: str, now: float) -> None:
        """Record that the cloud started no machine; ``error`` is the cloud's message. A finished
        launch stays as it is.
        """
        with self._store.transaction("launches"):
            self.require(generation)
            self._store.change(
                "update launches set state = ?, finished = ?, error = ? "
                f"where generation = ? and {launches_allowed(LaunchCall.FAILED)}",
                WORDS[Failed], now, error, generation,
            )  # fmt: skip

    def open(self) -> tuple[Launch, ...]:
        """Intents without a known answer of the cloud, oldest first."""
        return self._store.tables("launches")[0]

    def get(self, generation: str) -> Launch | None:
        """Return the launch of that generation; None if there is none."""
        sql = f"select {LAUNCH_COLUMNS} from launches where generation = ?"
        rows = self._store.select(sql, generation)
        return launch_from(rows[0]) if rows else None

    def finish_times(self, generations: Collection[str]) -> dict[str, float]:
        """The times at which these launches finished, by generation; open launches are left out."""
        rows = self._store.select(
            "select generation, finished from launches where finished is not null "
            "and generation in (select value from json_each(?))",
            to_json(list(generations)),
        )
        return {row["generation"]: row["finished"] for row in rows}

    def require(self, generation: str) -> Launch:
        """The launch of that generation. Raises SlurmElasticError if there is none."""
        launch = self.get(generation)
        if launch is None:
            raise SlurmElasticError(f"no launch with generation {generation} was ever intended")
        return launch

    def note_recipe(self, generation: str, recipe: str) -> None:
        """Record the recipe of a launch's machines (protocols.Stops)."""
        with self._store.transaction("launches"):
            self._store.change(
                "update launches set recipe = ? where generation = ?", recipe, generation
            )

    def recipes(self, generations: Collection[str]) -> dict[str, str]:
        """The known recipes of these launches' machines, by generation."""
        sql = (
            "select generation, recipe from launches where recipe != '' "
            "and generation in (select value from json_each(?))"
        )
        rows = self._store.select(sql, to_json(list(generations)))
        return {row["generation"]: row["recipe"] for row in rows}
