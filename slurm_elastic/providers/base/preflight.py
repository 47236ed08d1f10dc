"""For ``doctor``: a refused call as a finding, and the most that pools could ask for. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.model.cluster import Finding, Level, Pool


def refused(
    what: str, error: ProviderError, expected: str, *, rights: str, otherwise: str
) -> Finding:
    """Wrong, in the cloud's own words; what to do: ``rights`` where those are missing."""
    return Finding(
        what=what,
        level=Level.WRONG,
        found=f"{error.code}: {error.message}",
        expected=expected,
        advice=rights if isinstance(error, AuthError) else otherwise,
    )


def looked(
    what: str, ask: Callable[[], str], expected: str, *, rights: str, otherwise: str
) -> Finding:
    """``ask`` says what was found, or what the cloud refuses: then as of ``refused``."""
    try:
        return Finding(what=what, level=Level.OK, found=ask())
    except ProviderError as error:
        return refused(what, error, expected, rights=rights, otherwise=otherwise)


def size(pool: Pool) -> int:
    """So many machines at most."""
    return len(pool.nodes) if pool.max_nodes is None else min(pool.max_nodes, len(pool.nodes))


def most(sizes: Iterable[tuple[float, int]], machines: int | None = None) -> float:
    """An amount (of vCPUs, MiB) over so many machines of so much each: the sum over all, or
    over the ``machines`` that have most of it.
    """
    total = 0.0
    for each, count in sorted(sizes, reverse=True):
        taken = count if machines is None else min(count, machines)
        machines = None if machines is None else machines - taken
        total += each * taken
    return total


def affordable(dollars: float | None, machines: Iterable[tuple[float, float]]) -> float:
    """The most of something that so many dollars an hour pay for: ``machines`` are pairs of how
    much one has of it and its price. Infinite without a bound, or where one costs nothing.
    """
    pairs = list(machines)
    if dollars is None or not all(price > 0 for _, price in pairs):
        return math.inf
    return dollars * max((each / price for each, price in pairs), default=0.0)
