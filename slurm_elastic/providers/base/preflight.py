"""The form of ``doctor``'s findings about a cloud, and the most that pools could ask for. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import Finding

ANSWER = "an answer: until then nothing of this cloud is repaired"
"""What is expected of a host that jobs are to be sent to."""


class Look(Struct, frozen=True):
    """A check asks its cloud something, and yields findings or returns what was found in words; any
    other answer says that the thing is there. One that the cloud refuses is a finding, too, in the
    cloud's own words, with what to do: ``rights`` where those are missing, ``otherwise`` else.
    """

    rights: str
    otherwise: str

    def at(
        self, what: str, expected: str, check: Callable[[], object], spared: str = ""
    ) -> Iterator[Finding]:
        """The findings of a check. ``spared``: the advice where the right to look is all that
        lacks, and launches go well without it.
        """
        try:
            found = check()
            if isinstance(found, Iterator):
                yield from found
            else:
                yield Finding.ok(what, found if isinstance(found, str) else "there")
        except ProviderError as error:
            lacks = isinstance(error, AuthError)
            if lacks and spared:
                yield Finding.note(what, f"cannot be looked at: {error.refusal}", advice=spared)
                return
            advice = self.rights if lacks else self.otherwise
            yield Finding.wrong(what, error.refusal, expected, advice)


def quota(
    what: str, limit: float, unit: str, others: float, bounds: tuple[float, float], advice: str
) -> Finding:
    """A quota of which others of the account use a part, beside what the pools ask for: ``bounds``
    are one machine's share at least, and the most for all of them. ``advice``: how it is raised.
    """
    least, wish = bounds
    found = (
        f"{limit:.12g} {unit}, of which others use {others:.12g}; the pools could ask for "
        f"{wish:.12g}"
    )
    if limit < least:
        expected = f"{least:.12g} at least: not one machine can start"
        return Finding.wrong(what, found, expected, advice)
    if limit - others < wish:
        advice = "have it raised, or lower the cloud's limits: jobs beyond it go elsewhere"
        return Finding.note(what, found, f"{others + wish:.12g}", advice)
    return Finding.ok(what, found)


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


def asked(
    pools: Iterable[Pool], sizes: Mapping[str, float], machines: int | None
) -> tuple[float, float]:
    """How much of something the pools ask for, of which a machine of each type takes what ``sizes``
    says: one machine at least, and all of them at most. Nothing where no pool takes such a type.
    """
    known = [
        (some, size(pool))
        for pool in pools
        if (some := [sizes[n] for n in pool.instance_types or sizes if n in sizes])
    ]
    least = min((min(some) for some, _ in known), default=0.0)
    return least, most([(max(some), count) for some, count in known], machines)


def affordable(dollars: float | None, machines: Iterable[tuple[float, float]]) -> float:
    """The most of something that so many dollars an hour pay for: ``machines`` are pairs of how
    much one has of it and its price. Infinite without a bound, or where one costs nothing.
    """
    pairs = list(machines)
    if dollars is None or not all(price > 0 for _, price in pairs):
        return math.inf
    return dollars * max((each / price for each, price in pairs), default=0.0)
