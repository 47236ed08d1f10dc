"""A job with a deadline on a spot market: when to use spot machines, to wait, or to pay. Pure.

``uniform`` is uniform progress of Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under
Deadlines" (NSDI '24, section 4.2). A job without a spot machine waits as long as it is ahead of a
straight line from start to deadline, and pays for an on-demand machine when it is behind.

Our own rule (``choose``) compares dollars. A job pays for its work, and for a restart on each
machine that it gets; each second on a spot machine saves the difference of the prices; waiting
costs only slack. So the rule estimates how long the market will stay as it is from the spells seen
so far (``policies.checkpoint.market_spells``). The job waits for spot machines expected back soon,
for longer the more slack it has. In a long outage it pays, and keeps slack for the short outages
after it. A job that pays returns to a spot machine also near the end, if the slack pays for both
changes, and only if the machine is expected to stay long enough to earn them. No wrong estimate
makes the job late, because the slack for restarts and looks is kept apart.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.policies.checkpoint.market_spells import NOTHING, Past

RESERVE = 0.55
"""The share of the straight line's slack that a job without a machine keeps. If less remains, it
buys a machine.
"""

OUTAGE = 2 / 3
"""The share of an outage's expected remainder subtracted from the slack before the comparison.
"""

EARNED = 7.0
"""Leave an on-demand machine only if a spot machine is expected to stay for this many restarts:
four earn both changes at half the price, the others make up for the slack that the changes take.
"""

ENOUGH = 7200.0
"""Seconds that suffice instead of EARNED restarts if restarts are long, provided that they earn
both changes.
"""


class Where(StrEnum):
    """The market that the job runs on."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    WAITING = "waiting"


class Race(Struct, frozen=True, kw_only=True):
    """All facts for the choice, in seconds.

    ``begin`` and ``deadline`` bound the whole job of ``work``, of which ``left`` remains.
    ``restart`` is lost whenever the job gets a machine; ``starting`` is its part still ahead.
    ``look``: until the next choice. ``spot``: a spot machine is available, or kept, now. ``up``:
    for how long without a break it has been available; ``down``: for how long it has not been.
    ``past``: the known history of the market. ``price``: of a spot machine, as a share of the
    on-demand price.
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
        """Whether the job has done as much as a straight line from begin to deadline requires."""
        asked = self.work * (self.now - self.begin) / (self.deadline - self.begin)
        return self.work - self.left >= asked

    @property
    def patient(self) -> bool:
        """Whether the job may wait: it is ahead of its line, or the share RESERVE of the line's
        slack would remain after the outage.
        """
        whole = self.deadline - self.begin
        line = (whole - self.work) * (self.deadline - self.now) / whole
        expected_outage = self.past.downs.expected(self.down, self.restart)
        return self.ahead or self.slack - OUTAGE * expected_outage >= RESERVE * line

    @property
    def earns(self) -> bool:
        """Whether a spot machine is expected to stay long enough to earn the change to it and back,
        a restart each.
        """
        earned = 2 * self.restart / (1 - self.price)
        least = max(earned, min(EARNED * self.restart, ENOUGH))
        return self.past.ups.expected(self.up, self.restart) >= least


class ChoiceReason(StrEnum):
    """Why the job runs where it does until the next look."""

    NO_CHEAPER = "spot machines are no cheaper"
    SPOT_GOES_ON = "the job has a spot machine"
    SPOT_FREE = "a spot machine is available"
    SPOT_FREE_AND_AHEAD = "a spot machine is available, and the job is ahead of its line"
    SPOT_TOO_SHORT = "a spot machine would not stay long enough to earn the change"
    SPOT_TOO_LATE = "the loss of a spot machine could not be made up"
    BEHIND = "a spot machine is available, but the job is behind its line"
    NO_SPOT = "no spot machine is available"
    NO_SPOT_PATIENT = "no spot machine is available, and there is slack to wait"
    NO_SPOT_SOON = "no spot machine is available, and none is expected soon enough"
    NO_SPOT_AHEAD = "no spot machine is available, and the job is ahead of its line"
    NO_SPOT_BEHIND = "no spot machine is available, and the job is behind its line"
    SLACK_USED = "the slack is needed for restarts"
    ALWAYS = "the policy always pays"


class DeadlineChoice(NamedTuple):
    """Where to run until the next look, and why. ``seconds``: the slack, or the age of the spot
    market's spell, if the reason is about it.
    """

    where: Where
    reason: ChoiceReason
    seconds: float = 0.0


def choose(race: Race) -> DeadlineChoice:
    """Return where the job costs least. It is never late if the slack at the beginning is two
    restarts and a look.
    """
    if race.price >= 1:
        return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.NO_CHEAPER)
    if race.spot:
        return _with_spot(race)
    if race.where is Where.ON_DEMAND:
        # Stay: to wait now would cost a restart later.
        return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.NO_SPOT)
    # The next look would be too late to begin on demand, so begin now.
    if race.slack < race.restart + 2 * race.look:
        return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.SLACK_USED, race.slack)
    if race.patient:
        return DeadlineChoice(Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)
    return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.NO_SPOT_SOON)


def uniform(race: Race) -> DeadlineChoice:
    """Uniform progress as the paper prints it; it ignores prices."""
    way = race.restart + race.look
    if race.spot and race.where is Where.SPOT and race.slack >= way:
        return DeadlineChoice(Where.SPOT, ChoiceReason.SPOT_GOES_ON)
    if race.slack < way + race.restart + race.look:
        return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.SLACK_USED, race.slack)
    if race.where is Where.ON_DEMAND:
        later = replace(race, now=race.now + 2 * race.restart)
        if race.spot and later.ahead:
            return DeadlineChoice(Where.SPOT, ChoiceReason.SPOT_FREE_AND_AHEAD)
        reason = ChoiceReason.BEHIND if race.spot else ChoiceReason.NO_SPOT
        return DeadlineChoice(Where.ON_DEMAND, reason)
    if race.spot:
        return DeadlineChoice(Where.SPOT, ChoiceReason.SPOT_FREE)
    if race.ahead:
        return DeadlineChoice(Where.WAITING, ChoiceReason.NO_SPOT_AHEAD)
    return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.NO_SPOT_BEHIND)


def greedy(race: Race) -> DeadlineChoice:
    """Return spot machines or none, until the time just suffices to do the remaining work on demand
    (section 4.1).
    """
    remaining_slack = race.slack + race.starting
    if remaining_slack < 2 * race.restart + race.look:
        return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.SLACK_USED, remaining_slack)
    if race.spot:
        return DeadlineChoice(Where.SPOT, ChoiceReason.SPOT_FREE)
    return DeadlineChoice(Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)


def pay(race: Race) -> DeadlineChoice:  # noqa: ARG001
    """Return on-demand machines from the first second: the baseline for comparisons."""
    return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.ALWAYS)


def _with_spot(race: Race) -> DeadlineChoice:
    # The slack needed on a spot machine: a look until its loss is noticed, and the restart
    # elsewhere.
    needed = race.restart + race.look
    if race.where is Where.SPOT:
        kept = race.slack >= needed
        reason = ChoiceReason.SPOT_GOES_ON
    else:
        if race.where is Where.ON_DEMAND and not race.earns:
            return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.SPOT_TOO_SHORT, race.up)
        # From an on-demand machine the job restarts twice: on spot, and after the spot machine.
        ways = 1 if race.where is Where.WAITING else 2
        kept = race.slack >= needed + ways * race.restart
        reason = ChoiceReason.SPOT_FREE
    if kept:
        return DeadlineChoice(Where.SPOT, reason)
    return DeadlineChoice(Where.ON_DEMAND, ChoiceReason.SPOT_TOO_LATE, race.slack)
