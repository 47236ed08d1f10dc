"""One run of a job on machines that may be taken away: when it is saved, and what it keeps. We ask
the policy as the daemon would: every ``look`` seconds, but only when it may have changed its mind.
It knows of notices, never of the interruption itself.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.cluster import Notice
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    FirstOf,
    Never,
    OnNotice,
    Situation,
    watches_prices,
)
from slurm_elastic.simulate.market import SpotMarket

PRICE_MEMORY = 660


class Checkpoints(Struct, frozen=True, kw_only=True):
    """How jobs are saved: the policy, the seconds that a checkpoint and a restart take, and the
    seconds between two questions to the policy. ``blocking``: the job stands still during a
    checkpoint.
    """

    policy: AnyPolicy = Never()
    dump: int = 60
    restart: int = 60
    look: int = 30
    blocking: bool = True


class Ride(Struct, frozen=True, kw_only=True):
    """What became of a run: it lasted until ``end``, and ``checkpoints`` kept ``saved`` seconds of
    work and took ``dumping`` seconds. ``done``: the job finished its work. ``moves``: when it was
    saved after the cloud's warning and is moved (None: never).
    """

    end: int
    saved: int
    checkpoints: int
    dumping: int
    done: bool
    moves: int | None = None


class Trip(Struct, frozen=True, kw_only=True):
    """A run to be made: ``work`` seconds from ``start`` on machines that were launched at
    ``launched``.

    ``until``: when they are lost (None: never); ``notices``: the warnings, as they will be seen.
    ``lease``: seconds that the machines are paid at a time.
    """

    job: int
    start: int
    work: int
    launched: int
    until: int | None = None
    notices: tuple[Notice, ...] = ()
    market: SpotMarket | None = None
    mtti: float | None = None
    lease: int = 1


def quiet(how: Checkpoints) -> bool:
    """Whether the policy saves nothing unless a notice comes."""
    return isinstance(how.policy, Never | OnNotice)


def answers_notices(policy: AnyPolicy) -> bool:
    """Whether jobs are saved and moved when the cloud warns."""
    return isinstance(policy, OnNotice) or (
        isinstance(policy, FirstOf) and any(map(answers_notices, policy.policies))
    )


def ride(how: Checkpoints, trip: Trip) -> Ride:
    """Simulate the run from its start to its end or interruption."""
    now, work, saved, written, dumping = trip.start, 0, 0, 0, 0
    situation = _situation(how, trip)
    while True:
        end = now + trip.work - work
        ask = _next_look(how, trip, situation, now)
        stop = end if trip.until is None else min(end, trip.until)
        if ask is None or ask >= stop:
            done = trip.until is None or end <= trip.until
            return Ride(end=stop, saved=saved, checkpoints=written, dumping=dumping, done=done)
        work += ask - now
        now = ask
        situation = _at(situation, trip, now)
        if how.policy.decide(situation) is None:
            continue
        over, end = now + how.dump, now + trip.work - work
        if not how.blocking and end < over and (trip.until is None or end <= trip.until):
            dumping += end - now  # the save ends with the job
            return Ride(end=end, saved=saved, checkpoints=written, dumping=dumping, done=True)
        if trip.until is not None and over > trip.until:
            return Ride(
                end=trip.until,
                saved=saved,
                checkpoints=written,
                dumping=dumping + trip.until - now,
                done=False,
            )
        saved, written, dumping = work, written + 1, dumping + how.dump
        now = over
        if answers_notices(how.policy) and any(n.deadline is not None for n in situation.notices):
            return Ride(
                end=now, saved=saved, checkpoints=written, dumping=dumping, done=False, moves=now
            )
        if not how.blocking:
            work = min(work + how.dump, trip.work)
        situation = _at(replace(situation, last=float(now), cost=float(how.dump)), trip, now)


def _situation(how: Checkpoints, trip: Trip) -> Situation:
    situation = Situation(
        job=str(trip.job),
        now=float(trip.start),
        launched=float(trip.launched),
        started=float(trip.start),
        dump=float(how.dump),
        restart=float(how.restart),
        bid=trip.market.bid if trip.market else None,
        mtti=trip.mtti,
        lease=float(trip.lease),
        blocking=how.blocking,
    )
    return _at(situation, trip, trip.start)


def _at(situation: Situation, trip: Trip, now: int) -> Situation:
    """The situation at a later time, with the prices and notices that are known then."""
    notices = tuple(notice for notice in trip.notices if notice.seen <= now)
    prices: tuple[tuple[float, float], ...] = ()
    if trip.market is not None and trip.market.bid is not None:
        prices = trip.market.prices(min(trip.launched, now) - PRICE_MEMORY, now)
    return replace(situation, now=float(now), notices=notices, prices=prices)


def _next_look(how: Checkpoints, trip: Trip, situation: Situation, now: int) -> int | None:
    """The next look at which the policy may act; None: never."""
    times = [how.policy.wake(situation)]
    times += [notice.seen for notice in trip.notices if notice.seen > now]
    if trip.market is not None and trip.market.bid is not None and watches_prices(how.policy):
        change = trip.market.curve.next_change(now)
        times += [] if change is None else [float(change)]
    earliest = min(times)
    if math.isinf(earliest):
        return None
    steps = -(-(max(math.ceil(earliest), now + 1) - trip.start) // how.look)
    return trip.start + steps * how.look
