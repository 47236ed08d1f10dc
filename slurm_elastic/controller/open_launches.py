"""Launches whose call is not known to have answered: confirmed by the cloud's list, or repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launch import LaunchOutcome, launch, spec_of
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import generation_order
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Launch


def confirm(
    site: Site, some: Sequence[actions.Confirm | actions.Retry], seen: Sequence[Instance]
) -> None:
    for action in some:
        found = [i for i in seen if i.generation == action.generation]
        row = site.ledger.launches.known(action.generation)
        for tell_answered in site.extensions.on_answer:
            tell_answered(row.generation, row.pool)
        site.ledger.machines.launched(action.generation, found, site.now())
        site.record(CORRELATION, "confirmed", [i.node for i in found], action.cause)


def retry(site: Site, some: Sequence[actions.Retry], seen: Sequence[Instance]) -> None:
    """The same call under the same token; where it is refused now, the nodes are placed anew."""
    for action in some:
        row = site.ledger.launches.get(action.generation)
        if row is None or site.ledger.end_only:  # the call might buy what it did not buy before
            continue
        if _is_suspended(site, row):  # it would be ended at once: Slurm may want it again since
            continue
        if row.pool not in site.pools:  # the configuration has lost it: what is there is there
            confirm(site, [action], seen)
            continue
        spec = spec_of(site, row)
        result = launch(site, spec, row.request, again=True)
        why = f"{action.reason}: {result.why}" if result.why else action.reason
        kind = f"retry-{result.outcome.value}"
        if news := site.news(row.nodes, kind, why):
            site.record(CORRELATION, kind, (*news, *(f"job:{j}" for j in row.jobs)), why)
        if result.outcome is LaunchOutcome.IN_DOUBT:
            continue
        started = {i.node for i in result.instances}
        left = [n for n in row.nodes if n not in started]
        view = site.slurm.nodes(left) if left else {}
        left = [n for n in left if waits_for(view, n)]
        if left:
            provision(site, row.cloud, row.request, left, jobs_of(site, left))


def _is_suspended(site: Site, row: Launch) -> bool:
    """Whether a request that waits ends what this launch makes."""
    decided = generation_order(row.generation)
    return any(
        decided <= request.received and not set(row.nodes).isdisjoint(request.nodes)
        for request in site.suspends.snapshot().values()
    )


def waits_for(view: Mapping[str, SlurmNode], node: str) -> bool:
    """Whether Slurm waits for the node to come up."""
    return node in view and phase(view[node]) is Phase.POWERING_UP


def jobs_of(site: Site, nodes: Sequence[str]) -> Mapping[int, Sequence[str]]:
    """Jobs that hold or wait for any of these nodes, with all of theirs. None where Slurm does not
    say: then each node is served for itself.
    """
    try:
        queue = site.slurm.jobs()
    except SlurmError:
        return {}
    wanted = set(nodes)
    return {j.id: j.nodes for j in queue if not wanted.isdisjoint(j.nodes)}
