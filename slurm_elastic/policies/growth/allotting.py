"""Allots machines to waiting jobs in the order of the queue: a job gets all the machines that it
needs, in one cloud, or none. Pure; shared by the daemon and the simulator.

A multi-node job starts on all of its nodes at once, and never spans clouds. If a job got too few
machines, they would idle, end, and be bought again for as long as the job waits. So a growth policy
decides how many machines start, and this module decides which jobs get them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import floor
from typing import Generic, NamedTuple, Protocol, TypeVar

P = TypeVar("P", bound=Hashable)
_ROUNDING = 1e-9
"""Slack against rounding: ten machines of $0.10 fit into $1.00."""


class Room(Generic[P]):
    """The machines of one pool that jobs may get: ``free`` machines idle or boot, ``now`` more may
    start now, and ``total`` more may start now and later (``max_booting`` admits some at a time).
    """

    __slots__ = ("free", "now", "pool", "total")

    def __init__(self, pool: P, free: int, now: int, total: int | None = None) -> None:
        self.pool, self.free, self.now = pool, free, max(now, 0)
        self.total = self.now if total is None else max(total, self.now)


class CommonBound(Generic[P]):
    """A bound that several pools share: each new machine of a pool takes ``costs`` of what is
    ``left``. ``is_turn``: it bounds only how many machines may start now.
    """

    __slots__ = ("costs", "is_turn", "left")

    def __init__(self, left: float, costs: Mapping[P, float], *, is_turn: bool = False) -> None:
        self.left, self.costs, self.is_turn = left, costs, is_turn


class Share(NamedTuple, Generic[P]):
    """The machines of one job. ``free``: machines that idle or boot, by pool. ``starts``: machines
    to start now, by pool. ``later``: machines that start when it is their turn.
    """

    free: tuple[tuple[P, int], ...] = ()
    starts: tuple[tuple[P, int], ...] = ()
    later: int = 0

    @property
    def lack(self) -> int:
        """How many machines the job lacks."""
        return sum([count for _, count in self.starts]) + self.later


class Chosen(NamedTuple, Generic[P]):
    """``starts``: the machines to start now, by pool. ``counted``: how many of them the policy
    wanted. ``without_room``: how many machines the multi-node jobs need that have no room.
    ``places``: of the jobs whose machines start, now or in turns. ``least``: by pool, the fewest
    machines of ``starts`` that any job can use.
    """

    starts: dict[P, int]
    counted: int
    without_room: int
    places: list[int]
    least: dict[P, int]


class Allot(Protocol[P]):
    """The signature of ``allot``."""

    def __call__(
        self,
        needs: Sequence[Sequence[int]],
        clouds: Sequence[Sequence[Room[P]]],
        bounds: Sequence[CommonBound[P]] = (),
        may_start: Sequence[bool] | None = None,
        /,
    ) -> list[Share[P] | None]: ...


def allot(
    needs: Sequence[Sequence[int]],
    clouds: Sequence[Sequence[Room[P]]],
    bounds: Sequence[CommonBound[P]] = (),
    may_start: Sequence[bool] | None = None,
) -> list[Share[P] | None]:
    """Return the share of each job, in the order of the queue; None if no cloud has room for it.

    ``needs``: by cloud, the machines that each job needs there. ``may_start``: by job, whether
    machines may start for it. Rooms and bounds are reduced by the shares.
    """
    places = [_Place(rooms, bounds) for rooms in clouds]
    shares: list[Share[P] | None] = []
    pairs = [*zip(places, needs, strict=True)]
    for job in range(len(needs[0]) if needs else 0):
        share = None
        wishes = [(place, of_place[job]) for place, of_place in pairs]
        for place, need in wishes:
            if need <= place.free:
                share = place.take(need, ())
                break
        else:
            if may_start is None or may_start[job]:
                share = _started(wishes)
        shares.append(share)
    return shares


def _started(wishes: Sequence[tuple[_Place[P], int]]) -> Share[P] | None:
    """Return the share in the first cloud in which all machines may start now, or else in turns."""
    for is_now in (True, False):
        for place, need in wishes:
            # A job of one node need not wait for its turn in this cloud.
            if need == 1 and not is_now:
                continue
            counts = place.plan(need - place.free, is_now=is_now)
            if counts is not None:
                return place.take(need, counts)
    return None


def choose(
    wanted: int,
    shares: Sequence[Share[P] | None],
    fresh: Iterable[int],
    sure: Iterable[int],
    needs: Sequence[int],
    rooms: Iterable[Room[P]],
    bounds: Sequence[CommonBound[P]] = (),
) -> Chosen[P]:
    """Choose the jobs whose machines start: the ``sure`` ones, and the first ``fresh`` ones that
    get by with ``wanted`` machines. The last of these gets all its machines.

    Machines beyond those that all fresh jobs lack are for later jobs, in any of the ``rooms``.
    """
    counts: dict[P, int] = {}
    places = dict.fromkeys(sure)
    left, started, without_room, lacking = wanted, 0, 0, 0
    for place in fresh:
        if left <= 0:
            break
        share = shares[place]
        if share is None:
            lacking += needs[place]
            # A job of one node may be served by a machine that another job leaves.
            without_room += needs[place] if needs[place] > 1 else 0
            continue
        places[place] = None
        left -= share.lack
        started += share.lack - share.later
    chosen = [(place, share) for place in places if (share := shares[place]) is not None]
    least: dict[P, int] = {}
    for _, share in chosen:
        for pool, count in share.starts:
            counts[pool] = counts.get(pool, 0) + count
            # A job whose machines start in turns keeps the machines that it gets.
            least[pool] = min(least.get(pool, count), 1 if share.later else count)
    left -= lacking
    for room in rooms if left > 0 else ():
        count = min(left, room.now, *_allowed(room.pool, bounds, is_now=True))
        if count > 0:
            counts[room.pool] = counts.get(room.pool, 0) + count
            least[room.pool] = 1
            left, started = left - count, started + count
            room.now, room.total = room.now - count, room.total - count
            _spend(room.pool, count, bounds, is_now=True)
    return Chosen(counts, started, without_room, [place for place, _ in chosen], least)


class _Place(Generic[P]):
    """The pools of one cloud. ``free``: their idle and booting machines together."""

    __slots__ = ("_bounds", "_rooms", "free")

    def __init__(self, rooms: Sequence[Room[P]], bounds: Sequence[CommonBound[P]]) -> None:
        names = {room.pool for room in rooms}
        self._rooms = rooms
        self._bounds = [bound for bound in bounds if not names.isdisjoint(bound.costs)]
        self.free = sum([room.free for room in rooms])

    def plan(self, lack: int, *, is_now: bool) -> list[int] | None:
        """Return how many machines each pool starts; None if there is no room for all."""
        counts: list[int] = []
        bounds = [CommonBound(b.left, b.costs, is_turn=b.is_turn) for b in self._bounds]
        for room in self._rooms:
            most = room.now if is_now else room.total
            count = max(min(lack, most, *_allowed(room.pool, bounds, is_now=is_now)), 0)
            # Spend only after all bounds have reduced the count: a bound must not be charged for
            # machines that another bound forbids.
            _spend(room.pool, count, bounds, is_now=is_now)
            counts.append(count)
            lack -= count
        return counts if lack <= 0 else None

    def take(self, need: int, counts: Sequence[int]) -> Share[P]:
        """Return the share of a job, and take its machines: the free ones, and ``counts`` new ones
        by pool.
        """
        free = []
        for room in self._rooms:
            count = min(need, room.free)
            if count > 0:
                free.append((room.pool, count))
                room.free -= count
                self.free -= count
                need -= count
        starts, later = [], 0
        for room, count in zip(self._rooms, counts, strict=False):
            at_once = min(count, room.now, *_allowed(room.pool, self._bounds, is_now=True))
            at_once = max(at_once, 0)
            if at_once:
                starts.append((room.pool, at_once))
                _spend(room.pool, at_once, self._bounds, is_now=True)
            _spend(room.pool, count - at_once, self._bounds, is_now=False)
            later += count - at_once
            room.total -= count
            room.now = min(room.now - at_once, room.total)
        return Share(tuple(free), tuple(starts), later)


def kept_machines(
    shares: Iterable[Share[P] | None], idle: Mapping[P, int]
) -> Iterator[tuple[P, range]]:
    """Yield the idle machines of jobs whose other machines boot or wait for their turn: the pool,
    and the places among its idle machines. Slurm would end an idle machine after SuspendTime, and
    the job would never have all of its machines.

    ``idle``: by pool, how many machines idle. Jobs get them before those that boot.
    """
    dealt = dict.fromkeys(idle, 0)
    for share in shares:
        places: list[tuple[P, range]] = []
        lacks = share is not None and share.lack > 0
        for pool, count in share.free if share is not None else ():
            begin, end = dealt[pool], min(dealt[pool] + count, idle[pool])
            dealt[pool] = end
            places.append((pool, range(begin, end)))
            lacks = lacks or end - begin < count
        if lacks:
            yield from places


def _allowed(pool: P, bounds: Iterable[CommonBound[P]], *, is_now: bool) -> Iterable[int]:
    """Yield how many more machines of the pool each bound allows."""
    for bound in bounds:
        cost = bound.costs.get(pool, 0.0)
        if cost > 0 and (is_now or not bound.is_turn):
            yield floor(bound.left / cost + _ROUNDING)


def _spend(pool: P, count: int, bounds: Iterable[CommonBound[P]], *, is_now: bool) -> None:
    for bound in bounds:
        if is_now or not bound.is_turn:
            bound.left -= count * bound.costs.get(pool, 0.0)
