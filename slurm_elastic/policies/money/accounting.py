"""The machines that are paid for now and that boot, for the limits: pure, from machines and open
intents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.memory import Launch, Machine


def booting(machines: Iterable[Machine], open_launches: Iterable[Launch]) -> Mapping[str, int]:
    """Machines that have not registered yet, those that open launches may have made among them,
    by ``cloud:NAME`` and ``pool:NAME``.
    """
    found: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for machine in machines:
        known[machine.instance.generation] += 1
        if machine.boots:
            found.update((f"cloud:{machine.instance.cloud}", f"pool:{machine.pool}"))
    for launch in open_launches:
        missing = max(len(launch.nodes) - known[launch.generation], 0)
        found.update({f"cloud:{launch.cloud}": missing, f"pool:{launch.pool}": missing})
    return found


def usage(
    machines: Iterable[Machine],
    open_launches: Iterable[Launch],
    worst: Mapping[str, float] | None = None,
) -> Usage:
    """Nodes and dollars an hour per scope (keys as in ``model.cluster.Usage``).

    Machines that have ended are left out; one that is stopped is no node, and costs its own price.
    An open intent counts with all its nodes, but for those whose machines are known already. Each
    machine counts with the highest of its price, what the ledger remembers as its worst price, and
    ``worst`` ($/h by ``Offer.key``: the on-demand prices of today's offers, where the caller has
    them).
    """
    nodes: Counter[str] = Counter()
    dollars: defaultdict[str, float] = defaultdict(float)
    known: Counter[str] = Counter()
    worst = worst or {}

    def add(count: int, cloud: str, pool: str, market: str, price: float) -> None:
        scopes = ("", f"cloud:{cloud}", f"pool:{pool}", f"market:{market}")
        for scope in (*scopes, f"cloud:{cloud}:{market}"):
            nodes[scope] += count
        for scope in scopes[:2]:
            dollars[scope] += count * price

    for machine in machines:
        # One whose end is only decided is paid still, and counts.
        if machine.has_ended:
            continue
        i = machine.instance
        if machine.is_off:
            dollars[""] += i.price
            dollars[f"cloud:{i.cloud}"] += i.price
            continue
        known[i.generation] += 1
        # What it may come to: a spot price that rises later must not break a cap.
        price = max(i.price, machine.worst_price, worst.get(i.offer_key, 0.0))
        add(1, i.cloud, machine.pool, i.market, price)
    for launch in open_launches:
        missing = len(launch.nodes) - known[launch.generation]
        if missing > 0:
            # Any of its offers may be the one that is bought.
            price = max(max(o.worst_price, worst.get(o.key, 0.0)) for o in launch.offers)
            add(missing, launch.cloud, launch.pool, launch.offer.market, price)
    return Usage(nodes=dict(nodes), dollars_per_hour=dict(dollars))
