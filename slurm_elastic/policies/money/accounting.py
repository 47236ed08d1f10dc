"""The machines that cost money now and that boot, for the limits: pure, from machines and open
launches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.memory import Launch, Machine


def booting(machines: Iterable[Machine], open_launches: Iterable[Launch]) -> Mapping[str, int]:
    """Return the number of machines that have not registered, by ``cloud:NAME`` and ``pool:NAME``,
    including those that open launches may have made.
    """
    counts: Counter[str] = Counter()
    known_by_generation: Counter[str] = Counter()
    for machine in machines:
        known_by_generation[machine.instance.generation] += 1
        if machine.boots:
            counts.update((f"cloud:{machine.instance.cloud}", f"pool:{machine.pool}"))
    for launch in open_launches:
        missing = max(len(launch.nodes) - known_by_generation[launch.generation], 0)
        counts.update({f"cloud:{launch.cloud}": missing, f"pool:{launch.pool}": missing})
    return counts


def usage(
    machines: Iterable[Machine],
    open_launches: Iterable[Launch],
    worst: Mapping[str, float] | None = None,
) -> Usage:
    """Return nodes and dollars per hour by scope (keys as in ``model.cluster.Usage``).

    Machines that have ended do not count. A stopped machine counts no node, and its own price. An
    open launch counts with all its nodes, except those whose machines are known already. Each
    machine counts with the highest of three prices: its price, the worst price in the ledger, and
    ``worst`` ($/h by ``Offer.key``: on-demand prices of today's offers, if the caller has them).
    """
    nodes: Counter[str] = Counter()
    dollars: defaultdict[str, float] = defaultdict(float)
    known_by_generation: Counter[str] = Counter()
    worst = worst or {}

    def add(count: int, cloud: str, pool: str, market: str, price: float) -> None:
        scopes = ("", f"cloud:{cloud}", f"pool:{pool}", f"market:{market}")
        for scope in (*scopes, f"cloud:{cloud}:{market}"):
            nodes[scope] += count
        for scope in scopes[:2]:
            dollars[scope] += count * price

    for machine in machines:
        # A machine whose end is only decided still costs money, so it counts.
        if machine.has_ended:
            continue
        i = machine.instance
        if machine.is_off:
            dollars[""] += i.price
            dollars[f"cloud:{i.cloud}"] += i.price
            continue
        known_by_generation[i.generation] += 1
        # The highest possible price: a spot price that rises later must not break a cap.
        price = max(i.price, machine.worst_price, worst.get(i.offer_key, 0.0))
        add(1, i.cloud, machine.pool, i.market, price)
    for launch in open_launches:
        missing = len(launch.nodes) - known_by_generation[launch.generation]
        if missing > 0:
            # The cloud may have bought any of the launch's offers.
            price = max(max(o.worst_price, worst.get(o.key, 0.0)) for o in launch.offers)
            add(missing, launch.cloud, launch.pool, launch.offer.market, price)
    return Usage(nodes=dict(nodes), dollars_per_hour=dict(dollars))
