"""Machines of ours that the ledger lacks, taken in one by one; what each may cost counts from then
on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes.machine_ends import EndedWhileUnwritable
from slurm_elastic.model.cluster import Instance
from slurm_elastic.policies.actions import Adopt, AdoptStopped
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


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
        # Known here until a row has it: where it goes before, it was paid all the same.
        site.unadopted[instance.cloud, instance.id] = instance
        try:
            before = _take_in(site, instance, worst.get(instance.offer_key, 0.0))
        # One that something is wrong with must not hide the next.
        except (SlurmElasticError, sqlite3.Error) as error:
            log.warning("not adopted id=%s error=%s", instance.id, error)
            continue
        except Exception:
            log.exception("not adopted, tried again id=%s", instance.id)
            continue
        site.unadopted.pop((instance.cloud, instance.id))
        why = wanted[instance.id] if before is None else _back(before, instance)
        if instance.id in doubts:
            why += f"; its tags are not believed: {doubts[instance.id]}"
        site.record(CORRELATION, "adopted", (instance.node,), why)


_UNADOPTED = EndedWhileUnwritable()


def account_for_gone(site: Site, cloud: str, seen: Sequence[Instance]) -> None:
    """Write down machines that the ledger could not take in while they lived, and that ``seen``, a
    whole list of their cloud, lacks: they were paid until about now. One that the list was wrong
    about is adopted again.
    """
    there = {i.id for i in seen}
    unadopted = site.unadopted.snapshot().values()
    gone = [i for i in unadopted if i.cloud == cloud and i.id not in there]
    for instance in gone:
        try:
            _write_down_gone(site, instance)
        except (SlurmElasticError, sqlite3.Error) as error:
            log.warning("not written down yet id=%s error=%s", instance.id, error)
            continue
        except Exception:  # one that nothing can be made of must not stop the round for ever
            log.exception("not written down id=%s", instance.id)
        site.unadopted.pop((cloud, instance.id))


def _write_down_gone(site: Site, instance: Instance) -> None:
    """Unless the ledger has it by now, from a copy: then it ends as others do."""
    known = site.ledger.machines.live(ended_since=0.0)
    if any((m.instance.cloud, m.instance.id) == (instance.cloud, instance.id) for m in known):
        return
    _take_in(site, instance, 0.0)
    site.ledger.machines.ended(instance.cloud, [instance.id], _UNADOPTED, site.now())
    site.record(CORRELATION, "ended", [instance.node], _UNADOPTED)


def _take_in(site: Site, instance: Instance, worst: float) -> Machine | None:
    pool = site.pool_of.get(instance.node)
    name = pool.name if pool else ""
    # A tag that says too little must not make room for more: the configuration's price counts, too.
    worst = max(worst, _typed_price(site, instance), instance.price)
    return site.ledger.machines.adopt(instance, name, site.now(), worst, site.providers.keys())


def _typed_price(site: Site, instance: Instance) -> float:
    """The price of its type by the configuration ($/h); 0 of one that it lacks."""
    settings = site.clouds[instance.cloud]
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
