"""A resume request: of its nodes those that Slurm still wants are placed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.audit_trail import job_subject
from slurm_elastic.controller.addresses import enrolment_word
from slurm_elastic.controller.boots import record_registrations
from slurm_elastic.controller.budget_enforcement import Jobs, admit
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.deferred import bar, too_large
from slurm_elastic.controller.holds import power_down_and_requeue, reject_nodes
from slurm_elastic.controller.launch import (
    Outcome,
    cool_partial,
    forgive,
    launch,
    report_auth,
    with_retries,
)
from slurm_elastic.controller.starting import Caps, start_stopped
from slurm_elastic.controller.stopping import recipe
from slurm_elastic.controller.suspend import nodes_with_capacity, stale_instances, terminate
from slurm_elastic.errors import AuthError, ProviderError, SlurmError, bounded
from slurm_elastic.faults import reach
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import LedgerState, Machine
from slurm_elastic.model import (
    Instance,
    LaunchSpec,
    NodeRequest,
    Offer,
    Placement,
    Pool,
    worst_prices,
)
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.boots import may_wait
from slurm_elastic.policies.grouping import braces, grouped, sentence
from slurm_elastic.policies.next_launch import (
    Gang,
    GangResult,
    NextLaunch,
    gangs,
    next_launch,
    part_of,
    resolve,
)
from slurm_elastic.policies.node_state import Phase, phase
from slurm_elastic.policies.owner import agreed
from slurm_elastic.policies.reconcile_rules import POWERED_UP_AGAIN
from slurm_elastic.protocols import Chooser, Limited, Provider
from slurm_elastic.spool import Request

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


# Nodes that Slurm waits for: ranked, launched offer by offer, and what cannot be had given back.
#
# The nodes of a multi-node job are had together or not at all (``policies.gang``): it is not
# begun where the bounds that are known leave too little room, and where a cloud turns out to have
# less, its machines serve another job of the round or end in it.


BRIEF = 60.0
"""Seconds that nodes wait for a ledger that cannot be written before they are given back: a lock or
a full disk may soon be over, and a job that starts elsewhere has to wait once more.
"""

NOT_WHOLE = "its job cannot be had whole"


class Shortfall(Struct, frozen=True, kw_only=True):
    """The part of a request that could not be had, and why; ``spare`` more could be, but not for
    these, as they are of use together only.
    """

    request: NodeRequest
    nodes: tuple[str, ...]
    why: str
    spare: int


def provision(
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
    condition = site.ledger.condition
    if condition.end_only and site.now() - condition.since < BRIEF:
        return tuple(nodes)
    trouble = trouble or condition.end_only
    nodes, jobs = admit(site, cloud, correlation, nodes, jobs)
    by_pool: dict[str, list[str]] = {}
    for node in nodes:
        by_pool.setdefault(site.pool_of[node].name, []).append(node)
    owners = {} if trouble else _owners(site, jobs)
    shortfalls: list[Shortfall] = []
    waiting: list[str] = []
    given_up: set[int] = set()
    most = site.clouds[cloud].max_booting
    if most is not None or any(site.pools[name].max_booting is not None for name in by_pool):
        record_registrations(site, cloud)
    for name, mine in by_pool.items():
        request = request_for(correlation, site.pools[name], mine, jobs, owners)
        caps = (f"cloud:{cloud}", most), (f"pool:{name}", request.pool.max_booting)
        shortfall, later = _provision_pool(site, request, given_up, asked, trouble, caps)
        waiting += later
        if shortfall is not None:
            shortfalls.append(shortfall)
            given_up.update(_jobs_without(request, shortfall.nodes))
    if shortfalls:
        _refuse(site, cloud, shortfalls, nodes, jobs)
    return tuple(waiting)


Owners = Mapping[int, Mapping[str, str]]
"""Whose each job is, as ``protocols.Slurm.owners`` tells it."""


def _owners(site: Site, jobs: Jobs) -> Owners:
    """For tags alone: none where Slurm does not tell."""
    if not jobs or not site.config.books.tags:
        return {}
    try:
        return site.slurm.owners(sorted(jobs))
    except SlurmError as error:
        log.info("machines get no tags of their owner: %s", error)
        return {}


def request_for(
    correlation: str,
    pool: Pool,
    nodes: Sequence[str],
    jobs: Jobs,
    owners: Owners | None = None,
) -> NodeRequest:
    """A request for these nodes; of ``jobs`` (with their nodes) those that wait for any."""
    whole = NodeRequest(
        id=correlation,
        pool=pool,
        nodes=tuple(nodes),
        job_nodes={j: tuple(of) for j, of in jobs.items()},
        owners=owners or {},
    )
    return part_of(whole, nodes)


def _jobs_without(request: NodeRequest, lost: Sequence[str]) -> list[int]:
    """The jobs that cannot start without ``lost``, so that other pools need not serve them."""
    gone = set(lost)
    return [j for j, share in request.job_nodes.items() if not gone.isdisjoint(share)]


def _provision_pool(
    site: Site,
    request: NodeRequest,
    given_up: Collection[int],
    asked: float | None,
    trouble: str,
    caps: Caps,
) -> tuple[Shortfall | None, tuple[str, ...]]:
    """Launch on the best offer, then the next, until all nodes have machines or none is left.
    ``caps``: how many machines may boot at once, by scope. Returns what cannot be had, and what
    waits for its turn.
    """
    offers, trouble = ((), trouble) if trouble else _offers(site, request)
    todo = _gangs_of(request, given_up)
    had = set() if trouble else start_stopped(site, request, todo, offers, caps)
    decided: NextLaunch | None = None
    tried = Refusals(site, request)
    while len(had) < len(request.nodes) and not trouble:
        # The first ranking is kept; what came of it later is told by what was tried.
        decided, spec = _decide(site, request, todo, had, offers, caps, told=decided is not None)
        if spec is None:
            break
        taken = _launch(site, request, spec, tried)
        had |= taken
        offers = _without(offers, spec.offer, len(taken))
    tried.tell()
    waiting, why = _waiting(site, request, decided, asked)
    coming = had.union(waiting)
    left = tuple(n for n in request.nodes if n not in coming)
    if not left:
        return None, waiting
    why = trouble or why or (_why(request, left, decided) if decided else "")
    spare = decided.spare if decided else 0
    return Shortfall(request=request, nodes=left, why=why, spare=spare), waiting


def _waiting(
    site: Site, request: NodeRequest, decided: NextLaunch | None, asked: float | None
) -> tuple[tuple[str, ...], str]:
    """The nodes that go on waiting for their turn; or none, and why they may not any longer."""
    if decided is None or not decided.waiting:
        return (), ""
    now = site.now()
    longest = site.config.resume_timeout(site.clouds[request.pool.cloud])
    if may_wait(asked, now, longest):
        note_once(site, request, decided.waiting, "waiting", f"for its turn: {decided.cap}")
        return decided.waiting, ""
    waited = now - (asked or now)
    return (), (
        f"its turn to boot did not come in {waited:.0f} s: {decided.cap}, and what is left of "
        f"ResumeTimeout ({longest:.0f} s) would not do"
    )


def _gangs_of(request: NodeRequest, given_up: Collection[int]) -> tuple[Gang, ...]:
    alone = request.nodes if request.pool.partial_jobs else ()
    found = gangs(request.nodes, request.job_nodes, frozenset(alone))
    return tuple(g for g in found if g.job is None or g.job not in given_up or g.nodes[0] in alone)


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
            choices=_choices(provider),
        )  # fmt: skip
        keep = not told and not decided.waiting
        if not decided.nodes:
            if keep:
                record_ranking(site, decided.placement, enough=False)
            return decided, None
        spec = _spec(site, request, decided, now)
        reach("launch.before-intent")
        if keep:
            record_ranking(site, decided.placement, enough=True)
        site.ledger.intend(spec, request.id, now)
    return decided, spec


def _spec(site: Site, request: NodeRequest, decided: NextLaunch, now: float) -> LaunchSpec:
    cloud = request.pool.cloud
    generation = new_generation(now, site.spool.newest())
    return LaunchSpec(
        generation=generation,
        pool=request.pool,
        nodes=decided.nodes,
        offer=decided.offers[0],
        jobs=decided.jobs,
        owner=agreed(decided.jobs, request.owners, site.config.books.tags),
        alternatives=decided.offers[1:],
        enrol=enrolment_word(site, cloud, generation),
    )


def _choices(provider: Provider) -> int:
    """Among how many more offers the cloud can choose in one launch."""
    return provider.alternatives if isinstance(provider, Chooser) else 0


def _launch(site: Site, request: NodeRequest, spec: LaunchSpec, tried: Refusals) -> set[str]:
    """The nodes that need no other offer."""

    def tell(instances: Sequence[Instance]) -> None:
        tried.tell()
        if nodes := tuple({i.node for i in instances}):
            note(site, request, nodes, "launched", _bought(spec, instances))

    if spec.pool.stopped and (word := recipe(site, spec.pool)):
        site.ledger.note_recipe(spec.generation, word)
    result = launch(site, spec, request.id, tell=tell)
    if result.outcome is Outcome.IN_DOUBT:
        # These may have machines: no other offer for them. Reconcile repeats the same call.
        tried.tell()
        note(site, request, spec.nodes, "launch-in-doubt", result.why)
        return set(spec.nodes)
    started = {i.node for i in result.instances}
    if result.outcome is Outcome.REFUSED:
        tried.add(spec, result.why)
    elif len(started) < len(spec.nodes):
        cool_partial(site, spec, len(started))
    else:
        forgive(site, spec, result.instances)
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


def _why(request: NodeRequest, left: Sequence[str], decided: NextLaunch) -> str:
    """All that was in the way of the last try, in one line."""
    rejected = [(r.offer, r.reason) for r in decided.placement.rejected]
    if not decided.spare:
        return sentence(grouped(rejected)) or f"cloud {request.pool.cloud} gave no offers"
    wanted = f"{len(left)} node(s) of pool {request.pool.name} are wanted"
    first = f"{wanted}, {decided.spare} can be had, and jobs are served whole"
    ranked = [(r.offer, r.reason) for r in decided.placement.ranked]
    causes = (first, sentence(grouped(rejected)), sentence(grouped(ranked)))
    return "; ".join(cause for cause in causes if cause)


# what cannot be had


def _refuse(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> None:
    """Refuse whole jobs; their machines serve others of the round, or end."""
    result = _gang_result(site, cloud, shortfalls, nodes, jobs)
    shortfall_of = {shortfall.request.pool.name: shortfall for shortfall in shortfalls}
    never = too_large(site, cloud, result.failed, jobs)
    alone = _only_of(never, jobs)
    refused: dict[str, list[str]] = {}
    for node in result.refused:
        if node not in alone:
            refused.setdefault(site.pool_of[node].name, []).append(node)
    idle = set(result.ended)
    machines = [
        m for m in site.ledger.machines()
        if m.instance.node in idle and m.instance.cloud == cloud and m.suspending is None
    ]  # fmt: skip
    why = "; ".join(dict.fromkeys(shortfall.why for shortfall in shortfalls))
    correlation = shortfalls[0].request.id
    if result.reassigned:
        site.record(correlation, "reassigned", result.reassigned, f"{NOT_WHOLE} ({why})")
    forced = _turn_away(site, cloud, correlation, never, jobs, alone.intersection(result.refused))
    for name, some in refused.items():
        request = request_for(correlation, site.pools[name], some, jobs)
        if name in shortfall_of:
            short = shortfall_of[name]
            forced |= reject_nodes(site, request, some, short.why, spare=short.spare)
        else:
            site.record(correlation, "refused", (*some, *(f"job:{j}" for j in request.jobs)), why)
            forced |= power_down_and_requeue(site, some, site.slurm.nodes(some), why, correlation)
    doomed = [m for m in machines if m.instance.node in forced]
    terminate(site, cloud, doomed, "its job could not be had whole", correlation)


def _only_of(some: Collection[int], jobs: Jobs) -> set[str]:
    """The nodes that only these jobs wait for."""
    others = {n for job, of in jobs.items() if job not in some for n in of}
    return {n for job in some for n in jobs[job]} - others


def _turn_away(
    site: Site,
    cloud: str,
    correlation: str,
    never: Mapping[int, str],
    jobs: Jobs,
    alone: Collection[str],
) -> set[str]:
    """Give back the nodes of jobs that can never have theirs: nobody else is kept from these, and
    the job does not come back for them. Returns those that are powered down.
    """
    forced: set[str] = set()
    for job, why in never.items():
        mine = [n for n in jobs[job] if n in alone]
        site.record(correlation, "refused", (*mine, f"job:{job}"), why)
        bar(site, job, cloud, why, correlation)
        forced |= power_down_and_requeue(
            site, mine, site.slurm.nodes(mine), why, correlation, hurry=False
        )
    return forced


def _gang_result(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> GangResult:
    """All nodes of these jobs that are at stake: those of this round, and those that have a
    machine already of an earlier one. One that is lost to a launch in doubt has one, perhaps.
    """
    lost = {n for shortfall in shortfalls for n in shortfall.nodes}
    served = site.served()
    touched = set(nodes)
    of_jobs = [of for of in jobs.values() if not touched.isdisjoint(of)]
    more = (n for of in of_jobs for n in of if n in served and _is_of(site, cloud, n))
    names = tuple(dict.fromkeys((*nodes, *more)))
    alone = {n for n in names if site.pool_of[n].partial_jobs}
    pools = {n: site.pool_of[n].name for n in names}
    return resolve(gangs(names, jobs, alone), (served | touched) - lost, pools)


def _is_of(site: Site, cloud: str, node: str) -> bool:
    return node in site.pool_of and site.pool_of[node].cloud == cloud


# asking


def _offers(site: Site, request: NodeRequest) -> tuple[Sequence[Offer], str]:
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
        site.dearest.update(worst_prices(offers))
        return offers, ""
    note(site, request, request.nodes, "no-offers", why)
    return (), why


def _bought(spec: LaunchSpec, instances: Sequence[Instance]) -> str:
    """The machines of a launch, in words for people."""
    counts = Counter((i.instance_type, i.zone, i.market, i.price) for i in instances)
    parts = [
        f"{kind} in {zone}, {market}, ${price:.4f}/h" + (f" ({n})" if len(counts) > 1 else "")
        for (kind, zone, market, price), n in counts.most_common()
    ]
    chosen = f", chosen by the cloud among {len(spec.offers)} offers" if spec.alternatives else ""
    return "; ".join(parts) + chosen


# The records of a request for ``explain``: its first ranking, and what came of each launch.
#
# It grows with the number of causes, not with offers times rounds: offers that were rejected or
# that refused for one cause are kept together, and later rounds are kept as what was tried in them.


BEST = 3
"""Offers of a ranking that are kept each with its reason; those behind them are named."""
CAUSES = 20
"""Groups of offers that are kept of one decision."""


class Refusals:
    """The launches of one request that a cloud refused, until they are told: all in one decision,
    as there may be one for each offer.
    """

    def __init__(self, site: Site, request: NodeRequest) -> None:
        self._site, self._request = site, request
        self._refused: list[tuple[LaunchSpec, str]] = []

    def add(self, spec: LaunchSpec, why: str) -> None:
        """One more."""
        log.info(
            "offer refused request=%s offer=%s reason=%s", self._request.id, spec.offer.key, why
        )
        self._refused.append((spec, why))

    def tell(self) -> None:
        """Keep what was refused since the last time; each launch by itself is forgotten."""
        if not self._refused:
            return
        groups = grouped((spec.offer, why) for spec, why in self._refused)
        alone = len(self._refused) == 1
        detail: dict[str, object] = {"refused": [group.row for group in groups[:CAUSES]]}
        nodes = tuple(dict.fromkeys(n for spec, _ in self._refused for n in spec.nodes))
        why = groups[0].reason if alone else sentence(groups)
        note(self._site, self._request, nodes, "launch-refused", why, None if alone else detail)
        self._site.ledger.forget_failed([spec.generation for spec, _ in self._refused])
        self._refused = []


def record_ranking(site: Site, placement: Placement, *, enough: bool) -> None:
    """Keep a request's ranking: the best offers, and the others by what was in the way."""
    request = placement.request
    best = placement.ranked[0].offer.key if placement.ranked and enough else "none"
    detail: dict[str, object] = {
        "ranked": [[r.offer.key, r.room, r.reason] for r in placement.ranked[:BEST]],
        "rejected": _rows((r.offer, r.reason) for r in placement.rejected),
        "jobs": {str(j): compress(share) for j, share in request.job_nodes.items()},
    }
    if placement.ranked[BEST:]:
        detail["behind"] = braces(r.offer.key for r in placement.ranked[BEST:])
    site.record(
        request.id,
        "ranked",
        (*request.nodes, *(job_subject(j) for j in request.jobs)),
        f"best offer for {len(request.nodes)} node(s) of pool {request.pool.name}: {best}",
        detail,
    )


def note(
    site: Site,
    request: NodeRequest,
    nodes: Sequence[str],
    kind: str,
    why: str,
    detail: dict[str, object] | None = None,
) -> None:
    """Log and keep a decision about some nodes of a request and the jobs that wait for them."""
    log.info("%s request=%s nodes=%s reason=%s", kind, request.id, compress(nodes), why)
    some = set(nodes)
    jobs = [j for j, share in request.job_nodes.items() if not some.isdisjoint(share)]
    site.record(request.id, kind, (*nodes, *(job_subject(j) for j in jobs)), why, detail)


def note_once(site: Site, request: NodeRequest, nodes: Sequence[str], kind: str, why: str) -> None:
    """Unless it is the last that was said of them: they are looked at every few seconds."""
    new = [n for n in nodes if not _said_last(site, n, request.id, kind)]
    if new:
        note(site, request, new, kind, why)


def _said_last(site: Site, node: str, correlation: str, kind: str) -> bool:
    last = site.ledger.decisions(node, limit=1)
    return bool(last) and (last[0].correlation, last[0].kind) == (correlation, kind)


def _rows(reasons: Iterable[tuple[Offer, str]]) -> list[list[object]]:
    return [group.row for group in grouped(reasons)[:CAUSES]]
