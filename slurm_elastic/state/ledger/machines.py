"""The ledger's rows of launches and machines: which there are, and which were.

Part of ``state.ledger.Ledger``, which opens the file and describes its tables.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Pool,
    worst_price,
)
from slurm_elastic.model.memory import DONE, FAILED, INTENT, MACHINE_JOBS, Launch, Machine
from slurm_elastic.policies.clock_guard import AHEAD
from slurm_elastic.state.ledger.machine_rows import (
    GONE,
    launch_from,
    launch_of_spec,
    launch_row,
    machine_from,
    machine_row,
    same_call,
    seen_values,
)
from slurm_elastic.state.ledger.mark_rows import to_json
from slurm_elastic.state.ledger.marks import Marks

LAUNCH_COLUMNS = (
    "generation, request, pool, cloud, nodes, jobs, offer, state, created, finished, "
    "error, accounts, owner, recipe"
)
MACHINE_COLUMNS = (
    "id, cloud, node, generation, instance_type, zone, market, price, state, launched, address, "
    "pool, jobs, last_seen, misses, suspending, ended, why, worst_price, registered, accounts, "
    "stopping, stopped, born, tunnel_key"
)
MACHINE_VALUES = ", ".join("?" * len(MACHINE_COLUMNS.split(",")))
SEEN = """
    update machines set
        state = :state,
        address = coalesce(:address, address),
        last_seen = max(last_seen, :now),
        misses = 0,
        why = case
            when :state = 'terminated' and ended is null then coalesce(why, :gone)
            when :lives and ended is not null and suspending is null then null
            else why end,
        ended = case
            when :state = 'terminated' then coalesce(ended, :now)
            when :lives or (:off and coalesce(stopped, stopping) is not null) then null
            else ended end
    where id = :id and cloud = :cloud and (
        ended is null
        or ((:lives or (:off and coalesce(stopped, stopping) is not null)) and ended < :before)
    )
"""
"""One machine of a complete read of its cloud, as ``Ledger.observe`` and ``adopt`` describe it."""
IN_ORDER = "order by created, generation"
OPEN = f"select {LAUNCH_COLUMNS} from launches where state = 'intent' {IN_ORDER}"
NOT_ENDED = f"select {MACHINE_COLUMNS} from machines where ended is null"
"""All that are paid for: those that are live, and those that are stopped."""
BY_TIME = "order by launched, id"


MISSED = """
    update machines set misses = misses + 1 where cloud = ? and ended is null
    and last_seen not between ? and ? and launched not between ? and ?
    and id not in (select value from json_each(?))
"""


class Machines(Marks):
    """All methods are one transaction each."""

    # launches

    def intend(self, spec: LaunchSpec, request: str, now: float) -> None:
        """Write down a launch before the cloud is called; ``request`` is the correlation id.

        Again with the same content: nothing happens. Raises SlurmElasticError when the generation
        stands for another launch or for one that has failed (a new call needs a new generation,
        or its machines would have no open intent).
        """
        new = launch_of_spec(spec, request, now, self._wanted_by(spec.nodes))
        with self._transaction("launches") as db:
            row = launch_row(new)
            values = ", ".join("?" * len(row))
            sql = f"insert or ignore into launches ({LAUNCH_COLUMNS}) values ({values})"
            if db.execute(sql, row).rowcount:
                return
            old = self._known(spec.generation)
            if not same_call(old, new):
                raise SlurmElasticError(
                    f"generation {spec.generation} already stands for another launch, of "
                    f"{len(old.nodes)} nodes of pool {old.pool} from {old.offer.key}"
                )
            if old.state == FAILED:
                raise SlurmElasticError(
                    f"generation {spec.generation} has failed: {old.error}; "
                    "a new call needs a new generation"
                )

    def launched(self, generation: str, instances: Sequence[Instance], now: float) -> None:
        """The cloud's answer: the launch is done and these machines are live, in one transaction.

        Again: nothing happens, but machines that a first, shorter answer lacked are added. A
        launch that was given up as failed becomes done too: its machines exist. Raises
        SlurmElasticError for an unknown generation or a machine known from another launch.
        """
        with self._transaction("machines", "launches") as db:
            launch = self._known(generation)
            for instance in instances:
                worst = worst_price(instance, launch.offers)
                self._insert(instance, launch.pool, launch, now, worst)
            db.execute(
                "update launches set state = ?, finished = coalesce(finished, ?), error = null "
                "where generation = ?",
                (DONE, now, generation),
            )

    def failed(self, generation: str, error: str, now: float) -> None:
        """Nothing was started, in the cloud's words ``error``. A finished launch stays as it is."""
        with self._transaction("launches") as db:
            self._known(generation)
            db.execute(
                "update launches set state = ?, finished = ?, error = ? "
                "where generation = ? and state = ?",
                (FAILED, now, error, generation, INTENT),
            )

    def forget_failed(self, generations: Sequence[str]) -> None:
        """Forget those of these launches that a cloud refused: what it said is kept elsewhere.

        A request may be refused by hundreds of offers, and a refused launch costs nothing.
        """
        rows = [(generation, FAILED) for generation in generations]
        with self._transaction(None) as db:
            db.executemany("delete from launches where generation = ? and state = ?", rows)

    def open_launches(self) -> tuple[Launch, ...]:
        """Intents whose call is not known to have answered, oldest first."""
        return self._tables("launches")[0]

    def current(self) -> tuple[tuple[Machine, ...], tuple[Launch, ...]]:
        """Machines that have not ended and open launches, as of one moment: a launch that is
        answered between two reads may be missing in both.
        """
        with self._lock:
            launches = self.open_launches()  # first, as another process may write meanwhile
            return self.machines(), launches

    def launch(self, generation: str) -> Launch | None:
        """The launch of that generation."""
        return self._launch(generation)

    def finished(self, generations: Collection[str]) -> dict[str, float]:
        """When these launches were answered: those of them that were."""
        rows = self._select(
            "select generation, finished from launches where finished is not null "
            "and generation in (select value from json_each(?))",
            to_json(list(generations)),
        )
        return {row["generation"]: row["finished"] for row in rows}

    # machines

    def machines(
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
            return tuple(m for m in self._tables("machines")[0] if m.stopped is None)
        # Not ``or``: sqlite would read the machines of a year for it, as no index has both.
        ended = f"select {MACHINE_COLUMNS} from machines where ended >= ?1"
        ended += "" if stopped else " and stopped is null"
        since, of = math.inf if ended_since is None else ended_since, ""
        values: tuple[object, ...] = (since,)
        if nodes is not None:
            of, values = (
                " and node in (select value from json_each(?2))",
                (since, to_json([*nodes])),
            )
        not_ended = NOT_ENDED if stopped else f"{NOT_ENDED} and stopped is null"
        rows = self._select(f"{not_ended}{of} union all {ended}{of} {BY_TIME}", *values)
        return tuple(machine_from(row) for row in rows)

    def clouds(self, since: float) -> tuple[str, ...]:
        """The clouds that have machines, or had some at ``since`` or later, by name."""
        sql = (
            "select cloud from machines where ended is null "
            "union select cloud from machines indexed by machines_ended where ended >= ? "
            "order by cloud"
        )
        return tuple(row["cloud"] for row in self._select(sql, since))

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
        (not_ended,) = self._tables("machines")
        known = [m.instance for m in not_ended if m.instance.cloud == cloud]
        if not known and not seen:
            return
        nameless = {i.id for i in known if not i.node}
        ids = {i.id for i in seen}
        lacks = not ids.issuperset(i.id for i in known)
        with self._transaction("machines") as db:
            db.executemany(SEEN, [seen_values(i, cloud, now) for i in seen])
            for instance in seen:
                if instance.id in nameless:
                    pool = (pool_of or {}).get(instance.node)
                    self._name(instance, pool.name if pool else "")
            if lacks:
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
        state its cloud has it: it is paid. A live row of the same machine whose cloud is none of
        ``clouds``, those that are configured, was its own under that cloud's earlier name and
        goes on under the new one, so that it is paid once. ``worst`` is what it may come to
        ($/h), for where its launch is not known. Returns its row as it was before, if any.
        """
        with self._transaction("machines", "launches") as db:
            before = self._machine(instance.cloud, instance.id)
            if before is not None:  # a tag is anybody's to change, its launch was written down
                instance = replace(instance, generation=before.instance.generation)
            launch = self._launch(instance.generation)
            if clouds is not None and launch is not None and launch.cloud not in clouds:
                self._follow(launch, instance.cloud, now)
            if clouds is not None and before is None:
                before = self._renamed(instance, pool, clouds)
            if launch is not None:
                worst = worst_price(instance, launch.offers)
            self._insert(instance, pool, launch, now, worst)
            self._name(instance, pool)
            db.execute(SEEN, seen_values(instance, instance.cloud, now, adopted=True))
            return before

    def registered(self, cloud: str, ids: Sequence[str], now: float) -> None:
        """Slurm has the nodes of these machines up; the first time counts."""
        with self._transaction("machines") as db:
            db.executemany(
                "update machines set registered = ? "
                "where cloud = ? and id = ? and registered is null",
                [(now, cloud, id_) for id_ in ids],
            )

    def suspending(self, cloud: str, ids: Sequence[str], why: str, now: float) -> None:
        """Write down that these are to be terminated, before the cloud is called.

        The first intent stands; machines that have ended or are not known are left alone.
        """
        with self._transaction("machines") as db:
            db.executemany(
                "update machines set suspending = ?, why = ? "
                "where cloud = ? and id = ? and suspending is null and ended is null",
                [(now, why, cloud, id_) for id_ in ids],
            )

    def ended(self, cloud: str, ids: Sequence[str], why: str, now: float) -> None:
        """These are gone and no longer paid. An earlier ``why`` (of ``suspending``) and an earlier
        end stand.
        """
        with self._transaction("machines") as db:
            db.executemany(
                "update machines set ended = ?, state = ?, why = coalesce(why, ?) "
                "where cloud = ? and id = ? and ended is null",
                [(now, str(InstanceState.TERMINATED), why, cloud, id_) for id_ in ids],
            )

    # inside

    def _known(self, generation: str) -> Launch:
        launch = self._launch(generation)
        if launch is None:
            raise SlurmElasticError(f"no launch with generation {generation} was ever intended")
        return launch

    def _machine(self, cloud: str, id_: str) -> Machine | None:
        sql = f"select {MACHINE_COLUMNS} from machines where cloud = ? and id = ?"
        rows = self._select(sql, cloud, id_)
        return machine_from(rows[0]) if rows else None

    def _name(self, instance: Instance, pool: str) -> None:
        """Its node, pool and payers, where it had none, as a fleet's machine not tagged yet."""
        launch = self._launch(instance.generation)
        accounts = to_json(launch.accounts.get(instance.node, {})) if launch else None
        self._db.execute(
            "update machines set node = ?, pool = ?, accounts = coalesce(?, accounts) "
            "where cloud = ? and id = ? and node = ''",
            (instance.node, pool, accounts, instance.cloud, instance.id),
        )

    def _renamed(self, instance: Instance, pool: str, clouds: Collection[str]) -> Machine | None:
        """Move the machine's live row from a cloud that is not configured any more. A generation is
        of one launch alone, so it tells that it is the same machine.
        """
        sql = (
            f"select {MACHINE_COLUMNS} from machines "
            "where id = ? and generation = ? and generation != '' and ended is null"
        )
        rows = [machine_from(row) for row in self._select(sql, instance.id, instance.generation)]
        former = next((m for m in rows if m.instance.cloud not in clouds), None)
        if former is not None:
            self._db.execute(
                "update machines set cloud = ?, pool = ? where cloud = ? and id = ?",
                (instance.cloud, pool or former.pool, former.instance.cloud, instance.id),
            )
        return former

    def _follow(self, launch: Launch, cloud: str, now: float) -> None:
        """Have the launch of a machine of a renamed cloud under the new name, too. An open one is
        done: it cannot be repeated by that name, and what it has made is adopted.
        """
        self._db.execute(
            "update launches set cloud = ?, finished = coalesce(finished, ?), "
            "state = case when state = ? then ? else state end where generation = ?",
            (cloud, now, INTENT, DONE, launch.generation),
        )

    def _launches(self, where: str, *values: object) -> tuple[Launch, ...]:
        sql = f"select {LAUNCH_COLUMNS} from launches where {where} {IN_ORDER}"
        return tuple(launch_from(row) for row in self._select(sql, *values))

    def _launch(self, generation: str) -> Launch | None:
        rows = self._launches("generation = ?", generation)
        return rows[0] if rows else None

    def _insert(
        self,
        instance: Instance,
        pool: str,
        launch: Launch | None,
        now: float,
        worst: float,
    ) -> None:
        """Insert a machine unless it is known; it must then be of the same launch."""
        over = instance.state == InstanceState.TERMINATED
        machine = Machine(
            instance=instance,
            pool=pool,
            jobs=launch.jobs[:MACHINE_JOBS] if launch else (),
            accounts=launch.accounts.get(instance.node, {}) if launch else {},
            last_seen=now,
            ended=now if over else None,
            why=GONE if over else None,
            worst_price=worst,
        )
        sql = f"insert or ignore into machines ({MACHINE_COLUMNS}) values ({MACHINE_VALUES})"
        if self._db.execute(sql, machine_row(machine)).rowcount:
            return
        known = self._machine(instance.cloud, instance.id)
        if known is not None and known.instance.generation != instance.generation:
            raise SlurmElasticError(
                f"instance {instance.id} of cloud {instance.cloud} is known from generation "
                f"{known.instance.generation}; the cloud now has it as {instance.generation}"
            )
