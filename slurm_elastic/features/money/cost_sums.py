"""Adds the parts of machines' charges up by a key, and checks that each hour is whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from slurm_elastic.features.money.cost_keys import (
    OF_MACHINES,
    By,
    key_of_idle,
    key_of_machine,
    key_of_run,
    pool_of_idle,
)
from slurm_elastic.features.money.reserved_charges import Charge
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun, whole_id
from slurm_elastic.policies.money.cost_split import HOUR, WHOLE, CostHour, Unused, apportion
from slurm_elastic.policies.money.reservations import IdleHour
from slurm_elastic.state.ledger import Machine


class CostLine(Struct, frozen=True, kw_only=True):
    """The costs of one key in micro-dollars, and its machine-hours (half of a machine for an hour
    is 0.5). ``unused``: the key is the reason why a part of a machine was unused. ``micro_unused``:
    the unused part of ``micro``, for keys in ``OF_MACHINES``. ``user``: the job's user, if the key
    is a job.
    """

    key: str
    micro: int
    hours: float = 0.0
    micro_unused: int = 0
    unused: bool = False
    user: str = ""


class CostSums:
    """Adds charges up and checks them. ``_used``: micro-dollars by pool and key. ``_unused``:
    micro-dollars by pool, reason and key. ``_times``: machine time by "is unused" and key, in
    milliseconds times millionths of a machine. ``never_registered``: micro-dollars by reason of
    machines that ended without having been a node.
    """

    def __init__(self, by: By, runs: Sequence[ChargedRun], uid: int | None = None) -> None:
        self._by, self._runs, self._uid = by, runs, uid
        self._used: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._unused: defaultdict[tuple[str, Unused, str], int] = defaultdict(int)
        self._times: defaultdict[tuple[bool, str], int] = defaultdict(int)
        self.micro = self.pieces = 0
        self.on_demand = 0.0
        self._machines: set[tuple[str, str]] = set()
        self._paid_machines: set[tuple[str, str]] = set()
        self._paid_ms = 0
        self.never_registered: defaultdict[str, int] = defaultdict(int)
        self._users: dict[str, str] = {}  # by job
        self.problems: list[str] = []

    def add(self, charge: Charge) -> None:
        """Add the charge of a machine. A machine that was stopped and restarted has several."""
        instance = charge.machine.instance
        self.micro += charge.micro
        name = (instance.cloud, whole_id(instance.id))
        self._machines.add(name)
        # A stopped machine costs only its disk, which says nothing about the price of an hour.
        if charge.micro and not charge.machine.is_off:
            self._paid_machines.add(name)
            self._paid_ms += sum(hour.end - hour.begin for hour in charge.hours)
        self.pieces += len(charge.hours)
        self._check(charge)
        for hour in charge.hours:
            for key, micro in hour.parts.items():
                self._add(charge.machine, hour, key, micro)
                if isinstance(key, Unused) and _has_failed(charge.machine):
                    self.never_registered[key] += micro
                micro_on_demand = on_demand_micro(charge, hour, key)
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
    def paid_machines(self) -> int:
        """The number of machines that ran and cost money."""
        return len(self._paid_machines)

    @property
    def paid_hours(self) -> float:
        """The machine-hours of these."""
        return self._paid_ms / HOUR

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
            CostLine(key=key, micro=micro, hours=self._hours(key), user=self._users.get(key, ""))
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
        # Micro-dollars are whole numbers, so the sums must be exact.
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
                # A key of jobs gives no name to an unused part, which then counts under its reason.
                self._times[not name, name or str(key)] += hour.weights[key]
            return
        run = self._runs[key]
        if self._uid is None or run.uid == self._uid:
            name = key_of_run(self._by, run) or key_of_machine(self._by, machine, hour)
            if self._by is By.JOB:
                self._users[name] = run.user
            self._used[machine.pool, name] += micro
            self._times[False, name] += hour.weights[key]


def on_demand_micro(charge: Charge, hour: CostHour, key: int | Unused) -> float:
    """The micro-dollars that a part of an hour would have cost on demand."""
    if charge.is_settled:
        return hour.weights[key] / (HOUR * WHOLE) * 1e6 * on_demand_price(charge.machine)
    return hour.parts[key] * _on_demand_factor(charge.machine)


def _on_demand_factor(machine: Machine) -> float:
    """The on-demand price divided by the machine's price."""
    price = machine.instance.price
    return on_demand_price(machine) / price if price else 1.0


def _has_failed(machine: Machine) -> bool:
    """Whether the machine ended before it became a node."""
    return machine.registered_at is None and machine.ended_at is not None and not machine.is_off


def on_demand_price(machine: Machine) -> float:
    """The on-demand price of the machine ($/h). A stopped machine costs only its disk. The worst
    price of a machine bought on demand may be higher, for the caps: a spot price in another zone.
    """
    price = machine.instance.price
    is_own_price = machine.is_off or machine.instance.market is Market.ON_DEMAND
    return price if is_own_price else max(machine.worst_price, price)


def _spread(used: dict[tuple[str, str], int], unused: dict[tuple[str, Unused], int]) -> None:
    """Distribute the unused costs of each pool over the keys that used its machines, in proportion
    to their costs.
    """
    for pool in {pool for pool, _ in unused}:
        weights = {key: micro for key, micro in used.items() if key[0] == pool and micro}
        # Nobody used the pool, so its unused costs remain lines of their own.
        if not weights:
            continue
        reasons = [key for key in unused if key[0] == pool]
        for key, micro in apportion(sum(unused.pop(key) for key in reasons), weights).items():
            used[key] += micro


def _highest_first(sums: Mapping[str, int] | Mapping[Unused, int]) -> list[tuple[str, int]]:
    return sorted(((str(k), n) for k, n in sums.items()), key=lambda row: (-row[1], row[0]))


def _utc(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
