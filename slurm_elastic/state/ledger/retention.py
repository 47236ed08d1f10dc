"""How long the ledger keeps what is over, and in what length.

A launch keeps all the offers that it may be served from, and all its jobs: some kilobytes, which
matter until its machines are there.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from itertools import islice

from msgspec import MsgspecError

from slurm_elastic.model.memory import MACHINE_JOBS, Launch
from slurm_elastic.state.ledger.launches import LAUNCH_COLUMNS, launch_from
from slurm_elastic.state.ledger.machines import MACHINE_COLUMNS, machine_from
from slurm_elastic.state.store.endurance import KEPT
from slurm_elastic.state.store.view import to_json

SHORTENED_AFTER = 86400.0
"""Seconds after its answer from which on a launch is kept short: longer than any boot."""
LAUNCHES_KEPT = KEPT
"""Seconds since its last machine ended for which a launch is kept: as long as a budget counts."""
MACHINES_KEPT = 400 * 86400.0
"""Seconds since its end for which a machine is kept: a year's account and a month to ask for it."""
MOST_RUNS = 5_000_000
"""Runs of jobs that are kept at most, the last ones: some 750 MB, of 12,500 jobs a day for
``MACHINES_KEPT``. The costs of earlier machines are then unused in ``cost``.
"""
PART = 500
"""Launches of one transaction, as others wait for it."""

_LONG = f"""
    select {LAUNCH_COLUMNS} from launches where state != 'intent' and finished < ?
    and (offer like '[%' or json_array_length(jobs) > {MACHINE_JOBS})
"""
_MACHINES = f"""
    select {MACHINE_COLUMNS} from machines
    where generation in (select value from json_each(?))
"""
_OLD_RUNS = """
    delete from runs where end <= (select end from runs order by end desc limit 1 offset ?)
"""
# A row that lives, or may be about to, is no matter of time.
_OLD_LAUNCHES = """
    delete from launches where state != 'intent' and finished < :before
    and generation not in
        (select generation from machines where ended is null or ended >= :before)
"""


def forget(db: sqlite3.Connection, now: float) -> None:
    """Machines and finished launches of so long ago that nothing asks for them."""
    db.execute("delete from machines where ended < ?", (now - MACHINES_KEPT,))
    for table in ("runs", "drains"):
        db.execute(f"delete from {table} where end < ?", (now - MACHINES_KEPT,))
    db.execute(_OLD_RUNS, (MOST_RUNS,))
    db.execute(_OLD_LAUNCHES, {"before": now - LAUNCHES_KEPT})


def shorten(db: sqlite3.Connection, now: float) -> int:
    """One offer and the first jobs of finished launches: up to PART of them; how many."""
    rows = map(_launch, db.execute(_LONG, (now - SHORTENED_AFTER,)))
    # Count only rows that can be read: the others stay as they are, and would fill each turn.
    found = list(islice((row for row in rows if row is not None), PART))
    bought: defaultdict[str, set[str]] = defaultdict(set)
    for row in db.execute(_MACHINES, (to_json([one.generation for one in found]),)):
        one = machine_from(row).instance
        bought[one.generation].add(one.offer_key)
    for launch in found:
        offers = [o for o in launch.offers if o.key in bought[launch.generation]] or launch.offers
        # Of those that were bought: one offer tells what a machine of the launch may cost.
        dearest = max(offers, key=lambda offer: offer.worst_price)
        db.execute(
            "update launches set offer = ?, jobs = ? where generation = ?",
            (to_json(dearest), to_json(launch.jobs[:MACHINE_JOBS]), launch.generation),
        )
    return len(found)


def _launch(row: sqlite3.Row) -> Launch | None:
    """None for one that cannot be read: it stays as it is."""
    try:
        return launch_from(row)
    except (MsgspecError, TypeError):
        return None
