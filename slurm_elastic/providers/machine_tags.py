"""What the tags of our machines say, in any cloud that keeps them as text. Pure."""

from __future__ import annotations

import re

from slurm_elastic.model import Market

_GENERATION = re.compile(r"g(\d{13})-")


def decided(generation: str) -> float:
    """When a launch was decided (Unix time), by its name; 0 where that does not tell."""
    match = _GENERATION.match(generation)
    return int(match[1]) / 1000 if match else 0.0


def market_of(word: str) -> Market:
    """The market that a tag names; reserved where somebody changed it."""
    return Market(word) if word in set(Market) else Market.RESERVED
