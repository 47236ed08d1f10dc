"""The machines that cost money now and that boot, for the limits: pure, from machines and open
launches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.model.reserved import Held


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
    paid: Collection[Held] = (),
) -> Usage:
    """Return nodes and dollars per hour by scope (keys as in ``model.cluster.Usage``).

    Ended machines do not count. A stopped machine counts no node, and its own price. An open launch
    counts with all its nodes, except nodes with known machines. Each machine counts with the
    highest of three prices: its price, the worst price in the ledger, and ``worst`` ($/h by
    ``Offer.key``: on-demand prices of today's offers, if the caller has them). ``paid``: the
    reservations whose price is due now. Each counts with its fixed price, and a machine on it with
    what its use adds to that, and with its disks.
    """
    counts = _Counts(paid)
    known_by_generation: Counter[str] = Counter()
    worst = worst or {}
    for machine in machines:
        # A machine whose end is only decided still costs money, so it counts.
        if machine.has_ended:
            continue
        i = machine.instance
        if machine.is_off:
            counts.add_dollars(i.cloud, i.price)
            continue
        known_by_generation[i.generation] += 1
        # The highest possible price: a spot price that rises later must not break a cap.
        price = max(i.price, machine.worst_price, worst.get(i.offer_key, 0.0))
        disk_price = machine.terms.disk_price
        price = counts.add_reserved(1, i.cloud, i.reservation, i.price, price, disk_price)
        counts.add(1, i.cloud, machine.pool, i.market, price)
    for launch in open_launches:
        missing = len(launch.nodes) - known_by_generation[launch.generation]
        if missing > 0:
            # The cloud may have bought any of the launch's offers.
            price = max(max(o.worst_price, worst.get(o.key, 0.0)) for o in launch.offers)
            offer = launch.offer
            name = offer.held.name if offer.held else ""
            price = counts.add_reserved(
                missing, launch.cloud, name, offer.price, price, offer.disk_price
            )
            counts.add(missing, launch.cloud, launch.pool, launch.offer.market, price)
    return Usage(nodes=dict(counts.nodes), dollars_per_hour=dict(counts.dollars))


class _Counts:
    """Adds machines up by scope. ``paid``: the reservations whose price is due now."""

    def __init__(self, paid: Collection[Held]) -> None:
        self.nodes: Counter[str] = Counter()
        self.dollars: defaultdict[str, float] = defaultdict(float)
        self._paid = {held.key: held for held in paid}
        for held in self._paid.values():
            self.add_dollars(held.cloud, held.fixed_per_hour)

    def add(self, count: int, cloud: str, pool: str, market: str, price: float) -> None:
        """Add ``count`` machines at ``price`` ($/h) each."""
        scopes = ("", f"cloud:{cloud}", f"pool:{pool}", f"market:{market}")
        for scope in (*scopes, f"cloud:{cloud}:{market}"):
            self.nodes[scope] += count
        self.add_dollars(cloud, count * price)

    def add_dollars(self, cloud: str, dollars: float) -> None:
        """Add dollars per hour."""
        self.dollars[""] += dollars
        self.dollars[f"cloud:{cloud}"] += dollars

    def add_reserved(
        self,
        count: int,
        cloud: str,
        reservation: str,
        true_price: float,
        price: float,
        disk_price: float,
    ) -> float:
        """Add machines to their reservation, if they have one. Return what each adds to the bill
        ($/h): after the end of the reservation, and without one, its ``price``. All prices contain
        the ``disk_price``.
        """  # fmt: skip
        if not reservation:
            return price
        key = f"reservation:{cloud}/{reservation}"
        self.nodes[key] += count
        self.dollars[key] += count * max(true_price - disk_price, 0.0)
        return self._paid[key].marginal_price + disk_price if key in self._paid else price
