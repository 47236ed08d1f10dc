"""A suspend request: end exactly the machines of the nodes that Slurm has powered down."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.controller.context import Site, generation_time
from slurm_elastic.controller.stale_instances import stale_instances
from slurm_elastic.errors import InstanceNotFound, ProviderError
from slurm_elastic.faults import reach
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Machine
from slurm_elastic.model import InstanceState
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.power_state import Phase, phase
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)

SUSPENDED = "suspended by Slurm"
"""Why a machine ends whose node Slurm has powered down in its own time."""


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
    doomed += stale_instances(site, younger)
    if kept:
        why = "Slurm does not have the node powering down (any more)"
        log.info("suspend dropped request=%s nodes=%s reason=%s", request.id, compress(kept), why)
        site.record(request.id, "dropped", kept, why)
    terminate(site, cloud, doomed, SUSPENDED, request.id)


def terminate(
    site: Site, cloud: str, machines: Sequence[Machine], why: str, correlation: str
) -> None:
    """Terminate these machines of one cloud in one bulk call; the intent is written first.

    After an error the intent stays and reconcile repeats the call. Providers count what is gone
    already as done. A machine that was asked for before, or was stopped, may stay although the
    cloud took the call, as after a deletion that failed: that has ended when the cloud no longer
    lists it, and until then it is paid, and asked for each round.
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
        _record_news(site, correlation, "terminate-failed", machines, str(error))
        return
    reach("suspend.after-call")
    site.ledger.ended(cloud, [m.instance.id for m in machines if _ends_at_once(m)], why, site.now())
    reach("suspend.after-result")
    log.info("terminated request=%s nodes=%s reason=%s", correlation, compress(nodes), why)
    _record_news(site, correlation, "terminated", machines, why)


def _ends_at_once(machine: Machine) -> bool:
    return machine.suspending is None and machine.instance.state is not InstanceState.STOPPING


def _record_news(
    site: Site, correlation: str, kind: str, machines: Sequence[Machine], reason: str
) -> None:
    """An action that is tried again each round is told when it changes."""

    def said(node: str) -> bool:
        last = site.ledger.decisions(node, 1)
        return bool(last) and (last[0].kind, last[0].reason) == (kind, reason)

    news = [m.instance.node for m in machines if m.suspending is None or not said(m.instance.node)]
    if news:
        site.record(correlation, kind, news, reason)
