"""When an idle machine may go, and which idle machines a job gets first. Pure.

Release policies answer ``due`` with the earliest time, from ``now`` on, at which a machine may go
if it stays idle; they are asked only while no job waits. Where ``stays``, the idle time alone
counts, and whoever is due at a time is due at any later one, too. ``started`` is when its billing
began, ``since`` since when it is idle, ``lease`` how many seconds are paid at a time (1: by the
second).

Sources: Elastic Site (flags), VHEC (delayed), SEC (the end of the lease, and placement). Times are
integer seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from slurm_elastic.policies.policy_text import Policy, Whole, WholeOver, parse_policy


class Idle(Policy, frozen=True, tag="idle"):
    """When a machine has been idle for ``seconds``."""

    stays: ClassVar[bool] = True

    seconds: Whole = 600

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """``since`` + ``seconds``, or now."""
        return max(since + self.seconds, now)


class AtOnce(Policy, frozen=True, tag="on_demand"):
    """As soon as a machine is idle."""

    stays: ClassVar[bool] = True

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """Now."""
        return max(since, now)


class Delayed(Policy, frozen=True, tag="delayed"):
    """A public machine ``before_end`` seconds before its paid lease ends; one on the premises, or
    paid by the second, when it has been idle for ``on_premises`` seconds.
    """

    stays: ClassVar[bool] = False

    on_premises: Whole = 600
    before_end: WholeOver = 180

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:
        """The first time from now on at which the lease is about to end."""
        if not public or lease <= 1:
            return max(since + self.on_premises, now)
        margin = residual(started, now, lease)
        return now if margin <= self.before_end else now + margin - self.before_end


class Flagged(Policy, frozen=True, tag="flagged"):
    """Elastic Site's: what the growth policy flags goes when idle; a flag is never taken back.

    A growth policy without a ``surplus`` flags every idle machine once the queue is empty.
    """

    stays: ClassVar[bool] = True

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """Now: it is asked for flagged machines only."""
        return max(since, now)


AnyRelease = Idle | AtOnce | Delayed | Flagged


class IdleOrder(StrEnum):
    """Which idle machines a job gets first: by the rest of their paid lease, or by idle time."""

    RANDOM = "random"
    MAX_MARGIN = "max_margin"
    MIN_MARGIN = "min_margin"
    MAX_IDLE = "max_idle"
    MIN_IDLE = "min_idle"


def residual(started: int, now: int, lease: int) -> int:
    """Paid seconds left, 1 to ``lease``; a lease that ends now has been renewed."""
    return lease - (now - started) % lease


def rank_key(order: IdleOrder, started: int, since: int, now: int, lease: int) -> int:
    """Smaller first; 0 for all where the order is random (node weights come from this)."""
    return {
        IdleOrder.RANDOM: 0,
        IdleOrder.MAX_MARGIN: -residual(started, now, lease),
        IdleOrder.MIN_MARGIN: residual(started, now, lease),
        IdleOrder.MAX_IDLE: since - now,
        IdleOrder.MIN_IDLE: now - since,
    }[order]


_RELEASE: Mapping[str, type] = {
    "idle": Idle,
    "on_demand": AtOnce,
    "delayed": Delayed,
    "flagged": Flagged,
}


def parse_release(text: str) -> AnyRelease:
    """``delayed(before_end=180)``; ValueError with one sentence where there is no such policy."""
    policy: AnyRelease = parse_policy(text, _RELEASE)
    return policy
