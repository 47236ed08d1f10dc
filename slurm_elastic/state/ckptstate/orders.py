"""The words of people, agents and slurm-elasticd to slurm-elastic-ckptman, left in a directory."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing

DROPS = "notices"
"""The directory, in the state directory."""
_NUMBERS = itertools.count(1)
"""One process may leave several at the same moment."""


class Order(Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """The notices that an operator or an agent leaves in a drop directory, one JSON file each."""


class NoticeOrder(Order, frozen=True, kw_only=True, tag="notice"):
    """A node is taken away at ``deadline`` (Unix time; None: not known), or, with ``departure``,
    leaves because an operator drains, replaces or migrates it.
    """

    node: str
    reason: str = ""
    deadline: float | None = None
    rebalance: bool = False
    departure: bool = False


class WithdrawOrder(Order, frozen=True, kw_only=True, tag="withdraw"):
    """The order to withdraw a notice of a node."""

    node: str


class SaveOrder(Order, frozen=True, kw_only=True, tag="save"):
    """Save a job now."""

    job: int


AnyOrder = NoticeOrder | WithdrawOrder | SaveOrder


def drop(directory: Path, order: AnyOrder, now: float) -> Path:
    """Leave an order; whole or not at all. OSError where that cannot be done."""
    name = f"{int(now * 1e9)}-{os.getpid()}-{next(_NUMBERS)}.json"
    owner = writing.owner_in(directory)
    writing.replace(directory / name, msgspec.json.encode(order), owner=owner)
    return directory / name
