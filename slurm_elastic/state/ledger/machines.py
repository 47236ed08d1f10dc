"""The ledger's rows of machines, live and ended."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
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
from slurm_elastic.model.memory import (
    MACHINE_JOBS,
    UNKNOWN_TERMS,
    Launch,
    Machine,
    PurchaseTerms,
    part_id,
)
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
CLOCK_SLACK_S = 60.0
"""The cloud's clock, which gives the times of launches, may be ahead of the head's by this much
before a machine gets a miss too many.
"""
MACHINE_COLUMNS = (
    "id, cloud, node, generation, instance_type, zone, market, price, state, launched, address, "
    "pool, jobs, last_seen, misses, suspending, ended, cause, worst_price, registered, accounts, "
    "stopping, stopped, born, tunnel_key, reservation, billing_increment, disk_price, "
    "on_demand_price, list_price"
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
"""Record one machine of a complete list of its cloud, by the rules of ``observe`` and ``adopt``."""
NOT_ENDED = f"select {MACHINE_COLUMNS} from machines where {PAID}"
"""All machines that cost money: live ones and stopped ones."""
BY_TIME = "order by launched, id"
OF_CLOUD = f"cloud = ? and id in {OF_LIST}"
SAME = f"""
    update machines set last_seen = max(last_seen, ?), misses = 0
    where cloud = ? and {PAID} and id in (select value from json_each(?))
"""
# The first time of each pair: a list that began before the launch may lack the machine. The second
# time: a row dated after the end of the reading is from before the head's clock was set back, so it
# counts.
MISSED = f"""
    update machines set misses = misses + 1 where cloud = ? and {PAID}
    and last_seen not between ? and ? and launched not between ? and ?
    and id not in (select value from json_each(?))
"""


_JOBS = msgspec.json.Decoder(tuple[int, ...])
_ACCOUNTS = msgspec.json.Decoder(dict[str, int])


def machine_row(machine: Machine) -> tuple[object, ...]:
    """Values for MACHINE_COLUMNS."""
    instance, life, terms = machine.instance, columns_of(machine.life), machine.terms
    return (
        instance.id, instance.cloud, instance.node, instance.generation, instance.instance_type,
        instance.zone, str(instance.market), instance.price, str(instance.state),
        instance.launched, instance.address, machine.pool, to_json(machine.jobs),
        machine.last_seen, machine.missed_listings, life.suspending, life.ended,
        None if life.cause is None else encoded(life.cause), machine.worst_price,
        life.registered, to_json(machine.accounts), life.stopping, life.stopped,
        machine.first_launched_at, machine.tunnel_key, instance.reservation,
        terms.billing_increment_s, terms.disk_price, terms.on_demand_price, terms.list_price,
    )  # fmt: skip


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
        reservation=row["reservation"],
    )
    return Machine(
        instance=instance,
        pool=row["pool"],
        jobs=_JOBS.decode(row["jobs"]),
        last_seen=row["last_seen"],
        missed_listings=row["misses"],
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
        first_launched_at=row["born"],
        tunnel_key=row["tunnel_key"],
        terms=PurchaseTerms(
            billing_increment_s=row["billing_increment"],
            disk_price=row["disk_price"],
            on_demand_price=row["on_demand_price"],
            list_price=row["list_price"],
        ),
    )


def _new(
    instance: Instance,
    pool: str,
    launch: Launch | None,
    now: float,
    worst: float,
    terms: PurchaseTerms,
) -> Machine:
    """A machine seen for the first time. ``terms``: if its launch has none for its type."""
    is_terminated = instance.state == InstanceState.TERMINATED
    return Machine(
        instance=instance,
        pool=pool,
        jobs=launch.jobs[:MACHINE_JOBS] if launch else (),
        accounts=launch.accounts.get(instance.node, {}) if launch else {},
        last_seen=now,
        life=Lost(ended_at=now, cause=_ENDED_IN_CLOUD) if is_terminated else BOOTING,
        worst_price=worst,
        terms=launch.terms.get(instance.instance_type, terms) if launch else terms,
    )


def _seen_values(
    instance: Instance, cloud: str, now: float, *, adopted: bool = False
) -> dict[str, object]:
    """Values for SEEN. An ended row lives again if its machine serves after that end, or is stopped
    as it was decided. If it is ``adopted``, it lives again in any state except TERMINATED, at
    whatever time it ended, because the head's clock may have been set back.
    """
    is_serving = instance.state in STANDING
    is_in_cloud = instance.state is not InstanceState.TERMINATED
    return {
        "id": instance.id,
        "cloud": cloud,
        "state": str(instance.state),
        "lives": is_in_cloud if adopted else is_serving,
        "off": instance.state is InstanceState.STOPPED,
        "before": math.inf if adopted else now,
        "address": instance.address,
        "now": now,
        "gone": encoded(_ENDED_IN_CLOUD),
    }


def _is_same(listed: Instance, recorded: Instance) -> bool:
    """Whether a list has no change for a machine that has not ended."""
    # A row without a node counts as changed each time, because the list may have its node.
    same_place = bool(recorded.node) and listed.address in (None, recorded.address)
    return listed.state is recorded.state is not InstanceState.TERMINATED and same_place


TABLES: Mapping[str, Table] = {
    "machines": (f"{NOT_ENDED} {BY_TIME}", machine_from),
    "complete": ("select cloud from read_whole", itemgetter(0)),
}


class Machines:
    """The rows of machines. Each method is one transaction."""

    guarded_by: ClassVar[GuardedBy] = {
        # Writers replace the set and never change it, so a reader without the lock sees a whole
        # set.
        "_store.lock": Guarded("_clouds_read", unguarded_readers=["trusted_clouds"]),
    }

    def __init__(self, store: Store, launches: Launches, read: Collection[str] | None) -> None:
        self._store, self._launches = store, launches
        self._clouds_read = None if read is None else frozenset(read)

    def live(
        self,
        *,
        ended_since: float | None = None,
        nodes: Collection[str] | None = None,
        stopped: bool = False,
    ) -> tuple[Machine, ...]:
        """Machines that have not ended, and machines that ended at ``ended_since`` or later, of
        these ``nodes`` (None: of all), by launch time. ``stopped``: also the machines that are
        stopped, and the earlier parts of lives in which machines were stopped.
        """
        if ended_since is None and nodes is None:
            return tuple(m for m in self._store.tables("machines")[0] if not m.is_off)
        # "union all" instead of "or": no index covers both conditions, so with "or" sqlite would
        # read the machines of a year.
        ended_rows = f"select {MACHINE_COLUMNS} from machines where ended >= ?1"
        ended_rows += "" if stopped else f" and {NOT_OFF}"
        ended_from, node_condition = math.inf if ended_since is None else ended_since, ""
        values: tuple[object, ...] = (ended_from,)
        if nodes is not None:
            node_condition, values = (
                " and node in (select value from json_each(?2))",
                (ended_from, to_json([*nodes])),
            )
        live_rows = NOT_ENDED if stopped else f"{NOT_ENDED} and {NOT_OFF}"
        rows = self._store.select(
            f"{live_rows}{node_condition} union all {ended_rows}{node_condition} {BY_TIME}", *values
        )
        return tuple(machine_from(row) for row in rows)

    def clouds(self, since: float) -> tuple[str, ...]:
        """The clouds that have machines, or whose machines ended at ``since`` or later, by name."""
        sql = (
            f"select cloud from machines where {PAID} "
            "union select cloud from machines indexed by machines_ended where ended >= ? "
            "order by cloud"
        )
        return tuple(row["cloud"] for row in self._store.select(sql, since))

    def record_launch(
        self,
        generation: str,
        instances: Sequence[Instance],
        now: float,
        terms_of: Callable[[Instance], PurchaseTerms] = lambda _: UNKNOWN_TERMS,
    ) -> None:
        """Record the cloud's answer: the launch is done and these machines are live, in one
        transaction. ``terms_of``: the terms of their purchase, if the intent has none.

        A second call adds only machines that the first, shorter answer lacked. Raises
        SlurmElasticError for an unknown generation or a live machine of another launch.
        """
        with self._store.transaction("machines", "launches"):
            launch = self._launches.require(generation)
            for instance in instances:
                self._free_id(instance, now)
            self._take([
                _new(
                    instance, launch.pool, launch, now, worst_price(instance, launch.offers),
                    terms_of(instance),
                )
                for instance in instances
            ])  # fmt: skip
            self._store.change(
                # No condition on the state: a launch that was given up as failed has machines too.
                "update launches set state = ?, finished = coalesce(finished, ?), error = null "
                "where generation = ?",
                WORDS[Done], now, generation,
            )  # fmt: skip

    def observe(
        self,
        cloud: str,
        listed: Sequence[Instance],
        now: float,
        pool_of: Mapping[str, Pool] | None = None,
        *,
        took_s: float = AHEAD,
    ) -> None:
        """Record a complete list of ``cloud`` whose reading *began* at ``now`` and took ``took_s``
        by a monotonic clock.

        Listed machines: state, address and last_seen are updated, misses are set to 0. A TERMINATED
        machine has ended. A machine that had ended before ``now`` but is PENDING or RUNNING is live
        again, because the cloud is the truth; so is a STOPPED machine that was decided to be
        stopped. Live machines that the list lacks get one more miss, unless they were launched or
        last seen since the reading began. A row without a node gets the node of the list
        and that node's pool in ``pool_of``. Machines without a row are not inserted: see ``adopt``.
        Neither is a new machine that has the id of an ended one.
        """
        (paid_machines,) = self._store.tables("machines")
        recorded = {m.instance.id: m.instance for m in paid_machines if m.instance.cloud == cloud}
        if not recorded and not listed:
            return
        listed_ids = {i.id for i in listed}
        unchanged_ids = {
            i.id
            for i in listed
            if (earlier := recorded.get(i.id)) is not None and _is_same(i, earlier)
        }
        changed = [i for i in listed if i.id not in unchanged_ids]
        with self._store.transaction("machines") as db:
            # Not in the journal: ``last_seen`` changes with each list, and a rebuilt view needs
            # none of these times.
            if unchanged_ids:
                db.execute(SAME, (now, cloud, to_json(list(unchanged_ids))))
            for instance in changed:
                if instance.id not in recorded:
                    self._free_listed_id(instance, now)
                self._store.change(SEEN, _seen_values(instance, cloud, now))
                if instance.id in recorded and not recorded[instance.id].node:
                    pool = (pool_of or {}).get(instance.node)
                    self._name(instance, pool.name if pool else "")
            if not listed_ids.issuperset(recorded):
                since = (now, now + min(took_s + CLOCK_SLACK_S, AHEAD))
                db.execute(MISSED, (cloud, *since * 2, to_json(list(listed_ids))))

    def clock_lead_s(self) -> float:
        """How far (s) this host's clock was ahead of the cloud's when the last machine that has not
        ended was launched: no cloud launches a machine before we ask for it. 0 without a machine,
        below 0 if it may not have been ahead.
        """
        rows = self._store.select(
            "select created - launched as lead from launches join machines using (generation) "
            f"where {PAID} order by created desc limit 1"
        )
        return rows[0]["lead"] if rows else 0.0

    def adopt(
        self,
        instance: Instance,
        pool: str,
        now: float,
        worst: float = 0.0,
        clouds: Collection[str] | None = None,
        terms: PurchaseTerms = UNKNOWN_TERMS,
    ) -> Machine | None:
        """Record a machine with our tags that has no live row in the ledger.

        An ended row is updated as by ``observe``, and lives again in any state except TERMINATED.
        ``clouds``: the configured clouds. ``worst``: the highest price that the machine may cost
        ($/h), used if its launch is unknown. ``terms``: of its purchase, if its launch has none.
        Returns the machine's row from before, if any.
        """
        with self._store.transaction("machines", "launches"):
            self._free_listed_id(instance, now)
            before = self._machine(instance.cloud, instance.id)
            # The recorded generation wins, because every user with rights in the cloud can change
            # the tag.
            if before is not None:
                instance = replace(instance, generation=before.instance.generation)
            launch = self._launches.get(instance.generation)
            if clouds is not None and launch is not None and launch.cloud not in clouds:
                self._follow(launch, instance.cloud, now)
            if clouds is not None and before is None:
                # A row of a cloud no longer configured belongs to the same machine under the
                # cloud's earlier name. Move the row to the new name, so that the machine is charged
                # once, even if the row had ended.
                before = self._renamed(instance, pool, clouds)
            if launch is not None:
                worst = worst_price(instance, launch.offers)
            self._take([_new(instance, pool, launch, now, worst, terms)])
            self._name(instance, pool)
            # After the insert and the move: a machine in any state except TERMINATED costs money.
            self._store.change(SEEN, _seen_values(instance, instance.cloud, now, adopted=True))
            return before

    def record_registration(self, cloud: str, ids: Sequence[str], now: float) -> None:
        """Record that Slurm has the nodes of these machines up. Only the first time of a booting
        machine counts.
        """
        sql = f"update machines set registered = ? where {OF_CLOUD} "
        sql += f"and {where_allowed(LedgerCall.REGISTERED)}"
        self._store.execute("machines", sql, now, cloud, to_json(ids))

    def record_ending(self, cloud: str, ids: Sequence[str], cause: AnyCause, now: float) -> None:
        """Record the decision to terminate these machines, before the cloud is called.

        The first decision stands. Ended and unknown machines are left alone.
        """
        sql = f"update machines set suspending = ?, cause = ? where {OF_CLOUD} "
        sql += f"and {where_allowed(LedgerCall.SUSPENDING)}"
        self._store.execute("machines", sql, now, encoded(cause), cloud, to_json(ids))

    def record_end(self, cloud: str, ids: Sequence[str], cause: AnyCause, now: float) -> None:
        """Record that these machines ended and cost nothing any longer. A cause from ``suspending``
        stands, and so does an earlier end.
        """
        sql = "update machines set ended = ?, state = ?, cause = coalesce(cause, ?) "
        sql += f"where {OF_CLOUD} and {where_allowed(LedgerCall.ENDED)}"
        self._store.execute(
            "machines", sql, now, str(InstanceState.TERMINATED), encoded(cause), cloud, to_json(ids)
        )

    def record_whole_list(self, cloud: str, now: float) -> None:
        """Record that a complete list of ``cloud`` was observed, its unknown machines adopted."""
        # Under the lock, so that ``state`` sees the row and this process's own set together.
        with self._store.lock:
            if cloud not in self._store.tables("complete")[0]:
                sql = "insert or ignore into read_whole (cloud, at) values (?, ?)"
                self._store.execute("complete", sql, cloud, now)
            if self._clouds_read is not None:
                self._clouds_read |= {cloud}

    def clouds_read(self) -> frozenset[str]:
        """The clouds whose machines are all in the ledger. Any other cloud may have machines of
        ours that the ledger does not know.
        """
        with self._store.lock:
            return self.trusted_clouds(self._store.tables("complete")[0])

    def trusted_clouds(self, complete: Collection[str]) -> frozenset[str]:
        """The clouds of the table ``complete`` that this process may believe."""
        clouds = frozenset(complete)
        return clouds if self._clouds_read is None else clouds & self._clouds_read

    def _machine(self, cloud: str, id_: str) -> Machine | None:
        sql = f"select {MACHINE_COLUMNS} from machines where cloud = ? and id = ?"
        rows = self._store.select(sql, cloud, id_)
        return machine_from(rows[0]) if rows else None

    def _name(self, instance: Instance, pool: str) -> None:
        """Fill in the node, pool and payers of a row without a node: a machine of a fleet gets its
        tags only after its launch.
        """
        launch = self._launches.get(instance.generation)
        accounts = to_json(launch.accounts.get(instance.node, {})) if launch else None
        self._store.change(
            "update machines set node = ?, pool = ?, accounts = coalesce(?, accounts) "
            "where cloud = ? and id = ? and node = ''",
            instance.node, pool, accounts, instance.cloud, instance.id,
        )  # fmt: skip

    def _renamed(self, instance: Instance, pool: str, clouds: Collection[str]) -> Machine | None:
        """Move the machine's row from a cloud no longer configured; return it, None without one."""
        sql = (
            f"select {MACHINE_COLUMNS} from machines "
            # Ids may repeat in different clouds. The generation belongs to one launch, so it proves
            # that this is the same machine.
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
        """Move the launch of a machine to the new name of its cloud."""
        self._store.change(
            # An open launch becomes done: the earlier name can no longer be called to repeat it,
            # and its machines are adopted.
            "update launches set cloud = ?, finished = coalesce(finished, ?), "
            "state = case when state = ? then ? else state end where generation = ?",
            cloud, now, WORDS[Intended], WORDS[Done], launch.generation,
        )  # fmt: skip

    def move(self, machine: Machine, cloud: str, id_: str, **changes: Any) -> None:  # noqa: ANN401
        """Move the machine's row to another key, with ``changes`` of the machine."""
        instance = machine.instance
        self._store.change(
            "delete from machines where cloud = ? and id = ?", instance.cloud, instance.id
        )
        moved = replace(machine, instance=replace(instance, cloud=cloud, id=id_), **changes)
        self._store.insert("insert into machines", MACHINE_COLUMNS, [machine_row(moved)])

    def _free_id(self, instance: Instance, now: float) -> None:
        """If the id is that of an ended machine of another launch, move this machine's row to an id
        of its own. A cloud whose database was reset (OpenNebula) counts its machines anew.
        """
        earlier = self._machine(instance.cloud, instance.id)
        is_other = earlier is not None and earlier.instance.generation != instance.generation
        if earlier is not None and is_other and earlier.has_ended:
            # Greater than the number of any part of the ended machine's life.
            self.move(earlier, instance.cloud, part_id(instance.id, int(now)))

    def _free_listed_id(self, instance: Instance, now: float) -> None:
        """As ``_free_id``, if the machine of a list is certainly another than the ended machine.
        Its generation alone proves nothing: every user with rights in the cloud can change the tag.
        """
        earlier = self._machine(instance.cloud, instance.id)
        ended_at = earlier.ended_at if earlier is not None else None
        is_later = ended_at is not None and instance.launched > ended_at
        if is_later and self._launches.get(instance.generation) is not None:
            self._free_id(instance, now)

    def _take(self, machines: Sequence[Machine]) -> None:
        """Insert machines without a row. Raises SlurmElasticError if a row belongs to another
        launch.
        """
        statement, rows = (
            "insert or ignore into machines",
            [machine_row(machine) for machine in machines],
        )
        inserted = {
            (row["cloud"], row["id"])
            for row in self._store.insert(statement, MACHINE_COLUMNS, rows)
        }
        for instance in (machine.instance for machine in machines):
            if (instance.cloud, instance.id) in inserted:
                continue
            recorded = self._machine(instance.cloud, instance.id)
            if recorded is not None and recorded.instance.generation != instance.generation:
                raise SlurmElasticError(
                    f"instance {instance.id} of cloud {instance.cloud} is known from generation "
                    f"{recorded.instance.generation}; the cloud now has it as {instance.generation}"
                )
