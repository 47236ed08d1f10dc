"""One job with a deadline, on a trace of when spot machines were available."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.policies.checkpoint.deadline import Choice, Race, Where
from slurm_elastic.policies.checkpoint.market_spells import NOTHING, Past

OUTSIDE = 0.05  # the share of the starts on either side that `low` and `high` leave out


class Finish(Struct, frozen=True, kw_only=True):
    """When the job was done, and its seconds of work on each market. ``restarts``: how often it got
    a machine; ``paid``: seconds for which it had one of each.
    """

    end: float
    spot: float
    on_demand: float
    restarts: int
    paid: Mapping[Where, float]


class Odds(Struct, frozen=True, kw_only=True):
    """Means over many starts on one trace: when the job was done, seconds of its work on spot
    machines, seconds paid on each market, machines used. ``missed``: starts that were late. Nine of
    ten starts pay between ``low`` and ``high``, in seconds of an on-demand machine.
    """

    starts: int
    missed: int
    end: float
    spot: float
    paid_spot: float
    paid_on_demand: float
    restarts: float
    low: float
    high: float


def tried(
    counts: Sequence[int],
    look: float,
    *,
    work: float,
    deadline: float,
    restart: float,
    choose: Callable[[Race], Choice],
    starts: int,
    seed: int = 0,
    price: float = 0.5,
) -> Odds:
    """Run the job from ``starts`` random ticks of a trace, which repeats. ``choose`` knows the
    trace up to the present, but if it repeats, nothing before the start.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    ticks = int(deadline // look) + 2
    last = len(counts) - ticks
    there = [count > 0 for count in counts]
    pasts = seen(there[: max(last, 0)], look)
    found = []
    for _ in range(starts):
        first = chance.randrange(last if last > 0 else len(counts))
        window = [there[(first + tick) % len(there)] for tick in range(ticks)]
        found.append(
            race(
                window,
                look,
                work=work,
                deadline=deadline,
                restart=restart,
                choose=choose,
                price=price,
                # Where the trace repeats, what was before the start would be the future.
                past=pasts[first] if last > 0 else NOTHING,
            )
        )
    paid = sorted(one.paid[Where.SPOT] * price + one.paid[Where.ON_DEMAND] for one in found)
    return Odds(
        starts=starts,
        missed=sum(one.end > deadline for one in found),
        end=sum(one.end for one in found) / starts,
        spot=sum(one.spot for one in found) / starts,
        paid_spot=sum(one.paid[Where.SPOT] for one in found) / starts,
        paid_on_demand=sum(one.paid[Where.ON_DEMAND] for one in found) / starts,
        restarts=sum(one.restarts for one in found) / starts,
        low=paid[round(OUTSIDE * (starts - 1))],
        high=paid[round((1 - OUTSIDE) * (starts - 1))],
    )


def seen(available: Iterable[bool], look: float) -> list[Past]:
    """What was seen of spot machines before each tick of a trace, and after all of it."""
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
    choose: Callable[[Race], Choice],
    price: float = 0.5,
    past: Past = NOTHING,
) -> Finish:
    """Run the job, asking ``choose`` at each tick of ``look`` seconds. The trace repeats.
    ``price``: of spot machines, as a share of on-demand; ``past``: what was seen of them before. A
    lost machine loses no work.
    """
    now, left, where, starting, restarts = 0.0, work, Where.WAITING, 0.0, 0
    done, paid = dict.fromkeys(Where, 0.0), dict.fromkeys(Where, 0.0)
    tick = 0
    while left > 0:
        spot = available[tick % len(available)]
        past = past.then(look, spot=spot)
        if where is Where.SPOT and not spot:
            # No work is lost with it, as if each interruption were announced.
            where, starting = Where.WAITING, 0.0
        choice = choose(
            Race(
                now=now, begin=0.0, deadline=deadline, work=work, left=left, restart=restart,
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
            worked = min(look - waited, left)
            starting, left = starting - waited, left - worked
            done[where] += worked
            passed = look if left > 0 else waited + worked
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
