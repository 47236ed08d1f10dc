"""A job with a deadline on a spot market: when to ride it, when to wait, when to pay. Pure.

After uniform progress of Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under
Deadlines" (NSDI '24, section 4.2; here ``uniform``): without a spot machine the job waits as long
as it is ahead of a straight line from start to deadline, and pays for an on-demand machine when it
is behind. Ours goes by dollars. A job pays its work, and a restart for each machine that it gets,
and saves the difference of the prices on each second on a spot machine; to wait costs slack alone.
So it asks how long the market will stay as it is, by the spells that were seen of it
(``policies.checkpoint.market_spells``): it waits for spot machines that are expected back soon,
for longer the more slack there is, and pays in a long outage, with slack left for the short ones
after it. Whoever pays goes back to a spot machine also near the end, where the slack left pays
for both ways; but only for one that is expected to stay for long enough to earn the two changes.
No expectation makes it late: the slack that restarts and looks need is kept besides.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import brief
from slurm_elastic.policies.checkpoint.market_spells import NOTHING, Past

RESERVE = 0.55
"""The share of the straight line's slack below which a job that has no machine buys one."""

OUTAGE = 2 / 3
"""The share of an outage's expected rest that is taken off the slack before that comparison."""

EARNED = 7.0
"""Restarts for which a spot machine must be expected to stay before an on-demand machine is left:
four earn both ways at half the price, the others are for the slack that the ways take.
"""

ENOUGH = 7200.0
"""Seconds that are as good as EARNED restarts where these are long, if they earn both ways."""


class Where(StrEnum):
    """The market that the job runs on."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    WAITING = "waiting"


class Race(Struct, frozen=True, kw_only=True):
    """All that the choice may know; seconds. ``begin`` and ``deadline`` bound the whole job of
    ``work``, of which ``left`` is still to do. ``restart`` is lost whenever the job gets a machine,
    ``starting`` what of it is still ahead; ``look``: until the next choice. ``spot``: whether a
    spot machine is to be had, or kept, now; ``up``: for how long without a break it has been, or
    ``down``: has not been; ``past``: what was seen of the market before, as far as it is known.
    ``price``: what a spot machine costs, as a share of the on-demand price.
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
    up: float = inf
    down: float = 0.0
    past: Past = NOTHING
    price: float = 0.5

    @property
    def slack(self) -> float:
        """Seconds that may still be lost."""
        return self.deadline - self.now - self.left - self.starting

    @property
    def ahead(self) -> bool:
        """Whether as much is done as a straight line from begin to deadline asks for."""
        asked = self.work * (self.now - self.begin) / (self.deadline - self.begin)
        return self.work - self.left >= asked

    @property
    def patient(self) -> bool:
        """Whether the job is ahead of its line, so that slack would be left over, or the share
        RESERVE of the line's slack would be left after the outage.
        """
        whole = self.deadline - self.begin
        line = (whole - self.work) * (self.deadline - self.now) / whole
        gone = self.past.downs.expected(self.down, self.restart)
        return self.ahead or self.slack - OUTAGE * gone >= RESERVE * line

    @property
    def earns(self) -> bool:
        """Whether a spot machine is expected to stay for long enough to earn what it costs to go to
        it and back, a restart each way.
        """
        earned = 2 * self.restart / (1 - self.price)
        least = max(earned, min(EARNED * self.restart, ENOUGH))
        return self.past.ups.expected(self.up, self.restart) >= least


class Choice(NamedTuple):
    """Where to run until the next look, and why."""

    where: Where
    reason: str


def choose(race: Race) -> Choice:
    """Where it costs least. Never late if the slack at the beginning is two restarts and a look."""
    if race.price >= 1:
        return Choice(Where.ON_DEMAND, "spot machines are no cheaper")
    if race.spot:
        return _with_spot(race)
    if race.where is Where.ON_DEMAND:
        # To wait now would cost a restart later.
        return Choice(Where.ON_DEMAND, "no spot machine is to be had")
    if race.slack < race.restart + 2 * race.look:
        return Choice(Where.ON_DEMAND, f"only {brief(race.slack)} may still be lost")
    if race.patient:
        return Choice(Where.WAITING, "no spot machine is to be had, and there is slack to wait")
    return Choice(Where.ON_DEMAND, "no spot machine is to be had, and none is expected soon enough")


def uniform(race: Race) -> Choice:
    """Uniform progress as the paper prints it, which knows no price."""
    way = race.restart + race.look
    if race.spot and race.where is Where.SPOT and race.slack >= way:
        return Choice(Where.SPOT, "the spot machine is there")
    if race.slack < way + race.restart + race.look:
        return Choice(Where.ON_DEMAND, f"only {brief(race.slack)} may still be lost")
    if race.where is Where.ON_DEMAND:
        later = replace(race, now=race.now + 2 * race.restart)
        if race.spot and later.ahead:
            return Choice(Where.SPOT, "a spot machine is to be had, and the job is ahead")
        why = "the job is behind its line" if race.spot else "no spot machine is to be had"
        return Choice(Where.ON_DEMAND, why)
    if race.spot:
        return Choice(Where.SPOT, "a spot machine is to be had")
    if race.ahead:
        return Choice(
            Where.WAITING, "no spot machine is to be had, and the job is ahead of its line"
        )
    return Choice(Where.ON_DEMAND, "no spot machine is to be had, and the job is behind its line")


def greedy(race: Race) -> Choice:
    """Spot or nothing, until there is just time left to do the rest on demand (section 4.1)."""
    left = race.slack + race.starting
    if left < 2 * race.restart + race.look:
        return Choice(Where.ON_DEMAND, f"only {brief(left)} may still be lost")
    if race.spot:
        return Choice(Where.SPOT, "a spot machine is to be had")
    return Choice(Where.WAITING, "no spot machine is to be had, and there is time")


def pay(race: Race) -> Choice:  # noqa: ARG001
    """On demand from the first second on: what the others are compared with."""
    return Choice(Where.ON_DEMAND, "nothing else is wanted")


def _with_spot(race: Race) -> Choice:
    # Time to be left once the machine is there: a look until its loss is seen, and the way back.
    needed = race.restart + race.look
    if race.where is Where.SPOT:
        kept = race.slack >= needed
        reason = "the spot machine is there"
    else:
        if race.where is Where.ON_DEMAND and not race.earns:
            why = f"spot machines, there for {brief(race.up)}, are not expected to stay long enough"
            return Choice(Where.ON_DEMAND, why)
        ways = 1 if race.where is Where.WAITING else 2
        kept = race.slack >= needed + ways * race.restart
        reason = "a spot machine is to be had"
    if kept:
        return Choice(Where.SPOT, reason)
    return Choice(Where.ON_DEMAND, f"its loss could not be made up: {brief(race.slack)} of slack")
