"""A resume request: of its nodes those that Slurm still wants are placed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.stale_machines import nodes_with_capacity, stale_instances
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.reconcile_rules import POWERED_UP_AGAIN
from slurm_elastic.state.ledger import LedgerState, Machine
from slurm_elastic.state.spool import Request

log = logging.getLogger(__name__)


def resume(
    site: Site,
    cloud: str,
    request: Request,
    view: Mapping[str, SlurmNode],
    state: LedgerState,
    *,
    again: bool,
    trouble: str = "",
) -> tuple[str, ...]:
    """Serve the part of ``request`` that is of ``cloud``. Idempotent by node: what already has a
    machine or an open launch, and what Slurm no longer wants up, is dropped with a reason. A
    machine that is of the node's past ends first.

    ``view`` and ``state`` are Slurm's nodes and the ledger as they were read for it. Returns the
    nodes that wait for their turn to boot; it is called ``again`` for them. With
    ``trouble`` nothing may be bought, and the nodes are given back for it.
    """
    mine = _nodes_of(site, cloud, request)
    waits, long_ago = _waiting_nodes(mine, view), _long_ago(site, cloud)
    if past := _past(site, cloud, waits, state.machines, long_ago):
        terminate(site, cloud, past, POWERED_UP_AGAIN, request.id)
        state = site.ledger.state()
    has = nodes_with_capacity(site, cloud, mine, state, long_ago=long_ago, request=request.id)
    wanted = _still_wanted(site, request, mine, waits, has, again=again)
    if not wanted:
        return ()
    return provision(
        site, cloud, request.id, wanted, request.jobs, request.received, trouble=trouble
    )


def still_wanted(
    site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]
) -> list[str]:
    """The nodes of ``cloud`` in ``request`` that Slurm waits for."""
    return _waiting_nodes(_nodes_of(site, cloud, request), view)


def _nodes_of(site: Site, cloud: str, request: Request) -> list[str]:
    return [n for n in request.nodes if n in site.pool_of and site.pool_of[n].cloud == cloud]


def _waiting_nodes(nodes: Iterable[str], view: Mapping[str, SlurmNode]) -> list[str]:
    return [n for n in nodes if n in view and phase(view[n]) is Phase.POWERING_UP]


def _past(
    site: Site,
    cloud: str,
    waits: Collection[str],
    machines: Iterable[Machine],
    latest: float,
) -> list[Machine]:
    """The machines, of nodes that power up, that were up long ago: from one power-up to the
    next SuspendTimeout passes at least. A machine that looks younger, as a slurmctld that was just
    killed may have forgotten what it knew, is left to the repair.
    """
    again = frozenset(waits)
    old = [
        m
        for m in machines
        if m.instance.cloud == cloud
        and m.instance.node in again
        and m.registered is not None
        and m.registered <= latest
    ]
    return stale_instances(site, old) if old else []


def _long_ago(site: Site, cloud: str) -> float:
    return site.now() - site.config.suspend_timeout(site.clouds[cloud])


def _still_wanted(
    site: Site,
    request: Request,
    nodes: Sequence[str],
    waits: Collection[str],
    has: Container[str],
    *,
    again: bool,
) -> list[str]:
    stale: list[str] = []
    twice: list[str] = []
    wanted: list[str] = []
    waiting = frozenset(waits)
    for node in nodes:
        if node not in waiting:
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
