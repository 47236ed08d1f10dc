"""Machines that boot: how many at once, and when a pool whose machines never register rests. Pure.

A broken image, a closed port or a wrong key make machines that boot, cost and never register with
Slurm; each job then buys the next ones. After some in a row the pool's breaker opens: nothing is
bought for it until a cool-down is over, then one machine is tried. One alone has its pool, or its
offer, rest for a short while (``to_rest``), so that its job goes elsewhere first.

A node is given up a little before slurmctld would do it, at ResumeTimeout: that one fails the jobs
that must not be requeued, and has the others wait for 121 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model import Breaker

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


NEVER_REGISTERED = "booted but never registered with Slurm"
TAKEN_OUT = "were taken out of service by Slurm: "
"""How the machines of a breaker have failed, as its reason says it."""


def after_failures(
    before: Breaker,
    count: int,
    now: float,
    *,
    limit: int,
    cool_down: float,
    words: str = NEVER_REGISTERED,
) -> Breaker:
    """The pool's breaker when ``count`` more machines have failed: ``words`` say how.

    It opens at ``limit`` in a row, and anew when the machine that was tried fails, too. One that is
    open stays so no longer for the machines that were on their way.
    """
    failures = before.failures + count
    tried = before.until is not None and before.until <= now
    if not tried and (before.until is not None or failures < limit):
        return replace(before, failures=failures, reason=before.reason if before.until else words)
    reason = f"{failures} machines in a row {words}"
    return Breaker(pool=before.pool, failures=failures, until=now + cool_down, reason=reason)


def sickly(breaker: Breaker) -> bool:
    """Whether its last machines did register, and Slurm took them out of service after that: the
    next one that registers proves nothing then.
    """
    return TAKEN_OUT in breaker.reason


class Boot(Struct, frozen=True, kw_only=True):
    """How a machine's boot went: its offer, when it was launched, and when its node registered."""

    offer: str
    launched: float
    registered: float | None = None


def to_rest(failed: Sequence[Boot], others: Iterable[Boot], pool: str) -> tuple[str, ...]:
    """The things not to be asked for a while after these machines of a pool did not register (keys
    of cool-downs): ``pool``, the key of all of it, as an image, a network or a key is at fault
    mostly.

    Where a machine of the pool (``others``) has registered since one of them was launched, the pool
    works: only offers of which none has. Nothing, where one has of each: single machines fail.
    """
    since = min(boot.launched for boot in failed)
    proofs = [b for b in others if b.registered is not None and b.registered >= since]
    if not proofs:
        return (pool,)
    proven = {boot.offer for boot in proofs}
    return tuple(dict.fromkeys(b.offer for b in failed if b.offer not in proven))


def paused(breaker: Breaker | None, now: float) -> str | None:
    """Why nothing is bought for the pool now, if so."""
    if breaker is None or breaker.until is None or breaker.until <= now:
        return None
    left = breaker.until - now
    return f"pool {breaker.pool} is paused for another {left:.0f} s: {breaker.reason}"


def trial(breaker: Breaker | None, booting: int) -> tuple[int, str] | None:
    """How many machines a pool may have on trial when its pause is over, and why; None: any."""
    if breaker is None or breaker.until is None:
        return None
    words = f"pool {breaker.pool} is tried with one machine, as {breaker.reason}"
    return max(1 - booting, 0), words


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
