"""The ledger's tables; ``slurm_elastic.state.ledger`` describes their columns."""

from __future__ import annotations

from slurm_elastic.state.store.view import Schema

_STATEMENTS = (
    """create table launches (
        generation text primary key,
        request text not null,
        pool text not null,
        cloud text not null,
        nodes text not null,
        jobs text not null,
        offer text not null,
        state text not null check (state in ('intent', 'done', 'failed')),
        created real not null,
        finished real,
        error text,
        accounts text not null default '{}',
        owner text not null default '{}',
        recipe text not null default '',
        least integer not null default 1,
        terms text not null default '{}'
    ) without rowid""",
    "create index launches_request on launches (request)",
    "create index launches_open on launches (created) where state = 'intent'",
    """create table machines (
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
        cause text,
        worst_price real not null,
        registered real,
        accounts text not null default '{}',
        stopping real,
        stopped real,
        born real,
        tunnel_key text,
        reservation text not null default '',
        billing_increment integer not null default 1,
        disk_price real not null default 0,
        on_demand_price real,
        list_price real,
        primary key (cloud, id)
    ) without rowid""",
    "create index machines_live on machines (cloud) where ended is null",
    "create index machines_ended on machines (ended) where ended is not null",
    "create index machines_stopped on machines (cloud) where stopped is not null",
    "create index machines_increment on machines (billing_increment)",
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
    """create table directives (
        number integer primary key,
        word text not null,
        who text not null,
        since real not null,
        starts real not null,
        until real,
        reason text not null
    )""",
    """create table wanted_by (
        node text primary key,
        accounts text not null,
        at real not null
    ) without rowid""",
    """create table changed_jobs (
        job integer primary key,
        identity text not null,
        own text not null,
        latest text not null,
        before text not null,
        answered integer not null,
        wishes text not null,
        overruled text not null
    )""",
    """create table reservations (
        cloud text not null,
        name text not null,
        begins real not null,
        ends real not null,
        terms text not null,
        removed real,
        primary key (cloud, name, begins)
    ) without rowid""",
    """create table growth_purchases (
        first_node text not null,
        at real not null,
        open text not null,
        came_up text not null,
        unused text not null,
        jobs text not null,
        primary key (first_node, at)
    ) without rowid""",
    """create table unhelped_jobs (
        job integer primary key,
        asks text not null,
        since real not null,
        nodes text not null,
        reason text not null,
        strikes integer not null
    )""",
    """create table lifted_requeues (
        job integer primary key,
        restarts integer not null,
        at real not null
    )""",
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
    "create table counters (name text primary key, value real not null) without rowid",
    """create table settled (
        what text primary key default 'all',
        at real not null
    ) without rowid""",
    "create table told (key text primary key, at real not null) without rowid",
    """create table tunnels (
        generation text not null,
        node text not null,
        address text not null unique,
        key text not null unique,
        since real not null,
        primary key (generation, node)
    ) without rowid""",
    """create table copies (
        job integer not null,
        restarts integer not null,
        node text not null,
        machine text not null,
        uid integer not null,
        directory text not null,
        outputs text not null,
        state text not null,
        since real not null,
        reason text not null,
        primary key (job, restarts, node)
    ) without rowid""",
    "create index copies_state on copies (state)",
    """create table decisions (
        id integer primary key,
        at real not null,
        correlation text not null,
        kind text not null,
        subjects text not null,
        cause text not null,
        detail text
    )""",
    "create index decisions_at on decisions (at)",
    # The look-up by subject is in no journal: the triggers below fill it from the decisions.
    """create table decision_subjects (
        subject text not null,
        decision integer not null,
        primary key (subject, decision)
    ) without rowid""",
    "create index decision_subjects_decision on decision_subjects (decision)",
    """create trigger decisions_new after insert on decisions begin
        insert or ignore into decision_subjects select value, new.id from json_each(new.subjects);
    end""",
    """create trigger decisions_gone after delete on decisions begin
        delete from decision_subjects where decision = old.id;
    end""",
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
    """create table owner (
        what text primary key default 'journal',
        knows_since real not null,
        origin text not null,
        host text not null,
        accepted text not null
    ) without rowid""",
    "create table read_whole (cloud text primary key, at real not null) without rowid",
)
_RECENT = "where (end is null or end >= :since)"
_NONE = "where 0 = :since"

LEDGER = Schema(
    name="ledger",
    maker="the daemon",
    version=1,
    statements=_STATEMENTS,
    unjournaled_tables=frozenset({"heartbeats", "health", "decision_subjects"}),
    numbered_tables=frozenset({"decisions"}),
    recent_rows={
        "launches": "where (state = 'intent' or created >= :since)",
        # All parts of a live machine, however old: the next part is numbered after them.
        "machines": "where (ended is null or ended >= :since or instr(id, '@') > 0 and exists "
        "(select 1 from machines as m where m.cloud = machines.cloud "
        "and (m.ended is null or m.ended >= :since) "
        "and m.id = substr(machines.id, 1, instr(machines.id, '@') - 1)))",
        "runs": _RECENT,
        "drains": _RECENT,
        # They are too many for memory, and only ``explain`` reads old ones.
        "decisions": _NONE,
        "decision_subjects": _NONE,
    },
    # ``misses`` counts lists in a row that lacked the machine. A count from before a rebuild would
    # be added to, and a machine would count as lost too early.
    reset_columns={"machines": {"misses": 0}},
    newer_wins={
        "machines": (
            "state", "address", "last_seen", "misses", "suspending", "ended", "cause", "registered",
        ),
        "exclusions": ("until", "cause", "code", "count", "since", "pool", "about"),
        "runs": ("end",),
        "drains": ("end",),
    },
    clearable_tables=frozenset({"exclusions", "unhelped_jobs"}),
)  # fmt: skip
