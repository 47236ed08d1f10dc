"""Nodes that Slurm waits for: ranked, launched offer by offer, and what cannot be had given back.

The nodes of a multi-node job are had together or not at all (``policies.launch.gang``): it is
not begun where the bounds that are known leave too little room (``shortfall``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError, bounded
from slurm_elastic.base.faults import reach
from slurm_elastic.controller.boots import record_registrations
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.extensions import Caps, Jobs, Owners
from slurm_elastic.controller.launch import (
    LaunchOutcome,
    cool_partial,
    forgive,
    launch,
    report_auth,
    with_retries,
)
from slurm_elastic.controller.launch_decisions import Refusals, note, record_ranking
from slurm_elastic.controller.shortfall import Shortfall, refuse
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.limits import BootCap, TurnMissed, WaitsForTurn
from slurm_elastic.model.causes.purchases import MachinesBought, MachinesOfKind
from slurm_elastic.model.causes.refusals import CloudSilent, NoOffers
from slurm_elastic.model.causes.stops import RecordsNotWritten
from slurm_elastic.model.cluster import Instance, LaunchSpec, NodeRequest, Offer
from slurm_elastic.model.protocols import Chooser, Limited
from slurm_elastic.policies.launch.boots import may_wait
from slurm_elastic.policies.launch.gang import Gang, gangs, request_for
from slurm_elastic.policies.launch.grouping import grouped, no_offer_serves
from slurm_elastic.policies.launch.next_launch import NextLaunch, next_launch
from slurm_elastic.policies.launch.owner import agreed

log = logging.getLogger(__name__)


BRIEF = 60.0
"""Seconds that nodes wait for a ledger that cannot be written before they are given back: a lock or
a full disk may soon be over, and a job that starts elsewhere has to wait once more.
"""


def provision(
    site: Site,
    cloud: str,
    correlation: str,
    nodes: Sequence[str],
    jobs: Jobs,
    asked: float | None = None,
    *,
    trouble: AnyCause | None = None,
) -> tuple[str, ...]:
    """Launch machines for these nodes of ``cloud``, and refuse those that cannot be had. Returns
    those that wait for their turn to boot: call again for them soon. ``asked`` is when Slurm
    asked for the nodes, where that is known; with ``trouble`` the cloud is not asked for offers.
    While nothing can be written down all are refused, or wait where that may soon be over.
    """
    condition = site.ledger.condition
    if condition.end_only and site.now() - condition.since < BRIEF:
        return tuple(nodes)
    if trouble is None and condition.end_only:
        trouble = RecordsNotWritten(trouble=condition.end_only)
    for admit in site.extensions.filter_admitted:
        nodes, jobs = admit(cloud, correlation, nodes, jobs)
    owners: Owners = {}
    for tell in site.extensions.find_owners if not trouble else ():
        owners = {**owners, **tell(nodes, jobs)}
    by_pool: dict[str, list[str]] = {}
    for node in nodes:
        by_pool.setdefault(site.pool_of[node].name, []).append(node)
    shortfalls: list[Shortfall] = []
    waiting: list[str] = []
    given_up: set[int] = set()
    of_cloud = site.clouds[cloud].max_booting
    if of_cloud is not None or any(site.pools[name].max_booting is not None for name in by_pool):
        # What has come up since the last round makes room for others to boot.
        record_registrations(site, cloud)
    for name, mine in by_pool.items():
        request = request_for(correlation, site.pools[name], mine, jobs, owners)
        of_pool = request.pool.max_booting
        scopes = ((f"cloud:{cloud}", of_cloud), (f"pool:{name}", of_pool))
        caps = [(scope, most) for scope, most in scopes if most is not None]
        shortfall, later = _provision_pool(site, request, given_up, asked, trouble, caps)
        waiting += later
        if shortfall is not None:
            shortfalls.append(shortfall)
            # They cannot start without these, so that other pools need not serve them.
            lost = set(shortfall.nodes)
            of_job = request.job_nodes.items()
            given_up.update(job for job, share in of_job if not lost.isdisjoint(share))
    if shortfalls:
        refuse(site, cloud, shortfalls, nodes, jobs)
    return tuple(waiting)


def _provision_pool(
    site: Site,
    request: NodeRequest,
    given_up: Collection[int],
    asked: float | None,
    trouble: AnyCause | None,
    caps: Caps,
) -> tuple[Shortfall | None, tuple[str, ...]]:
    """Launch on the best offer, then the next, until all nodes have machines or none is left.
    ``caps``: how many machines may boot at once, by scope. Returns what cannot be had, and what
    waits for its turn.
    """
    offers, trouble = ((), trouble) if trouble else offers_of(site, request)
    alone = frozenset(request.nodes if request.pool.partial_jobs else ())
    todo = tuple(
        gang
        for gang in gangs(request.nodes, request.job_nodes, alone)
        if gang.job not in given_up or gang.nodes[0] in alone
    )
    had: set[str] = set()
    if not trouble:
        for serve in site.extensions.serve_before_buying:
            had.update(serve(request, todo, offers, caps))
    decided: NextLaunch | None = None
    tried = Refusals(site, request)
    while len(had) < len(request.nodes) and not trouble:
        # The first ranking is kept; what came of it later is told by what was tried.
        decided, spec = _decide(site, request, todo, had, offers, caps, told=decided is not None)
        if spec is None:
            break
        taken = _launch(site, request, spec, tried)
        had |= taken
        offers = without(offers, spec.offer, len(taken))
    tried.tell()
    waiting: tuple[str, ...] = ()
    why: AnyCause | None = None
    if decided and decided.waiting and decided.cap:
        waiting, why = _waiting(site, request, decided, decided.cap, asked)
    coming = had.union(waiting)
    left = tuple(n for n in request.nodes if n not in coming)
    if not left:
        return None, waiting
    why = trouble or why or (_why(request, left, decided) if decided else NoOffers())
    spare = decided.spare if decided else 0
    return Shortfall(request=request, nodes=left, why=why, spare=spare), waiting


def _waiting(
    site: Site, request: NodeRequest, decided: NextLaunch, cap: BootCap, asked: float | None
) -> tuple[tuple[str, ...], TurnMissed | None]:
    """The nodes that go on waiting for their turn; or none, and why they may not any longer."""
    now = site.now()
    longest = site.config.resume_timeout(site.clouds[request.pool.cloud])
    if may_wait(asked, now, longest):
        why = WaitsForTurn(cap=cap)
        if news := site.news(decided.waiting, "waiting", why, request.id):
            note(site, request, news, "waiting", why)
        return decided.waiting, None
    return (), TurnMissed(waited_s=now - (asked or now), timeout_s=longest, cap=cap)


def _decide(
    site: Site,
    request: NodeRequest,
    todo: Sequence[Gang],
    had: Collection[str],
    offers: Sequence[Offer],
    caps: Caps,
    *,
    told: bool,
) -> tuple[NextLaunch, LaunchSpec | None]:
    """The next launch and, where there is one, its spec, whose intent is in the ledger then: the
    next decision of any cloud counts it. ``told``: this request's ranking is kept already.
    """
    provider = site.providers[request.pool.cloud]
    with site.spending(request.pool) as scope:
        now = site.now()
        decided = next_launch(
            request, todo, had, offers, scope, now,
            caps=caps,
            startable=provider.startable() if isinstance(provider, Limited) else None,
            keys=site.config.ranking,
            choices=provider.alternatives if isinstance(provider, Chooser) else 0,
        )  # fmt: skip
        keep = not told and not decided.waiting
        if not decided.nodes:
            if keep:
                record_ranking(site, decided.placement, enough=False)
            return decided, None
        spec = LaunchSpec(
            generation=new_generation(now, site.spool.newest(), site.epoch),
            pool=request.pool,
            nodes=decided.nodes,
            offer=decided.offers[0],
            jobs=decided.jobs,
            alternatives=decided.offers[1:],
        )
        if request.owners:
            owner = agreed(decided.jobs, request.owners, site.config.books.tags)
            spec = replace(spec, owner=owner)
        for describe in site.extensions.complete_spec:
            spec = describe(spec)
        reach("launch.before-intent")
        if keep:
            record_ranking(site, decided.placement, enough=True)
        site.ledger.launches.intend(spec, request.id, now)
    return decided, spec


def _launch(site: Site, request: NodeRequest, spec: LaunchSpec, tried: Refusals) -> set[str]:
    """The nodes that need no other offer."""

    def tell(instances: Sequence[Instance]) -> None:
        tried.tell()
        if nodes := tuple({i.node for i in instances}):
            note(site, request, nodes, "launched", bought(spec, instances))

    for tell_intent in site.extensions.on_intent:
        tell_intent(spec)
    result = launch(site, spec, request.id, tell=tell)
    if result.outcome is LaunchOutcome.IN_DOUBT:
        # These may have machines: no other offer for them. Reconcile repeats the same call.
        tried.tell()
        note(site, request, spec.nodes, "launch-in-doubt", Quoted(text=result.why))
        return set(spec.nodes)
    started = {i.node for i in result.instances}
    if result.outcome is LaunchOutcome.REFUSED:
        tried.add(spec, Quoted(text=result.why))
    elif len(started) < len(spec.nodes):
        cool_partial(site, spec, len(started))
    else:
        forgive(site, spec, result.instances)
    return started


def without(offers: Sequence[Offer], one: Offer, taken: int) -> Sequence[Offer]:
    """The offers after a launch: what a cloud said is free was so before it. Asked for more than
    that it would refuse, and what it has would cool down although it did nothing wrong.
    """
    return tuple(
        replace(o, free=max(0, o.free - taken), free_reason=f"this request took {taken}")
        if o.key == one.key and o.free is not None and taken
        else o
        for o in offers
    )


def _why(request: NodeRequest, left: Sequence[str], decided: NextLaunch) -> AnyCause:
    """All that was in the way of the last try."""
    groups = grouped((r.offer, r.cause) for r in decided.placement.rejected)
    if not decided.spare:
        return no_offer_serves(groups) if groups else NoOffers(cloud=request.pool.cloud)
    bounds = ((r.offer, r.bound) for r in decided.placement.ranked)
    bounded_groups = grouped((offer, bound) for offer, bound in bounds if bound is not None)
    return replace(
        no_offer_serves(groups),
        bounded=no_offer_serves(bounded_groups).groups,
        pool=request.pool.name,
        lacking=len(left),
        spare=decided.spare,
    )


def offers_of(site: Site, request: NodeRequest) -> tuple[Sequence[Offer], AnyCause | None]:
    """The cloud's offers; or none and why it could not be asked."""
    provider = site.providers[request.pool.cloud]
    try:
        offers = with_retries(site, lambda: provider.offers(request.pool))
    except ProviderError as error:
        if isinstance(error, AuthError):
            report_auth(site, error)
        why = str(error)
    except Exception as error:
        log.exception("offers failed in an unknown way cloud=%s", provider.name)
        why = bounded(f"{provider.name}: {type(error).__name__}: {error}")
    else:
        site.worst_prices.update({offer.key: offer.worst_price for offer in offers})
        return offers, None
    cause = CloudSilent(cloud=provider.name, error=why)
    note(site, request, request.nodes, "no-offers", cause)
    return (), cause


def bought(spec: LaunchSpec, instances: Sequence[Instance]) -> MachinesBought:
    """The machines of a launch."""
    counts = Counter((i.instance_type, i.zone, i.market, i.price) for i in instances)
    kinds = (
        MachinesOfKind(instance_type=kind, zone=zone, market=market, price=price, count=n)
        for (kind, zone, market, price), n in counts.most_common()
    )
    return MachinesBought(machines=tuple(kinds), offers=len(spec.offers))
