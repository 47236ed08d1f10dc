"""Machines that boot: how many at once, how long they may wait for it, when given up. Pure.

A node is given up a little before slurmctld would do it, at ResumeTimeout: that one fails the jobs
that must not be requeued, and has the others wait for 121 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

WAIT_SHARE = 0.5
"""Which part of ResumeTimeout a node may wait for its turn: the rest is what its machine has to
boot in, and one that is started later would only be given up half-way.
"""
MARGIN_SHARE, MARGIN_LEAST, MARGIN_MOST = 0.1, 10.0, 30.0
"""Which part of ResumeTimeout is left when a node is given up, and its bounds (s): time enough to
read Slurm and to change it, some six commands, while both are busy.
"""


def given_up_after(resume_timeout: float) -> float:
    """Seconds after which a node that Slurm asked for and that has not registered is given up."""
    margin = min(max(MARGIN_SHARE * resume_timeout, MARGIN_LEAST), MARGIN_MOST)
    return resume_timeout - min(margin, resume_timeout / 2)


def turn(caps: Iterable[tuple[str, int | None]], booting: Mapping[str, int]) -> tuple[int, str]:
    """How many more machines may boot now under these caps (by scope), and the tightest in words.

    ``booting`` has the counts by scope. Without a cap that is more than anybody asks for.
    """
    left = [
        (max(cap - booting.get(scope, 0), 0), f"{scope.replace(':', ' ')} boots {cap} at a time")
        for scope, cap in caps
        if cap is not None
    ]
    return min(left, default=(10**9, ""))


def may_wait(asked: float | None, now: float, resume_timeout: float) -> bool:
    """Whether a node that was asked for at ``asked`` may wait longer for its turn. Where nobody
    knows when that was, Slurm's own ResumeTimeout ends it.
    """
    return asked is None or now < asked + longest_wait(resume_timeout)


def longest_wait(resume_timeout: float) -> float:
    """Seconds that a node may wait for its turn to boot."""
    return WAIT_SHARE * resume_timeout
