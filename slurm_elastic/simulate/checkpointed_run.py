"""A run of a job on machines that the cloud may reclaim: when it is saved, and how much work it
keeps.

The simulator asks the policy every ``look`` seconds, as the daemon does, but skips times at which
the policy cannot have changed its decision. The policy sees notices, never the future interruption.
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
    watches_prices,
)
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.simulate.bills.market import SpotMarket

PRICE_MEMORY_S = 660


class Checkpoints(Struct, frozen=True, kw_only=True):
    """How jobs are saved. ``dump`` and ``restart``: seconds of a checkpoint and of a restart;
    ``look``: seconds between two questions to the policy; ``blocking``: the job stands still during
    a checkpoint.
    """

    policy: AnyPolicy = Never()
    dump: int = 60
    restart: int = 60
    look: int = 30
    blocking: bool = True


class Ride(Struct, frozen=True, kw_only=True):
    """The result of a run. It lasted until ``end``; its ``checkpoints`` kept ``saved`` seconds of
    work and took ``dumping`` seconds. ``done``: the job finished its work. ``moves``: when the job
    was saved after a notice, so that it is moved (None: never).
    """

    end: int
    saved: int
    checkpoints: int
    dumping: int
    done: bool
    moves: int | None = None


class Trip(Struct, frozen=True, kw_only=True):
    """A run to simulate: ``work`` seconds from ``start`` on machines that were launched at
    ``launched``.

    ``until``: when the cloud takes the machines (None: never); ``notices``: its warnings, with the
    times at which they are seen. ``lease``: the machines are paid in units of so many seconds.
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


def quiet(settings: Checkpoints) -> bool:
    """Return True if the policy saves jobs only after a notice, or never."""
    return isinstance(settings.policy, Never | OnNotice)


def answers_notices(policy: AnyPolicy) -> bool:
    """Return True if jobs are saved and moved after a notice."""
    return isinstance(policy, OnNotice | OwnCheckpoint) or (
        isinstance(policy, FirstOf) and any(map(answers_notices, policy.policies))
    )


def ride(settings: Checkpoints, trip: Trip) -> Ride:
    """Simulate the run from its start to its end or interruption."""
    now, work, saved, saves, dumping = trip.start, 0, 0, 0, 0
    situation = _situation(settings, trip)
    while True:
        end = now + trip.work - work
        next_look = _next_look(settings, trip, situation, now)
        stop = end if trip.until is None else min(end, trip.until)
        if next_look is None or next_look >= stop:
            done = trip.until is None or end <= trip.until
            return Ride(end=stop, saved=saved, checkpoints=saves, dumping=dumping, done=done)
        work += next_look - now
        now = next_look
        situation = _situation_at(situation, trip, now)
        if settings.policy.decide(situation) is None:
            continue
        save_end, end = now + settings.dump, now + trip.work - work
        if not settings.blocking and end < save_end and (trip.until is None or end <= trip.until):
            dumping += end - now  # the job ends first, and its save with it
            return Ride(end=end, saved=saved, checkpoints=saves, dumping=dumping, done=True)
        if trip.until is not None and save_end > trip.until:
            return Ride(
                end=trip.until,
                saved=saved,
                checkpoints=saves,
                dumping=dumping + trip.until - now,
                done=False,
            )
        saved, saves, dumping = work, saves + 1, dumping + settings.dump
        now = save_end
        if answers_notices(settings.policy) and any(
            n.deadline is not None for n in situation.notices
        ):
            return Ride(
                end=now, saved=saved, checkpoints=saves, dumping=dumping, done=False, moves=now
            )
        if not settings.blocking:
            work = min(work + settings.dump, trip.work)
        situation = _situation_at(
            replace(situation, last=float(now), cost=float(settings.dump)), trip, now
        )


def _situation(settings: Checkpoints, trip: Trip) -> Situation:
    situation = Situation(
        job=str(trip.job),
        now=float(trip.start),
        launched=float(trip.launched),
        started=float(trip.start),
        dump=float(settings.dump),
        restart=float(settings.restart),
        bid=trip.market.bid if trip.market else None,
        mtti=trip.mtti,
        lease=float(trip.lease),
        blocking=settings.blocking,
    )
    return _situation_at(situation, trip, trip.start)


def _situation_at(situation: Situation, trip: Trip, now: int) -> Situation:
    """Return the situation at a later time, with the prices and notices known then."""
    notices = tuple(notice for notice in trip.notices if notice.seen <= now)
    prices: tuple[tuple[float, float], ...] = ()
    if trip.market is not None and trip.market.bid is not None:
        prices = trip.market.prices(min(trip.launched, now) - PRICE_MEMORY_S, now)
    return replace(situation, now=float(now), notices=notices, prices=prices)


def _next_look(settings: Checkpoints, trip: Trip, situation: Situation, now: int) -> int | None:
    """Return the next look at which the policy may act; None if there is none."""
    times = [settings.policy.wake(situation)]
    times += [notice.seen for notice in trip.notices if notice.seen > now]
    if trip.market is not None and trip.market.bid is not None and watches_prices(settings.policy):
        change = trip.market.curve.next_change(now)
        times += [] if change is None else [float(change)]
    earliest = min(times)
    if math.isinf(earliest):
        return None
    steps = -(-(max(math.ceil(earliest), now + 1) - trip.start) // settings.look)
    return trip.start + steps * settings.look
