"""The ledger's rows of machines: which there are, and which were."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.causes import AnyCause, decoded, encoded
from slurm_elastic.model.causes.machine_ends import EndedInCloud
from slurm_elastic.model.cluster import STANDING, Instance, InstanceState, Market, Pool, worst_price
from slurm_elastic.model.launch_states import WORDS, Done, Intended
from slurm_elastic.model.machine_states import BOOTING, Lost, columns_of, state_of
from slurm_elastic.model.memory import MACHINE_JOBS, Launch, Machine
from slurm_elastic.policies.clock_guard import AHEAD
from slurm_elastic.state.ledger.launches import Launches
from slurm_elastic.state.ledger.machine_transitions import (
    KEPT,
    NOT_OFF,
    NOT_RETIRED,
    PAID,
    LedgerCall,
    where_allowed,
)
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

_ENDED_IN_CLOUD = EndedInCloud()
MACHINE_COLUMNS = (
    "id, cloud, node, generation, instance_type, zone, market, price, state, launched, address, "
    "pool, jobs, last_seen, misses, suspending, ended, cause, worst_price, registered, accounts, "
    "stopping, stopped, born, tunnel_key"
)
SEEN = f"""
    update machines set
        state = :state,
        address = coalesce(:address, address),
        last_seen = max(last_seen, :now),
        misses = 0,
        cause = case
            when :state = 'terminated' and {PAID} then coalesce(cause, :gone)
            when :lives and ended is not null and {NOT_RETIRED} then null
            else cause end,
        ended = case
            when :state = 'terminated' then coalesce(ended, :now)
            when :lives or (:off and {KEPT}) then null
            else ended end
    where id = :id and cloud = :cloud and (
        {PAID} or ((:lives or (:off and {KEPT})) and ended < :before)
    )
"""
"""One machine of a complete read of its cloud, as ``Ledger.observe`` and ``adopt`` describe it."""
NOT_ENDED = f"select {MACHINE_COLUMNS} from machines where {PAID}"
"""All that are paid for: those that are live, and those that are stopped."""
BY_TIME = "order by launched, id"
OF_CLOUD = f"cloud = ? and id in {OF_LIST}"
SAME = f"""
    update machines set last_seen = max(last_seen, ?), misses = 0
    where cloud = ? and {PAID} and id in (select value from json_each(?))
"""
# What was launched or seen since the read began may be missing in it; what is dated much later than
# that is from before the head's clock was set back.
MISSED = f"""
    update machines set misses = misses + 1 where cloud = ? and {PAID}
    and last_seen not between ? and ? and launched not between ? and ?
    and id not in (select value from json_each(?))
"""


_JOBS = msgspec.json.Decoder(tuple[int, ...])
_ACCOUNTS = msgspec.json.Decoder(dict[str, int])


def machine_row(machine: Machine) -> tuple[object, ...]:
    """Values for MACHINE_COLUMNS."""
    i, life = machine.instance, columns_of(machine.life)
    return (
        i.id,
        i.cloud,
        i.node,
        i.generation,
        i.instance_type,
        i.zone,
        str(i.market),
        i.price,
        str(i.state),
        i.launched,
        i.address,
        machine.pool,
        to_json(machine.jobs),
        machine.last_seen,
        machine.misses,
        life.suspending,
        life.ended,
        None if life.cause is None else encoded(life.cause),
        machine.worst_price,
        life.registered,
        to_json(machine.accounts),
        life.stopping,
        life.stopped,
        machine.born,
        machine.tunnel_key,
    )


def machine_from(row: sqlite3.Row) -> Machine:
    """A row of MACHINE_COLUMNS as a value."""
    instance = Instance(
        id=row["id"],
        cloud=row["cloud"],
        node=row["node"],
        generation=row["generation"],
        instance_type=row["instance_type"],
        zone=row["zone"],
        market=Market(row["market"]),
        price=row["price"],
        state=InstanceState(row["state"]),
        launched=row["launched"],
        address=row["address"],
    )
    return Machine(
        instance=instance,
        pool=row["pool"],
        jobs=_JOBS.decode(row["jobs"]),
        last_seen=row["last_seen"],
        misses=row["misses"],
        life=state_of(
            suspending=row["suspending"],
            ended=row["ended"],
            cause=None if row["cause"] is None else decoded(row["cause"]),
            registered=row["registered"],
            stopping=row["stopping"],
            stopped=row["stopped"],
        ),
        worst_price=row["worst_price"],
        accounts=_ACCOUNTS.decode(row["accounts"]),
        born=row["born"],
        tunnel_key=row["tunnel_key"],
    )


def _new(instance: Instance, pool: str, launch: Launch | None, now: float, worst: float) -> Machine:
    """One that is seen for the first time."""
    over = instance.state == InstanceState.TERMINATED
    return Machine(
        instance=instance,
        pool=pool,
        jobs=launch.jobs[:MACHINE_JOBS] if launch else (),
        accounts=launch.accounts.get(instance.node, {}) if launch else {},
        last_seen=now,
        life=Lost(ended_at=now, cause=_ENDED_IN_CLOUD) if over else BOOTING,
        worst_price=worst,
    )


def _seen_values(
    instance: Instance, cloud: str, now: float, *, adopted: bool = False
) -> dict[str, object]:
    """Values for SEEN. A row that has ended lives again where its machine serves since, or is
    stopped as it was to be; where it is ``adopted`` in any state but TERMINATED, and whatever the
    head's clock says.
    """
    serves = instance.state in STANDING
    there = instance.state is not InstanceState.TERMINATED
    return {
        "id": instance.id,
        "cloud": cloud,
        "state": str(instance.state),
        "lives": there if adopted else serves,
        "off": instance.state is InstanceState.STOPPED,
        "before": math.inf if adopted else now,
        "address": instance.address,
        "now": now,
        "gone": encoded(_ENDED_IN_CLOUD),
    }


def _is_same(seen: Instance, known: Instance) -> bool:
    """Whether a list has no news of a machine that has not ended."""
    # One without a node is news each time: the list may have its node by now.
    same_place = bool(known.node) and seen.address in (None, known.address)
    return seen.state is known.state is not InstanceState.TERMINATED and same_place


TABLES: Mapping[str, Table] = {
    "machines": (f"{NOT_ENDED} {BY_TIME}", machine_from),
    "complete": ("select cloud from read_whole", itemgetter(0)),
}


class Machines:
    """Each method is one transaction."""

    guarded_by: ClassVar[GuardedBy] = {
        # The set is replaced, never changed, so that a reader sees a whole one.
        "_store.lock": Guarded("_read", unguarded_readers=["believed"]),
    }

    def __init__(self, store: Store, launches: Launches, read: Collection[str] | None) -> None:
        self._store, self._launches = store, launches
        self._read = None if read is None else frozenset(read)

    def live(
        self,
        *,
        ended_since: float | None = None,
        nodes: Collection[str] | None = None,
        stopped: bool = False,
    ) -> tuple[Machine, ...]:
        """Machines that have not ended, and the ones that ended at ``ended_since`` or later, of
        these ``nodes`` (None: of all); by launch time. Machines that are ``stopped``, and the parts
        of their lives in which others were, are among them only where that is asked for.
        """
        if ended_since is None and nodes is None:
            return tuple(m for m in self._store.tables("machines")[0] if not m.is_off)
        # Not ``or``: sqlite would read the machines of a year for it, as no index has both.
        ended = f"select {MACHINE_COLUMNS} from machines where ended >= ?1"
        ended += "" if stopped else f" and {NOT_OFF}"
        since, of = math.inf if ended_since is None else ended_since, ""
        values: tuple[object, ...] = (since,)
        if nodes is not None:
            of, values = (
                " and node in (select value from json_each(?2))",
                (since, to_json([*nodes])),
            )
        not_ended = NOT_ENDED if stopped else f"{NOT_ENDED} and {NOT_OFF}"
        rows = self._store.select(f"{not_ended}{of} union all {ended}{of} {BY_TIME}", *values)
        return tuple(machine_from(row) for row in rows)

    def clouds(self, since: float) -> tuple[str, ...]:
        """The clouds that have machines, or had some at ``since`` or later, by name."""
        sql = (
            f"select cloud from machines where {PAID} "
            "union select cloud from machines indexed by machines_ended where ended >= ? "
            "order by cloud"
        )
        return tuple(row["cloud"] for row in self._store.select(sql, since))

    def launched(self, generation: str, instances: Sequence[Instance], now: float) -> None:
        """The cloud's answer: the launch is done and these machines are live, in one transaction.

        Again: nothing happens, but machines that a first, shorter answer lacked are added. Raises
        SlurmElasticError for an unknown generation or a machine known from another launch.
        """
        with self._store.transaction("machines", "launches"):
            launch = self._launches.known(generation)
            self._take([
                _new(instance, launch.pool, launch, now, worst_price(instance, launch.offers))
                for instance in instances
            ])  # fmt: skip
            self._store.change(
                # Also one that was given up as failed: its machines exist.
                "update launches set state = ?, finished = coalesce(finished, ?), error = null "
                "where generation = ?",
                WORDS[Done], now, generation,
            )  # fmt: skip

    def observe(
        self,
        cloud: str,
        seen: Sequence[Instance],
        now: float,
        pool_of: Mapping[str, Pool] | None = None,
    ) -> None:
        """Take in a complete read of ``cloud`` that *began* at ``now``.

        Machines seen: state, address and last_seen are updated, misses are forgotten; a TERMINATED
        one has ended; one that had ended before ``now`` but is PENDING or RUNNING is live again
        (the cloud is the truth), and so is a STOPPED one that was to be kept. Live ones not seen:
        one more miss, unless they were launched or last seen between ``now`` and AHEAD of it. One
        that had no node yet takes the cloud's, and the pool of that node by ``pool_of``. Machines
        that the ledger does not know are not inserted: see ``adopt``.
        """
        (not_ended,) = self._store.tables("machines")
        known = {m.instance.id: m.instance for m in not_ended if m.instance.cloud == cloud}
        if not known and not seen:
            return
        ids = {i.id for i in seen}
        same = {i.id for i in seen if (k := known.get(i.id)) is not None and _is_same(i, k)}
        news = [i for i in seen if i.id not in same]
        with self._store.transaction("machines") as db:
            if same:  # when a machine was seen last is of the moment
                db.execute(SAME, (now, cloud, to_json(list(same))))
            for instance in news:
                self._store.change(SEEN, _seen_values(instance, cloud, now))
                if instance.id in known and not known[instance.id].node:
                    pool = (pool_of or {}).get(instance.node)
                    self._name(instance, pool.name if pool else "")
            if not ids.issuperset(known):
                db.execute(MISSED, (cloud, *(now, now + AHEAD) * 2, to_json(list(ids))))

    def adopt(
        self,
        instance: Instance,
        pool: str,
        now: float,
        worst: float = 0.0,
        clouds: Collection[str] | None = None,
    ) -> Machine | None:
        """Take in a machine that bears our tags but that the ledger has no live row of.

        One that it knows is brought up to date as by ``observe``, and is live again in whatever
        state its cloud has it. ``clouds``: those that are configured. ``worst`` is what it may come
        to ($/h), for where its launch is not known. Returns its row as it was before, if any.
        """
        with self._store.transaction("machines", "launches"):
            before = self._machine(instance.cloud, instance.id)
            if before is not None:  # a tag is anybody's to change, its launch was written down
                instance = replace(instance, generation=before.instance.generation)
            launch = self._launches.get(instance.generation)
            if clouds is not None and launch is not None and launch.cloud not in clouds:
                self._follow(launch, instance.cloud, now)
            if clouds is not None and before is None:
                # A row of a cloud that is none of them was its own under that cloud's earlier name:
                # it goes on under the new one, so that it is paid once, also if it had ended there.
                before = self._renamed(instance, pool, clouds)
            if launch is not None:
                worst = worst_price(instance, launch.offers)
            self._take([_new(instance, pool, launch, now, worst)])
            self._name(instance, pool)
            # In whatever state its cloud has it, it is paid.
            self._store.change(SEEN, _seen_values(instance, instance.cloud, now, adopted=True))
            return before

    def registered(self, cloud: str, ids: Sequence[str], now: float) -> None:
        """Slurm has the nodes of these machines up; the first time counts, while they boot."""
        sql = f"update machines set registered = ? where {OF_CLOUD} "
        sql += f"and {where_allowed(LedgerCall.REGISTERED)}"
        self._store.execute("machines", sql, now, cloud, to_json(ids))

    def suspending(self, cloud: str, ids: Sequence[str], cause: AnyCause, now: float) -> None:
        """Write down that these are to be terminated, before the cloud is called.

        The first intent stands; machines that have ended or are not known are left alone.
        """
        sql = f"update machines set suspending = ?, cause = ? where {OF_CLOUD} "
        sql += f"and {where_allowed(LedgerCall.SUSPENDING)}"
        self._store.execute("machines", sql, now, encoded(cause), cloud, to_json(ids))

    def ended(self, cloud: str, ids: Sequence[str], cause: AnyCause, now: float) -> None:
        """These are gone and no longer paid. A cause that ``suspending`` wrote stands, and so does
        an earlier end.
        """
        sql = "update machines set ended = ?, state = ?, cause = coalesce(cause, ?) "
        sql += f"where {OF_CLOUD} and {where_allowed(LedgerCall.ENDED)}"
        self._store.execute(
            "machines", sql, now, str(InstanceState.TERMINATED), encoded(cause), cloud, to_json(ids)
        )

    def read_whole(self, cloud: str, now: float) -> None:
        """A complete read of ``cloud`` was taken in, its unknown machines adopted."""
        with self._store.lock:
            if cloud not in self._store.tables("complete")[0]:
                sql = "insert or ignore into read_whole (cloud, at) values (?, ?)"
                self._store.execute("complete", sql, cloud, now)
            if self._read is not None:
                self._read |= {cloud}

    def clouds_read(self) -> frozenset[str]:
        """The clouds whose machines are all in the ledger. A cloud that a new ledger lacks, or that
        is new itself, may have machines of ours.
        """
        with self._store.lock:
            return self.believed(self._store.tables("complete")[0])

    def believed(self, complete: Collection[str]) -> frozenset[str]:
        """Of the clouds in the table ``complete``, those that count in this process."""
        clouds = frozenset(complete)
        return clouds if self._read is None else clouds & self._read

    def _machine(self, cloud: str, id_: str) -> Machine | None:
        sql = f"select {MACHINE_COLUMNS} from machines where cloud = ? and id = ?"
        rows = self._store.select(sql, cloud, id_)
        return machine_from(rows[0]) if rows else None

    def _name(self, instance: Instance, pool: str) -> None:
        """Its node, pool and payers, where it had none, as a fleet's machine not tagged yet."""
        launch = self._launches.get(instance.generation)
        accounts = to_json(launch.accounts.get(instance.node, {})) if launch else None
        self._store.change(
            "update machines set node = ?, pool = ?, accounts = coalesce(?, accounts) "
            "where cloud = ? and id = ? and node = ''",
            instance.node, pool, accounts, instance.cloud, instance.id,
        )  # fmt: skip

    def _renamed(self, instance: Instance, pool: str, clouds: Collection[str]) -> Machine | None:
        """Move the machine's row from a cloud that is not configured any more."""
        sql = (
            f"select {MACHINE_COLUMNS} from machines "
            # A generation is of one launch alone: it tells that it is the same machine.
            "where id = ? and generation = ? and generation != ''"
        )
        rows = [
            machine_from(row) for row in self._store.select(sql, instance.id, instance.generation)
        ]
        former = next((m for m in rows if m.instance.cloud not in clouds), None)
        if former is not None:
            self.move(former, instance.cloud, instance.id, pool=pool or former.pool)
        return former

    def _follow(self, launch: Launch, cloud: str, now: float) -> None:
        """Have the launch of a machine of a renamed cloud under the new name, too."""
        self._store.change(
            # An open one is done: it cannot be repeated by that name, and what it has made is
            # adopted.
            "update launches set cloud = ?, finished = coalesce(finished, ?), "
            "state = case when state = ? then ? else state end where generation = ?",
            cloud, now, WORDS[Intended], WORDS[Done], launch.generation,
        )  # fmt: skip

    def move(self, machine: Machine, cloud: str, id_: str, **changes: Any) -> None:  # noqa: ANN401
        """Its row under another key, with ``changes`` of the machine."""
        one = machine.instance
        self._store.change("delete from machines where cloud = ? and id = ?", one.cloud, one.id)
        moved = replace(machine, instance=replace(one, cloud=cloud, id=id_), **changes)
        self._store.insert("insert into machines", MACHINE_COLUMNS, [machine_row(moved)])

    def _take(self, machines: Sequence[Machine]) -> None:
        """Insert those that are not known; one that is must be of the same launch."""
        how, rows = "insert or ignore into machines", [machine_row(one) for one in machines]
        new = {(row["cloud"], row["id"]) for row in self._store.insert(how, MACHINE_COLUMNS, rows)}
        for instance in (one.instance for one in machines):
            if (instance.cloud, instance.id) in new:
                continue
            known = self._machine(instance.cloud, instance.id)
            if known is not None and known.instance.generation != instance.generation:
                raise SlurmElasticError(
                    f"instance {instance.id} of cloud {instance.cloud} is known from generation "
                    f"{known.instance.generation}; the cloud now has it as {instance.generation}"
                )
