"""The harm that interruptions of spot machines do to a job, with and without checkpoints. Pure.

A job on several machines is interrupted when any machine is. Times to an interruption are assumed
to be exponential, as in Young's and Daly's intervals (Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 2006, equation 20).
"""

from __future__ import annotations

import math

from slurm_elastic.policies.checkpoint.checkpoint import daly_interval

RESTART = 120.0
"""Seconds from an interruption until the next run works: a requeue and a boot."""
_MAX_RUN_RATIO = 50.0
"""A run this many times longer than its machines last never ends."""


def chance(run: float, mtti: float, machines: int) -> float:
    """Return the probability that a run of ``run`` seconds is interrupted. ``mtti``: mean seconds
    to an interruption of one machine.
    """
    return -math.expm1(-run * machines / mtti)


def without_saves(run: float, mtti: float, machines: int) -> float | None:
    """Return the expected seconds on machines until a run is done that starts over after each
    interruption; None if it is never done.
    """
    joint = mtti / machines
    return None if run / joint > _MAX_RUN_RATIO else (joint + RESTART) * math.expm1(run / joint)


def with_saves(run: float, mtti: float, machines: int, save: float) -> float | None:
    """Return the expected seconds on machines until the run is done, with a save of ``save``
    seconds after each Daly interval; never more than ``without_saves`` returns. None if the run is
    never done.
    """
    joint = mtti / machines
    interval = daly_interval(save, joint)
    plain = without_saves(run, mtti, machines)
    if interval >= run:
        return plain
    if (interval + save) / joint > _MAX_RUN_RATIO:
        return plain
    interval_count = run / interval
    saved = interval_count * (joint + RESTART) * math.expm1((interval + save) / joint)
    return saved if plain is None else min(saved, plain)
