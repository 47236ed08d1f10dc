"""Nodes that Slurm waits for: ranked, launched offer by offer, and what cannot be had given back.

The nodes of a multi-node job are had together or not at all (``policies.together``): it is not
begun where the bounds that are known leave too little room, and where a cloud turns out to have
less, its machines serve another job of the round or end in it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.controller.boot_breaker import note_registered
from slurm_elastic.controller.budget_enforcement import Jobs, afford
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.launch import (
    Outcome,
    cool_partial,
    forgive,
    launch,
    patiently,
    report_auth,
)
from slurm_elastic.controller.launch_options import alternatives, bought, startable
from slurm_elastic.controller.reject import give_back, refuse
from slurm_elastic.controller.request_audit import Refusals, note, note_once, record_ranking
from slurm_elastic.controller.suspend import end
from slurm_elastic.errors import AuthError, ProviderError
from slurm_elastic.faults import reach
from slurm_elastic.model import LaunchSpec, NodeRequest, Offer, Placement, Pool
from slurm_elastic.policies.boot_breaker import may_wait, turn
from slurm_elastic.policies.gang import Settled, Unit, ask, settle, units
from slurm_elastic.policies.grouping import grouped, sentence
from slurm_elastic.policies.ranking import rank, serving

log = logging.getLogger(__name__)

BRIEF = 60.0
"""Seconds that nodes wait for a ledger that cannot be written before they are given back: a lock or
a full disk may soon be over, and a job that starts elsewhere has to wait once more.
"""


class Short(Struct, frozen=True, kw_only=True):
    """The part of a request that could not be had, and why; ``spare`` more could be, but not for
    these, as they are of use together only.
    """

    request: NodeRequest
    nodes: tuple[str, ...]
    why: str
    spare: int = 0


class _Choice(Struct, frozen=True, kw_only=True):
    """The next launch; without ``spec``, why there is none. ``waiting`` could be had, but so many
    machines boot already that they wait for their turn (``cap`` says at whose).
    """

    placement: Placement
    spec: LaunchSpec | None = None
    spare: int = 0
    waiting: tuple[str, ...] = ()
    cap: str = ""


def place(
    site: Site,
    cloud: str,
    correlation: str,
    nodes: Sequence[str],
    jobs: Jobs,
    asked: float | None = None,
    *,
    trouble: str = "",
) -> tuple[str, ...]:
    """Launch machines for these nodes of ``cloud``, and refuse those that cannot be had. Returns
    those that wait for their turn to boot: call again for them soon. ``asked`` is when Slurm
    asked for the nodes, where that is known; with ``trouble`` the cloud is not asked for offers.
    While nothing can be written down all are refused, or wait where that may soon be over.
    """
    if site.ledger.end_only and site.now() - site.ledger.since < BRIEF:
        return tuple(nodes)
    trouble = trouble or site.ledger.end_only
    nodes, jobs = afford(site, cloud, correlation, nodes, jobs)
    by_pool: dict[str, list[str]] = {}
    for node in nodes:
        by_pool.setdefault(site.pool_of[node].name, []).append(node)
    shorts: list[Short] = []
    waiting: list[str] = []
    given_up: set[int] = set()
    if any(cap is not None for name in by_pool for _, cap in _caps(site, site.pools[name])):
        note_registered(site, cloud)
    for name, mine in by_pool.items():
        request = request_for(correlation, site.pools[name], mine, jobs)
        short, later = _serve(site, request, given_up, asked, trouble)
        waiting += later
        if short is not None:
            shorts.append(short)
            given_up.update(_whole_jobs(request, short.nodes))
    if shorts:
        _settle(site, cloud, shorts, nodes, jobs)
    return tuple(waiting)


def request_for(correlation: str, pool: Pool, nodes: Sequence[str], jobs: Jobs) -> NodeRequest:
    """A request for these nodes; of ``jobs`` (with their nodes) those that wait for any."""
    wanted = set(nodes)
    shares = {j: tuple(n for n in of if n in wanted) for j, of in jobs.items()}
    shares = {job: share for job, share in shares.items() if share}
    return NodeRequest(
        id=correlation, pool=pool, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares
    )


def _part(request: NodeRequest, nodes: Sequence[str]) -> NodeRequest:
    """The request for some of its nodes, with the jobs that wait for them."""
    return request_for(request.id, request.pool, nodes, request.job_nodes)


def _whole_jobs(request: NodeRequest, lost: Sequence[str]) -> list[int]:
    """The jobs that cannot start without ``lost``, so that other pools need not serve them."""
    gone = set(lost)
    return [j for j, share in request.job_nodes.items() if not gone.isdisjoint(share)]


def _serve(
    site: Site,
    request: NodeRequest,
    given_up: Collection[int],
    asked: float | None,
    trouble: str,
) -> tuple[Short | None, tuple[str, ...]]:
    """Launch on the best offer, then the next, until all nodes have machines or none is left.
    Returns what cannot be had, and what waits for its turn.
    """
    offers, trouble = ((), trouble) if trouble else _offers(site, request)
    todo = _units_of(request, given_up)
    had: set[str] = set()
    choice: _Choice | None = None
    tried = Refusals(site, request)
    while len(had) < len(request.nodes) and not trouble:
        # The first ranking is kept; what came of it later is told by what was tried.
        choice = _choose(site, request, todo, had, offers, told=choice is not None)
        if choice.spec is None:
            break
        taken = _launch(site, request, choice.spec, tried)
        offers = _without(offers, choice.spec.offer, len(taken))
        had |= taken
    tried.tell()
    waiting, why = _turns(site, request, choice, asked)
    coming = had.union(waiting)
    left = tuple(n for n in request.nodes if n not in coming)
    if not left:
        return None, waiting
    why = trouble or why or (_why(request, left, choice) if choice else "")
    spare = choice.spare if choice else 0
    return Short(request=request, nodes=left, why=why, spare=spare), waiting


def _turns(
    site: Site, request: NodeRequest, choice: _Choice | None, asked: float | None
) -> tuple[tuple[str, ...], str]:
    """The nodes that go on waiting for their turn; or none, and why they may not any longer."""
    if choice is None or not choice.waiting:
        return (), ""
    now = site.now()
    longest = site.config.resume_timeout(site.config.cloud(request.pool.cloud))
    if may_wait(asked, now, longest):
        note_once(site, request, choice.waiting, "waiting", f"for its turn: {choice.cap}")
        return choice.waiting, ""
    waited = now - (asked or now)
    return (), (
        f"its turn to boot did not come in {waited:.0f} s: {choice.cap}, and what is left of "
        f"ResumeTimeout ({longest:.0f} s) would not do"
    )


def _caps(site: Site, pool: Pool) -> tuple[tuple[str, int | None], ...]:
    """How many machines may boot at once, by scope."""
    cloud = site.config.cloud(pool.cloud)
    return (f"cloud:{cloud.name}", cloud.max_booting), (f"pool:{pool.name}", pool.max_booting)


def _units_of(request: NodeRequest, given_up: Collection[int]) -> tuple[Unit, ...]:
    alone = request.nodes if request.pool.partial_jobs else ()
    found = units(request.nodes, request.job_nodes, frozenset(alone))
    return tuple(u for u in found if u.job is None or u.job not in given_up or u.nodes[0] in alone)


def _choose(
    site: Site,
    request: NodeRequest,
    todo: Sequence[Unit],
    had: Collection[str],
    offers: Sequence[Offer],
    *,
    told: bool,
) -> _Choice:
    """The next launch, its intent written; or the placement of what no launch can serve. ``told``:
    this request's ranking is kept already.
    """
    left = tuple(n for n in request.nodes if n not in had)
    with site.spending:
        scope, now, keys = site.scope(request.pool), site.now(), site.config.ranking
        launches = serving(replace(request, nodes=left), offers, scope, now, keys)
        room = sum(launch.room for launch in launches)
        nodes = ask(todo, had, room)
        caps = turn(_caps(site, request.pool), scope.booting)
        allowed, cap = min(caps, startable(site, request.pool.cloud, len(nodes)))
        if nodes and not allowed:
            placement = rank(_part(request, left), offers, scope, now, keys)
            spare = room - len(nodes)
            return _Choice(placement=placement, spare=spare, waiting=nodes, cap=cap)
        placement = rank(_part(request, nodes or left), offers, scope, now, keys)
        if not told:
            record_ranking(site, placement, enough=bool(nodes))
        if not nodes:
            return _Choice(placement=placement, spare=room)
        best = placement.ranked[0]
        part = _part(request, nodes[: min(best.room, allowed)])
        spec = LaunchSpec(
            generation=new_generation(now),
            pool=request.pool,
            nodes=part.nodes,
            offer=best.offer,
            jobs=part.jobs,
            alternatives=alternatives(site, placement, len(part.nodes)),
        )
        reach("launch.before-intent")
        site.ledger.intend(spec, request.id, now)
    return _Choice(placement=placement, spec=spec)


def _launch(site: Site, request: NodeRequest, spec: LaunchSpec, tried: Refusals) -> set[str]:
    """The nodes that need no other offer."""
    result = launch(site, spec, request.id)
    if result.outcome is not Outcome.REFUSED:
        tried.tell()
    if result.outcome is Outcome.IN_DOUBT:
        # These may have machines: no other offer for them. Reconcile repeats the same call.
        note(site, request, spec.nodes, "launch-in-doubt", result.why)
        return set(spec.nodes)
    started = {i.node for i in result.instances}
    if result.outcome is Outcome.REFUSED:
        tried.add(spec, result.why)
    elif len(started) < len(spec.nodes):
        cool_partial(site, spec, len(started))
    else:
        forgive(site, spec, result.instances)
    if started:
        note(site, request, tuple(started), "launched", bought(spec, result.instances))
    return started


def _without(offers: Sequence[Offer], one: Offer, taken: int) -> Sequence[Offer]:
    """The offers after a launch: what a cloud said is free was so before it. Asked for more than
    that it would refuse, and what it has would rest although it did nothing wrong.
    """
    return tuple(
        replace(o, free=max(0, o.free - taken), free_reason=f"this request took {taken}")
        if o.key == one.key and o.free is not None and taken
        else o
        for o in offers
    )


def _why(request: NodeRequest, left: Sequence[str], choice: _Choice) -> str:
    """All that was in the way of the last try, in one line."""
    rejected = [(r.offer, r.reason) for r in choice.placement.rejected]
    if not choice.spare:
        return sentence(grouped(rejected)) or f"cloud {request.pool.cloud} gave no offers"
    wanted = f"{len(left)} node(s) of pool {request.pool.name} are wanted"
    first = f"{wanted}, {choice.spare} can be had, and jobs are served whole"
    ranked = [(r.offer, r.reason) for r in choice.placement.ranked]
    causes = (first, sentence(grouped(rejected)), sentence(grouped(ranked)))
    return "; ".join(cause for cause in causes if cause)


# what cannot be had


def _settle(
    site: Site, cloud: str, shorts: Sequence[Short], nodes: Sequence[str], jobs: Jobs
) -> None:
    """Refuse whole jobs; their machines serve others of the round, or end."""
    settled = _settled(site, cloud, shorts, nodes, jobs)
    short_of = {short.request.pool.name: short for short in shorts}
    refused: dict[str, list[str]] = {}
    for node in settled.refused:
        refused.setdefault(site.pool_of[node].name, []).append(node)
    idle = set(settled.ended)
    machines = [
        m for m in site.ledger.machines()
        if m.instance.node in idle and m.instance.cloud == cloud and m.suspending is None
    ]  # fmt: skip
    why = "; ".join(dict.fromkeys(short.why for short in shorts))
    correlation = shorts[0].request.id
    if settled.handed:
        site.record(correlation, "handed", settled.handed, f"its job cannot be had whole ({why})")
    forced: set[str] = set()
    for name, some in refused.items():
        whole = request_for(correlation, site.pools[name], some, jobs)
        if name in short_of:
            forced |= refuse(site, whole, some, short_of[name].why, spare=short_of[name].spare)
        else:
            site.record(correlation, "refused", (*some, *(f"job:{j}" for j in whole.jobs)), why)
            forced |= give_back(site, some, site.slurm.nodes(some), why, correlation)
    doomed = [m for m in machines if m.instance.node in forced]
    end(site, cloud, doomed, "its job could not be had whole", correlation)


def _settled(
    site: Site, cloud: str, shorts: Sequence[Short], nodes: Sequence[str], jobs: Jobs
) -> Settled:
    """Of all nodes of these jobs that are at stake: those of this round, and those that have a
    machine already of an earlier one. One that is lost to a launch in doubt has one, perhaps.
    """
    lost = {n for short in shorts for n in short.nodes}
    served = site.served()
    touched = set(nodes)
    of_jobs = [of for of in jobs.values() if not touched.isdisjoint(of)]
    more = (n for of in of_jobs for n in of if n in served and _is_of(site, cloud, n))
    names = tuple(dict.fromkeys((*nodes, *more)))
    alone = {n for n in names if site.pool_of[n].partial_jobs}
    pools = {n: site.pool_of[n].name for n in names}
    return settle(units(names, jobs, alone), (served | touched) - lost, pools)


def _is_of(site: Site, cloud: str, node: str) -> bool:
    return node in site.pool_of and site.pool_of[node].cloud == cloud


# asking


def _offers(site: Site, request: NodeRequest) -> tuple[Sequence[Offer], str]:
    """The cloud's offers; or none and why it could not be asked."""
    provider = site.providers[request.pool.cloud]
    try:
        offers = patiently(site, lambda: provider.offers(request.pool))
    except ProviderError as error:
        if isinstance(error, AuthError):
            report_auth(site, error)
        why = str(error)
    except Exception as error:
        log.exception("offers failed in an unknown way cloud=%s", provider.name)
        why = f"{provider.name}: {type(error).__name__}: {error}"
    else:
        site.learn_prices(offers)
        return offers, ""
    note(site, request, request.nodes, "no-offers", why)
    return (), why
