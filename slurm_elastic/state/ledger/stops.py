"""The ledger's rows of machines that are stopped instead of ended, and started again.

A machine's life is then several parts, each a row with its own price and payers, so that charges
are those of the cloud: it runs, it is stopped, it runs. The last part has the machine's id, the
earlier ones are ``ID@1``, ``ID@2``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import EndOnlyError
from slurm_elastic.model.causes import AnyCause, encoded
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.launch_states import Done
from slurm_elastic.model.machine_states import (
    BOOTING,
    Ended,
    Ending,
    MachineState,
    Serving,
    Stopped,
    Stopping,
)
from slurm_elastic.model.memory import (
    MACHINE_JOBS,
    PART,
    Launch,
    Machine,
    generation_time,
    part_id,
)
from slurm_elastic.state.ledger.books import Books
from slurm_elastic.state.ledger.launches import LAUNCH_COLUMNS, launch_row
from slurm_elastic.state.ledger.machine_transitions import LedgerCall, where_allowed
from slurm_elastic.state.ledger.machines import (
    MACHINE_COLUMNS,
    NOT_ENDED,
    OF_CLOUD,
    Machines,
    machine_from,
    machine_row,
)
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import to_json

_ALIVE = f"{NOT_ENDED} and cloud = ? and id = ?"


class Stops:
    """Each method is one transaction."""

    def __init__(
        self, store: Store, machines: Machines, books: Books, end_only: Callable[[], str]
    ) -> None:
        self._store, self._machines, self._books = store, machines, books
        self._end_only = end_only

    def machines(self) -> tuple[Machine, ...]:
        """The machines that are stopped, by the time since when."""
        return tuple(m for m in self._store.tables("machines")[0] if m.is_off)

    def stopping(self, cloud: str, ids: Collection[str], cause: AnyCause, now: float) -> None:
        """Write down that these are to be stopped, before the cloud is called, and the keys of
        those with a tunnel, whose rows end. A machine whose end is decided is left alone.
        """
        with self._store.transaction("machines"):
            self._store.change(
                # The tunnel's row ends while it is off, and by its key the machine is known when it
                # is back.
                "update machines set suspending = ?, stopping = ?, cause = ?, tunnel_key = "
                "(select key from tunnels t where t.generation = machines.generation "
                f"and t.node = machines.node) where {OF_CLOUD} "
                f"and {where_allowed(LedgerCall.STOPPING)}",
                now, now, encoded(cause), cloud, to_json(list(ids)),
            )  # fmt: skip

    def failed(self, cloud: str, ids: Collection[str], cause: AnyCause) -> None:
        """These cannot be stopped: they are to be ended instead."""
        with self._store.transaction("machines"):
            self._store.change(
                f"update machines set stopping = null, cause = ? where {OF_CLOUD} "
                f"and {where_allowed(LedgerCall.FAILED)}",
                encoded(cause), cloud, to_json(list(ids)),
            )  # fmt: skip

    def done(self, cloud: str, prices: Mapping[str, float], now: float) -> None:
        """The cloud stops these: from now on each costs so much ($/h), by id."""
        with self._store.transaction("machines") as db:
            for id_, price in prices.items():
                before = self._alive(db, cloud, id_)
                if before is None or not isinstance(before.life, Stopping):
                    continue
                life = Stopped(since=now, cause=before.life.cause)
                self._turn(
                    db, before, before.life, life, now, price=price, state=InstanceState.STOPPING
                )

    def start(self, launch: Launch, machine: Machine, now: float) -> Machine | None:
        """Write down that a stopped machine is to be started for the node, jobs and price of
        ``launch``, before the cloud is called; None where it is not there to be started any
        more. EndOnlyError where that could not be kept.
        """
        new, one = replace(launch, state=Done(finished_at=now)), machine.instance
        new = replace(new, accounts=self._books.wanted_by(new.nodes))
        with self._store.transaction("machines", "launches") as db:
            # Inside, as with an intent: what is written now is on the disk, or not.
            if trouble := self._end_only():
                raise EndOnlyError(f"{trouble}; nothing is started")
            before = self._alive(db, one.cloud, one.id)
            if before is None or not isinstance(before.life, Stopped):
                return None
            self._store.insert("insert into launches", LAUNCH_COLUMNS, [launch_row(new)])
            return self._turn(
                db, before, before.life, BOOTING, now,
                price=new.offer.price, state=InstanceState.PENDING, generation=new.generation,
                worst_price=new.offer.worst_price, jobs=new.jobs[:MACHINE_JOBS],
                accounts=new.accounts.get(one.node, {}),
            )  # fmt: skip

    def start_refused(
        self, cloud: str, id_: str, price: float, cause: AnyCause, now: float
    ) -> None:
        """It does not run and is to be ended; what it has cost since the intent ($/h)."""
        with self._store.transaction("machines"):
            self._store.change(
                "update machines set price = ?, worst_price = ?, suspending = ?, cause = ? "
                f"where cloud = ? and id = ? and {where_allowed(LedgerCall.START_REFUSED)}",
                price, price, now, encoded(cause), cloud, id_,
            )  # fmt: skip

    def end(self, cloud: str, ids: Collection[str], cause: AnyCause, now: float) -> None:
        """Write down that these, which are stopped, are to be ended, before the cloud is called."""
        with self._store.transaction("machines") as db:
            for id_ in ids:
                before = self._alive(db, cloud, id_)
                if before is None or not isinstance(before.life, Stopped):
                    continue
                one, life = before.instance, Ending(retired_at=now, cause=cause)
                self._turn(db, before, before.life, life, now, price=one.price, state=one.state)

    def runs_again(self, instance: Instance, now: float) -> None:
        """Somebody else has started this one, and its node is at work."""
        with self._store.transaction("machines") as db:
            before = self._alive(db, instance.cloud, instance.id)
            if before is None or not isinstance(before.life, Stopped):
                return
            self._turn(
                db, before, before.life, Serving(registered_at=now), now, price=instance.price,
                state=instance.state, worst_price=max(before.worst_price, instance.price),
            )  # fmt: skip

    def _alive(self, db: sqlite3.Connection, cloud: str, id_: str) -> Machine | None:
        row = db.execute(_ALIVE, (cloud, id_)).fetchone()
        return None if row is None else machine_from(row)

    def _turn(
        self,
        db: sqlite3.Connection,
        before: Machine,
        until_now: Stopping | Stopped,
        life: MachineState,
        now: float,
        *,
        price: float,
        state: InstanceState,
        generation: str = "",
        **changes: Any,  # noqa: ANN401 - fields of Machine
    ) -> Machine:
        """End the part of its life that was ``until_now``, and begin the next one as ``life``."""
        one = before.instance
        over = replace(before, instance=replace(one, state=InstanceState.TERMINATED))
        end = Ended(ended_at=now, before=until_now)
        self._machines.move(over, one.cloud, self._next_part(db, one, now), life=end)
        instance = replace(
            one, price=price, state=state, launched=now, generation=generation or one.generation
        )
        born = before.born or generation_time(one.generation) or one.launched
        part = replace(
            before, instance=instance, life=life, born=born, misses=0, last_seen=now,
            **{"worst_price": price} | changes,
        )  # fmt: skip
        self._store.insert("insert into machines", MACHINE_COLUMNS, [machine_row(part)])
        return part

    def _next_part(self, db: sqlite3.Connection, one: Instance, now: float) -> str:
        first, after = f"{one.id}{PART}", f"{one.id}{chr(ord(PART) + 1)}"
        sql = "select id from machines where cloud = ? and id >= ? and id < ?"
        ids = [row["id"] for row in db.execute(sql, (one.cloud, first, after))]
        number = max((int(i.removeprefix(first)) for i in ids), default=0) + 1
        # In memory there may be parts that could not be read: none has the number of a moment.
        return part_id(one.id, max(number, int(now)) if self._end_only() else number)
