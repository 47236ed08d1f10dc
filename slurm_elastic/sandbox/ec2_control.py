"""Steering the emulated EC2: the control API under ``/_sandbox/``, both of its ends.

``GET state``; ``POST faults`` (a Fault, or ``{"clear": true}``), ``stock``, ``prices``, ``quotas``,
``listed``, ``settings``, ``interrupt``, ``shut-down``, ``console``, ``schedule``, ``buckets``,
``advance``, ``reset``.
Bodies and answers are JSON; an answer other than 200 carries ``{"error": sentence}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SandboxError
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.sandbox.ec2_faults import Fault
from slurm_elastic.sandbox.ec2_spot import Event
from slurm_elastic.sandbox.steering import Steering

if TYPE_CHECKING:
    from slurm_elastic.sandbox.ec2_cloud import EmulatedCloud, View


class _Order(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of an order's body."""


class _Stock(_Order, frozen=True, kw_only=True):
    pattern: str
    count: int | None


class _Price(_Order, frozen=True, kw_only=True):
    type: str
    zone: str
    price: float | None


class _Trace(_Order, frozen=True, kw_only=True):
    trace: str
    speed: float = 1.0


class _Quota(_Order, frozen=True, kw_only=True):
    code: str
    vcpus: float | None


class _Listed(_Order, frozen=True, kw_only=True):
    type: str
    price: float | None


class _Settings(_Order, frozen=True, kw_only=True):
    visible_after: float


class _Interrupt(_Order, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    notice: float = 120.0


class _ShutDown(_Order, frozen=True, kw_only=True):
    ids: tuple[str, ...]


class _Console(_Order, frozen=True, kw_only=True):
    id: str
    text: str


class _Schedule(_Order, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    code: str
    seconds: float
    description: str = "The instance is scheduled for maintenance"


class _Buckets(_Order, frozen=True, kw_only=True):
    frozen: bool = False


class _Advance(_Order, frozen=True, kw_only=True):
    seconds: float


def carry_out(cloud: EmulatedCloud, method: str, name: str, body: bytes, now: float) -> object:
    """One request to the control API: what it answers. SandboxError where it is wrong."""
    if (method, name) == ("GET", "state"):
        return cloud.view(now)
    order = _ORDERS.get(name) if method == "POST" else None
    if order is None:
        raise SandboxError(f"the control API has no {method} {name!r}")
    try:
        return order(cloud, body or b"{}", now)
    except (msgspec.ValidationError, msgspec.DecodeError, ConfigError) as error:
        raise SandboxError(f"{name}: {error}") from error


def _faults(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    if msgspec.json.decode(body) == {"clear": True}:
        cloud.faults.clear()
    else:
        cloud.faults.add(msgspec.json.decode(body, type=Fault))
    return cloud.faults.standing()


def _stock(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=_Stock)
    cloud.stock.limit(order.pattern, order.count)
    return cloud.stock.limits


def _prices(cloud: EmulatedCloud, body: bytes, now: float) -> object:
    if "trace" in msgspec.json.decode(body, type=dict[str, Any]):
        replay = msgspec.json.decode(body, type=_Trace)
        cloud.prices.replay(load_trace(Path(replay.trace)), replay.speed, now)
    else:
        order = msgspec.json.decode(body, type=_Price)
        cloud.prices.fix(order.type, order.zone, order.price, now)
    return tuple(cloud.prices.quotes(now))


def _quotas(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=_Quota)
    if order.vcpus is None:
        cloud.quotas.pop(order.code, None)
    else:
        cloud.quotas[order.code] = order.vcpus
    return cloud.quotas


def _listed(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=_Listed)
    if order.price is None:
        cloud.listed_prices.pop(order.type, None)
    else:
        cloud.listed_prices[order.type] = order.price
    return cloud.listed_prices


def _settings(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    cloud.visible_after = msgspec.json.decode(body, type=_Settings).visible_after
    return {"visible_after": cloud.visible_after}


def _interrupt(cloud: EmulatedCloud, body: bytes, now: float) -> object:
    order = msgspec.json.decode(body, type=_Interrupt)
    return cloud.interrupt(order.ids, order.notice, now)


def _shut_down(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    return cloud.shut_down(msgspec.json.decode(body, type=_ShutDown).ids)


def _console(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=_Console)
    cloud.print_on(order.id, order.text)
    return {}


def _schedule(cloud: EmulatedCloud, body: bytes, now: float) -> object:
    order = msgspec.json.decode(body, type=_Schedule)
    event = Event(code=order.code, description=order.description, not_before=now + order.seconds)
    cloud.events.update(dict.fromkeys(order.ids, event))
    return {}


def _buckets(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    cloud.buckets.begin(frozen=msgspec.json.decode(body, type=_Buckets).frozen)
    return {}


def _advance(cloud: EmulatedCloud, body: bytes, _now: float) -> object:
    if not cloud.buckets.on:
        raise SandboxError("there are no buckets whose time could be set ahead")
    cloud.buckets.advance(msgspec.json.decode(body, type=_Advance).seconds)
    return {}


def _reset(cloud: EmulatedCloud, _body: bytes, now: float) -> object:
    cloud.reset(now)
    return {}


_ORDERS: Mapping[str, Callable[[EmulatedCloud, bytes, float], object]] = {
    "faults": _faults,
    "stock": _stock,
    "prices": _prices,
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
    """The other end: steers the emulated EC2 at ``url``. Every method may raise SandboxError."""

    cloud = "EC2"

    def state(self) -> View:
        """Machines, faults, stock, prices and how many calls there were."""
        # Here and not above: the module imports this one's other end, and with it moto's words.
        from slurm_elastic.sandbox.ec2_cloud import View

        return msgspec.json.decode(self._ask("GET", "state"), type=View)

    def stock(self, pattern: str, count: int | None) -> None:
        """Have ``count`` machines where ``type/zone/market`` fits the pattern; None: no bound."""
        self._ask("POST", "stock", _Stock(pattern=pattern, count=count))

    def price(self, type_: str, zone: str, price: float | None) -> None:
        """Set the spot price ($/h) where the patterns fit; None gives it back to the trace."""
        self._ask("POST", "prices", _Price(type=type_, zone=zone, price=price))

    def quota(self, code: str, vcpus: float | None) -> None:
        """Have Service Quotas tell so many vCPUs for a quota of EC2; None: it knows no such one."""
        self._ask("POST", "quotas", _Quota(code=code, vcpus=vcpus))

    def list_price(self, type_: str, price: float | None) -> None:
        """Have the price list tell this price on demand ($/h); None: its own again."""
        self._ask("POST", "listed", _Listed(type=type_, price=price))

    def replay(self, trace: Path, speed: float = 1.0) -> None:
        """Replay a price trace from its beginning, so many of its seconds a second."""
        self._ask("POST", "prices", _Trace(trace=str(trace.resolve()), speed=speed))

    def hide_fresh(self, seconds: float) -> None:
        """Have machines launched from now on missing from Describe answers for so long.

        With 0 all are shown at once, those hidden before, too.
        """
        self._ask("POST", "settings", _Settings(visible_after=seconds))

    def interrupt(self, ids: Iterable[str], notice: float = 120.0) -> None:
        """Announce that these spot machines are taken in ``notice`` seconds, and take them then."""
        self._ask("POST", "interrupt", _Interrupt(ids=tuple(ids), notice=notice))

    def shut_down(self, ids: Iterable[str]) -> None:
        """These machines power themselves off, as by ``shutdown -h now`` on them."""
        self._ask("POST", "shut-down", _ShutDown(ids=tuple(ids)))

    def console(self, instance: str, text: str) -> None:
        """Have EC2 show this as all that the machine has printed since its boot."""
        self._ask("POST", "console", _Console(id=instance, text=text))

    def schedule(self, ids: Iterable[str], code: str, seconds: float, **more: str) -> None:
        """Announce maintenance of these machines in so many seconds; nothing comes of it."""
        order = _Schedule(ids=tuple(ids), code=code, seconds=seconds, **more)
        self._ask("POST", "schedule", order)

    def throttle(self, *, frozen: bool = False) -> None:
        """Enforce EC2's published limits of its API from now on; see ``ec2_buckets``."""
        self._ask("POST", "buckets", _Buckets(frozen=frozen))

    def advance(self, seconds: float) -> None:
        """Have so much more time gone by for those limits."""
        self._ask("POST", "advance", _Advance(seconds=seconds))

    def reset(self) -> None:
        """Have the cloud forget everything."""
        self._ask("POST", "reset", {})
