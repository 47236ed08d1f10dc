"""Obtains machines for the nodes that Slurm waits for: ranks the offers, launches on the best one,
then on the next, and gives the nodes back to Slurm for which no offer is left.

A multi-node job gets machines for all its nodes or for none (``policies.launch.gang``). If the
known bounds leave too little room for all, in whichever pools and requests its nodes are, its
launch is not begun (``whole_jobs``, ``shortfall``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError, bounded
from slurm_elastic.base.faults import reach
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.extensions import Caps, Jobs, Owners
from slurm_elastic.controller.holds import find_closed
from slurm_elastic.controller.launching.awaited_nodes import AwaitedNodes
from slurm_elastic.controller.launching.boots import record_registrations
from slurm_elastic.controller.launching.launch import (
    LaunchOutcome,
    call_with_retries,
    cool_down_partial,
    forget_refusals,
    launch,
    report_auth,
)
from slurm_elastic.controller.launching.launch_decisions import (
    Refusals,
    record_launch_decision,
    record_ranking,
)
from slurm_elastic.controller.launching.off_spot import find_no_spot
from slurm_elastic.controller.launching.shortfall import Shortfall, end_useless_parts, refuse_jobs
from slurm_elastic.controller.whole_jobs import WholeJobs, judge_whole_jobs
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.limits import (
    BootCap,
    RequestTooLate,
    TurnMissed,
    WaitsForTurn,
)
from slurm_elastic.model.causes.purchases import MachinesBought, MachinesOfKind
from slurm_elastic.model.causes.refusals import (
    CloudSilent,
    NoOffers,
    NoSpot,
)
from slurm_elastic.model.causes.repairs import NotAwaited, NotPoweringUp
from slurm_elastic.model.causes.stops import RecordsNotWritten
from slurm_elastic.model.cluster import Instance, LaunchSpec, NodeRequest, Offer
from slurm_elastic.model.protocols import Chooser, Limited
from slurm_elastic.policies.launch.gang import Gang, gangs, request_for
from slurm_elastic.policies.launch.grouping import grouped, no_offer_serves
from slurm_elastic.policies.launch.next_launch import NextLaunch, next_launch
from slurm_elastic.policies.launch.owner import agreed

log = logging.getLogger(__name__)


LEDGER_GRACE_S = 60.0
"""Seconds that nodes wait while the ledger cannot be written before they are given back. A lock or
a full disk may soon be over, and a requeued job has to wait once more.
"""


def provision(
    site: Site,
    cloud: str,
    correlation: str,
    nodes: Sequence[str],
    jobs: Jobs,
    asked_at: float | None = None,
    *,
    trouble: AnyCause | None = None,
) -> tuple[str, ...]:
    """Launch machines for these nodes of ``cloud``, and refuse the nodes that get none. Returns the
    nodes that wait for their turn to boot; the caller calls again for them soon.

    ``asked_at``: when Slurm asked for the nodes (Unix time), if known. ``trouble``: why the cloud
    cannot sell; then it is not asked for offers. While the ledger cannot be written, nothing is
    bought: the nodes wait until that has lasted for LEDGER_GRACE_S, then they are refused.

    No machine starts for a node that Slurm no longer waits for. If the rest of ResumeTimeout is too
    short for a boot, the nodes without a machine are refused while Slurm still waits for them.
    """
    awaited = AwaitedNodes(site, cloud, nodes, asked_at)
    condition = site.ledger.condition
    if condition.end_only and site.now() - condition.since < LEDGER_GRACE_S:
        return tuple(nodes)
    if trouble is None and condition.end_only:
        trouble = RecordsNotWritten(trouble=condition.end_only)
    for admit in site.extensions.filter_admitted:
        nodes, jobs = admit(cloud, correlation, nodes, jobs)
    owners: Owners = {}
    for find in site.extensions.find_owners if not trouble else ():
        owners = {**owners, **find(nodes, jobs)}
    # Slurm may ask for such a node until its hold drains it. A machine that is bought now would
    # leave at once, or never join.
    closed = find_closed(site, site.ledger.directives.all())
    no_spot = find_no_spot(site, nodes, jobs) if not trouble else {}
    requests = _make_requests(site, correlation, nodes, jobs, owners, closed, no_spot)
    shortfalls: list[Shortfall] = []
    waiting: list[str] = []
    given_up: set[int] = set()
    cloud_cap = site.clouds[cloud].max_booting
    if cloud_cap is not None or any(r.pool.max_booting is not None for r in requests):
        # Only ``max_booting`` needs this reading of Slurm. Without it a machine that has registered
        # since the last round would still count as booting and keep the next one waiting.
        record_registrations(site, cloud)
    # Before the first launch: each part counts only its own nodes.
    whole_jobs = WholeJobs()
    if requests and trouble is None:
        whole_jobs = judge_whole_jobs(site, cloud, requests, jobs, ask_for_offers, find_no_spot)
    given_up.update(whole_jobs.causes)
    for request in requests:
        name, pool_cap = request.pool.name, request.pool.max_booting
        scopes = ((f"cloud:{cloud}", cloud_cap), (f"pool:{name}", pool_cap))
        caps = [(scope, cap) for scope, cap in scopes if cap is not None]
        stop = trouble or closed.get(request.nodes[0])
        shortfall, pool_waiting = _provision_pool(site, request, given_up, awaited, stop, caps)
        waiting += pool_waiting
        if shortfall is not None:
            shortfalls.append(whole_jobs.explain(shortfall))
        # Jobs that lack these nodes cannot start. Do not buy for their nodes in other pools.
        missing = awaited.gone.union(shortfall.nodes if shortfall is not None else ())
        of_job = request.job_nodes.items()
        given_up.update(job for job, share in of_job if not missing.isdisjoint(share))
    _record_gone(site, correlation, awaited)
    if shortfalls:
        still_off = [n for n in nodes if n not in awaited.gone and n not in awaited.up]
        # Slurm has not requested the later nodes yet. It would request them without their job.
        refused = (*still_off, *whole_jobs.later_nodes)
        refuse_jobs(site, cloud, shortfalls, refused, {**jobs, **whole_jobs.nodes_of})
        end_useless_parts(site, cloud, shortfalls)
    return tuple(waiting)


def _make_requests(
    site: Site,
    correlation: str,
    nodes: Sequence[str],
    jobs: Jobs,
    owners: Owners,
    closed: Mapping[str, AnyCause],
    no_spot: Mapping[str, NoSpot],
) -> Sequence[NodeRequest]:
    """Return the parts of the request in the order in which they are served, pool by pool. The
    closed nodes come first, so that nothing is bought for the other nodes of their jobs. Nodes
    without spot machines (``no_spot``) are a part of their own, so that the others may get some.
    """
    in_order = sorted(nodes, key=lambda node: node not in closed)
    by_part = group_by(
        in_order, lambda node: (site.pool_of[node].name, closed.get(node), no_spot.get(node))
    )
    requests = (
        request_for(correlation, site.pools[name], part_nodes, jobs, owners, cause)
        for (name, _, cause), part_nodes in by_part.items()
    )
    return [part for request in requests for part in _split(site, request)]


def _record_gone(site: Site, correlation: str, awaited: AwaitedNodes) -> None:
    if nodes := sorted(awaited.gone):
        cause = NotPoweringUp()
        log.info("dropped request=%s nodes=%s reason=%s", correlation, compress(nodes), cause)
        site.record(correlation, "dropped", nodes, cause)


def _split(site: Site, request: NodeRequest) -> Sequence[NodeRequest]:
    """Return the parts of a request to serve one after another."""
    parts: Sequence[NodeRequest] = (request,)
    for split in site.extensions.split_requests:
        parts = [smaller for part in parts for smaller in split(part)]
    return parts


def _provision_pool(
    site: Site,
    request: NodeRequest,
    given_up: Collection[int],
    awaited: AwaitedNodes,
    trouble: AnyCause | None,
    caps: Caps,
) -> tuple[Shortfall | None, tuple[str, ...]]:
    """Launch on the best offer, then on the next, until all nodes have machines, no offer is left,
    or it is too late. ``caps``: how many machines may boot at once, by scope. Returns the nodes
    that get no machine, and the nodes that wait for their turn to boot.
    """
    offers, trouble = ((), trouble) if trouble else ask_for_offers(site, request)
    served_alone = frozenset(request.nodes if request.pool.partial_jobs else ())
    gangs_to_serve = tuple(
        gang
        for gang in gangs(request.nodes, request.job_nodes, served_alone)
        if gang.job not in given_up or gang.nodes[0] in served_alone
    )
    served: set[str] = set()
    if not trouble:
        for serve in site.extensions.serve_before_buying:
            served.update(serve(request, gangs_to_serve, offers, caps, awaited))
    decided: NextLaunch | None = None
    late: RequestTooLate | None = None
    refusals = Refusals(site, request)
    while not trouble:
        # Each refused call may have taken long. Look again before the next launch.
        awaited.look()
        late = awaited.find_lateness()
        settled = served | awaited.gone | awaited.up
        if settled.issuperset(request.nodes):
            break
        # Record only the first ranking. The recorded launches show how it changed later.
        decided, spec = _decide_next_launch(
            site,
            request,
            awaited.whole(gangs_to_serve),
            settled,
            offers,
            caps,
            is_ranking_recorded=decided is not None,
            is_late=late is not None,
        )
        if spec is None:
            break
        launched = _launch_and_record(site, request, spec, refusals)
        served |= launched
        offers = subtract_launched(offers, spec.offer, len(launched))
        if len(launched) < len(spec.nodes):
            offers = _leave_out(offers, spec.offer)
    refusals.record_collected()
    waiting: tuple[str, ...] = ()
    if decided and decided.delayed_nodes and decided.cap and not late:
        waiting = _let_wait(site, request, decided, decided.cap)
    settled = served | awaited.gone | awaited.up
    missing = tuple(n for n in request.nodes if n not in settled and n not in waiting)
    if not missing:
        return None, waiting
    cause = trouble or _find_cause(request, missing, decided, late, awaited.gone)
    spare = decided.spare_nodes if decided else 0
    shortfall = Shortfall(
        request=request, nodes=missing, cause=cause, spare_nodes=spare,
        partial_offers=refusals.of_partial,
    )  # fmt: skip
    return shortfall, waiting


def _find_cause(
    request: NodeRequest,
    missing: Sequence[str],
    decided: NextLaunch | None,
    late: RequestTooLate | None,
    left_by_slurm: frozenset[str],
) -> AnyCause:
    """Return why the ``missing`` nodes get no machine although the cloud answered."""
    # If no offer has room, people must read why, and not that it is too late.
    if late and decided and decided.delayed_nodes and decided.cap:
        return TurnMissed(waited_s=late.waited_s, timeout_s=late.timeout_s, cap=decided.cap)
    if late and decided and decided.nodes:
        return late
    jobs = [share for share in request.job_nodes.values() if not left_by_slurm.isdisjoint(share)]
    mates = {node for share in jobs for node in share}
    if mates.issuperset(missing):
        return NotAwaited(nodes=compress(sorted(left_by_slurm & mates)))
    return _explain_missing(request, missing, decided) if decided else NoOffers()


def _let_wait(
    site: Site, request: NodeRequest, decided: NextLaunch, cap: BootCap
) -> tuple[str, ...]:
    """Return the nodes that wait for their turn."""
    cause = WaitsForTurn(cap=cap)
    # The request is served again every few seconds while its nodes wait.
    if changed := site.recorder.find_changed(decided.delayed_nodes, "waiting", cause, request.id):
        record_launch_decision(site, request, changed, "waiting", cause)
    return decided.delayed_nodes


def _decide_next_launch(
    site: Site,
    request: NodeRequest,
    gangs_to_serve: Sequence[Gang],
    served: Collection[str],
    offers: Sequence[Offer],
    caps: Caps,
    *,
    is_ranking_recorded: bool,
    is_late: bool,
) -> tuple[NextLaunch, LaunchSpec | None]:
    """Decide the next launch. If there is one, write its intent to the ledger and return its spec.
    If ``is_late``, only decide, to report what would have been possible.

    ``served``: nodes of the request that need no launch. ``is_ranking_recorded``: the first ranking
    of this request is in the records.
    """
    provider = site.providers[request.pool.cloud]
    # The decision and its intent in one transaction: as soon as the next decision of any cloud is
    # taken, it must count this launch.
    with site.spending(request.pool) as scope:
        now = site.now()
        decided = next_launch(
            request, gangs_to_serve, served, offers, scope, now,
            caps=caps,
            startable=provider.startable() if isinstance(provider, Limited) else None,
            keys=site.config.ranking,
            choices=provider.alternatives if isinstance(provider, Chooser) else 0,
        )  # fmt: skip
        must_record = not is_ranking_recorded and not decided.delayed_nodes
        if is_late or not decided.nodes:
            if must_record:
                record_ranking(site, decided.placement, enough=bool(decided.nodes))
            return decided, None
        spec = LaunchSpec(
            generation=new_generation(now, site.spool.newest(), site.epoch),
            pool=request.pool,
            nodes=decided.nodes,
            offer=decided.offers[0],
            jobs=decided.jobs,
            alternatives=decided.offers[1:],
            least=decided.least,
        )
        if request.owners:
            owner = agreed(decided.jobs, request.owners, site.config.accounting.tags)
            spec = replace(spec, owner=owner)
        for describe in site.extensions.complete_spec:
            spec = describe(spec)
        reach("launch.before-intent")
        if must_record:
            record_ranking(site, decided.placement, enough=True)
        # The intent has the terms: until the machines are in the ledger, a crash may pass and the
        # configuration may change.
        terms = site.terms_by_type(spec)
        site.ledger.launches.record_intent(spec, request.id, now, terms)
    return decided, spec


def _launch_and_record(
    site: Site, request: NodeRequest, spec: LaunchSpec, refusals: Refusals
) -> set[str]:
    """Launch ``spec`` and record the result. Returns the nodes that need no other offer."""

    def record_started(instances: Sequence[Instance]) -> None:
        # The refusals of earlier offers first, so that ``explain`` shows them in this order.
        refusals.record_collected()
        if nodes := tuple({i.node for i in instances}):
            record_launch_decision(
                site, request, nodes, "launched", describe_purchase(spec, instances)
            )

    for on_intent in site.extensions.on_intent:
        on_intent(spec)
    result = launch(site, spec, request.id, record_started=record_started)
    if result.outcome is LaunchOutcome.IN_DOUBT:
        # These nodes may have machines. Trying another offer could buy a second machine for each.
        # A later round repeats the same call under the same token.
        refusals.record_collected()
        record_launch_decision(
            site, request, spec.nodes, "launch-in-doubt", Quoted(text=result.reason)
        )
        return set(spec.nodes)
    started = {i.node for i in result.instances}
    if result.outcome is LaunchOutcome.REFUSED:
        refusals.add(spec, Quoted(text=result.reason))
    elif len(started) < len(spec.nodes):
        refusals.of_partial |= cool_down_partial(site, spec, len(started))
    else:
        forget_refusals(site, spec, result.instances)
    return started


def subtract_launched(
    offers: Sequence[Offer], launched_offer: Offer, count: int
) -> Sequence[Offer]:
    """Subtract the machines just launched from the cloud's free count, which is from before the
    launch. Otherwise we would ask for too many, be refused, and wrongly cool the offer down.
    """
    return tuple(
        replace(o, free=max(0, o.free - count), free_reason=f"this request took {count}")
        if o.key == launched_offer.key and o.free is not None and count
        else o
        for o in offers
    )


def _leave_out(offers: Sequence[Offer], exhausted: Offer) -> Sequence[Offer]:
    """Give the offer no more room in this request. Its cool-down alone does not end the loop over
    the offers: it may fail, or be over before the next decision.
    """
    return tuple(
        replace(o, free=0, free_reason="it refused more to this request")
        if o.key == exhausted.key
        else o
        for o in offers
    )


def _explain_missing(request: NodeRequest, missing: Sequence[str], decided: NextLaunch) -> AnyCause:
    """Return everything that prevented the last launch, as one cause."""
    groups = grouped((r.offer, r.cause) for r in decided.placement.rejected)
    if not decided.spare_nodes:
        return no_offer_serves(groups) if groups else NoOffers(cloud=request.pool.cloud)
    bounds = ((r.offer, r.bound) for r in decided.placement.ranked)
    bounded_groups = grouped((offer, bound) for offer, bound in bounds if bound is not None)
    return replace(
        no_offer_serves(groups),
        bounded=no_offer_serves(bounded_groups).groups,
        pool=request.pool.name,
        lacking=len(missing),
        spare=decided.spare_nodes,
    )


def ask_for_offers(site: Site, request: NodeRequest) -> tuple[Sequence[Offer], AnyCause | None]:
    """Return the cloud's offers for the request's pool. If the cloud gave no answer, return no
    offers, and the reason.
    """
    provider = site.providers[request.pool.cloud]
    try:
        offers = call_with_retries(site, request.pool.cloud, lambda: provider.offers(request.pool))
    except ProviderError as error:
        if isinstance(error, AuthError):
            report_auth(site, error)
        error_text = str(error)
    # A provider may raise errors of its SDK. Refuse the nodes with this cause, as for any other
    # cloud that does not answer: a raised error would only repeat the whole request.
    except Exception as error:
        log.exception("offers failed in an unknown way cloud=%s", provider.name)
        error_text = bounded(f"{provider.name}: {type(error).__name__}: {error}")
    else:
        site.worst_prices.update({offer.key: offer.worst_price for offer in offers})
        return offers, None
    cause = CloudSilent(cloud=provider.name, error=error_text)
    record_launch_decision(site, request, request.nodes, "no-offers", cause)
    return (), cause


def describe_purchase(spec: LaunchSpec, instances: Sequence[Instance]) -> MachinesBought:
    """Return the machines of a launch, counted by kind, as the cause of its record."""
    counts = Counter((i.instance_type, i.zone, i.market, i.price) for i in instances)
    kinds = (
        MachinesOfKind(instance_type=kind, zone=zone, market=market, price=price, count=n)
        for (kind, zone, market, price), n in counts.most_common()
    )
    return MachinesBought(machines=tuple(kinds), offers=len(spec.offers))
