"""Which jobs lack room before anything is bought for them. Pure.

A request is served part by part, a pool at a time. A job whose nodes lie in several parts would
get machines in the first part before the last part is found to have no room. Its machines would
then end at once, and the job would repeat that for as long as the bound lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.refusals import NoOffers
from slurm_elastic.model.cluster import NodeRequest, Offer, Pool
from slurm_elastic.model.placement import Ranked
from slurm_elastic.policies.launch.gang import Gang, part_of, select
from slurm_elastic.policies.launch.ranking import (
    DEFAULT_KEYS,
    Scope,
    counted,
    rank,
    serving,
    shortfall,
)

BoundsOfStart = Callable[[Scope], tuple[Offer, Scope]]
"""Returns the offer and the bounds by which the start of a stopped machine is judged."""


class Part(Struct, frozen=True, kw_only=True):
    """A part of a request, with the offers and the bounds of its pool. ``starts``: of the nodes
    with a stopped machine. ``trouble``: why the cloud cannot sell, if it gave no offers.
    """

    request: NodeRequest
    gangs: tuple[Gang, ...]
    offers: Sequence[Offer]
    scope: Scope
    starts: Mapping[str, BoundsOfStart] = {}
    trouble: AnyCause | None = None


class JobRoom(Struct, frozen=True, kw_only=True):
    """``causes``: by job that lacks room in one of its parts, why. ``spare_nodes``: by part, how
    many more nodes are available beside the nodes of all jobs that have room.
    """

    causes: Mapping[int, AnyCause]
    spare_nodes: tuple[int, ...]


def list_spread_jobs(parts: Sequence[Sequence[Gang]]) -> tuple[int, ...]:
    """Return the jobs whose nodes lie in several parts, in the order of their first nodes."""
    jobs_of_parts = [dict.fromkeys(g.job for g in gangs if g.job is not None) for gangs in parts]
    count = Counter(job for jobs in jobs_of_parts for job in jobs)
    return tuple(job for job, parts_of_job in count.items() if parts_of_job > 1)


def find_room(
    parts: Sequence[Part],
    nodes_with_machine: Collection[str],
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> JobRoom:
    """Find the jobs of several parts that have no room in one of them. Each part counts the
    machines of the parts before it. ``now`` (Unix s).
    """
    spread_jobs = list_spread_jobs([part.gangs for part in parts])
    causes: dict[int, AnyCause] = {}
    accepted: list[int] = []
    # Job by job: a job that never fits must not take the room of the jobs behind it.
    for position, job in enumerate(spread_jobs):
        left_out = {*causes, *spread_jobs[position + 1 :]}
        trial = _Trial(nodes_with_machine, now, keys)
        trial.serve(parts, left_out)
        if lacking := [trial.causes[j] for j in (job, *accepted) if j in trial.causes]:
            causes[job] = lacking[0]
        else:
            accepted.append(job)
    final = _Trial(nodes_with_machine, now, keys)
    final.serve(parts, causes)
    return JobRoom(causes=causes, spare_nodes=tuple(map(final.take_spare, parts)))


class _Trial:
    """Serves the parts one after another without buying. ``causes``: by job, why it lacks room."""

    def __init__(
        self, nodes_with_machine: Collection[str], now: float, keys: Sequence[str]
    ) -> None:
        self._served, self._now, self._keys = set(nodes_with_machine), now, keys
        self._launches: list[tuple[Pool, Ranked]] = []
        self._starts: list[tuple[Pool, BoundsOfStart]] = []
        self.causes: dict[int, AnyCause] = {}

    def serve(self, parts: Sequence[Part], left_out: Collection[int]) -> None:
        for part in parts:
            gangs = [gang for gang in part.gangs if gang.job not in left_out]
            self._start_stopped(part, [n for gang in gangs for n in gang.nodes])
            wanted = self._lacking(part, [n for gang in gangs for n in gang.nodes])
            room = sum(ranked.room for ranked in self._find_launches(part, wanted))
            nodes = select(gangs, self._served, room)
            self._note_lacking(part, wanted, gangs, self._served.union(nodes))
            self._take(part, self._lacking(part, nodes))

    def _start_stopped(self, part: Part, nodes: Sequence[str]) -> None:
        """Start the stopped machines of the nodes, which needs no stock of an offer. But a started
        machine counts in all limits, so its node needs the same room as any other.
        """
        for node in dict.fromkeys(nodes):
            if node in self._served or node not in part.starts:
                continue
            bounds_of_start, scope = part.starts[node], self._subtract_launches(part)[1]
            offer, scope_of_start = bounds_of_start(scope)
            request = part_of(part.request, [node])
            if rank(request, [offer], scope_of_start, self._now, self._keys).ranked:
                self._starts.append((part.request.pool, bounds_of_start))
                self._served.add(node)

    def take_spare(self, part: Part) -> int:
        """Return how many more nodes of the part are available, and count them as taken."""
        return self._take(part, self._lacking(part, part.request.nodes))

    def _note_lacking(
        self, part: Part, wanted: NodeRequest, gangs: Sequence[Gang], served: Collection[str]
    ) -> None:
        short = [g.job for g in gangs if g.job is not None and not set(g.nodes).issubset(served)]
        if not short:
            return
        offers, scope = self._subtract_launches(part)
        cause = part.trouble or shortfall(wanted, offers, scope, self._now, self._keys)
        self.causes = {**dict.fromkeys(short, cause or NoOffers()), **self.causes}

    def _lacking(self, part: Part, nodes: Sequence[str]) -> NodeRequest:
        return part_of(part.request, [n for n in dict.fromkeys(nodes) if n not in self._served])

    def _take(self, part: Part, request: NodeRequest) -> int:
        launches = self._find_launches(part, request)
        count = sum(ranked.room for ranked in launches)
        self._launches += [(request.pool, ranked) for ranked in launches]
        self._served.update(request.nodes[:count])
        return count

    def _find_launches(self, part: Part, request: NodeRequest) -> Sequence[Ranked]:
        offers, scope = self._subtract_launches(part)
        return serving(request, offers, scope, self._now, self._keys)

    def _subtract_launches(self, part: Part) -> tuple[Sequence[Offer], Scope]:
        """Return what the launches and starts so far leave of the part's offers and bounds."""
        scope, taken = part.scope, Counter[str]()
        for pool, bounds_of_start in self._starts:
            offer, scope = bounds_of_start(scope)
            scope = counted(scope, pool, offer, 1)
        for pool, ranked in self._launches:
            scope = counted(scope, pool, ranked.offer, ranked.room)
            taken[ranked.offer.key] += ranked.room
        offers = tuple(
            o if o.free is None else replace(o, free=max(0, o.free - taken[o.key]))
            for o in part.offers
        )
        return offers, scope
