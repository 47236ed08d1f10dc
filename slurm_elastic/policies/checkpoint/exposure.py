"""The harm that spot machines' interruptions do to a job, with and without checkpoints. Pure.

A job on several machines is interrupted when any of them is. Times to an interruption are taken as
exponential, as Young's and Daly's intervals are (Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 2006, equation 20).
"""

from __future__ import annotations

import math

from slurm_elastic.policies.checkpoint.checkpoint import daly_interval

RESTART = 120.0
"""Seconds from an interruption until the next run works: a requeue and a boot."""
_MOST = 50.0
"""Runs that are this many times longer than machines last never end."""


def chance(run: float, mtti: float, machines: int) -> float:
    """That a run of so many seconds is interrupted; ``mtti``: mean seconds to an interruption of
    one machine.
    """
    return -math.expm1(-run * machines / mtti)


def without_saves(run: float, mtti: float, machines: int) -> float | None:
    """Expected seconds on machines until a run is done that begins anew after each interruption;
    None where it is never done.
    """
    joint = mtti / machines
    return None if run / joint > _MOST else (joint + RESTART) * math.expm1(run / joint)


def with_saves(run: float, mtti: float, machines: int, save: float) -> float | None:
    """The same with a save of ``save`` seconds each Daly's interval; never more than without."""
    joint = mtti / machines
    interval = daly_interval(save, joint)
    plain = without_saves(run, mtti, machines)
    if interval >= run:
        return plain
    if (interval + save) / joint > _MOST:
        return plain
    parts = run / interval
    saved = parts * (joint + RESTART) * math.expm1((interval + save) / joint)
    return saved if plain is None else min(saved, plain)
