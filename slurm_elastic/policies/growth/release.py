"""When an idle machine may go, and which idle machines a job gets first. Pure.

A release policy's ``due`` returns the earliest time, from ``now`` on, at which a machine may go if
it stays idle. It is called only while no job waits. ``stays``: only the idle time counts, so a due
machine stays due. ``started``: when its billing began; ``since``: since when it is idle; ``lease``:
how many seconds are paid at a time (1: by the second).

Sources: Elastic Site (flags), VHEC (delayed), SEC (the end of the lease, and placement). Times are
integer seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, NamedTuple

from slurm_elastic.base.errors import ReleaseError, describe_foreign
from slurm_elastic.policies.policy_text import Makers, Policy, Whole, WholeOver, parse_policy


class Idle(Policy, frozen=True, tag="idle"):
    """A machine may go when it has been idle for ``seconds``."""

    stays: ClassVar[bool] = True

    seconds: Whole = 600

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """Return the time when the machine has been idle for ``seconds``, but not a past time."""
        return max(since + self.seconds, now)


class AtOnce(Policy, frozen=True, tag="on_demand"):
    """A machine may go as soon as it is idle."""

    stays: ClassVar[bool] = True

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """Return the present: an idle machine goes at once."""
        return max(since, now)


class Delayed(Policy, frozen=True, tag="delayed"):
    """A public machine goes ``before_end`` seconds before its paid lease ends. A machine on the
    premises, or paid by the second, goes after ``on_premises`` idle seconds.
    """

    stays: ClassVar[bool] = False

    on_premises: Whole = 600
    before_end: WholeOver = 180

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:
        """Return when the lease is about to end, or the machine has been idle for long enough; the
        present if that time is over.
        """
        # Nothing is paid ahead, so keeping the machine costs money and only the idle time counts.
        if not public or lease <= 1:
            return max(since + self.on_premises, now)
        margin = residual(started, now, lease)
        return now if margin <= self.before_end else now + margin - self.before_end


class Flagged(Policy, frozen=True, tag="flagged"):
    """The policy of Elastic Site: machines that the growth policy flags go when idle. A flag is
    never withdrawn.

    A growth policy without a ``surplus`` flags every idle machine once the queue is empty.
    """

    stays: ClassVar[bool] = True

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:  # noqa: ARG002
        """Return the present, because the policy is asked only about flagged machines."""
        return max(since, now)


class IdleMachine(NamedTuple):
    """The facts that a release policy of another package may know about an idle machine. ``now``:
    the present (Unix s). The other fields are explained at the top of this module.
    """

    started: int
    since: int
    now: int
    lease: int
    public: bool


class OwnRelease(Policy, frozen=True, tag="own"):
    """The base class for a release policy of another package; its ``tag`` is the policy's name.

    Its fields are the parameters in the text (``daytime(end=18)``): numbers and texts, each with a
    default. ``longest``: after so many idle seconds a machine goes in any case, in the end by
    Slurm's SuspendTime.

    ``leaves_at`` must be pure and quick: no clock but ``machine.now``, no file, no random number.
    If it raises, or returns nonsense, it releases no machine, and the error is reported
    (ReleaseError).
    """

    stays: ClassVar[bool] = False
    longest: ClassVar[int] = 3600

    def leaves_at(self, machine: IdleMachine) -> int:
        """Return the earliest time (whole Unix s) at which the machine may go if it stays idle. The
        past means now. No machine goes while a job waits.
        """
        raise NotImplementedError

    def due(self, started: int, since: int, now: int, lease: int, *, public: bool) -> int:
        """Return the policy's time within its bounds. Raises ReleaseError."""
        machine = IdleMachine(started, since, now, lease, public)
        name = self.__struct_config__.tag
        try:
            when: object = self.leaves_at(machine)
        except (ReleaseError, KeyboardInterrupt):
            raise
        # Deliberately BaseException: a SystemExit from another package must not end the thread.
        except BaseException as error:
            text = f"release policy {name} fails: {describe_foreign(error)}"
            raise ReleaseError(text) from error
        # Not ``isinstance``: True is an int, and an int class of another package may run its code.
        if type(when) is not int:
            text = f"found {describe_foreign(when)}, expected a time in whole Unix seconds"
            raise ReleaseError(f"release policy {name} fails: {text}")
        return max(min(int(when), since + self.longest), now)


AnyRelease = Idle | AtOnce | Delayed | Flagged | OwnRelease


class IdleOrder(StrEnum):
    """Which idle machines a job gets first: by the remainder of their paid lease, by idle time, or
    (``packed``) the machines on the host that has the most machines.
    """

    RANDOM = "random"
    MAX_MARGIN = "max_margin"
    MIN_MARGIN = "min_margin"
    MAX_IDLE = "max_idle"
    MIN_IDLE = "min_idle"
    PACKED = "packed"


def residual(started: int, now: int, lease: int) -> int:
    """Return the paid seconds that remain, 1 to ``lease``; a lease that ends now has
    been renewed.
    """
    return lease - (now - started) % lease


def rank_key(
    order: IdleOrder, started: int, since: int, now: int, lease: int, on_host: int = 0
) -> int:
    """Return a key, smaller first; 0 for all in random order (node weights use it). ``on_host``:
    how many machines the machine's host has, 0 if hosts are not known.
    """
    return {
        IdleOrder.RANDOM: 0,
        IdleOrder.MAX_MARGIN: -residual(started, now, lease),
        IdleOrder.MIN_MARGIN: residual(started, now, lease),
        IdleOrder.MAX_IDLE: since - now,
        IdleOrder.MIN_IDLE: now - since,
        IdleOrder.PACKED: -on_host,
    }[order]


RELEASE: Mapping[str, type] = {
    "idle": Idle,
    "on_demand": AtOnce,
    "delayed": Delayed,
    "flagged": Flagged,
}
"""Our policies by name. Parse texts by ``config.release_kinds``, which also knows policies of other
packages.
"""


def parse_release(text: str, makers: Makers = RELEASE) -> AnyRelease:
    """Parse a text such as ``delayed(before_end=180)``. Raises ValueError with one sentence if
    there is no such policy.
    """
    policy: AnyRelease = parse_policy(text, makers)
    return policy
