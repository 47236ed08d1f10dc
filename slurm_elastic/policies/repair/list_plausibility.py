"""Checks a cloud's list of machines for values that cannot be true, before they reach the ledger.
Many people can change a tag. One bad tag must neither prevent the adoption of the other machines
nor be believed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import money
from slurm_elastic.model.cluster import Instance

MAX_PRICE_PER_HOUR = 10_000.0
"""$/h. No cloud's machine costs more, so a higher price is an error."""
MAX_TEXT_LENGTH = 255
"""Maximum length of an id, a name, an address (characters)."""
LONGEST_GENERATION = 64
"""Maximum length of a generation (characters): clouds accept no longer token."""
LATEST = 2.0**33
"""Unix time, in the year 2242."""
LOST_SHARE = 0.2
LOST_FLOOR = 2
_WORD = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:%_-]*|::[0-9A-Fa-f.:]*")

PriceOf = Callable[[Instance], float]
"""Returns the price ($/h) to assume for a machine whose own price cannot be true."""


class SanitizedListing(Struct, frozen=True, kw_only=True):
    """A cloud's machines with plausible values only.

    ``doubts``: by machine id, which values were not believed. ``unusable``: machines that the
    ledger cannot keep, by the start of their id, and why.
    """

    machines: tuple[Instance, ...] = ()
    doubts: dict[str, str] = {}
    unusable: dict[str, str] = {}


def sanitize_listing(listed: Iterable[Instance], price_of: PriceOf, now: float) -> SanitizedListing:
    """Check each machine by itself: an error in one does not affect the others."""
    machines: list[Instance] = []
    doubts: dict[str, str] = {}
    unusable: dict[str, str] = {}
    for listed_machine in listed:
        if not _is_word(listed_machine.id, MAX_TEXT_LENGTH):
            unusable[shown(listed_machine.id)] = (
                "its cloud lists it under an invalid id, so slurm-elastic cannot end it: "
                "end it with the cloud's own tools"
            )
            continue
        machine, errors = _believed(listed_machine, price_of, now)
        machines.append(machine)
        if errors:
            doubts[listed_machine.id] = "; ".join(errors)
    return SanitizedListing(machines=tuple(machines), doubts=doubts, unusable=unusable)


def most_lost(live: int) -> int:
    """How many machines, out of ``live``, one list may show as lost at once. A list that shows more
    is in doubt: clouds seldom take so many, and a failure between us and them looks the same.
    """
    return max(int(live * LOST_SHARE), LOST_FLOOR)


def is_price(value: float) -> bool:
    """Whether a machine can cost ``value`` ($/h)."""
    return isfinite(value) and 0 <= value <= MAX_PRICE_PER_HOUR


def price_in(text: str | None) -> float | None:
    """The price in a tag ($/h); None if the text is no plausible price."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if is_price(value) else None


def shown(text: str) -> str:
    """The first 80 characters of an untrusted text, safe to print."""
    # ascii() escapes control characters, which could otherwise change a terminal or a log.
    return ascii(text[:80])[1:-1]


def _believed(machine: Instance, price_of: PriceOf, now: float) -> tuple[Instance, list[str]]:
    errors: list[str] = []
    if machine.node and not _is_word(machine.node, MAX_TEXT_LENGTH):
        errors.append(f"node {shown(machine.node)} is no name: its node is not known")
        machine = replace(machine, node="")
    if machine.generation and not _is_word(machine.generation, LONGEST_GENERATION):
        errors.append(f"generation {shown(machine.generation)} is none: its launch is not known")
        machine = replace(machine, generation="")
    for field in ("instance_type", "zone"):
        text = getattr(machine, field)
        if not text.isprintable() or len(text) > MAX_TEXT_LENGTH:
            errors.append(f"{field.replace('_', ' ')} {shown(text)} is none")
            machine = replace(machine, **{field: ""})
    address = machine.address
    if address is not None and (len(address) > MAX_TEXT_LENGTH or not _ADDRESS.fullmatch(address)):
        errors.append(f"address {shown(address)} is none")
        machine = replace(machine, address=None)
    if not (isfinite(machine.launched) and 0 <= machine.launched < LATEST):
        errors.append(f"launch time {machine.launched} is not possible: it counts from now")
        machine = replace(machine, launched=now)
    # No doubt is reported, because a deleted or spoilt tag changes no decision.
    if not machine.is_price_known:
        machine = replace(machine, price=price_of(machine), is_price_known=True)
    elif not is_price(machine.price):
        price = price_of(machine)
        errors.append(f"price {machine.price} is not possible: it counts as {money(price)}/h")
        machine = replace(machine, price=price)
    return machine, errors


def _is_word(text: str, longest: int) -> bool:
    return len(text) <= longest and _WORD.fullmatch(text) is not None
