"""Requirements: a pool can say what its machine types must have, instead of naming the types.

A range is ``4``, ``4..8``, ``4..``, ``..8``, ``>=4`` or ``<=8``. Both ends belong to it.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct

from slurm_elastic.base.units import parse_size
from slurm_elastic.config.basics.numbers import Count

RangeText = Annotated[str, Meta(extra={"number": True})]
"""A range as in the file. A number alone is a range, too."""
RANGE_FORM = "a range such as 4, 4..8, '>=4' or '<=8'"


class Range(Struct, frozen=True):
    """The numbers from ``low`` to ``high``, both included."""

    low: float = 0.0
    high: float = float("inf")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class KnownType(Struct, frozen=True, kw_only=True):
    """A type in a catalogue. ``memory`` in MiB, ``price`` on demand in $/h, ``own``: more keys."""

    name: str
    cpus: int
    memory: int
    price: float | None = None
    gres: dict[str, int] = {}
    arch: str = ""
    generation: int | None = None
    own: dict[str, str | int] = {}


class Requirements(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each key narrows the choice to types that fit the nodes. The ``max_types`` cheapest are
    taken.
    """

    cpus: RangeText | None = None
    """Change it when types with more CPUs than the nodes have would be a waste, or are welcome."""
    memory: RangeText | None = None
    """Change it when types with much more memory than the nodes have would be a waste."""
    gpu: RangeText | None = None
    """Change it when types with GPUs should be in, or out."""
    arch: str | None = None
    """Change it when programs run on one architecture only."""
    generation: RangeText | None = None
    """Change it when old generations are slow for their price."""
    exclude: tuple[str, ...] = ()
    """Change it when some families do not fit, such as burstable ones."""
    max_types: Count = 20
    """Change it when more types mean fewer refusals, or fewer are easier to oversee."""


def parse_range(text: str, number: Callable[[str], float] = float) -> Range:
    """Read a range. ValueError if the text is none, or if the range is empty."""
    text = text.replace(" ", "")
    if text.startswith(">="):
        parsed = Range(low=number(text[2:]))
    elif text.startswith("<="):
        parsed = Range(high=number(text[2:]))
    elif ".." in text:
        low, _, high = text.partition("..")
        parsed = Range(number(low) if low else 0.0, number(high) if high else float("inf"))
    else:
        parsed = Range(number(text), number(text))
    if not 0 <= parsed.low <= parsed.high:
        raise ValueError(f"the range {text} is empty")
    return parsed


RANGES: dict[str, Callable[[str], float]] = {
    "cpus": float, "memory": parse_size, "gpu": float, "generation": float,
}  # fmt: skip
"""The keys with ranges, and the functions that read their numbers."""


class Shape(Struct, frozen=True, kw_only=True):
    """The least size that a machine needs to be a node of a pool. ``memory`` in MiB."""

    cpus: int
    memory: int
    gres: dict[str, int]


def lacks(offered: KnownType, required: Requirements, node: Shape) -> str:
    """Why the pool does not take the type. Empty if it takes it."""
    typed_gpus = sum(n for name, n in offered.gres.items() if name.startswith("gpu:"))
    gpus = offered.gres.get("gpu", typed_gpus)
    if offered.cpus < node.cpus or offered.memory < node.memory:
        return f"smaller than the node: {offered.cpus} cpus, {offered.memory} MiB"
    for name, count in node.gres.items():
        if offered.gres.get(name, 0) < count:
            return f"{offered.gres.get(name, 0)} {name} of {count}"
    if gpus and not node.gres and required.gpu is None:
        return "it has GPUs that the pool's gres does not name"
    values: dict[str, float | None] = {
        "cpus": offered.cpus, "memory": offered.memory,
        "gpu": gpus, "generation": offered.generation,
    }  # fmt: skip
    for key, number in RANGES.items():
        text, value = getattr(required, key), values[key]
        if text is not None and (value is None or value not in parse_range(text, number)):
            return f"{key} {value:g}, not {text}" if value is not None else f"unknown {key}"
    if required.arch is not None and offered.arch != required.arch:
        return f"arch {offered.arch or 'unknown'}"
    if any(fnmatchcase(offered.name, pattern) for pattern in required.exclude):
        return "excluded by name"
    return "" if offered.price is not None else "no price is known"
