"""The recipe of machines as one word (protocols.Stops). Two words are equal if the machines are
alike.
"""

from __future__ import annotations

import hashlib

import msgspec

from slurm_elastic.model.cluster import Pool


def recipe(pool: Pool, *ingredients: object) -> str:
    """The word for the pool and for ``ingredients``, which must be JSON values."""
    ingredients_of_pool = [pool.name, pool.max_age, *ingredients]
    # Deterministic order, because the words of two processes are compared.
    return hashlib.sha256(
        msgspec.json.encode(ingredients_of_pool, order="deterministic")
    ).hexdigest()[:16]
