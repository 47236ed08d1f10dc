"""Orders for slurm-elastic-ckptman from people, agents and slurm-elasticd: files in a directory."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing

DROPS = "notices"
"""The name of the directory, inside the state directory."""
_NUMBERS = itertools.count(1)
"""Makes file names unique if a process writes several orders at the same time."""
_NAME = re.compile(r"(?P<time_ns>[0-9]{16,20})-[0-9]+-[0-9]+\.json")
"""The name of a file that ``drop`` has written."""


class Order(Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """An order in a drop directory, one JSON file each."""


class NoticeOrder(Order, frozen=True, kw_only=True, tag="notice"):
    """A node is taken away at ``deadline`` (Unix time; None: unknown). ``departure``: it leaves
    because an operator drains, replaces or migrates it.
    """

    node: str
    reason: str = ""
    deadline: float | None = None
    rebalance: bool = False
    departure: bool = False


class WithdrawOrder(Order, frozen=True, kw_only=True, tag="withdraw"):
    """Withdraw the notices of a node."""

    node: str


class SaveOrder(Order, frozen=True, kw_only=True, tag="save", omit_defaults=True):
    """Save a job now. ``who``: the user who asks for it ("": nobody is known)."""

    job: int
    who: str = ""


AnyOrder = NoticeOrder | WithdrawOrder | SaveOrder


def drop(directory: Path, order: AnyOrder, now: float) -> Path:
    """Write an order as a file, completely or not at all. Raises OSError."""
    name = f"{int(now * 1e9)}-{os.getpid()}-{next(_NUMBERS)}.json"
    owner = writing.owner_in(directory)
    writing.replace(directory / name, msgspec.json.encode(order), owner=owner)
    return directory / name


def dropped_at(path: Path) -> float | None:
    """When ``drop`` wrote this file (Unix time). None for a file that something else wrote."""
    match = _NAME.fullmatch(path.name)
    return int(match["time_ns"]) / 1e9 if match else None
