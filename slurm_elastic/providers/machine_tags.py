"""What the tags of our machines say, in any cloud that keeps them as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model import Market
from slurm_elastic.policies.sound import price_in

_GENERATION = re.compile(r"g([0-9]{13})-")


def decided(generation: str) -> float:
    """When a launch was decided (Unix time), by its name; 0 where that does not tell."""
    match = _GENERATION.match(generation)
    return int(match[1]) / 1000 if match else 0.0


def market_of(word: str) -> Market:
    """The market that a tag names; reserved where somebody changed it."""
    return Market(word) if word in set(Market) else Market.RESERVED


def price_of(tag: str | None, kind: str, types: Mapping[str, InstanceType]) -> float:
    """What a machine was started at ($/h): as its tag says; where that was taken away or makes no
    sense, what the configuration says now. Of a type that it lacks, the dearest: limits must not
    count too little.
    """
    told = price_in(tag)
    if told is not None:
        return told
    if kind in types:
        return types[kind].price
    return max((known.price for known in types.values()), default=0.0)
