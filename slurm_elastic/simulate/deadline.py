"""One job with a deadline on a trace of available spot machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from slurm_elastic.policies.deadline import Choice, Race, Where


class Finish(Struct, frozen=True, kw_only=True):
    """When the job was done (seconds after its begin), and the seconds of its work that were done
    on each market; ``restarts``: how often it got a machine.
    """

    end: float
    spot: float
    on_demand: float
    restarts: int


def race(
    available: Sequence[bool],
    look: float,
    *,
    work: float,
    deadline: float,
    restart: float,
    choose: Callable[[Race], Choice],
) -> Finish:
    """Run the job, asking ``choose`` at each tick of ``look`` seconds. The trace repeats.

    A machine that is lost loses no work done, as if each interruption were announced.
    """
    now, left, where, starting, restarts = 0.0, work, Where.WAITING, 0.0, 0
    done = dict.fromkeys(Where, 0.0)
    tick = 0
    while left > 0:
        spot = available[tick % len(available)]
        if where is Where.SPOT and not spot:
            where, starting = Where.WAITING, 0.0
        choice = choose(
            Race(
                now=now, begin=0.0, deadline=deadline, work=work, left=left, restart=restart,
                look=look, where=where, spot=spot, starting=starting,
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
        now += passed
        tick += 1
    return Finish(
        end=now, spot=done[Where.SPOT], on_demand=done[Where.ON_DEMAND], restarts=restarts
    )
