"""The form of ``doctor``'s findings about a cloud, and the largest demand of its pools. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import Finding

ANSWER = "an answer: until then nothing of this cloud is repaired"
"""The expected result for a host that jobs are sent to."""


class CheckRunner(Struct, frozen=True):
    """Runs a check of a cloud. The check yields findings, or returns its finding as text; any other
    result means that the thing exists. A refused check is a finding with the cloud's own text and
    an advice: ``rights`` if rights are missing, ``otherwise`` in other cases.
    """

    rights: str
    otherwise: str

    def at(
        self, subject: str, expected: str, check: Callable[[], object], spared: str = ""
    ) -> Iterator[Finding]:
        """The findings of a check. ``spared``: the advice if only the right to look is missing and
        launches work without it.
        """
        try:
            result = check()
            if isinstance(result, Iterator):
                yield from result
            else:
                yield Finding.ok(subject, result if isinstance(result, str) else "there")
        except ProviderError as error:
            # AuthError covers rights as well as credentials: both are for the administrator to
            # give.
            lacks_rights = isinstance(error, AuthError)
            if lacks_rights and spared:
                yield Finding.note(subject, f"cannot be checked: {error.refusal}", advice=spared)
                return
            advice = self.rights if lacks_rights else self.otherwise
            yield Finding.wrong(subject, error.refusal, expected, advice)


def quota(
    subject: str,
    limit: float,
    unit: str,
    used_by_others: float,
    bounds: tuple[float, float],
    advice: str,
) -> Finding:
    """The finding about a quota. ``used_by_others``: the part that other machines of the account
    use.

    ``bounds``: the need of one machine at least, and of all machines of the pools at most.
    ``advice``: how to raise the quota.
    """
    least, demand = bounds
    finding = (
        f"{limit:.12g} {unit}, of which others use {used_by_others:.12g}; the pools could ask for "
        f"{demand:.12g}"
    )
    if limit < least:
        expected = f"{least:.12g} at least: not one machine can start"
        return Finding.wrong(subject, finding, expected, advice)
    if limit - used_by_others < demand:
        advice = "have it raised, or lower the cloud's limits: jobs beyond it go elsewhere"
        return Finding.note(subject, finding, f"{used_by_others + demand:.12g}", advice)
    return Finding.ok(subject, finding)


def max_machines(pool: Pool) -> int:
    """The largest number of machines that the pool may have."""
    return len(pool.nodes) if pool.max_nodes is None else min(pool.max_nodes, len(pool.nodes))


def sum_of_largest(sizes: Iterable[tuple[float, int]], machines: int | None = None) -> float:
    """The sum of an amount (vCPUs or MiB) over all machines, or over the ``machines`` with the
    largest amounts.

    ``sizes``: pairs of the amount that a machine has, and the number of such machines.
    """
    total = 0.0
    for each, count in sorted(sizes, reverse=True):
        counted = count if machines is None else min(count, machines)
        machines = None if machines is None else machines - counted
        total += each * counted
    return total


def demand_bounds(
    pools: Iterable[Pool], sizes: Mapping[str, float], machines: int | None
) -> tuple[float, float]:
    """The least and the largest need of the pools: of one machine, and of all machines. ``sizes``:
    the need of a machine of each type. (0.0, 0.0) if no pool takes such a type.
    """
    sizes_and_counts = [
        (pool_sizes, max_machines(pool))
        for pool in pools
        if (pool_sizes := [sizes[n] for n in pool.instance_types or sizes if n in sizes])
    ]
    least = min((min(pool_sizes) for pool_sizes, _ in sizes_and_counts), default=0.0)
    return least, sum_of_largest(
        [(max(pool_sizes), count) for pool_sizes, count in sizes_and_counts], machines
    )


def affordable(dollars: float | None, machines: Iterable[tuple[float, float]]) -> float:
    """The largest amount that ``dollars`` per hour pay for. ``machines``: pairs of the amount that
    a machine has, and its price ($/h). Infinite without a bound, or if a machine is free of charge.
    """
    pairs = list(machines)
    if dollars is None or not all(price > 0 for _, price in pairs):
        return math.inf
    return dollars * max((each / price for each, price in pairs), default=0.0)
