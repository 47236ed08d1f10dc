"""Simulates a job with a deadline on a trace of the availability of spot machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.policies.checkpoint.deadline import DeadlineChoice, Race, Where
from slurm_elastic.policies.checkpoint.market_spells import NOTHING, Past


class Finish(Struct, frozen=True, kw_only=True):
    """The end of the job, and its seconds of work on each market. ``restarts``: how often it moved
    to a machine; ``paid``: the paid seconds by market.
    """

    end: float
    spot: float
    on_demand: float
    restarts: int
    paid: Mapping[Where, float]


class Odds(Struct, frozen=True, kw_only=True):
    """Means over many starts on one trace, in seconds: the job's end, its work on spot machines,
    the paid time on each market; and the machines used. ``missed``: the number of late starts.
    """

    starts: int
    missed: int
    end: float
    spot: float
    paid_spot: float
    paid_on_demand: float
    restarts: float


def tried(
    counts: Sequence[int],
    look: float,
    *,
    work: float,
    deadline: float,
    restart: float,
    choose: Callable[[Race], DeadlineChoice],
    starts: int,
    seed: int = 0,
    price: float = 0.5,
) -> Odds:
    """Run the job from ``starts`` random ticks of a trace, which repeats. ``choose`` gets the
    trace's past. If the trace is too short and must repeat, it gets only the past since the start.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    ticks = int(deadline // look) + 2
    start_count = len(counts) - ticks
    is_available = [count > 0 for count in counts]
    pasts = pasts_by_tick(is_available[: max(start_count, 0)], look)
    finishes = []
    for _ in range(starts):
        start = chance.randrange(start_count if start_count > 0 else len(counts))
        window = [is_available[(start + tick) % len(is_available)] for tick in range(ticks)]
        finishes.append(
            race(
                window,
                look,
                work=work,
                deadline=deadline,
                restart=restart,
                choose=choose,
                price=price,
                # If the trace repeats, the ticks before the start are also the job's future.
                past=pasts[start] if start_count > 0 else NOTHING,
            )
        )
    return Odds(
        starts=starts,
        missed=sum(finish.end > deadline for finish in finishes),
        end=sum(finish.end for finish in finishes) / starts,
        spot=sum(finish.spot for finish in finishes) / starts,
        paid_spot=sum(finish.paid[Where.SPOT] for finish in finishes) / starts,
        paid_on_demand=sum(finish.paid[Where.ON_DEMAND] for finish in finishes) / starts,
        restarts=sum(finish.restarts for finish in finishes) / starts,
    )


def pasts_by_tick(available: Iterable[bool], look: float) -> list[Past]:
    """Return the past of the spot market before each tick of a trace, and after the last."""
    pasts = [NOTHING]
    for spot in available:
        pasts.append(pasts[-1].then(look, spot=spot))
    return pasts


def race(
    available: Sequence[bool],
    look: float,
    *,
    work: float,
    deadline: float,
    restart: float,
    choose: Callable[[Race], DeadlineChoice],
    price: float = 0.5,
    past: Past = NOTHING,
) -> Finish:
    """Run the job, and ask ``choose`` at each tick of ``look`` seconds. The trace repeats.

    ``price``: the price of spot machines as a share of on-demand; ``past``: the spot market before
    the start. A lost machine loses no work.
    """
    now, work_left, where, starting, restarts = 0.0, work, Where.WAITING, 0.0, 0
    done, paid = dict.fromkeys(Where, 0.0), dict.fromkeys(Where, 0.0)
    tick = 0
    while work_left > 0:
        spot = available[tick % len(available)]
        past = past.then(look, spot=spot)
        if where is Where.SPOT and not spot:
            # The machine is lost without loss of work, as if each interruption had a notice.
            where, starting = Where.WAITING, 0.0
        choice = choose(
            Race(
                now=now, begin=0.0, deadline=deadline, work=work, left=work_left, restart=restart,
                look=look, where=where, spot=spot, starting=starting,
                up=past.age, down=past.age, past=past, price=price,
            )
        )  # fmt: skip
        if choice.where is not where:
            where = choice.where
            starting = 0.0 if where is Where.WAITING else restart
            restarts += where is not Where.WAITING
        passed = look
        if where is not Where.WAITING:
            waited = min(starting, look)
            worked = min(look - waited, work_left)
            starting, work_left = starting - waited, work_left - worked
            done[where] += worked
            passed = look if work_left > 0 else waited + worked
        paid[where] += passed
        now += passed
        tick += 1
    return Finish(
        end=now,
        spot=done[Where.SPOT],
        on_demand=done[Where.ON_DEMAND],
        restarts=restarts,
        paid=paid,
    )
