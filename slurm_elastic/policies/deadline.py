"""A job with a deadline on a spot market: when to ride it, when to wait, when to pay. Pure.

Uniform progress of Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines"
(NSDI '24, section 4.2): without a spot machine the job waits as long as it is ahead of a straight
line from start to deadline, and pays for an on-demand machine when it is behind. Ours differs where
the paper gives up for good: whoever pays goes back to a spot machine as soon as there is one and
the slack left pays for both ways, also near the end, not only once it is ahead of the line again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class Where(StrEnum):
    """What the job runs on."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    WAITING = "waiting"


class Race(Struct, frozen=True, kw_only=True):
    """All that the choice may know; seconds. ``begin`` and ``deadline`` bound the whole job of
    ``work``, of which ``left`` is still to do. ``restart`` is lost whenever the job gets a machine,
    ``starting`` what of it is still ahead; ``look``: until the next choice. ``spot``: whether a
    spot machine is to be had, or kept, now.
    """

    now: float
    begin: float
    deadline: float
    work: float
    left: float
    restart: float
    look: float
    where: Where
    spot: bool
    starting: float = 0.0

    @property
    def slack(self) -> float:
        """Seconds that may still be lost."""
        return self.deadline - self.now - self.left - self.starting

    @property
    def ahead(self) -> bool:
        """Whether as much is done as a straight line from begin to deadline asks for."""
        asked = self.work * (self.now - self.begin) / (self.deadline - self.begin)
        return self.work - self.left >= asked


class Choice(NamedTuple):
    """Where to run until the next look, and why."""

    where: Where
    reason: str


def choose(race: Race) -> Choice:
    """Uniform progress. Never late if the slack at the beginning is two restarts and a look."""
    if race.spot:
        return _with_spot(race)
    if race.where is Where.ON_DEMAND:
        # To wait now would cost a restart later.
        return Choice(Where.ON_DEMAND, "no spot machine is to be had")
    if race.slack < race.restart + 2 * race.look:
        return Choice(Where.ON_DEMAND, f"only {race.slack:.0f} s may still be lost")
    if race.ahead:
        return Choice(
            Where.WAITING, "no spot machine is to be had, and the job is ahead of its line"
        )
    return Choice(Where.ON_DEMAND, "no spot machine is to be had, and the job is behind its line")


def greedy(race: Race) -> Choice:
    """Spot or nothing, until there is just time left to do the rest on demand (section 4.1)."""
    left = race.slack + race.starting
    if left < 2 * race.restart + race.look:
        return Choice(Where.ON_DEMAND, f"only {left:.0f} s may still be lost")
    if race.spot:
        return Choice(Where.SPOT, "a spot machine is to be had")
    return Choice(Where.WAITING, "no spot machine is to be had, and there is time")


def pay(race: Race) -> Choice:  # noqa: ARG001
    """On demand from the first second on: what the others are compared with."""
    return Choice(Where.ON_DEMAND, "nothing else is wanted")


def _with_spot(race: Race) -> Choice:
    # What must be left once the machine is there: a look until its loss is seen, and the way back.
    needed = race.restart + race.look
    if race.where is Where.SPOT:
        kept = race.slack >= needed
        reason = "the spot machine is there"
    else:
        ways = 1 if race.where is Where.WAITING else 2
        kept = race.slack >= needed + ways * race.restart
        reason = "a spot machine is to be had"
    if kept:
        return Choice(Where.SPOT, reason)
    return Choice(Where.ON_DEMAND, f"its loss could not be made up: {race.slack:.0f} s of slack")
