"""Who has registered and who never did: the pools' breakers (``policies.boots``) are kept here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.ledger import Machine
from slurm_elastic.lifecycle.holds import can_drain, hold, hold_reason
from slurm_elastic.lifecycle.site import Site, generation_time
from slurm_elastic.model import Breaker, Pool
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.boots import after_failures
from slurm_elastic.policies.phase import Phase, is_down, phase
from slurm_elastic.slurm.hostlist import compress
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)


def note_registered(site: Site, cloud: str, view: Mapping[str, SlurmNode] | None = None) -> None:
    """Take in which booting machines' nodes are up; one that is proves that its pool works."""
    booting = [m for m in site.ledger.machines() if m.instance.cloud == cloud and m.boots]
    if not booting:
        return
    if view is None:
        view = site.slurm.nodes(list(dict.fromkeys(m.instance.node for m in booting)))
    up = [m for m in booting if _is_up(view.get(m.instance.node))]
    if not up:
        return
    site.ledger.registered(cloud, [m.instance.id for m in up], site.now())
    known = {b.pool: b for b in site.ledger.breakers()}
    for pool in {m.pool for m in up} & known.keys():
        site.ledger.clear_breaker(pool)
        if known[pool].until is not None:
            nodes = [m.instance.node for m in up if m.pool == pool]
            why = f"a machine of pool {pool} has registered: it works again"
            log.warning("breaker closed pool=%s nodes=%s", pool, compress(nodes))
            site.record("boots", "breaker-closed", nodes, why)
            site.ledger.review_holds(pool, site.now())


def _is_up(node: SlurmNode | None) -> bool:
    return node is not None and phase(node) is Phase.UP and not is_down(node)


def unregistered(site: Site, cloud: str, request: Request) -> list[Machine]:
    """The machines that ``request`` (of ResumeFailProgram) says have not come up in time; not those
    that the cloud does not list: they may have been taken while they booted.
    """
    failed = set(request.nodes)
    return [
        m
        for m in site.ledger.machines()
        if m.instance.cloud == cloud
        and m.instance.node in failed
        and m.boots
        and not m.misses
        and generation_time(m.instance.generation) <= request.received
    ]


def note_failures(site: Site, machines: Sequence[Machine], correlation: str) -> None:
    """Count them against their pools; a pool that has too many in a row is paused."""
    known = {b.pool: b for b in site.ledger.breakers()}
    timings = site.config.timings
    for name in dict.fromkeys(m.pool for m in machines if m.pool in site.pools):
        nodes = [m.instance.node for m in machines if m.pool == name]
        before = known.get(name, Breaker(pool=name))
        now = site.now()
        after = after_failures(
            before, len(nodes), now, limit=timings.boot_failures, cool_down=timings.boot_cooldown
        )
        site.ledger.set_breaker(after)
        why = f"booted but not registered in time; {after.failures} in a row in pool {name}"
        site.record(correlation, "boot-failed", nodes, why)
        if after.until is not None and after.until != before.until:
            _pause(site, site.pools[name], after, nodes, correlation)


def _pause(
    site: Site, pool: Pool, breaker: Breaker, nodes: Sequence[str], correlation: str
) -> None:
    """Say so loudly, and keep Slurm from the pool's nodes that are off."""
    log.error(
        "pool paused pool=%s seconds=%.0f reason=%s; after that one machine is tried, "
        "or `slurm-elastic clear %s` ends it",
        pool.name, (breaker.until or 0.0) - site.now(), breaker.reason, pool.name,
    )  # fmt: skip
    why = f"pool {pool.name} is paused: {breaker.reason}"
    site.record(correlation, "breaker-open", nodes, why)
    view = site.slurm.nodes(pool.nodes)
    free = [n for n in pool.nodes if n in view and can_drain(view[n])]
    hold(site, pool, list(dict.fromkeys((*free, *nodes))), why)  # those as soon as they can be
    if free:
        site.slurm.update_nodes(free, state="DRAIN", reason=hold_reason(why))
