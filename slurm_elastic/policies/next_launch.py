"""The next launch for nodes that Slurm waits for. Pure.

One decision is one launch on one offer. Its outcome (machines, a refusal, an offer that cools down)
is part of what the next decision is made from, until all nodes have machines, the rest may wait for
their turn to boot, or no offer is left. The daemon and the simulator both decide by it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model import NodeRequest, Offer, Placement
from slurm_elastic.policies.boot_breaker import turn
from slurm_elastic.policies.gang import Gang, select
from slurm_elastic.policies.ranking import DEFAULT_KEYS, Scope, rank, serving

WORTH_A_CALL = 20
"""Machines for which a launch waits, where the cloud lets few start at a time and more are wanted.
"""
_NO_BOUND = (10**9, "")


class NextLaunch(Struct, frozen=True, kw_only=True):
    """The next launch: ``nodes`` on the first of ``placement.ranked``; none where no offer can
    serve, or where ``waiting`` nodes could be had but so many machines boot already that they wait
    for their turn (``cap`` says at which bound). ``spare`` more nodes could be had, but not for
    these, which are of use together only.
    """

    placement: Placement
    nodes: tuple[str, ...] = ()
    spare: int = 0
    waiting: tuple[str, ...] = ()
    cap: str = ""

    @property
    def offer(self) -> Offer:
        """The offer to launch on; only where there are ``nodes``."""
        return self.placement.ranked[0].offer

    def alternatives(self, most: int) -> tuple[Offer, ...]:
        """Up to ``most`` further offers that the cloud may use instead: those of the same market
        that could each serve all ``nodes`` within every bound, best first.
        """
        others, market = self.placement.ranked[1:], self.offer.market
        fitting = [
            r.offer for r in others if r.offer.market is market and r.room >= len(self.nodes)
        ]
        return tuple(fitting[:most])


def part_of(request: NodeRequest, nodes: Sequence[str]) -> NodeRequest:
    """The request for some of its nodes, with the jobs that wait for them."""
    wanted = set(nodes)
    shares = {j: tuple(n for n in of if n in wanted) for j, of in request.job_nodes.items()}
    shares = {job: share for job, share in shares.items() if share}
    return replace(request, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares)


def next_launch(
    request: NodeRequest,
    todo: Sequence[Gang],
    had: Collection[str],
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    *,
    caps: Sequence[tuple[str, int | None]] = (),
    startable: int | None = None,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> NextLaunch:
    """Decide the next launch of ``request``, of whose nodes ``had`` have machines already.

    ``todo`` are its gangs (``gang.gangs``), ``caps`` how many machines may boot at once by scope
    (None: any number), ``startable`` how many the cloud's API would start now (None: any number).
    """
    left = tuple(n for n in request.nodes if n not in had)
    room = sum(r.room for r in serving(replace(request, nodes=left), offers, scope, now, keys))
    nodes = select(todo, had, room)
    bounds = (turn(caps, scope.booting), _api_bound(request.pool.cloud, startable, len(nodes)))
    allowed, cap = min(bounds)
    if nodes and not allowed:
        placement = rank(part_of(request, left), offers, scope, now, keys)
        return NextLaunch(placement=placement, spare=room - len(nodes), waiting=nodes, cap=cap)
    placement = rank(part_of(request, nodes or left), offers, scope, now, keys)
    if not nodes:
        return NextLaunch(placement=placement, spare=room)
    return NextLaunch(placement=placement, nodes=nodes[: min(placement.ranked[0].room, allowed)])


def _api_bound(cloud: str, startable: int | None, count: int) -> tuple[int, str]:
    """How many of ``count`` machines the cloud's API starts now, and that bound in words."""
    if startable is None or startable >= count:
        return _NO_BOUND
    words = f"the API of cloud {cloud} starts only so many machines a second"
    return (startable if startable >= WORTH_A_CALL else 0), words
