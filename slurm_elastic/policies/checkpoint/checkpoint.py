"""When a running job should write a checkpoint: pure, from the facts of the moment.

``decide(situation)`` returns a SaveJob or None. ``wake(situation)`` returns the earliest time at
which the answer may change without a new price or notice, so that the caller need not ask every
second.

Sources: HOUR and THRESHOLD are EC3's (FGCS 2016, Algorithm 1; we read its threshold as state:
recomputed on a grid of ten minutes, reset by each checkpoint). The interval is Young's (1974) or
Daly's (2006). On EC2 prices have not caused interruptions since November 2017; there ``Threshold``
does the same as ``Hour``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import ClassVar

from slurm_elastic.model.causes.saves import (
    IntervalOver,
    LeaseEnds,
    NoticeGiven,
    PriceOverThreshold,
    PriceRose,
)
from slurm_elastic.model.cluster import Notice
from slurm_elastic.policies.actions import SaveJob
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.policy_text import (
    DalyOrder,
    Makers,
    Policy,
    Seconds,
    SecondsOver,
    Share,
    Times,
    parse_policy,
)

HOUR = 3600.0
NEVER = math.inf
DEFAULT_MTTI = 6 * HOUR


class Never(Policy, frozen=True, tag="none"):
    """No checkpoints: an interrupted job starts over."""

    def decide(self, situation: Situation) -> SaveJob | None:  # noqa: ARG002
        """No save at any time."""
        return None

    def wake(self, situation: Situation) -> float:  # noqa: ARG002
        """Return NEVER: no later moment changes the decision."""
        return NEVER


class Hour(Policy, frozen=True, tag="hour"):
    """Save once per paid lease, ``margin`` seconds before its end. ``every`` (s) replaces a lease
    too short for a save, such as payment by the second.

    A margin shorter than ``dump`` is widened to it.
    """

    # EC3 leaves it open. The margin must hold a checkpoint (160 s) and the time between two looks
    # (30 s).
    margin: Seconds = 200.0
    every: SecondsOver = HOUR

    def decide(self, situation: Situation) -> SaveJob | None:
        """Save within the margin, unless a checkpoint was completed within it."""
        opens, end, paid = _window(situation, self.margin, self.every)
        # One save within the margin is enough, also a save that another policy asked for.
        if situation.now < opens or situation.since >= opens:
            return None
        remaining_s = end - situation.now
        cause = LeaseEnds(
            time_s=paid, left_s=remaining_s, margin_s=end - opens, is_paid=paid == situation.lease
        )
        return SaveJob(job=situation.job, cause=cause)

    def wake(self, situation: Situation) -> float:
        """Return the begin of this lease's margin, or of the next lease's if this margin was
        used.
        """
        opens, _, paid = _window(situation, self.margin, self.every)
        if situation.now < opens:
            return opens
        return opens + paid if situation.since >= opens else situation.now


def _window(situation: Situation, margin: float, every: float) -> tuple[float, float, float]:
    """Return when the margin opens, when the present lease ends, and how long each lease is."""
    # A save that begins within a shorter margin would end after the lease.
    wide = max(margin, situation.dump)
    paid = situation.lease if situation.lease > wide else every
    ended = math.floor((situation.now - situation.launched) / paid)
    end = situation.launched + (ended + 1) * paid
    return end - min(wide, paid), end, paid


class Threshold(Policy, frozen=True, tag="threshold"):
    """Save as ``Hour`` does, and also when the price exceeds the middle between its earlier value
    and the bid.

    The threshold is (price + bid) / 2 with the price at launch or at the last checkpoint. Every
    ``period`` seconds from the launch it becomes (mean price of the last period + bid) / 2; the
    mean is weighted by time.
    """

    margin: Seconds = 200.0
    period: SecondsOver = 600.0

    def decide(self, situation: Situation) -> SaveJob | None:
        """Save before a paid hour ends; at other times by the price."""
        if (hourly := Hour(self.margin).decide(situation)) is not None:
            return hourly
        limit = self.threshold(situation)
        price = price_at(situation.prices, situation.now)
        if limit is None or price is None or situation.bid is None:
            return None
        # Above the bid the machine is lost before a save could end.
        if not limit < price <= situation.bid:
            return None
        return SaveJob(job=situation.job, cause=PriceOverThreshold(price=price, threshold=limit))

    def wake(self, situation: Situation) -> float:
        """Return the hour's margin, or the next point of the grid if that is earlier."""
        hourly = Hour(self.margin).wake(situation)
        if situation.bid is None or not situation.prices:
            return hourly
        return min(hourly, self._grid(situation) + self.period)

    def threshold(self, situation: Situation) -> float | None:
        """Return the threshold now ($/h); None without a bid or a price."""
        if situation.bid is None or not situation.prices:
            return None
        grid = self._grid(situation)
        if situation.last is not None and situation.last >= grid:
            base = price_at(situation.prices, situation.last)
        elif grid > situation.launched:
            base = mean_price(situation.prices, grid - self.period, grid)
        else:
            base = price_at(situation.prices, situation.launched)
        return None if base is None else (base + situation.bid) / 2

    def _grid(self, situation: Situation) -> float:
        # Counted from the launch, so that a restart of the service does not move the grid.
        periods = math.floor((situation.now - situation.launched) / self.period)
        return situation.launched + periods * self.period


class ThresholdStatic(Policy, frozen=True, tag="threshold_static"):
    """Save as ``Hour`` does, and also when a price has risen since the last checkpoint to within
    ``band`` of the bid.

    The published code of ckptman does this instead of the paper's THRESHOLD.
    """

    band: Share = 0.2
    margin: Seconds = 200.0

    def decide(self, situation: Situation) -> SaveJob | None:
        """Save before a paid hour ends; at other times by the price."""
        if (hourly := Hour(self.margin).decide(situation)) is not None:
            return hourly
        price = price_at(situation.prices, situation.now)
        before = price_at(situation.prices, situation.since)
        if price is None or before is None or situation.bid is None:
            return None
        edge = (1 - self.band) * situation.bid
        if price <= before or not edge < price <= situation.bid:
            return None
        return SaveJob(job=situation.job, cause=PriceRose(price=price, edge=edge))

    def wake(self, situation: Situation) -> float:
        """Return the time at which the hour's margin begins."""
        return Hour(self.margin).wake(situation)


class Daly(Policy, frozen=True, tag="daly"):
    """Save at the interval that loses the least work, from the duration of a checkpoint and the
    observed mean time to interruption of the job.

    ``mtti`` overrides the observed time; without either, six hours are assumed. If the job works on
    during a save, the interval counts from the beginning of its last save. ``order`` 1 is Young's
    interval, 2 Daly's. ``least`` is the lower bound of the interval (s).
    """

    mtti: SecondsOver | None = None
    order: DalyOrder = 2
    least: Seconds = 30.0

    def decide(self, situation: Situation) -> SaveJob | None:
        """Save when the interval since the last checkpoint is over."""
        interval = self.interval(situation)
        if situation.now < situation.since + interval:
            return None
        return SaveJob(job=situation.job, cause=IntervalOver(interval_s=interval))

    def wake(self, situation: Situation) -> float:
        """Return the time at which the interval is over."""
        return situation.since + self.interval(situation)

    def interval(self, situation: Situation) -> float:
        """Seconds of work between two checkpoints."""
        mtti = self.mtti or situation.mtti or DEFAULT_MTTI
        rule = young_interval if self.order == 1 else daly_interval
        # A save during which the job works on must end before the next save begins.
        least = self.least if situation.blocking else max(self.least, situation.dump)
        return max(rule(situation.dump, mtti), least)


def fits(deadline: float | None, now: float, dump: float, slack: float) -> bool:
    """Whether a save of ``dump`` seconds would end ``slack`` seconds before the deadline (None: no
    deadline is known, and it fits).
    """
    return deadline is None or now + dump + slack <= deadline


class OnNotice(Policy, frozen=True, tag="on_notice"):
    """Save once per warning of the cloud, if a checkpoint fits before its deadline.

    ``slack`` seconds are kept for the time between the decision and the dump.
    """

    slack: Seconds = 5.0

    def decide(self, situation: Situation) -> SaveJob | None:
        """Save for the first warning that no checkpoint has answered and that leaves
        enough time.
        """
        for notice in situation.notices:
            if self._open(notice, situation):
                end, now = notice.deadline, situation.now
                cause = NoticeGiven(notice=notice.kind, left_s=None if end is None else end - now)
                return SaveJob(job=situation.job, cause=cause)
        return None

    def wake(self, situation: Situation) -> float:
        """Return the present if a warning waits for an answer. Otherwise return NEVER, because only
        a new warning changes anything.
        """
        # A notice that leaves too little time does not wait: no later moment leaves more.
        waits = any(self._open(notice, situation) for notice in situation.notices)
        return situation.now if waits else NEVER

    def _open(self, notice: Notice, situation: Situation) -> bool:
        # A checkpoint that was completed after a notice has answered it.
        if notice.seen > situation.now or situation.since > notice.seen:
            return False
        return fits(notice.deadline, situation.now, situation.dump, self.slack)


class FirstOf(Policy, frozen=True, tag="first_of"):
    """Ask several policies in their order. The first policy that wants a save decides."""

    policies: tuple[AnyPolicy, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.policies:
            raise ValueError("first_of needs at least one policy")
        for policy in self.policies:
            if not isinstance(policy, Policy):
                raise ValueError(f"{policy!r} is no policy, expected some of {', '.join(MAKERS)}")  # noqa: TRY004

    def decide(self, situation: Situation) -> SaveJob | None:
        """Return the save of the first policy that wants one; None if no policy does."""
        decisions = (policy.decide(situation) for policy in self.policies)
        return next((action for action in decisions if action is not None), None)

    def wake(self, situation: Situation) -> float:
        """Return the earliest time of all policies."""
        return min(policy.wake(situation) for policy in self.policies)


AnyPolicy = Never | Hour | Threshold | ThresholdStatic | Daly | OnNotice | FirstOf | OwnCheckpoint


def _first_of(*policies: AnyPolicy) -> FirstOf:
    return FirstOf(policies)


MAKERS: Makers = {
    "none": Never,
    "hour": Hour,
    "threshold": Threshold,
    "threshold_static": ThresholdStatic,
    "daly": Daly,
    "on_notice": OnNotice,
    "first_of": _first_of,
}
"""Our policies by name. Parse texts by ``config.checkpoint_kinds``, which also knows policies of
other packages.
"""


def parse(text: str, makers: Makers = MAKERS) -> AnyPolicy:
    """Parse a policy: ``hour(margin=200)``, ``first_of(on_notice, daly)``.

    Raises ValueError with one sentence if there is no such policy.
    """
    policy: AnyPolicy = parse_policy(text, makers)
    return policy


class LetEnd(Policy, frozen=True, tag="none"):
    """A job ends at its time limit, even if it asks to be requeued."""

    times: ClassVar[int] = 0


class OnRequest(Policy, frozen=True, tag="on_request"):
    """A job that asks for it, and can be saved, is requeued at its time limit, at most ``times``
    times. It continues from the save with its full limit.
    """

    times: Times = 10


class Renew(Policy, frozen=True, tag="requeue"):
    """Every job that can be saved is requeued at its time limit, otherwise as in ``on_request``."""

    times: Times = 10


AtLimit = LetEnd | OnRequest | Renew


def parse_at_limit(text: str) -> AtLimit:
    """Parse the rule for the end of time limits: ``none``, ``on_request(times=5)`` or
    ``requeue(times=5)``.

    Raises ValueError with one sentence if there is no such rule.
    """
    rule: AtLimit = parse_policy(text, {"none": LetEnd, "on_request": OnRequest, "requeue": Renew})
    return rule


def save_seconds(last: Sequence[float], expected: float) -> float:
    """Return how long the next save may take (s): a quarter more than the longest of the ``last``
    three (newest first); ``expected`` for a job that was never saved.
    """
    return max(last[:3]) * 1.25 if last else expected


def watches_prices(policy: AnyPolicy) -> bool:
    """Whether a new price may make the policy act; then its caller must ask it at each
    new price.
    """
    if isinstance(policy, FirstOf):
        return any(watches_prices(member) for member in policy.policies)
    if isinstance(policy, OwnCheckpoint):
        return policy.watches_prices
    return isinstance(policy, Threshold | ThresholdStatic)


def is_ours(policy: AnyPolicy) -> bool:
    """Whether no part of the policy is of another package."""
    if isinstance(policy, FirstOf):
        return all(is_ours(member) for member in policy.policies)
    return not isinstance(policy, OwnCheckpoint)


def young_interval(dump: float, mtti: float) -> float:
    """Young's first-order interval of work between checkpoints: sqrt(2 dump mtti), seconds."""
    return math.sqrt(2 * dump * mtti)


def daly_interval(dump: float, mtti: float) -> float:
    """Daly's higher-order interval of work between checkpoints, seconds."""
    # The formula below is an expansion for short saves; it does not hold for longer ones.
    if dump >= 2 * mtti:
        return mtti
    ratio = dump / (2 * mtti)
    return young_interval(dump, mtti) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - dump


def observed_mtti(uptime: float, interruptions: int, prior: float = DEFAULT_MTTI) -> float:
    """Return the mean seconds to an interruption: observed machine-seconds per interruption, with
    the prior as one more interruption.
    """
    return (uptime + prior) / (interruptions + 1)


def joint_mtti(times: Iterable[float]) -> float:
    """Return the mean seconds until any machine of a job is taken, from the means of the machines.
    Rates of independent losses add (Daly 2006, section 2).
    """
    return 1 / sum(1 / seconds for seconds in times)


def price_at(prices: tuple[tuple[float, float], ...], when: float) -> float | None:
    """Return the price at ``when``: the last known price, or the first if ``when`` is
    before all.
    """
    if not prices:
        return None
    return prices[max(bisect_right(prices, (when, math.inf)) - 1, 0)][1]


def mean_price(prices: tuple[tuple[float, float], ...], begin: float, end: float) -> float | None:
    """The mean price from ``begin`` to ``end``, weighted by time; None without prices."""
    price = price_at(prices, begin)
    if price is None or end <= begin:
        return price
    total, time = 0.0, begin
    for since, later in prices:
        if begin < since < end:
            total += price * (since - time)
            price, time = later, since
    return (total + price * (end - time)) / (end - begin)
