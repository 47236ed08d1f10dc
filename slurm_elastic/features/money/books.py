"""The cost of the ledger's machines, split over the jobs that they ran
(``policies.money.cost_split``).

``charges`` gives each machine's hours with their parts, and ``idle_reservations`` the parts of
reservations that no machine used. ``report`` sums them by a key (``reports`` by several keys) and
checks that nothing is lost on the way: parts against hours, hours against machines, lines against
the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.base.billing import MINIMUM_S, paid_until
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.cost_sums import CostLine, CostSums, on_demand_price
from slurm_elastic.features.money.reserved_charges import Charge, SettledCloud, settled
from slurm_elastic.model.memory import ChargedRun, Drained
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.always_on import Fleet, RunningSpan, busiest_fleet
from slurm_elastic.policies.money.cost_split import (
    Drain,
    PaidTime,
    RunUse,
    split,
)
from slurm_elastic.policies.money.reservations import IdleHour
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.ledger.retention import MACHINES_KEPT

MAX_PROBLEMS = 20


class Costs(Struct, frozen=True, kw_only=True):
    """Costs from ``since`` until ``until`` (Unix time), most expensive first, unused parts last.

    ``micro``: the machines' charges in that time in micro-dollars. ``hours``: the machine-hours.
    ``paid_machines``, ``paid_hours``: the machines that cost money while they ran, and their hours.
    ``own``: only the jobs of one user are included. ``shared``: jobs pay the unused parts.
    ``never_registered``: the unused micro-dollars, by reason, of machines that ended without having
    been a node. ``pieces``: the number of sums that were checked, each within one clock hour of a
    machine. ``problems``: sums that do not add up. ``micro_on_demand``: the costs of the same
    machines at on-demand prices, if the cloud quoted them (None: answer of an older release).
    ``fleet``: the machines of the busiest moment (None: none cost money, or only own jobs are
    included).
    ``held``: the reservations whose prices the costs contain (empty if only own jobs are included).
    ``first_launch``: when the first machine on record was launched, at whatever time (None: there
    is none, or only own jobs are included).
    """

    by: By
    since: float
    until: float
    lines: tuple[CostLine, ...] = ()
    micro: int = 0
    micro_on_demand: int | None = None
    fleet: Fleet | None = None
    first_launch: float | None = None
    machines: int = 0
    hours: float = 0.0
    paid_machines: int = 0
    paid_hours: float = 0.0
    pieces: int = 0
    own: bool = False
    shared: bool = False
    never_registered: Mapping[str, int] = {}
    problems: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()


class CostRows(NamedTuple):
    """The ledger's rows of a span of time (Unix time). ``held``: the reservations by cloud."""

    since: float
    until: float
    now: float
    machines: Sequence[Machine]
    runs: Sequence[ChargedRun]
    drains: Sequence[Drained]
    held: Mapping[str, Sequence[Held]] = {}
    first_launch: float | None = None


def read_books(
    config: Config, ledger: Ledger, since: float, until: float | None, now: float
) -> CostRows:
    """Read the rows of a span from the ledger. ``since`` is moved to the begin of the ledger's
    retention. If ``until`` is None, leases count to their ends, which may lie in the future.
    """
    longest = ledger.books.longest_increment()
    since = max(since, now - MACHINES_KEPT)
    # A begun lease is paid to its end, which may lie in the future.
    until = now + longest + MINIMUM_S if until is None else until
    machines = [
        machine
        # A machine that ended before the span is paid to the end of its lease, which may lie in it.
        for machine in ledger.machines.live(ended_since=since - longest - MINIMUM_S, stopped=True)
        if machine.instance.launched < until
    ]
    begin = min([since, *(m.instance.launched for m in machines)])
    held = ledger.books.counted_reservations(config.held, now)
    return CostRows(
        since,
        until,
        now,
        machines,
        ledger.usage.runs(begin, until),
        ledger.usage.drains(begin, until),
        held,
        ledger.books.first_launch(),
    )


def charges(books: CostRows) -> Iterator[Charge]:
    """Yield the charges of each machine that was paid in the span."""
    bought = _bought(books)
    if not books.held:
        yield from bought
        return
    # All charges at once, because the machines of an hour share the reservations.
    listed = list(bought)
    repriced = {index: c for held in _settled(books, listed) for index, c in held.charges.items()}
    yield from (repriced.get(index, charge) for index, charge in enumerate(listed))


def idle_reservations(books: CostRows) -> tuple[IdleHour, ...]:
    """Return the parts of reservations that no machine used in the span, hour by hour."""
    if not books.held:
        return ()
    of_clouds = _settled(books, list(_bought(books)))
    return tuple(hour for of_cloud in of_clouds for hour in of_cloud.idle)


def _settled(books: CostRows, bought: Sequence[Charge]) -> Iterator[SettledCloud]:
    return settled(books.held, bought, *_billed_span(books))


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
        # While a machine is stopped, another machine serves its node and runs the node's jobs. The
        # same after the decision to end it: if the cloud refuses to end it, it is paid for days.
        node_uses = () if lease.stopped else uses.get(node, ())
        machine_uses = [
            _within(u, lease.begin, service_end)
            for u in node_uses
            if u.end > lease.begin and u.begin <= lease.over
        ]
        hours = split(
            lease, [u for u in machine_uses if u.begin < u.end], drains.get(node, ()), begin, end
        )
        yield Charge(machine, lease.between(begin, end), tuple(hours))


def leasekey_of_machine(machine: Machine, books: CostRows) -> PaidTime:
    """The machine's lease, as known at ``books.now``."""
    instance, ended = machine.instance, _ended(machine, books.now)
    paid = paid_until(instance.launched, ended, machine.terms.billing_increment_s)
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
    return reports(books, (by,), share_unused=share_unused, uid=uid)[by]


def reports(
    books: CostRows, keys: Sequence[By], *, share_unused: bool = False, uid: int | None = None
) -> dict[By, Costs]:
    """Sum the costs by each key of ``keys``; see ``report``. The charges are split only once."""
    jobs = {run.job for run in books.runs if run.uid == uid}
    # Reservations need all machines, because these share the price.
    all_books, books = books, books if uid is None else of_jobs(books, jobs)
    sums_by_key = {by: CostSums(by, books.runs, uid) for by in keys}
    kept = {(m.instance.cloud, m.instance.id) for m in books.machines}
    for charge in charges(all_books if all_books.held else books):
        if (charge.machine.instance.cloud, charge.machine.instance.id) in kept:
            for sums in sums_by_key.values():
                sums.add(charge)
    for idle in () if uid is not None else idle_reservations(books):
        for sums in sums_by_key.values():
            sums.add_idle(idle)
    fleet = None if uid is not None else _busiest_fleet(books)
    return {
        by: _costs(books, sums, by, fleet, share_unused=share_unused, uid=uid)
        for by, sums in sums_by_key.items()
    }


def _costs(
    books: CostRows,
    sums: CostSums,
    by: By,
    fleet: Fleet | None,
    *,
    share_unused: bool,
    uid: int | None,
) -> Costs:
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
        fleet=fleet,
        first_launch=books.first_launch if uid is None else None,
        machines=sums.machines,
        hours=sums.hours,
        paid_machines=sums.paid_machines,
        paid_hours=sums.paid_hours,
        pieces=sums.pieces,
        own=uid is not None,
        shared=share_unused and uid is None,
        never_registered=dict(sums.never_registered) if uid is None else {},
        problems=tuple(problems[:MAX_PROBLEMS]),
        held=() if uid is not None else tuple(h for held in books.held.values() for h in held),
    )


def _busiest_fleet(books: CostRows) -> Fleet | None:
    """The machines that ran at the moment with the highest on-demand price per hour."""
    spans = (
        RunningSpan(
            _ms(machine.instance.launched),
            _ms(_ended(machine, books.now)),
            round(on_demand_price(machine) * 1_000_000),
        )
        for machine in books.machines
        if not machine.is_off
    )
    return busiest_fleet(spans, *_billed_span(books))


def of_jobs(books: CostRows, jobs: Collection[int]) -> CostRows:
    """Return the books with only the machines that these jobs may have used."""
    hostlists = {nodes for run in books.runs if run.job in jobs for nodes, _ in run.shares}
    nodes = {node for hostlist in hostlists for node in expand(hostlist)}
    machines = [machine for machine in books.machines if machine.instance.node in nodes]
    return books._replace(machines=machines)


def _uses(runs: Sequence[ChargedRun], now: float) -> dict[str, list[RunUse]]:
    """The uses of each node. A run that has not ended is counted until ``now``."""
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
