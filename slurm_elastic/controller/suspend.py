"""Machines of the past: their node was up, has powered down and powers up again.

slurmctld waits for a slurmd that has booted since it asked (22.05 to 26.05: ``boot_req_time``), so
such a machine never registers again, and its node's jobs would wait until ResumeTimeout, or be lost
there. It stands in the way where its suspend request was lost (a full disk: Slurm asks once), and
where a slurmctld that was killed has forgotten that the node had registered (measured on 22.05).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.stopping import choose, stop
from slurm_elastic.errors import InstanceNotFound, ProviderError
from slurm_elastic.faults import reach
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import LedgerState, Machine
from slurm_elastic.model import OFF
from slurm_elastic.model_ledger import SUSPENDED, generation_order
from slurm_elastic.model_slurm import ON_NODES, SlurmJob, SlurmNode
from slurm_elastic.policies.cluster import decided_at
from slurm_elastic.policies.node_state import Phase, phase
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)


def stale_instances(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """The machines (as the ledger has them) that have registered, whose node Slurm does
    not have up, and on whose node no job is but those that wait for it.

    Slurm is asked here, after the ledger: a view from before may show the very power-up that a
    machine came for.
    """
    were_up = [m for m in machines if m.registered is not None and m.suspending is None]
    if not were_up:
        return []
    view = site.slurm.nodes([m.instance.node for m in were_up])
    off = {name for name, node in view.items() if phase(node) is not Phase.UP}
    found = [m for m in were_up if m.instance.node in off]
    if not found:
        return []
    busy = {n for job in site.slurm.jobs() if _is_there(job) for n in job.nodes}
    return [m for m in found if m.instance.node not in busy]


def instances_of_other_clouds(
    machines: Iterable[Machine], cloud: str, nodes: Collection[str]
) -> list[Machine]:
    """The nodes of these that were up on machines of other clouds, as after a pool was given to
    this one: only those can end them, if they can be read, or are configured at all.
    """
    return [
        m
        for m in machines
        if m.instance.node in nodes
        and m.instance.cloud != cloud
        and m.registered is not None
        and m.suspending is None
    ]


def boots_still(site: Site, machine: Machine) -> bool:
    """Whether a node that powers up may wait for this machine of another cloud: it has not
    registered, and its ResumeTimeout is not over.
    """
    one = machine.instance
    return machine.registered is None and decided_at(one) > oldest_boot(site)


def oldest_boot(site: Site) -> float:
    """The Unix time before which every launch has come up by now, or never will."""
    return site.now() - site.config.timings.resume_timeout


def nodes_with_capacity(
    site: Site,
    cloud: str,
    nodes: Collection[str],
    state: LedgerState | None = None,
    *,
    long_ago: float = inf,
    request: str = "",
) -> set[str]:
    """The nodes of ``cloud`` that power up and have a machine, or an open launch that may
    have made one. Other clouds' machines count only if they may still boot, where the cloud has
    left the configuration only for this very ``request``; and what registered after ``long_ago`` or
    has jobs on it, which is left to the repair. ``state``: the ledger's, where it was read before.
    """
    state = state or site.ledger.state()
    foreign = instances_of_other_clouds(state.machines, cloud, nodes)
    past = stale_instances(site, [m for m in foreign if (m.registered or 0.0) <= long_ago])

    def serves(machine: Machine) -> bool:
        one = machine.instance
        if machine.suspending is not None or machine in past:
            return False
        if one.cloud == cloud or machine.registered is not None:
            return True
        row = None if one.cloud in site.providers else site.ledger.launch(one.generation)
        known = one.cloud in site.providers or (row is not None and row.request == request)
        return known and boots_still(site, machine)

    has = {m.instance.node for m in state.machines if m.instance.node in nodes and serves(m)}
    for row in state.launches:
        others = row.cloud in site.providers and row.created > oldest_boot(site)
        if row.cloud == cloud or others or row.request == request:
            has.update(row.nodes)
    return has.intersection(nodes)


def _is_there(job: SlurmJob) -> bool:
    """Whether a job may have processes on its nodes: not one that waits for them, nor one that has
    ended, which Slurm lists for a while.
    """
    return bool(job.states & ON_NODES) and "CONFIGURING" not in job.states


# A suspend request: end exactly the machines of the nodes that Slurm has powered down.


def suspend(site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]) -> None:
    """End the machines of ``request``'s nodes of ``cloud``, or stop those that their pool keeps so.

    Only machines launched before the request: an old request must not end a new machine, whatever
    the clock said when either was made (``generation_order``). Only where Slurm has the node
    powering down or powered down; or powering up again, when the request is served late (``past``
    says why). Where a machine is the younger one by the clock, which may have been set back, what
    Slurm says now tells.
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
    return machine.suspending is None and machine.instance.state not in OFF


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
