"""How long the ledger keeps rows of the past, and when it shortens them.

A launch row has all offers that may serve the launch, and all its jobs. These kilobytes matter only
until its machines exist.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from itertools import islice

from msgspec import MsgspecError

from slurm_elastic.model.memory import MACHINE_JOBS, Launch
from slurm_elastic.state.ledger.launches import LAUNCH_COLUMNS, launch_from
from slurm_elastic.state.ledger.machines import MACHINE_COLUMNS, machine_from
from slurm_elastic.state.store.endurance import COSTS_KEPT_S
from slurm_elastic.state.store.view import to_json

SHORTENED_AFTER = 86400.0
"""Seconds after its answer after which a launch is shortened: longer than any boot."""
FAILED_SHORTENED_AFTER = 3600.0
"""The same for a launch that made no machines, as its cloud said: none boots from it."""
LAUNCHES_KEPT = COSTS_KEPT_S
"""Seconds for which a launch is kept after its last machine ended: as long as a budget counts."""
FAILED_LAUNCHES_KEPT = 2 * 86400.0
"""Seconds for which a launch without machines is kept after its failure. A cloud may make a machine
in spite of its refusal and list it late; without the launch it would prove another head. Hundreds
of offers may refuse one request, so these rows are not kept for as long as others.
"""
MACHINES_KEPT = 400 * 86400.0
"""Seconds for which a machine is kept after its end: the account of a year and a month to read it.
"""
MOST_RUNS = 5_000_000
"""The number of job runs to keep, the last ones: about 750 MB, or 12,500 jobs per day for
``MACHINES_KEPT``. ``cost`` then shows the costs of earlier machines as unused.
"""
LEAP_S = 2 * 3600.0
"""The record's time advances by no more than this (s) per call, of which there is one after each
start and one per hour. It catches up with a pause of the service at half the speed of the pause.
"""
LAUNCHES_PER_TRANSACTION = 500
"""Launches that one transaction shortens. Other writers wait for each transaction."""

RECORD_TIME = "record time"
"""The row of ``settled`` with the record's time."""

_LONG = f"""
    select {LAUNCH_COLUMNS} from launches
    where (state != 'intent' and finished < ? or state = 'failed' and finished < ?)
    and (offer like '[%' or json_array_length(jobs) > {MACHINE_JOBS})
"""
_MACHINES = f"""
    select {MACHINE_COLUMNS} from machines
    where generation in (select value from json_each(?))
"""
_OLD_RUNS = """
    delete from runs where end <= (select end from runs order by end desc limit 1 offset ?)
"""
_NEWEST = """
    select max(at) as newest from (
        select max(at) as at from decisions
        union all select max(launched) from machines
        union all select max(ended) from machines
        union all select max(end) from runs
    )
"""
# An open intent or a launch with a live machine stays, however old it is.
_OLD_LAUNCHES = """
    delete from launches where state != 'intent' and finished < :before
    and generation not in
        (select generation from machines where ended is null or ended >= :before)
"""

_FAILED_LAUNCHES = """
    delete from launches where state = 'failed' and finished < ?
    and generation not in (select generation from machines)
"""


def advance_record_time(db: sqlite3.Connection, now: float) -> float:
    """Advance the time that deletions count from towards ``now``, and return it.

    A head may start with its clock years ahead (a dead battery, a restored virtual machine). All
    rows look old to that clock, and their deletion would reset a spent budget. Therefore the record
    has a time of its own, which jumps by no more than LEAP_S and never exceeds the clock.
    """
    row = db.execute("select at from settled where what = ?", (RECORD_TIME,)).fetchone()
    # A ledger without the row has been written to by its newest row at the latest.
    before = _newest(db) if row is None else row["at"]
    return now if before is None else min(now, before + LEAP_S)


def _newest(db: sqlite3.Connection) -> float | None:
    newest: float | None = db.execute(_NEWEST).fetchone()["newest"]
    return newest


def forget(db: sqlite3.Connection, now: float) -> None:
    """Delete machines, reservations, runs, drains and finished launches that no command reads any
    longer.
    """
    db.execute("delete from machines where ended < ?", (now - MACHINES_KEPT,))
    for table in ("runs", "drains"):
        db.execute(f"delete from {table} where end < ?", (now - MACHINES_KEPT,))
    db.execute("delete from reservations where ends < ?", (now - MACHINES_KEPT,))
    db.execute(_OLD_RUNS, (MOST_RUNS,))
    db.execute(_FAILED_LAUNCHES, (now - FAILED_LAUNCHES_KEPT,))
    db.execute(_OLD_LAUNCHES, {"before": now - LAUNCHES_KEPT})


def shorten(db: sqlite3.Connection, now: float) -> int:
    """Reduce up to LAUNCHES_PER_TRANSACTION finished launches to one offer and their first jobs;
    return how many.
    """
    before = (now - SHORTENED_AFTER, now - FAILED_SHORTENED_AFTER)
    rows = map(_launch, db.execute(_LONG, before))
    # Rows that cannot be read stay as they are. If they counted, they would fill every transaction
    # and the rows behind them would never be shortened.
    launches = list(islice((row for row in rows if row is not None), LAUNCHES_PER_TRANSACTION))
    bought_offer_keys: defaultdict[str, set[str]] = defaultdict(set)
    for row in db.execute(_MACHINES, (to_json([instance.generation for instance in launches]),)):
        instance = machine_from(row).instance
        bought_offer_keys[instance.generation].add(instance.offer_key)
    for launch in launches:
        offers = [
            o for o in launch.offers if o.key in bought_offer_keys[launch.generation]
        ] or launch.offers
        # Keep the offer with the highest worst price among the bought ones: it still bounds the
        # cost of each machine of the launch.
        dearest = max(offers, key=lambda offer: offer.worst_price)
        db.execute(
            "update launches set offer = ?, jobs = ? where generation = ?",
            (to_json(dearest), to_json(launch.jobs[:MACHINE_JOBS]), launch.generation),
        )
    return len(launches)


def _launch(row: sqlite3.Row) -> Launch | None:
    """The launch; None if the row cannot be read."""
    try:
        return launch_from(row)
    except (MsgspecError, TypeError):
        return None
