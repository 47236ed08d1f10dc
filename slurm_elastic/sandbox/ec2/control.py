"""The control orders of the emulated EC2, and the client that sends them.

The parameters of an order's function are the fields of its JSON body (``steering``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.sandbox.ec2.cloud import Ec2View, EmulatedCloud, ScheduledEvent
from slurm_elastic.sandbox.ec2.reservations import EmulatedReservation
from slurm_elastic.sandbox.steering import Order, Steering


def _stock(cloud: EmulatedCloud, _now: float, pattern: str, count: int | None) -> object:
    cloud.stock.limit(pattern, count)
    return cloud.stock.limits


def _prices(
    cloud: EmulatedCloud,
    now: float,
    type: str,  # noqa: A002
    zone: str,
    price: float | None,
) -> object:
    cloud.prices.fix(type, zone, price, now)
    return tuple(cloud.prices.quotes(now))


def _replay(cloud: EmulatedCloud, now: float, trace: str, speed: float = 1.0) -> object:
    cloud.prices.replay(load_trace(Path(trace)), speed, now)
    return tuple(cloud.prices.quotes(now))


def _set_or_remove(numbers: dict[str, float], key: str, number: float | None) -> object:
    """Set the number that another service reports for ``key``; None removes the number."""
    if number is None:
        numbers.pop(key, None)
    else:
        numbers[key] = number
    return numbers


def _quotas(cloud: EmulatedCloud, _now: float, code: str, vcpus: float | None) -> object:
    return _set_or_remove(cloud.quotas, code, vcpus)


def _listed(cloud: EmulatedCloud, _now: float, type: str, price: float | None) -> object:  # noqa: A002
    return _set_or_remove(cloud.listed_prices, type, price)


def _settings(cloud: EmulatedCloud, _now: float, visible_after: float) -> object:
    cloud.visible_after = visible_after
    return {"visible_after": visible_after}


def _interrupt(
    cloud: EmulatedCloud, now: float, ids: tuple[str, ...], notice: float = 120.0
) -> object:
    return cloud.interrupt(ids, notice, now)


def _shut_down(cloud: EmulatedCloud, _now: float, ids: tuple[str, ...]) -> object:
    return cloud.shut_down(ids)


def _console(cloud: EmulatedCloud, _now: float, id: str, text: str) -> None:  # noqa: A002
    cloud.print_on(id, text)


def _schedule(
    cloud: EmulatedCloud,
    now: float,
    ids: tuple[str, ...],
    code: str,
    seconds: float,
    description: str = "The instance is scheduled for maintenance",
) -> None:
    event = ScheduledEvent(code=code, description=description, not_before=now + seconds)
    cloud.events.update(dict.fromkeys(ids, event))


def _buckets(cloud: EmulatedCloud, _now: float, frozen: bool = False) -> None:
    cloud.buckets.begin(frozen=frozen)


def _advance(cloud: EmulatedCloud, _now: float, seconds: float) -> None:
    if not cloud.buckets.on:
        raise SandboxError("the rate limits are off, so their time cannot be advanced")
    cloud.buckets.advance(seconds)


def _reserve(
    cloud: EmulatedCloud,
    _now: float,
    id: str,  # noqa: A002
    kind: str,
    type: str,  # noqa: A002
    zone: str,
    count: int,
    begins_at: float,
    ends_at: float,
    upfront: float = 0.0,
    price: float = 0.0,
) -> None:
    cloud.reservations.add(
        EmulatedReservation(
            id=id,
            kind=kind,
            type=type,
            zone=zone,
            count=count,
            begins_at=begins_at,
            ends_at=ends_at,
            upfront=upfront,
            price=price,
        )
    )


def _reset(cloud: EmulatedCloud, now: float) -> None:
    cloud.reset(now)


def _forget_ended(cloud: EmulatedCloud, _now: float, after: float) -> object:
    cloud.listed_after_end = after
    return {"listed_after_end": after}


ORDERS: Mapping[str, Order] = {
    "stock": _stock,
    "prices": _prices,
    "replay": _replay,
    "quotas": _quotas,
    "listed": _listed,
    "settings": _settings,
    "forget-ended": _forget_ended,
    "interrupt": _interrupt,
    "shut-down": _shut_down,
    "console": _console,
    "schedule": _schedule,
    "buckets": _buckets,
    "advance": _advance,
    "reserve": _reserve,
    "reset": _reset,
}


class Ec2Control(Steering):
    """Steers the emulated EC2 at ``url``. Every method may raise SandboxError."""

    cloud = "EC2"

    def state(self) -> Ec2View:
        """Return machines, faults, stock, prices and the numbers of calls."""
        return msgspec.json.decode(self._ask("GET", "state"), type=Ec2View)

    def stock(self, pattern: str, count: int | None) -> None:
        """Limit the machines whose ``type/zone/market`` matches the pattern; None: no limit."""
        self.order("stock", pattern=pattern, count=count)

    def price(self, type_: str, zone: str, price: float | None) -> None:
        """Set the spot price ($/h) where the patterns match; None returns to the trace's price."""
        self.order("prices", type=type_, zone=zone, price=price)

    def quota(self, code: str, vcpus: float | None) -> None:
        """Set the vCPUs that Service Quotas reports for a quota; None: the quota is unknown."""
        self.order("quotas", code=code, vcpus=vcpus)

    def list_price(self, type_: str, price: float | None) -> None:
        """Set the on-demand price ($/h) in the price list; None returns to the shipped price."""
        self.order("listed", type=type_, price=price)

    def replay(self, trace: Path, speed: float = 1.0) -> None:
        """Replay a price trace from its beginning, ``speed`` of its seconds per second."""
        self.order("replay", trace=str(trace.resolve()), speed=speed)

    def hide_fresh(self, seconds: float) -> None:
        """Hide new machines from Describe answers for so many seconds after their launch.

        With 0 all machines are shown at once, even the hidden ones.
        """
        self.order("settings", visible_after=seconds)

    def forget_ended(self, after: float) -> None:
        """List machines for so many seconds after their end; EC2 lists them for about an hour."""
        self.order("forget-ended", after=after)

    def interrupt(self, ids: Iterable[str], notice: float = 120.0) -> None:
        """Give notice for these spot machines, and take them after ``notice`` seconds."""
        self.order("interrupt", ids=tuple(ids), notice=notice)

    def shut_down(self, ids: Iterable[str]) -> None:
        """Let these machines power themselves off, as ``shutdown -h now`` on them does."""
        self.order("shut-down", ids=tuple(ids))

    def console(self, instance: str, text: str) -> None:
        """Set the machine's whole console output since its boot."""
        self.order("console", id=instance, text=text)

    def schedule(self, ids: Iterable[str], code: str, seconds: float, **details: str) -> None:
        """Announce maintenance of these machines in so many seconds. It never takes place."""
        self.order("schedule", ids=tuple(ids), code=code, seconds=seconds, **details)

    def throttle(self, *, frozen: bool = False) -> None:
        """Enforce EC2's published rate limits from now on (see ``buckets``)."""
        self.order("buckets", frozen=frozen)

    def advance(self, seconds: float) -> None:
        """Advance the time of the rate limits."""
        self.order("advance", seconds=seconds)

    def reserve(self, reservation: EmulatedReservation) -> None:
        """Buy a reservation, or replace the one with its id."""
        self.order("reserve", **msgspec.structs.asdict(reservation))

    def reset(self) -> None:
        """Discard all state of the cloud."""
        self.order("reset")
