"""The cost of the ledger's machines, split over the jobs that they ran
(``policies.money.cost_split``).

``charges`` gives each machine's hours with their parts, and ``idle_reservations`` the parts of
reservations that no machine used; ``report`` sums them by a key and checks that nothing is lost on
the way: parts against hours, hours against machines, lines against the sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.config.pool_rules import lease_of
from slurm_elastic.features.cost_keys import (
    OF_MACHINES,
    By,
    key_of_idle,
    key_of_machine,
    key_of_run,
    pool_of_idle,
)
from slurm_elastic.features.reserved_charges import Charge, settled
from slurm_elastic.model.memory import ChargedRun, Drained, whole_id
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.cost_split import (
    HOUR,
    WHOLE,
    CostHour,
    Drain,
    PaidTime,
    RunUse,
    Unused,
    apportion,
    paid_until,
    split,
)
from slurm_elastic.policies.money.reservations import IdleHour
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.ledger.books import MINIMUM
from slurm_elastic.state.ledger.retention import MACHINES_KEPT

MAX_PROBLEMS = 20
UNKNOWN_LEASE_S = 1
"""Billing unit (seconds) of a cloud that is no longer configured."""


class CostLine(Struct, frozen=True, kw_only=True):
    """The costs of one key in micro-dollars, and its machine-hours (half of a machine for an hour
    is 0.5). ``unused``: the key is the reason why a part of a machine was unused. ``micro_unused``:
    the unused part of ``micro``, for keys in ``OF_MACHINES``.
    """

    key: str
    micro: int
    hours: float = 0.0
    micro_unused: int = 0
    unused: bool = False


class Costs(Struct, frozen=True, kw_only=True):
    """Costs from ``since`` until ``until`` (Unix time), most expensive first, unused parts last.

    ``micro``: the machines' charges in that time in micro-dollars. ``hours``: the machine-hours.
    ``own``: only the jobs of one user are included. ``shared``: jobs pay the unused parts.
    ``pieces``: the number of sums that were checked, each within one clock hour of a machine.
    ``problems``: sums that do not add up. ``micro_on_demand``: the costs of the same machines at
    on-demand prices, if the cloud quoted them (None: answer of an older release).
    """

    by: By
    since: float
    until: float
    lines: tuple[CostLine, ...] = ()
    micro: int = 0
    micro_on_demand: int | None = None
    machines: int = 0
    hours: float = 0.0
    pieces: int = 0
    own: bool = False
    shared: bool = False
    problems: tuple[str, ...] = ()


class CostRows(NamedTuple):
    """The ledger's rows of a span of time (Unix time). ``held``: the reservations by cloud."""

    since: float
    until: float
    now: float
    machines: Sequence[Machine]
    runs: Sequence[ChargedRun]
    drains: Sequence[Drained]
    leases: Mapping[str, int]
    held: Mapping[str, Sequence[Held]] = {}


def read_books(
    config: Config, ledger: Ledger, since: float, until: float | None, now: float
) -> CostRows:
    """Read the rows of a span from the ledger. ``since`` is moved to the begin of the ledger's
    retention. If ``until`` is None, leases count to their ends, which may lie in the future.
    """
    leases = {cloud.name: lease_of(config, cloud) for cloud in config.clouds}
    longest = max(leases.values(), default=1)
    since = max(since, now - MACHINES_KEPT)
    until = now + longest + MINIMUM if until is None else until
    machines = [
        machine
        # A machine that ended before the span is paid to the end of its lease, which may lie in it.
        for machine in ledger.machines.live(ended_since=since - longest - MINIMUM, stopped=True)
        if machine.instance.launched < until
    ]
    begin = min([since, *(m.instance.launched for m in machines)])
    return CostRows(
        since,
        until,
        now,
        machines,
        ledger.usage.runs(begin, until),
        ledger.usage.drains(begin, until),
        leases,
        {cloud.name: cloud.held for cloud in config.clouds if cloud.reservations},
    )


def charges(books: CostRows) -> Iterator[Charge]:
    """Yield the charges of each machine that was paid in the span."""
    bought = _bought(books)
    if not books.held:
        yield from bought
        return
    listed = list(bought)
    repriced = {
        index: c
        for held in settled(books.held, listed, *_billed_span(books))
        for index, c in held.charges.items()
    }
    yield from (repriced.get(index, charge) for index, charge in enumerate(listed))


def idle_reservations(books: CostRows) -> tuple[IdleHour, ...]:
    """Return the parts of reservations that no machine used in the span, hour by hour."""
    if not books.held:
        return ()
    of_clouds = settled(books.held, list(_bought(books)), *_billed_span(books))
    return tuple(hour for of_cloud in of_clouds for hour in of_cloud.idle)


def _billed_span(books: CostRows) -> tuple[int, int]:
    """The span in ms. The future is not billed yet."""
    return _ms(books.since), _ms(min(books.until, books.now))


def _bought(books: CostRows) -> Iterator[Charge]:
    """Yield the charges at the prices at which the machines were bought."""
    uses, drains = _uses(books.runs, books.now), _drains(books.drains, books.now)
    since, until = _ms(books.since), _ms(books.until)
    for machine in books.machines:
        lease = leasekey_of_machine(machine, books)
        begin, end = max(lease.begin, since), min(lease.end, until)
        if begin >= end:
            continue
        node, service_end = machine.instance.node, min(lease.end, _ms(_ended(machine, books.now)))
        # While a machine is stopped, another machine serves its node and runs the node's jobs.
        node_uses = () if lease.stopped else uses.get(node, ())
        machine_uses = [
            _within(u, lease.begin, service_end) for u in node_uses if u.end > lease.begin
        ]
        hours = split(
            lease, [u for u in machine_uses if u.begin < u.end], drains.get(node, ()), begin, end
        )
        yield Charge(machine, lease.between(begin, end), tuple(hours))


def leasekey_of_machine(machine: Machine, books: CostRows) -> PaidTime:
    """The machine's lease, as known at ``books.now``."""
    instance, ended = machine.instance, _ended(machine, books.now)
    unit = books.leases.get(instance.cloud, UNKNOWN_LEASE_S)
    paid = paid_until(instance.launched, ended, unit, MINIMUM)
    service_end = ended if machine.retired_at is None else min(machine.retired_at, ended)
    up = service_end if machine.registered_at is None else machine.registered_at
    stopped = machine.is_off
    return PaidTime(
        _ms(instance.launched), _ms(paid), instance.price, _ms(up), _ms(service_end), stopped
    )


def report(books: CostRows, by: By, *, share_unused: bool = False, uid: int | None = None) -> Costs:
    """Sum the costs by the key ``by``, for all jobs or only for the jobs of one user (``uid``).

    ``share_unused``: the jobs of a pool pay the unused parts of its machines, in proportion to
    their use. The unused parts of a pool without jobs stay unused. It has no effect with ``uid``.
    """
    jobs = {run.job for run in books.runs if run.uid == uid}
    # With reservations all machines are read, because they share the price.
    all_books, books = books, books if uid is None else of_jobs(books, jobs)
    sums = _Sums(by, books.runs, uid)
    kept = {(m.instance.cloud, m.instance.id) for m in books.machines}
    for charge in charges(all_books if all_books.held else books):
        if (charge.machine.instance.cloud, charge.machine.instance.id) in kept:
            sums.add(charge)
    for idle in () if uid is not None else idle_reservations(books):
        sums.add_idle(idle)
    # The sums of one user lack the other users, who would pay their part of the unused time.
    lines = sums.lines(share_unused=share_unused and uid is None)
    total, problems = sum(line.micro for line in lines), sums.problems
    # The lines of one user are a part of the charges, so there is no total to compare them with.
    if uid is None and total != sums.micro:
        problems = [f"lines sum to {total} micro-dollars, charged is {sums.micro}", *problems]
    return Costs(
        by=by,
        since=books.since,
        until=min(books.until, books.now),
        lines=tuple(lines),
        micro=total,
        micro_on_demand=round(sums.on_demand),
        machines=sums.machines,
        hours=sums.hours,
        pieces=sums.pieces,
        own=uid is not None,
        shared=share_unused and uid is None,
        problems=tuple(problems[:MAX_PROBLEMS]),
    )


def of_jobs(books: CostRows, jobs: Collection[int]) -> CostRows:
    """Return the books with only the machines that these jobs may have used."""
    hostlists = {nodes for run in books.runs if run.job in jobs for nodes, _ in run.shares}
    nodes = {node for hostlist in hostlists for node in expand(hostlist)}
    machines = [machine for machine in books.machines if machine.instance.node in nodes]
    return books._replace(machines=machines)


class _Sums:
    """Adds charges up and checks them. ``_used``: micro-dollars by pool and key. ``_unused``:
    micro-dollars by pool, reason and key. ``_times``: machine time by "is unused" and key, in
    milliseconds times millionths of a machine.
    """

    def __init__(self, by: By, runs: Sequence[ChargedRun], uid: int | None = None) -> None:
        self._by, self._runs, self._uid = by, runs, uid
        self._used: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._unused: defaultdict[tuple[str, Unused, str], int] = defaultdict(int)
        self._times: defaultdict[tuple[bool, str], int] = defaultdict(int)
        self.micro = self.pieces = 0
        self.on_demand = 0.0
        self._machines: set[tuple[str, str]] = set()
        self.problems: list[str] = []

    def add(self, charge: Charge) -> None:
        """Add the charge of a machine. A machine that was stopped and restarted has several."""
        instance = charge.machine.instance
        self.micro += charge.micro
        self._machines.add((instance.cloud, whole_id(instance.id)))
        self.pieces += len(charge.hours)
        self._check(charge)
        for hour in charge.hours:
            factor = None if charge.is_settled else _on_demand_factor(charge.machine)
            for key, micro in hour.parts.items():
                self._add(charge.machine, hour, key, micro)
                if factor is None:
                    weight = hour.weights[key] / (HOUR * WHOLE) * 1e6
                    micro_on_demand = weight * _on_demand_price(charge.machine)
                else:
                    micro_on_demand = micro * factor
                if isinstance(key, Unused):
                    is_counted = self._uid is None
                else:
                    is_counted = self._uid in (None, self._runs[key].uid)
                self.on_demand += micro_on_demand if is_counted else 0.0

    def add_idle(self, idle: IdleHour) -> None:
        """Add the part of a reservation that no machine used."""
        reason, pool = Unused.RESERVED, pool_of_idle(idle)
        self.micro += idle.micro
        self.on_demand += idle.micro
        self.pieces += 1
        self._unused[pool, reason, key_of_idle(self._by, idle)] += idle.micro

    @property
    def machines(self) -> int:
        """The number of machines; a restarted machine counts once."""
        return len(self._machines)

    @property
    def hours(self) -> float:
        """Machine-hours, including machines that cost nothing."""
        return sum(self._times.values()) / (HOUR * WHOLE)

    def lines(self, *, share_unused: bool) -> list[CostLine]:
        """Return the lines, most expensive first, unused parts last."""
        if self._by in OF_MACHINES:
            return self._of_machines()
        used, unused = dict(self._used), self._unused_by_pool()
        if share_unused:
            _spread(used, unused)
        by_key: defaultdict[str, int] = defaultdict(int)
        for (_, key), micro in used.items():
            by_key[key] += micro
        by_reason: defaultdict[Unused, int] = defaultdict(int)
        for (_, reason), micro in unused.items():
            by_reason[reason] += micro
        lines = [
            CostLine(key=key, micro=micro, hours=self._hours(key))
            for key, micro in _highest_first(by_key)
        ]
        return lines + [
            CostLine(
                key=str(reason), micro=micro, hours=self._hours(reason, unused=True), unused=True
            )
            for reason, micro in _highest_first(by_reason)
            if micro
        ]

    def _of_machines(self) -> list[CostLine]:
        total_by_key: defaultdict[str, int] = defaultdict(int)
        unused_by_key: defaultdict[str, int] = defaultdict(int)
        for (_, key), micro in self._used.items():
            total_by_key[key] += micro
        for (_, _, key), micro in self._unused.items():
            total_by_key[key] += micro
            unused_by_key[key] += micro
        order = sorted(total_by_key.items()) if self._by is By.DAY else _highest_first(total_by_key)
        return [
            CostLine(key=key, micro=micro, hours=self._hours(key), micro_unused=unused_by_key[key])
            for key, micro in order
        ]

    def _hours(self, key: str, *, unused: bool = False) -> float:
        return self._times[unused, str(key)] / (HOUR * WHOLE)

    def _unused_by_pool(self) -> dict[tuple[str, Unused], int]:
        by_pool: defaultdict[tuple[str, Unused], int] = defaultdict(int)
        for (pool, reason, _), micro in self._unused.items():
            by_pool[pool, reason] += micro
        return dict(by_pool)

    def _check(self, charge: Charge) -> None:
        name = f"{charge.machine.instance.cloud}/{charge.machine.instance.id}"
        if sum(hour.micro for hour in charge.hours) != charge.micro:
            self.problems.append(f"{name}: its hours do not sum to its charge {charge.micro}")
        self.problems += [
            f"{name}: the parts of the hour from {_utc(hour.begin)} do not sum to it"
            for hour in charge.hours
            if sum(hour.parts.values()) != hour.micro
        ]

    def _add(self, machine: Machine, hour: CostHour, key: int | Unused, micro: int) -> None:
        if isinstance(key, Unused):
            if self._uid is None:
                name = key_of_machine(self._by, machine, hour)
                self._unused[machine.pool, key, name] += micro
                self._times[not name, name or str(key)] += hour.weights[key]
            return
        run = self._runs[key]
        if self._uid is None or run.uid == self._uid:
            name = key_of_run(self._by, run) or key_of_machine(self._by, machine, hour)
            self._used[machine.pool, name] += micro
            self._times[False, name] += hour.weights[key]


def _on_demand_factor(machine: Machine) -> float:
    """The on-demand price divided by the machine's price. 1 for a stopped machine, because only its
    disk is paid.
    """
    price = machine.instance.price
    return 1.0 if machine.is_off or not price else max(machine.worst_price / price, 1.0)


def _on_demand_price(machine: Machine) -> float:
    """The on-demand price of the machine ($/h). A stopped machine costs only its disk."""
    price = machine.instance.price
    return price if machine.is_off else max(machine.worst_price, price)


def _spread(used: dict[tuple[str, str], int], unused: dict[tuple[str, Unused], int]) -> None:
    """Distribute the unused costs of each pool over the keys that used its machines, in proportion
    to their costs.
    """
    for pool in {pool for pool, _ in unused}:
        weights = {key: micro for key, micro in used.items() if key[0] == pool and micro}
        if not weights:
            continue
        reasons = [key for key in unused if key[0] == pool]
        for key, micro in apportion(sum(unused.pop(key) for key in reasons), weights).items():
            used[key] += micro


def _highest_first(sums: Mapping[str, int] | Mapping[Unused, int]) -> list[tuple[str, int]]:
    return sorted(((str(k), n) for k, n in sums.items()), key=lambda row: (-row[1], row[0]))


def _uses(runs: Sequence[ChargedRun], now: float) -> dict[str, list[RunUse]]:
    """The uses of each node; ``now`` is the end of a run that has none."""
    uses_by_node: dict[str, list[RunUse]] = {}
    for number, run in enumerate(runs):
        end = _ms(now if run.end is None else run.end)
        for nodes, share in run.shares:
            for node in expand(nodes):
                uses_by_node.setdefault(node, []).append(RunUse(number, _ms(run.begin), end, share))
    return uses_by_node


def _within(use: RunUse, begin: int, end: int) -> RunUse:
    return use._replace(begin=max(use.begin, begin), end=min(use.end, end))


def _drains(rows: Sequence[Drained], now: float) -> dict[str, list[Drain]]:
    drains_by_node: dict[str, list[Drain]] = {}
    for row in rows:
        end = now if row.end is None else row.end
        drains_by_node.setdefault(row.node, []).append(Drain(_ms(row.begin), _ms(end)))
    return drains_by_node


def _ended(machine: Machine, now: float) -> float:
    return now if machine.ended_at is None else machine.ended_at


def _ms(time_s: float) -> int:
    return round(time_s * 1000)


def _utc(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
