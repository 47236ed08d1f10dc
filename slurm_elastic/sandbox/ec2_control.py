"""The orders that the emulated EC2 takes, and who gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.sandbox.ec2_cloud import EmulatedCloud, Event, View
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


def _put(told: dict[str, float], of: str, number: float | None) -> object:
    """A number that another service tells: set, or forgotten (None)."""
    if number is None:
        told.pop(of, None)
    else:
        told[of] = number
    return told


def _quotas(cloud: EmulatedCloud, _now: float, code: str, vcpus: float | None) -> object:
    return _put(cloud.quotas, code, vcpus)


def _listed(cloud: EmulatedCloud, _now: float, type: str, price: float | None) -> object:  # noqa: A002
    return _put(cloud.listed_prices, type, price)


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
    event = Event(code=code, description=description, not_before=now + seconds)
    cloud.events.update(dict.fromkeys(ids, event))


def _buckets(cloud: EmulatedCloud, _now: float, frozen: bool = False) -> None:
    cloud.buckets.begin(frozen=frozen)


def _advance(cloud: EmulatedCloud, _now: float, seconds: float) -> None:
    if not cloud.buckets.on:
        raise SandboxError("there are no buckets whose time could be set ahead")
    cloud.buckets.advance(seconds)


def _reset(cloud: EmulatedCloud, now: float) -> None:
    cloud.reset(now)


ORDERS: Mapping[str, Order] = {
    "stock": _stock,
    "prices": _prices,
    "replay": _replay,
    "quotas": _quotas,
    "listed": _listed,
    "settings": _settings,
    "interrupt": _interrupt,
    "shut-down": _shut_down,
    "console": _console,
    "schedule": _schedule,
    "buckets": _buckets,
    "advance": _advance,
    "reset": _reset,
}


class Ec2Control(Steering):
    """Steers the emulated EC2 at ``url``. Every method may raise SandboxError."""

    cloud = "EC2"

    def state(self) -> View:
        """Machines, faults, stock, prices and how many calls there were."""
        return msgspec.json.decode(self._ask("GET", "state"), type=View)

    def stock(self, pattern: str, count: int | None) -> None:
        """Have ``count`` machines where ``type/zone/market`` fits the pattern; None: no bound."""
        self.order("stock", pattern=pattern, count=count)

    def price(self, type_: str, zone: str, price: float | None) -> None:
        """Set the spot price ($/h) where the patterns fit; None gives it back to the trace."""
        self.order("prices", type=type_, zone=zone, price=price)

    def quota(self, code: str, vcpus: float | None) -> None:
        """Have Service Quotas tell so many vCPUs for a quota of EC2; None: it knows no such one."""
        self.order("quotas", code=code, vcpus=vcpus)

    def list_price(self, type_: str, price: float | None) -> None:
        """Have the price list tell this price on demand ($/h); None: its own again."""
        self.order("listed", type=type_, price=price)

    def replay(self, trace: Path, speed: float = 1.0) -> None:
        """Replay a price trace from its beginning, so many of its seconds a second."""
        self.order("replay", trace=str(trace.resolve()), speed=speed)

    def hide_fresh(self, seconds: float) -> None:
        """Have machines launched from now on missing from Describe answers for so long.

        With 0 all are shown at once, those hidden before, too.
        """
        self.order("settings", visible_after=seconds)

    def interrupt(self, ids: Iterable[str], notice: float = 120.0) -> None:
        """Announce that these spot machines are taken in ``notice`` seconds, and take them then."""
        self.order("interrupt", ids=tuple(ids), notice=notice)

    def shut_down(self, ids: Iterable[str]) -> None:
        """These machines power themselves off, as by ``shutdown -h now`` on them."""
        self.order("shut-down", ids=tuple(ids))

    def console(self, instance: str, text: str) -> None:
        """Have EC2 show this as all that the machine has printed since its boot."""
        self.order("console", id=instance, text=text)

    def schedule(self, ids: Iterable[str], code: str, seconds: float, **more: str) -> None:
        """Announce maintenance of these machines in so many seconds; nothing comes of it."""
        self.order("schedule", ids=tuple(ids), code=code, seconds=seconds, **more)

    def throttle(self, *, frozen: bool = False) -> None:
        """Enforce EC2's published limits of its API from now on; see ``ec2_buckets``."""
        self.order("buckets", frozen=frozen)

    def advance(self, seconds: float) -> None:
        """Have so much more time go by for those limits."""
        self.order("advance", seconds=seconds)

    def reset(self) -> None:
        """Have the cloud forget everything."""
        self.order("reset")
