"""The make of machines, in a word (protocols.Stops): another word is another machine."""

from __future__ import annotations

import hashlib

import msgspec

from slurm_elastic.model.cluster import Pool


def recipe(pool: Pool, *ingredients: object) -> str:
    """The word for the pool's part in it and ``ingredients`` that JSON can have."""
    told = [pool.name, pool.max_age, *ingredients]
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:16]
