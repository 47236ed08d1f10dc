"""A resume request: of its nodes those that Slurm still wants are placed."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.stale_instances import nodes_with_capacity, stale_instances
from slurm_elastic.controller.suspend import terminate
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Machine
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.power_state import Phase, phase
from slurm_elastic.policies.reconcile_rules import POWERED_UP_AGAIN
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)


def resume(
    site: Site,
    cloud: str,
    request: Request,
    view: Mapping[str, SlurmNode],
    *,
    again: bool = False,
    trouble: str = "",
) -> tuple[str, ...]:
    """Serve the part of ``request`` that is of ``cloud``. Idempotent by node: what already has a
    machine or an open launch, and what Slurm no longer wants up, is dropped with a reason. A
    machine that is of the node's past ends first.

    Returns the nodes that wait for their turn to boot; it is called ``again`` for them. With
    ``trouble`` nothing may be bought, and the nodes are given back for it.
    """
    mine = _nodes_of(site, cloud, request)
    terminate(site, cloud, _past(site, cloud, mine, view), POWERED_UP_AGAIN, request.id)
    long_ago = _long_ago(site, cloud)
    has = nodes_with_capacity(site, cloud, mine, long_ago=long_ago, request=request.id)
    wanted = _still_wanted(site, request, mine, view, has, again=again)
    if not wanted:
        return ()
    return provision(
        site, cloud, request.id, wanted, request.jobs, request.received, trouble=trouble
    )


def still_wanted(
    site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]
) -> list[str]:
    """The nodes of ``cloud`` in ``request`` that Slurm waits for."""
    return [n for n in _nodes_of(site, cloud, request) if _waits(view, n)]


def _nodes_of(site: Site, cloud: str, request: Request) -> list[str]:
    return [n for n in request.nodes if n in site.pool_of and site.pool_of[n].cloud == cloud]


def _waits(view: Mapping[str, SlurmNode], node: str) -> bool:
    return node in view and phase(view[node]) is Phase.POWERING_UP


def _past(
    site: Site, cloud: str, nodes: Sequence[str], view: Mapping[str, SlurmNode]
) -> list[Machine]:
    """The machines, of nodes that power up, that were up long ago: from one power-up to the
    next SuspendTimeout passes at least. A machine that looks younger, as a slurmctld that was just
    killed may have forgotten what it knew, is left to the repair.
    """
    again = {n for n in nodes if _waits(view, n)}
    latest = _long_ago(site, cloud)
    return stale_instances(
        site,
        (
            m
            for m in site.ledger.machines()
            if m.instance.cloud == cloud
            and m.instance.node in again
            and m.registered is not None
            and m.registered <= latest
        ),
    )


def _long_ago(site: Site, cloud: str) -> float:
    return site.now() - site.config.suspend_timeout(site.config.cloud(cloud))


def _still_wanted(
    site: Site,
    request: Request,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    has: Container[str],
    *,
    again: bool,
) -> list[str]:
    stale: list[str] = []
    twice: list[str] = []
    wanted: list[str] = []
    for node in nodes:
        if not _waits(view, node):
            stale.append(node)
        elif node in has:
            twice.append(node)
        else:
            wanted.append(node)
    if not again:  # else they were told of, or are those that had their turn before
        _drop(site, request, stale, "Slurm does not have the node powering up (any more)")
        _drop(site, request, twice, "the node has a machine or an open launch already")
    return wanted


def _drop(site: Site, request: Request, nodes: Sequence[str], why: str) -> None:
    if nodes:
        log.info("dropped request=%s nodes=%s reason=%s", request.id, compress(nodes), why)
        site.record(request.id, "dropped", nodes, why)
