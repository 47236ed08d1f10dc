"""The ledger's rows of machines stopped instead of ended, and started again.

The life of such a machine has several parts: it runs, it is stopped, it runs. Each part is a row
with its own price and payers, because the cloud charges each part differently. The last part has
the machine's id, the earlier ones are ``ID@1``, ``ID@2``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
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
    PurchaseTerms,
    generation_time,
    part_id,
)
from slurm_elastic.state.ledger.books import BookRows
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

_PAID_PART = f"{NOT_ENDED} and cloud = ? and id = ?"


class StopRows:
    """The rows of stopped machines. Each method is one transaction."""

    def __init__(
        self,
        store: Store,
        machines: Machines,
        books: BookRows,
        end_only: Callable[[], str],
        require_only: Callable[[], None],
    ) -> None:
        self._store, self._machines, self._books = store, machines, books
        self._end_only, self._require_only = end_only, require_only

    def machines(self) -> tuple[Machine, ...]:
        """The stopped machines, by the time of their stop."""
        return tuple(m for m in self._store.tables("machines")[0] if m.is_off)

    def record_stopping(
        self, cloud: str, ids: Collection[str], cause: AnyCause, now: float
    ) -> None:
        """Record the decision to stop these machines, before the cloud is called. Keep the keys of
        their tunnels, whose rows end. A machine whose end is decided is left alone. Raises
        OtherHeadError if another head works for this cluster, as the other intents do.
        """
        self._require_only()
        with self._store.transaction("machines"):
            self._store.change(
                # The tunnel's row is deleted while the machine is off. When it starts again the
                # machine is recognised by ``tunnel_key``. The key stays if the machine is
                # stopped again before its tunnel has a row, because its disk has no other key.
                "update machines set suspending = ?, stopping = ?, cause = ?, tunnel_key = "
                "coalesce((select key from tunnels t where t.generation = machines.generation "
                f"and t.node = machines.node), tunnel_key) where {OF_CLOUD} "
                f"and {where_allowed(LedgerCall.STOPPING)}",
                now, now, encoded(cause), cloud, to_json(list(ids)),
            )  # fmt: skip

    def record_stop_failure(self, cloud: str, ids: Collection[str], cause: AnyCause) -> None:
        """Record that these machines cannot be stopped, so that they are ended instead."""
        with self._store.transaction("machines"):
            self._store.change(
                f"update machines set stopping = null, cause = ? where {OF_CLOUD} "
                f"and {where_allowed(LedgerCall.FAILED)}",
                encoded(cause), cloud, to_json(list(ids)),
            )  # fmt: skip

    def record_stopped(self, cloud: str, prices: Mapping[str, float], now: float) -> None:
        """Record that the cloud stops these machines, and their prices while off ($/h, by id)."""
        with self._store.transaction("machines") as db:
            for id_, price in prices.items():
                before = self._paid_part(db, cloud, id_)
                # Another decision came first, such as its end.
                if before is None or not isinstance(before.life, Stopping):
                    continue
                life = Stopped(since=now, cause=before.life.cause)
                self._begin_part(
                    db, before, before.life, life, now, price=price, state=InstanceState.STOPPING
                )

    def record_start(
        self, launch: Launch, machine: Machine, now: float, terms: PurchaseTerms | None = None
    ) -> Machine | None:
        """Record the start of a stopped machine for the node, jobs and price of ``launch``, before
        the cloud is called. ``terms``: of the start (None: those of the machine). Return None if
        the machine is no longer stopped. Raises EndOnlyError if the row could not be written to the
        disk.
        """
        new_launch, instance = replace(launch, state=Done(finished_at=now)), machine.instance
        new_launch = replace(new_launch, accounts=self._books.payers_by_node(new_launch.nodes))
        with self._store.transaction("machines", "launches") as db:
            # Inside the transaction, as in ``Launches.record_intent``: only here it is certain
            # whether the row goes to the disk or into memory.
            if end_only := self._end_only():
                raise EndOnlyError(f"{end_only}; nothing is started")
            self._require_only()
            before = self._paid_part(db, instance.cloud, instance.id)
            if before is None or not isinstance(before.life, Stopped):
                return None
            # A start has a launch row, too: the payers and the generation of the part come from it.
            self._store.insert("insert into launches", LAUNCH_COLUMNS, [launch_row(new_launch)])
            return self._begin_part(
                db, before, before.life, BOOTING, now,
                price=new_launch.offer.price, state=InstanceState.PENDING,
                generation=new_launch.generation, worst_price=new_launch.offer.worst_price,
                jobs=new_launch.jobs[:MACHINE_JOBS],
                accounts=new_launch.accounts.get(instance.node, {}),
                terms=terms or before.terms,
            )  # fmt: skip

    def record_start_refusal(
        self, cloud: str, id_: str, price: float, cause: AnyCause, now: float
    ) -> None:
        """End a machine whose start the cloud refused, at ``price`` ($/h) since the intent."""
        with self._store.transaction("machines"):
            self._store.change(
                "update machines set price = ?, worst_price = ?, suspending = ?, cause = ? "
                f"where cloud = ? and id = ? and {where_allowed(LedgerCall.START_REFUSED)}",
                price, price, now, encoded(cause), cloud, id_,
            )  # fmt: skip

    def record_never_ran(self, cloud: str, id_: str, price: float) -> None:
        """Record that a machine costs only ``price`` ($/h) since the intent of its start, because
        the cloud has not started it.
        """
        with self._store.transaction("machines"):
            self._store.change(
                "update machines set price = ?, worst_price = ? "
                f"where cloud = ? and id = ? and {where_allowed(LedgerCall.START_REFUSED)}",
                price, price, cloud, id_,
            )  # fmt: skip

    def record_ending_of_stopped(
        self,
        cloud: str,
        ids: Collection[str],
        cause: AnyCause,
        now: float,
        running_prices: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Record the decision to end these stopped machines, before the cloud is called.
        ``running_prices``: by id, the price ($/h) of machines that run although they were stopped.
        """
        self._require_only()
        with self._store.transaction("machines") as db:
            for id_ in ids:
                before = self._paid_part(db, cloud, id_)
                if before is None or not isinstance(before.life, Stopped):
                    continue
                instance, life = before.instance, Ending(retired_at=now, cause=cause)
                # The cloud may refuse for days to end the machine, and charges it as it runs.
                price = max(instance.price, running_prices.get(id_, 0.0))
                self._begin_part(
                    db, before, before.life, life, now, price=price, state=instance.state
                )

    def record_running(self, instance: Instance, now: float) -> None:
        """Record that a stopped machine was started by others, and that its node is up."""
        with self._store.transaction("machines") as db:
            before = self._paid_part(db, instance.cloud, instance.id)
            if before is None or not isinstance(before.life, Stopped):
                return
            self._begin_part(
                db, before, before.life, Serving(registered_at=now), now, price=instance.price,
                state=instance.state, worst_price=max(before.worst_price, instance.price),
            )  # fmt: skip

    def _paid_part(self, db: sqlite3.Connection, cloud: str, id_: str) -> Machine | None:
        row = db.execute(_PAID_PART, (cloud, id_)).fetchone()
        return None if row is None else machine_from(row)

    def _begin_part(
        self,
        db: sqlite3.Connection,
        previous: Machine,
        ended_life: Stopping | Stopped,
        life: MachineState,
        now: float,
        *,
        price: float,
        state: InstanceState,
        generation: str = "",
        **changes: Any,  # noqa: ANN401 - fields of Machine
    ) -> Machine:
        """End the part of the machine's life ``ended_life``, and begin the next part ``life``."""
        earlier = previous.instance
        ended_part = replace(previous, instance=replace(earlier, state=InstanceState.TERMINATED))
        end = Ended(ended_at=now, before=ended_life)
        # First move the old part to its own id: the new part takes the machine's id.
        self._machines.move(
            ended_part, earlier.cloud, self._number_part(db, earlier, now), life=end
        )
        instance = replace(
            earlier,
            price=price,
            state=state,
            launched=now,
            generation=generation or earlier.generation,
        )
        born = previous.first_launched_at or generation_time(earlier.generation) or earlier.launched
        new_part = replace(
            previous, instance=instance, life=life, first_launched_at=born, missed_listings=0,
            last_seen=now, **{"worst_price": price} | changes,
        )  # fmt: skip
        self._store.insert("insert into machines", MACHINE_COLUMNS, [machine_row(new_part)])
        return new_part

    def _number_part(self, db: sqlite3.Connection, instance: Instance, now: float) -> str:
        prefix, prefix_end = f"{instance.id}{PART}", f"{instance.id}{chr(ord(PART) + 1)}"
        sql = "select id from machines where cloud = ? and id >= ? and id < ?"
        ids = [row["id"] for row in db.execute(sql, (instance.cloud, prefix, prefix_end))]
        number = max((int(i.removeprefix(prefix)) for i in ids), default=0) + 1
        # Rows in memory may lack earlier parts that could not be read. A time as the number is
        # greater than the number of any of them.
        return part_id(instance.id, max(number, int(now)) if self._end_only() else number)
