"""Adopts our machines that the ledger lacks, for example after its file was lost. From then on each
counts in the limits with the most that it may cost.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config.machine_prices import on_demand_price
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import TagsNotBelieved
from slurm_elastic.model.causes.machine_ends import EndedWhileUnwritable
from slurm_elastic.model.causes.repairs import ListedAfterEnd, MovedToCloud
from slurm_elastic.model.cluster import Instance, Pool
from slurm_elastic.policies.actions import Adopt, AdoptStopped
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


def adopt(
    site: Site,
    actions: Sequence[Adopt | AdoptStopped],
    listed: Sequence[Instance],
    doubts: Mapping[str, str],
) -> None:
    """Adopt the ``listed`` machines that ``actions`` name. ``doubts``: by id, the tags that we do
    not believe. A machine that cannot be adopted now is tried again in the next round.
    """
    cause_by_id = {a.machine: a.cause for a in actions}
    machines = [i for i in listed if i.id in cause_by_id]
    price_by_offer = _read_worst_prices(site, machines)
    for instance in machines:
        # Remember the machine until it has a row. If it ends before that, its cost must still be
        # recorded (`record_ended_unadopted`).
        site.unadopted[instance.cloud, instance.id] = instance
        try:
            before = _write_row(site, instance, price_by_offer.get(instance.offer_key, 0.0))
        # One by one: a machine that cannot be adopted must not keep the next from its row.
        except (SlurmElasticError, sqlite3.Error) as error:
            log.warning("machine not adopted id=%s error=%s", instance.id, error)
            continue
        except Exception:
            log.exception("machine not adopted, tried again id=%s", instance.id)
            continue
        site.unadopted.pop((instance.cloud, instance.id))
        cause = cause_by_id[instance.id] if before is None else _explain_return(before, instance)
        if instance.id in doubts:
            cause = TagsNotBelieved(cause=cause, contradiction=doubts[instance.id])
        site.record(CORRELATION, "adopted", (instance.node,), cause)


_UNADOPTED = EndedWhileUnwritable()


def record_ended_unadopted(site: Site, cloud: str, listed: Sequence[Instance]) -> None:
    """Record machines that ended before the ledger could adopt them, with a life until now.
    ``listed`` is a complete list of the cloud. If it wrongly lacks a machine, the machine is
    adopted again when a later list shows it.
    """
    listed_ids = {i.id for i in listed}
    unadopted = site.unadopted.snapshot().values()
    ended = [i for i in unadopted if i.cloud == cloud and i.id not in listed_ids]
    for instance in ended:
        try:
            _record_ended(site, instance)
        except (SlurmElasticError, sqlite3.Error) as error:
            log.warning("end of a machine not recorded yet id=%s error=%s", instance.id, error)
            continue
        # Give up this one machine: an entry that always fails would stop every round of the cloud.
        except Exception:
            log.exception("end of a machine not recorded id=%s", instance.id)
        site.unadopted.pop((cloud, instance.id))


def _record_ended(site: Site, instance: Instance) -> None:
    """Record one machine as ended, unless the ledger has it."""
    # A ledger that was restored from a copy may have the machine. The usual repair ends it then.
    machines = site.ledger.machines.live(ended_since=0.0)
    if any((m.instance.cloud, m.instance.id) == (instance.cloud, instance.id) for m in machines):
        return
    _write_row(site, instance, 0.0)
    site.ledger.machines.record_end(instance.cloud, [instance.id], _UNADOPTED, site.now())
    site.record(CORRELATION, "ended", [instance.node], _UNADOPTED)


def _write_row(site: Site, instance: Instance, worst: float) -> Machine | None:
    pool = site.pool_of.get(instance.node)
    name = pool.name if pool else ""
    # Every user of the cloud account may edit the price tag. Too low a price would leave room in
    # the limits for further machines, so the configured price is the least that counts.
    worst = max(worst, _configured_price(site, instance, pool), instance.price)
    return site.ledger.machines.adopt(
        instance, name, site.now(), worst, site.providers.keys(), site.terms_of(name)(instance)
    )


def _configured_price(site: Site, instance: Instance, pool: Pool | None) -> float:
    """The configured price of the machine's type and disks ($/h); 0 if the configuration lacks the
    type.
    """
    machine = pool.machine if pool else None
    return on_demand_price(site.clouds[instance.cloud], machine, instance.instance_type) or 0.0


def _explain_return(before: Machine, instance: Instance) -> AnyCause:
    """Return the cause for adopting a machine that the ledger has had before."""
    former = before.instance.cloud
    if former != instance.cloud:
        return MovedToCloud(cloud=instance.cloud, former=former)
    return ListedAfterEnd(state=str(instance.state))


def _read_worst_prices(site: Site, instances: Sequence[Instance]) -> Mapping[str, float]:
    """Return by offer the highest price of these machines ($/h), as the limits count it.

    The price tag of a spot machine is not the most that it may cost, and the offer it was bought by
    was lost with the ledger, so ask the cloud again.
    """
    worst: dict[str, float] = {}
    nodes = [i.node for i in instances if i.node in site.pool_of]
    for pool in {site.pool_of[node].name: site.pool_of[node] for node in nodes}.values():
        try:
            offers = site.providers[pool.cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - the machines cost money and must be adopted
            log.warning(
                "offers not read, machines adopted at their own price pool=%s error=%r",
                pool.name,
                error,
            )
            continue
        worst.update({offer.key: offer.worst_price for offer in offers})
    return worst
