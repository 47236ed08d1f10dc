"""Machines of ours that the ledger lacks, taken in one by one: what is wrong with one must not hide
the next, and what they may cost counts from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.controller.context import Site
from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Instance
from slurm_elastic.policies.actions import Adopt, AdoptStopped

log = logging.getLogger(__name__)

CORRELATION = "reconcile"


def adopt(
    site: Site,
    actions: Sequence[Adopt | AdoptStopped],
    seen: Sequence[Instance],
    doubts: Mapping[str, str],
) -> None:
    """The machines of ``seen`` that ``actions`` name; ``doubts`` says by id what was not believed
    of it. A machine that cannot be taken in stays for the next round.
    """
    wanted = {a.machine: a.reason for a in actions}
    found = [i for i in seen if i.id in wanted]
    worst = _worst_prices(site, found)
    for instance in found:
        try:
            before = _take_in(site, instance, worst.get(instance.offer_key, 0.0))
        except SlurmElasticError as error:
            log.warning("not adopted id=%s error=%s", instance.id, error)
            continue
        except Exception:
            log.exception("not adopted, tried again id=%s", instance.id)
            continue
        why = wanted[instance.id] if before is None else _back(before, instance)
        if instance.id in doubts:
            why += f"; its tags are not believed: {doubts[instance.id]}"
        site.record(CORRELATION, "adopted", (instance.node,), why)


def _take_in(site: Site, instance: Instance, worst: float) -> Machine | None:
    pool = site.pool_of.get(instance.node)
    name = pool.name if pool else ""
    # A tag that says too little must not make room for more: the configuration's price counts, too.
    worst = max(worst, _typed_price(site, instance), instance.price)
    return site.ledger.adopt(instance, name, site.now(), worst, site.providers.keys())


def _typed_price(site: Site, instance: Instance) -> float:
    """The price of its type by the configuration ($/h); 0 of one that it lacks."""
    settings = site.config.cloud(instance.cloud)
    if settings.flat_price is not None:
        return settings.flat_price
    known = settings.shapes.get(instance.instance_type)
    return known.price if known else 0.0


def _back(before: Machine, instance: Instance) -> str:
    """Why a machine is adopted that the ledger knew."""
    cloud = before.instance.cloud
    if cloud != instance.cloud:
        return f"it is now of cloud {instance.cloud}; the configuration has no {cloud} any more"
    return f"the ledger had it ended, but its cloud has it, {instance.state}"


def _worst_prices(site: Site, instances: Sequence[Instance]) -> Mapping[str, float]:
    """By offer, what machines may come to, as the limits count them: a spot machine's own price
    is not the most it may cost, a typed one may be too low, and with the ledger its offer was lost.
    """
    worst: dict[str, float] = {}
    nodes = [i.node for i in instances if i.node in site.pool_of]
    for pool in {site.pool_of[node].name: site.pool_of[node] for node in nodes}.values():
        try:
            offers = site.providers[pool.cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - whatever it is, the machines are there
            log.warning("adopted at their own price pool=%s error=%r", pool.name, error)
            continue
        worst.update({offer.key: offer.worst_price for offer in offers})
    return worst
