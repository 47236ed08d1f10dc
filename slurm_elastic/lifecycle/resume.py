"""A resume request: what Slurm still wants, ranked, launched offer by offer, or refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.errors import AuthError, ProviderError
from slurm_elastic.faults import reach
from slurm_elastic.lifecycle.launch import (
    Outcome,
    forgive,
    launch,
    patiently,
    report_auth,
)
from slurm_elastic.lifecycle.refuse import refuse
from slurm_elastic.lifecycle.site import Site, new_generation
from slurm_elastic.model import (
    CoolDown,
    LaunchSpec,
    NodeRequest,
    Offer,
    Placement,
    Pool,
    SlurmNode,
)
from slurm_elastic.policies.phase import Phase, phase
from slurm_elastic.policies.ranking import rank
from slurm_elastic.slurm.hostlist import compress
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)


def resume(site: Site, cloud: str, request: Request, view: Mapping[str, SlurmNode]) -> None:
    """Serve the part of ``request`` that is of ``cloud``. Idempotent by node: what already has a
    machine or an open launch, and what Slurm no longer wants up, is dropped with a reason.
    """
    mine = [n for n in request.nodes if n in site.pool_of and site.pool_of[n].cloud == cloud]
    wanted = _still_wanted(site, request, mine, view)
    by_pool: dict[str, list[str]] = {}
    for node in wanted:
        by_pool.setdefault(site.pool_of[node].name, []).append(node)
    for name, nodes in by_pool.items():
        place(site, request_for(request.id, site.pools[name], nodes, request.jobs))


def request_for(
    correlation: str, pool: Pool, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]
) -> NodeRequest:
    """A request for these nodes; of ``jobs`` (with their nodes) those that wait for any."""
    wanted = set(nodes)
    shares = {j: tuple(n for n in of if n in wanted) for j, of in jobs.items()}
    shares = {job: share for job, share in shares.items() if share}
    return NodeRequest(
        id=correlation, pool=pool, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares
    )


def place(site: Site, request: NodeRequest) -> None:
    """Launch on the best offer, then the next, until all nodes have machines or none is left."""
    offers, trouble = _offers(site, request)
    remaining = list(request.nodes)
    reasons: list[str] = []
    while remaining and not trouble:
        chosen = _choose(site, request, tuple(remaining), offers)
        if isinstance(chosen, Placement):
            reasons += [f"{r.offer.key}: {r.reason}" for r in chosen.rejected]
            break
        result = launch(site, chosen, request.id)
        if result.outcome is Outcome.IN_DOUBT:
            # These may have machines: no other offer for them. Reconcile repeats the same call.
            _note(site, request, chosen.nodes, "launch-in-doubt", result.why)
            remaining = remaining[len(chosen.nodes) :]
            continue
        started = {i.node for i in result.instances}
        remaining = [n for n in remaining if n not in started]
        if result.outcome is Outcome.REFUSED:
            _note(site, request, chosen.nodes, "launch-refused", result.why)
        elif len(started) < len(chosen.nodes):
            _cool_partial(site, chosen, len(started))
        else:
            forgive(site, chosen.offer)
        if started:
            _note(site, request, tuple(started), "launched", _bought(chosen.offer))
    if remaining:
        why = trouble or "; ".join(reasons) or f"cloud {request.pool.cloud} gave no offers"
        refuse(site, request, tuple(remaining), why)


def _still_wanted(
    site: Site, request: Request, nodes: Sequence[str], view: Mapping[str, SlurmNode]
) -> list[str]:
    served = {m.instance.node for m in site.ledger.machines() if m.suspending is None}
    served |= {n for open_launch in site.ledger.open_launches() for n in open_launch.nodes}
    stale: list[str] = []
    twice: list[str] = []
    wanted: list[str] = []
    for node in nodes:
        state = view.get(node)
        if state is None or phase(state) is not Phase.POWERING_UP:
            stale.append(node)
        elif node in served:
            twice.append(node)
        else:
            wanted.append(node)
    _drop(site, request, stale, "Slurm does not have the node powering up (any more)")
    _drop(site, request, twice, "the node has a machine or an open launch already")
    return wanted


def _drop(site: Site, request: Request, nodes: Sequence[str], why: str) -> None:
    if nodes:
        log.info("dropped request=%s nodes=%s reason=%s", request.id, compress(nodes), why)
        site.record(request.id, "dropped", nodes, why)


def _offers(site: Site, request: NodeRequest) -> tuple[Sequence[Offer], str]:
    """The cloud's offers; or none and why it could not be asked."""
    provider = site.providers[request.pool.cloud]
    try:
        return patiently(site, lambda: provider.offers(request.pool)), ""
    except ProviderError as error:
        if isinstance(error, AuthError):
            report_auth(site, error)
        why = str(error)
    except Exception as error:
        log.exception("offers failed in an unknown way cloud=%s", provider.name)
        why = f"{provider.name}: {type(error).__name__}: {error}"
    _note(site, request, request.nodes, "no-offers", why)
    return (), why


def _choose(
    site: Site, request: NodeRequest, nodes: tuple[str, ...], offers: Sequence[Offer]
) -> LaunchSpec | Placement:
    """The next launch, its intent written; or the placement without any offer."""
    ask = replace(request, nodes=nodes)
    with site.spending:
        placement = rank(ask, offers, site.scope(request.pool), site.now(), site.config.ranking)
        _record_ranking(site, placement)
        if not placement.ranked:
            return placement
        best = placement.ranked[0]
        spec = LaunchSpec(
            generation=new_generation(site.now()),
            pool=request.pool,
            nodes=nodes[: best.room],
            offer=best.offer,
            jobs=request.jobs,
        )
        reach("launch.before-intent")
        site.ledger.intend(spec, request.id, site.now())
    return spec


def _record_ranking(site: Site, placement: Placement) -> None:
    request = placement.request
    best = placement.ranked[0].offer.key if placement.ranked else "none"
    site.record(
        request.id,
        "ranked",
        (*request.nodes, *(f"job:{j}" for j in request.jobs)),
        f"best offer for {len(request.nodes)} node(s) of pool {request.pool.name}: {best}",
        {
            "ranked": [[r.offer.key, r.room, r.reason] for r in placement.ranked],
            "rejected": [[r.offer.key, r.reason] for r in placement.rejected],
            "jobs": {str(j): compress(share) for j, share in request.job_nodes.items()},
        },
    )


def _note(site: Site, request: NodeRequest, nodes: Sequence[str], kind: str, why: str) -> None:
    log.info("%s request=%s nodes=%s reason=%s", kind, request.id, compress(nodes), why)
    site.record(request.id, kind, (*nodes, *(f"job:{j}" for j in request.jobs)), why)


def _bought(offer: Offer) -> str:
    return f"{offer.instance_type} in {offer.zone}, {offer.market}, ${offer.price:.4f}/h"


def _cool_partial(site: Site, spec: LaunchSpec, started: int) -> None:
    """What gave some is empty for now, but refused nothing: its next cool-down does not grow."""
    site.ledger.cool_down(
        CoolDown(
            key=spec.offer.key,
            until=site.now() + site.config.timings.capacity_cooldown,
            code="Partial",
            reason=f"gave {started} of {len(spec.nodes)} machines",
            strikes=0,
        )
    )
