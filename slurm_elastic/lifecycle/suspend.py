"""A suspend request: end exactly the machines of the nodes that Slurm has powered down."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.errors import InstanceNotFound, ProviderError
from slurm_elastic.faults import reach
from slurm_elastic.ledger import Machine
from slurm_elastic.lifecycle.past import of_the_past
from slurm_elastic.lifecycle.site import Site, generation_time
from slurm_elastic.model import InstanceState
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.phase import Phase, phase
from slurm_elastic.slurm.hostlist import compress
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)


def suspend(site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]) -> None:
    """End the machines of ``request``'s nodes of ``cloud``.

    Only machines launched before the request: an old request must not end a new machine. Only
    where Slurm has the node powering down or powered down; or powering up again, when the request
    is served late (``past`` says why). Where a machine is the younger one by the clock, which may
    have been set back, what Slurm says now tells.
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
        elif generation_time(instance.generation) <= request.received:
            doomed.append(machine)
        else:
            younger.append(machine)
    doomed += of_the_past(site, younger)
    if kept:
        why = "Slurm does not have the node powering down (any more)"
        log.info("suspend dropped request=%s nodes=%s reason=%s", request.id, compress(kept), why)
        site.record(request.id, "dropped", kept, why)
    end(site, cloud, doomed, "suspended by Slurm", request.id)


def end(site: Site, cloud: str, machines: Sequence[Machine], why: str, correlation: str) -> None:
    """Terminate these machines of one cloud in one bulk call; the intent is written first.

    After an error the intent stays and reconcile repeats the call. Providers count what is gone
    already as done. What was stopped, or on its way out, before the call may stay so although the
    cloud took it, as after a deletion that failed: that has ended when the cloud no longer lists
    it, and until then reconcile asks again, which is told once.
    """
    if not machines:
        return
    ids = [m.instance.id for m in machines]
    nodes = [m.instance.node for m in machines]
    reach("suspend.before-intent")
    site.ledger.suspending(cloud, ids, why, site.now())
    reach("suspend.after-intent")
    try:
        site.providers[cloud].terminate(ids)
    except InstanceNotFound:
        log.info("already gone cloud=%s nodes=%s", cloud, compress(nodes))
    except ProviderError as error:
        log.warning(
            "terminate fails, reconcile repeats it nodes=%s error=%s", compress(nodes), error
        )
        _record_once(site, correlation, "terminate-failed", nodes, str(error))
        return
    reach("suspend.after-call")
    gone = [m.instance.id for m in machines if m.instance.state is not InstanceState.STOPPING]
    site.ledger.ended(cloud, gone, why, site.now())
    reach("suspend.after-result")
    new = [m.instance.node for m in machines if m.instance.id in gone or m.suspending is None]
    if new:
        log.info("terminated request=%s nodes=%s reason=%s", correlation, compress(new), why)
        site.record(correlation, "terminated", new, why)


def _record_once(
    site: Site, correlation: str, kind: str, nodes: Sequence[str], reason: str
) -> None:
    """What is tried each round is told when it changes."""
    last = site.ledger.decisions(nodes[0], 1)
    if not last or (last[0].kind, last[0].reason) != (kind, reason):
        site.record(correlation, kind, nodes, reason)
