"""The ledger's tables as they came about: described in ``slurm_elastic.state.ledger``."""

from __future__ import annotations

import sqlite3

from slurm_elastic.state.ledger.machine_rows import launch_from, machine_from
from slurm_elastic.state.ledger.mark_rows import (
    aside_from,
    directive_from,
    exclusion_from,
    run_from,
)
from slurm_elastic.state.ledger.tunnels import tunnel_from
from slurm_elastic.state.store.files import Schema
from slurm_elastic.state.store.moving import Table

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """create table launches (
            generation text primary key,
            request text not null,
            pool text not null,
            cloud text not null,
            nodes text not null,
            jobs text not null,
            offer text not null,
            minimum integer not null,
            state text not null check (state in ('intent', 'done', 'failed')),
            created real not null,
            finished real,
            error text
        ) without rowid""",
        "create index launches_request on launches (request)",
        "create index launches_open on launches (created) where state = 'intent'",
        """create table machines (
            id text primary key,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null
        ) without rowid""",
        "create index machines_live on machines (cloud) where ended is null",
        "create index machines_ended on machines (ended) where ended is not null",
        """create table cool_downs (
            key text primary key,
            until real not null,
            code text not null,
            reason text not null,
            strikes integer not null
        ) without rowid""",
        """create table holds (
            node text primary key,
            pool text not null,
            reason text not null,
            since real not null,
            until real not null
        ) without rowid""",
        """create table decisions (
            id integer primary key,
            at real not null,
            correlation text not null,
            kind text not null,
            subjects text not null,
            reason text not null,
            detail text
        )""",
        "create index decisions_at on decisions (at)",
        """create table decision_subjects (
            subject text not null,
            decision integer not null,
            primary key (subject, decision)
        ) without rowid""",
        "create index decision_subjects_decision on decision_subjects (decision)",
        """create table heartbeats (
            service text primary key,
            at real not null,
            pid integer not null
        ) without rowid""",
        """create table health (
            name text primary key,
            checked real not null,
            error text,
            code text
        ) without rowid""",
    ),
    (
        """create table lifted_requeues (
            job integer primary key,
            restarts integer not null,
            at real not null
        )""",
    ),
    (
        # Two clouds may count their machines alike; and a machine of before has registered.
        """create table machines_by_cloud (
            id text not null,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null,
            registered real,
            primary key (cloud, id)
        ) without rowid""",
        "insert into machines_by_cloud select *, launched from machines",
        "drop table machines",
        "alter table machines_by_cloud rename to machines",
        "create index machines_live on machines (cloud) where ended is null",
        "create index machines_ended on machines (ended) where ended is not null",
        """create table breakers (
            pool text primary key,
            failures integer not null,
            until real,
            reason text not null
        ) without rowid""",
    ),
    (
        # A node may be kept from Slurm for two causes, and is let go when both are over.
        "alter table holds rename to holds_of_one_kind",
        """create table holds (
            node text not null,
            kind text not null,
            pool text not null,
            reason text not null,
            since real not null,
            until real not null,
            primary key (node, kind)
        ) without rowid""",
        """insert into holds (node, kind, pool, reason, since, until)
            select node, 'capacity', pool, reason, since, until from holds_of_one_kind""",
        "drop table holds_of_one_kind",
    ),
    (
        # Whose budget pays a machine: its jobs may be forgotten by Slurm when somebody asks.
        "alter table launches add column accounts text not null default '{}'",
        "alter table machines add column accounts text not null default '{}'",
        """create table wanted_by (
            node text primary key,
            accounts text not null,
            at real not null
        ) without rowid""",
        """create table set_aside (
            job integer primary key,
            account text not null,
            partitions text not null,
            begin real not null,
            until real not null
        )""",
    ),
    (
        # With a cloud that was at work before, the ledger has what there is.
        """create table read_whole (
            cloud text primary key,
            at real not null
        ) without rowid""",
        """insert or ignore into read_whole (cloud, at)
            select name, checked from health where error is null
            union all select cloud, created from launches
            union all select cloud, last_seen from machines""",
    ),
    (
        # All launches took one machine as the least; nobody ever asked for another number.
        "alter table launches drop column minimum",
    ),
    (
        # Operators' words that hold at run time.
        """create table directives (
            number integer primary key,
            word text not null,
            who text not null,
            since real not null,
            starts real not null,
            until real,
            reason text not null
        )""",
    ),
    (
        # Who used the machines, as Slurm forgets its jobs after some minutes.
        """create table runs (
            job integer not null,
            begin real not null,
            end real,
            label text not null,
            user text not null,
            uid integer not null,
            account text not null,
            partition text not null,
            shares text not null,
            primary key (job, begin)
        ) without rowid""",
        "create index runs_end on runs (end)",
        """create table drains (
            node text not null,
            begin real not null,
            end real,
            primary key (node, begin)
        ) without rowid""",
    ),
    (
        # What rows that are forgotten one day have come to.
        "create table counters (name text primary key, value real not null) without rowid",
        "create table settled (at real not null)",
    ),
    ("create table told (key text primary key, at real not null) without rowid",),
    (
        # All that is not to be used now is one table. What a list lacked was among the decisions.
        """create table exclusions (
            kind text not null,
            scope text not null,
            until real not null,
            cause text not null,
            code text not null,
            count integer not null,
            since real not null,
            pool text not null,
            about text not null,
            primary key (kind, scope)
        ) without rowid""",
        """insert into exclusions
            select 'cool-down', key, until, reason, code, strikes, 0, '', '[]' from cool_downs
            union all
            select 'breaker', pool, coalesce(until, 0), reason, '', failures, 0, '', '[]'
            from breakers
            union all
            select kind, node, until, reason, '', 0, since, pool, '[]' from holds
            union all
            select 'doubt', substr(subject, 6), 9e999, reason, '', 0, at, '', (
                select json_group_array(value) from (
                    select value from json_each(detail, '$.machines')
                    union all
                    select 'node:' || value from json_each(detail, '$.nodes')
                )
            ) from (
                select subject, reason, at, detail, kind, row_number()
                    over (partition by subject order by at desc, id desc) as place
                from decision_subjects join decisions on id = decision
                where subject >= 'list:' and subject < 'list;'
            ) where place = 1 and kind = 'list-doubted'""",
        "drop table cool_downs",
        "drop table breakers",
        "drop table holds",
    ),
    (
        # A repeated call must be the same, its tags too.
        "alter table launches add column owner text not null default '{}'",
    ),
    (
        """create table tunnels (
            generation text not null,
            node text not null,
            address text not null unique,
            key text not null unique,
            since real not null,
            primary key (generation, node)
        ) without rowid""",
    ),
    (
        # Machines that are stopped, and may be started again.
        "alter table machines add column stopping real",
        "alter table machines add column stopped real",
        "alter table machines add column born real",
        "create index machines_stopped on machines (cloud) where stopped is not null",
        "alter table launches add column recipe text not null default ''",
    ),
    ("alter table machines add column tunnel_key text",),
)

LEDGER = Schema("ledger", "the daemon", MIGRATIONS)


# The part of the ledger that goes into memory while its file cannot be used, and back.
#
# Decisions stay in the file, as there are many of them and nothing but ``explain`` reads those of
# long ago; new ones are added to it.


_RECENT = "where (end is null or end >= :since)"
_NEWS = (
    "state", "address", "last_seen", "misses", "suspending", "ended", "why", "registered",
)  # fmt: skip
LEDGER_TABLES = (
    Table(
        name="launches",
        keys=("generation",),
        where="where (state = 'intent' or created >= :since)",
        reader=launch_from,
        past="state != 'intent'",
        turns=("state",),
    ),
    Table(
        name="machines",
        keys=("cloud", "id"),
        where="where (ended is null or ended >= :since)",
        reader=machine_from,
        newer=_NEWS,
        past="ended is not null",
        turns=("ended",),
    ),
    Table(name="exclusions", keys=("kind", "scope"), reader=exclusion_from),
    # An operator's word holds until it is ended, and is given in another process.
    Table(name="directives", keys=("number",), reader=directive_from, past="true", at_once=True),
    Table(name="wanted_by", keys=("node",)),
    Table(
        name="runs",
        keys=("job", "begin"),
        where=_RECENT,
        reader=run_from,
        newer=("end",),
        past="end is not null",
        turns=("end",),
    ),
    Table(name="drains", keys=("node", "begin"), where=_RECENT, newer=("end",)),
    # How jobs of users were before we changed them; done twice, it does nothing more.
    Table(name="set_aside", keys=("job",), reader=aside_from, past="true", turns=("until",)),
    Table(name="lifted_requeues", keys=("job",), past="true", turns=("at",)),
    Table(name="counters", keys=("name",)),
    Table(name="settled", keys=("at",)),
    Table(name="told", keys=("key",)),
    Table(name="tunnels", keys=("generation", "node"), reader=tunnel_from),
    # A cloud may have machines that are not among the rows.
    Table(name="read_whole", keys=("cloud",), doubted=True),
    Table(name="health", keys=("name",)),
)


def add_decisions(memory: sqlite3.Connection, file: sqlite3.Connection) -> None:
    """The rows of memory come to the ones of the file."""
    columns = "at, correlation, kind, subjects, reason, detail"
    for row in memory.execute(f"select id, {columns} from decisions order by id"):
        sql = f"insert into decisions ({columns}) values (?, ?, ?, ?, ?, ?)"
        number = file.execute(sql, tuple(row)[1:]).lastrowid
        subjects = memory.execute(
            "select subject from decision_subjects where decision = ?", (row["id"],)
        ).fetchall()
        file.executemany(
            "insert or ignore into decision_subjects (subject, decision) values (?, ?)",
            [(subject["subject"], number) for subject in subjects],
        )
