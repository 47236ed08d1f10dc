"""A suspend request: end exactly the machines of the nodes that Slurm has powered down."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.stale_machines import stale_instances
from slurm_elastic.controller.stopping import choose, stop
from slurm_elastic.model.memory import SUSPENDED, generation_order
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Machine
from slurm_elastic.state.spool import Request

log = logging.getLogger(__name__)


def suspend(site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]) -> None:
    """End the machines of ``request``'s nodes of ``cloud``, or stop those that their pool keeps so.

    Only machines launched before the request: an old request must not end a new machine, whatever
    the clock said when either was made (``generation_order``). Only where Slurm has the node
    powering down or powered down; or powering up again, when the request is served late
    (``stale_machines`` says why). Where a machine is the younger one by the clock, which may have
    been set back, what Slurm says now tells.
    """
    doomed: list[Machine] = []
    younger: list[Machine] = []
    kept: list[str] = []
    asked = {n for n in request.nodes if n in site.pool_of and site.pool_of[n].cloud == cloud}
    for machine in site.ledger.machines():
        instance = machine.instance
        # One that is left of an earlier configuration may be of another cloud.
        if instance.node not in asked or instance.cloud != cloud:
            continue
        node = view.get(instance.node)
        if node is None or phase(node) is Phase.UP:
            kept.append(instance.node)
        elif generation_order(instance.generation) <= request.received:
            doomed.append(machine)
        else:
            younger.append(machine)
    doomed += stale_instances(site, younger)
    if kept:
        why = "Slurm does not have the node powering down (any more)"
        log.info("suspend dropped request=%s nodes=%s reason=%s", request.id, compress(kept), why)
        site.record(request.id, "dropped", kept, why)
    kept_off = choose(site, cloud, doomed, view)
    refused = stop(site, cloud, kept_off, request.id)
    ended = [m for m in doomed if m not in kept_off or m in refused]
    terminate(site, cloud, ended, SUSPENDED, request.id)
