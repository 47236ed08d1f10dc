"""Reads a cloud's list of machines with doubt, before anybody acts on it. Many hands can change a
tag: one that makes no sense must neither stop the others' adoption nor pass for the truth. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import money
from slurm_elastic.model.cluster import Instance

DEAREST = 10_000.0
"""$/h. No cloud's machine costs that much: a price above it is none."""
LONGEST = 255
"""Characters of an id, of a name, of an address."""
LONGEST_GENERATION = 64
"""Clouds take no longer token."""
LATEST = 2.0**33
"""Unix time, of the year 2242."""
_WORD = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:%_-]*|::[0-9A-Fa-f.:]*")

PriceOf = Callable[[Instance], float]
"""The price of a machine whose own price makes no sense ($/h)."""


class Sound(Struct, frozen=True, kw_only=True):
    """A cloud's machines as they may be kept; by id, why something of them was not believed; and
    those that cannot be kept at all, by what their id looks like, with why.
    """

    machines: tuple[Instance, ...] = ()
    doubts: dict[str, str] = {}
    unusable: dict[str, str] = {}


def sound(listed: Iterable[Instance], price_of: PriceOf, now: float) -> Sound:
    """Each machine for itself: what is wrong with one says nothing of the next."""
    machines: list[Instance] = []
    doubts: dict[str, str] = {}
    unusable: dict[str, str] = {}
    for one in listed:
        if not _is_word(one.id, LONGEST):
            unusable[shown(one.id)] = (
                "its cloud lists it under an id that is none, so nothing can end it from here: "
                "end it with the cloud's own tools"
            )
            continue
        machine, wrong = _believed(one, price_of, now)
        machines.append(machine)
        if wrong:
            doubts[one.id] = "; ".join(wrong)
    return Sound(machines=tuple(machines), doubts=doubts, unusable=unusable)


def is_price(value: float) -> bool:
    """Whether a machine can cost that ($/h)."""
    return isfinite(value) and 0 <= value <= DEAREST


def price_in(text: str | None) -> float | None:
    """The price that a tag holds; None where it holds none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if is_price(value) else None


def shown(text: str) -> str:
    """The start of a text as a person may see it, whatever is in it."""
    return ascii(text[:80])[1:-1]


def _believed(one: Instance, price_of: PriceOf, now: float) -> tuple[Instance, list[str]]:
    wrong: list[str] = []
    if one.node and not _is_word(one.node, LONGEST):
        wrong.append(f"node {shown(one.node)} is no name: its node is not known")
        one = replace(one, node="")
    if one.generation and not _is_word(one.generation, LONGEST_GENERATION):
        wrong.append(f"generation {shown(one.generation)} is none: its launch is not known")
        one = replace(one, generation="")
    for field in ("instance_type", "zone"):
        text = getattr(one, field)
        if not text.isprintable() or len(text) > LONGEST:
            wrong.append(f"{field.replace('_', ' ')} {shown(text)} is none")
            one = replace(one, **{field: ""})
    address = one.address
    if address is not None and (len(address) > LONGEST or not _ADDRESS.fullmatch(address)):
        wrong.append(f"address {shown(address)} is none")
        one = replace(one, address=None)
    if not (isfinite(one.launched) and 0 <= one.launched < LATEST):
        wrong.append(f"launch time {one.launched} is none: it counts from now")
        one = replace(one, launched=now)
    if not is_price(one.price):
        price = price_of(one)
        wrong.append(f"price {one.price} is none: it counts as {money(price)}/h")
        one = replace(one, price=price)
    return one, wrong


def _is_word(text: str, longest: int) -> bool:
    return len(text) <= longest and _WORD.fullmatch(text) is not None
