"""An independent sum over the ledger's raw rows, by the rule of docs/costs.md.

It shares no code with slurm-elastic: it reads sqlite, counts in exact fractions of a dollar, and
walks through each clock hour of each machine from change to change.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

HOUR = 3600
Sums = dict[str, Fraction]


class Contract(NamedTuple):
    """Reserved instances: so many machines of a type, at so many dollars an hour in all."""

    kind: str
    count: int
    begin: float
    end: float
    per_hour: Fraction


class Found(NamedTuple):
    """Dollars by account and by user (with "unused: REASON"), by cloud; and the comparisons."""

    accounts: Sums
    users: Sums
    clouds: Sums
    total: Fraction
    on_demand: Fraction
    always_on: Fraction
    busiest: Fraction


class Hour(NamedTuple):
    """A machine's part of a clock hour, its dollars as bought, and the share of each use."""

    row: sqlite3.Row
    begin: Fraction
    end: Fraction
    dollars: Fraction
    uses: Mapping[str, Fraction]


def sums(
    path: Path,
    since: float,
    until: float,
    now: float,
    leases: Mapping[str, int],
    contracts: Sequence[Contract] = (),
    contract_cloud: str = "",
) -> Found:
    """Sum the span. ``leases``: seconds that a cloud bills at a time, by cloud."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    machines = db.execute("select * from machines order by launched, id").fetchall()
    runs = _runs(db, now)
    drains: defaultdict[str, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for row in db.execute("select * from drains"):
        end = now if row["end"] is None else row["end"]
        drains[row["node"]].append((_exact(row["begin"]), _exact(end)))
    who = {str(r["job"]) + "/" + str(r["begin"]): r for r in db.execute("select * from runs")}
    db.close()
    hours = [
        hour
        for row in machines
        for hour in _hours(row, runs, drains, since, until, now, leases.get(row["cloud"], 1))
    ]
    found = Found({}, {}, {}, Fraction(0), Fraction(0), Fraction(0), Fraction(0))
    priced, idle = _with_contracts(hours, contracts, contract_cloud, since, min(until, now))
    on_demand = idle
    for hour, dollars in priced:
        row = hour.row
        _add(found.clouds, row["cloud"], dollars)
        for use, share in hour.uses.items():
            part = dollars * share
            if use.startswith("unused"):
                _add(found.accounts, use, part)
                _add(found.users, use, part)
            else:
                _add(found.accounts, who[use]["account"] or "(none)", part)
                _add(found.users, who[use]["user"] or "(none)", part)
        dear = _dear(row)
        if row["cloud"] == contract_cloud and contracts:
            on_demand += dear * (hour.end - hour.begin) / HOUR
        elif row["price"]:
            on_demand += dollars * max(dear / Fraction(str(row["price"])), 1)
    if idle:
        for part_sums in (found.accounts, found.users):
            _add(part_sums, "unused: reserved", idle)
        _add(found.clouds, contract_cloud, idle)
    busiest = _busiest(machines, since, min(until, now), now)
    # The cluster exists from its first machine on; before that nothing could have run always.
    exists_from = max([_exact(since), *(_exact(row["launched"]) for row in machines[:1])])
    return found._replace(
        total=sum(found.clouds.values(), Fraction(0)),
        on_demand=on_demand,
        busiest=busiest,
        always_on=busiest * (_exact(min(until, now)) - exists_from) / HOUR,
    )


def expected(
    path: Path,
    until: float,
    weeks: int,
    month: tuple[float, float],
    leases: Mapping[str, int],
    contracts: Sequence[Contract] = (),
    contract_cloud: str = "",
) -> Fraction:
    """The dollars to expect in ``month``: the contracts' price there, and the mean of the other
    costs of so many weeks until the midnight ``until``.
    """
    since = until - weeks * 7 * 86400
    paid = sums(path, since, until, until, leases, contracts, contract_cloud).total
    days = Fraction(round(month[1] - month[0]), 86400)
    usage = (paid - _of_contracts(contracts, since, until)) / (weeks * 7)
    return usage * days + _of_contracts(contracts, *month)


def _of_contracts(contracts: Sequence[Contract], since: float, until: float) -> Fraction:
    hours = [
        (contract, max(min(until, contract.end) - max(since, contract.begin), 0) / HOUR)
        for contract in contracts
    ]
    return sum((contract.per_hour * _exact(hours_of) for contract, hours_of in hours), Fraction(0))


def _exact(seconds: float) -> Fraction:
    """To the millisecond."""
    return Fraction(round(seconds * 1000), 1000)


def _add(sums_of: Sums, key: str, dollars: Fraction) -> None:
    sums_of[key] = sums_of.get(key, Fraction(0)) + dollars


def _dear(row: sqlite3.Row) -> Fraction:
    return max(Fraction(str(row["worst_price"])), Fraction(str(row["price"])))


def _names(hostlist: str) -> Iterator[str]:
    """``pub[1-3,7],op1``."""
    for word in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", hostlist):
        match = re.fullmatch(r"([^\[]+)\[([^\]]*)\]", word)
        if not match:
            yield word
            continue
        for part in match[2].split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{match[1]}{number}"


def _runs(
    db: sqlite3.Connection, now: float
) -> dict[str, list[tuple[Fraction, Fraction, Fraction, str]]]:
    """By node: (begin, end, share, key of the run)."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for row in db.execute("select * from runs"):
        end = now if row["end"] is None else row["end"]
        for hostlist, share in json.loads(row["shares"]):
            for node in _names(hostlist):
                found[node].append((
                    _exact(row["begin"]), _exact(end), Fraction(share, 1_000_000),
                    f"{row['job']}/{row['begin']}",
                ))  # fmt: skip
    return found


def _hours(
    row: sqlite3.Row,
    runs: Mapping[str, Sequence[tuple[Fraction, Fraction, Fraction, str]]],
    drains: Mapping[str, Sequence[tuple[Fraction, Fraction]]],
    since: float,
    until: float,
    now: float,
    lease: int,
) -> Iterator[Hour]:
    launched = _exact(row["launched"])
    ended = _exact(now if row["ended"] is None else row["ended"])
    lived = max(ended - launched, 0)
    paid = max(lived, 60) if lease <= 1 else max(-(-lived // lease), 1) * lease
    begin, end = max(launched, _exact(since)), min(launched + paid, _exact(until))
    if begin >= end:
        return
    over = ended if row["suspending"] is None else min(_exact(row["suspending"]), ended)
    up = over if row["registered"] is None else _exact(row["registered"])
    mine = [
        (max(b, launched), min(e, ended), share, key)
        for b, e, share, key in runs.get(row["node"], ())
        if b < ended and e > launched and b <= over  # later jobs have its successor
    ]
    edges = {begin, end, up, over, *(x for b, e, _, _ in mine for x in (b, e))}
    edges |= {x for span in drains.get(row["node"], ()) for x in span}
    first = begin // HOUR
    for number in range(int(first), int(end // HOUR) + 1):
        low, high = max(begin, Fraction(number * HOUR)), min(end, Fraction((number + 1) * HOUR))
        if low >= high:
            continue
        cuts = sorted({low, high, *(x for x in edges if low < x < high)})
        in_hour = [use for use in mine if use[0] < high and use[1] > low]
        uses: Sums = {}
        for left, right in itertools.pairwise(cuts):
            here = [(share, key) for b, e, share, key in in_hour if b <= left < e]
            whole = sum((share for share, _ in here), Fraction(0))
            scale = min(Fraction(1), 1 / whole) if whole else Fraction(1)
            length = (right - left) / (high - low)
            for share, key in here:
                _add(uses, key, share * scale * length)
            if whole < 1:
                is_drained = any(b <= left < e for b, e in drains.get(row["node"], ()))
                reason = (
                    "ending" if left >= over
                    else "boot" if left < up
                    else "drain" if is_drained
                    else "idle"
                )  # fmt: skip
                _add(uses, f"unused: {reason}", (1 - whole) * length)
        yield Hour(row, low, high, Fraction(str(row["price"])) * (high - low) / HOUR, uses)


def _with_contracts(
    hours: Sequence[Hour],
    contracts: Sequence[Contract],
    cloud: str,
    since: float,
    until: float,
) -> tuple[list[tuple[Hour, Fraction]], Fraction]:
    """What each hour costs when contracts cover the oldest machines, and their idle dollars."""
    cost = {id(hour): hour.dollars for hour in hours}
    idle = Fraction(0)
    for contract in contracts:
        by_hour: defaultdict[int, list[Hour]] = defaultdict(list)
        for hour in hours:
            row = hour.row
            is_match = row["instance_type"] == contract.kind and row["market"] != "spot"
            if row["cloud"] == cloud and is_match:
                by_hour[int(hour.begin // HOUR)].append(hour)
        low, high = _exact(max(since, contract.begin)), _exact(min(until, contract.end))
        for number in range(int(low // HOUR), int(-(-high // HOUR))):
            begin, end = max(low, Fraction(number * HOUR)), min(high, Fraction((number + 1) * HOUR))
            if begin >= end:
                continue
            price, room = contract.per_hour * (end - begin) / HOUR, contract.count * (end - begin)
            whole = room
            for hour in by_hour.get(number, ()):
                took = min(max(min(hour.end, end) - max(hour.begin, begin), 0), room)
                room -= took
                cost[id(hour)] += price * took / whole
                cost[id(hour)] -= hour.dollars * took / (hour.end - hour.begin)
            idle += price * room / whole
    return [(hour, cost[id(hour)]) for hour in hours], idle


def _busiest(machines: Sequence[sqlite3.Row], since: float, until: float, now: float) -> Fraction:
    """The most dollars an hour on demand of machines that ran together."""
    spans = [
        (_exact(row["launched"]), _exact(now if row["ended"] is None else row["ended"]), _dear(row))
        for row in machines
    ]
    moments = [max(begin, _exact(since)) for begin, _, _ in spans]
    return max(
        (
            sum((dear for begin, end, dear in spans if begin <= moment < end), Fraction(0))
            for moment in moments
            if moment < _exact(until)
        ),
        default=Fraction(0),
    )


def utc(text: str) -> float:
    """Unix time of ``2026-10-01T00:00+00:00``."""
    return datetime.fromisoformat(text).timestamp()


def day(at: float) -> str:
    """``2026-10-01``, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
