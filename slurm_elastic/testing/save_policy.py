"""The duties of every checkpoint policy, both ours and those of plug-ins, according to
``OwnCheckpoint``.

A policy's tests inherit ``SavePolicyContract`` and define the fixture ``policy``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from msgspec.structs import replace

from slurm_elastic.ckptman.decide import JobFacts, plan_all
from slurm_elastic.config.checkpoint_kinds import checked_policy
from slurm_elastic.config.job_checkpoint import MethodChoice
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, FirstOf, OnNotice
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.checkpointed_run import Checkpoints, Trip, ride

NOON = 1_800_014_400.0
"""Unix time of noon on a Friday."""
HOUR_S, DAY_S = 3600, 86400
_PRICES = ((NOON - DAY_S, 0.03), (NOON - 60, 0.09))
_NOTICE = Notice(instance="i-1", kind=NoticeKind.INTERRUPTION, deadline=NOON + 120, seen=NOON - 1)


def situations() -> Iterator[Situation]:
    """Yield jobs that began now or long ago, with and without a save, a price and a notice."""
    for worked_s, saved_s, dump_s, lease_s, bid, notices in product(
        (0, 60, 3500, 3 * DAY_S), (None, 0, 30, 7200), (1, 60, 5000), (1, 3600),
        (None, 0.1), ((), (_NOTICE,)),
    ):  # fmt: skip
        is_saved = saved_s is not None and saved_s < worked_s
        yield Situation(
            job="7", now=NOON, launched=NOON - worked_s - 100, started=NOON - worked_s,
            last=NOON - saved_s if saved_s is not None and is_saved else None, dump=dump_s,
            prices=() if bid is None else _PRICES, bid=bid, notices=notices, lease=lease_s,
            mtti=4 * HOUR_S, cost=dump_s if is_saved else 0.0,
        )  # fmt: skip


class SavePolicyContract:
    """The properties on which slurm-elastic-ckptman and the simulator rely."""

    def test_each_answer_makes_sense(self, policy: AnyPolicy) -> None:
        """``decide`` and ``wake`` raise SavePolicyError if an answer makes no sense."""
        for situation in situations():
            action = policy.decide(situation)
            assert action is None or action.job == situation.job, situation
            assert not math.isnan(policy.wake(situation)), situation

    def test_the_same_facts_have_the_same_answer(self, policy: AnyPolicy) -> None:
        answers = [policy.decide(situation) for situation in situations()]
        reversed_answers = [policy.decide(s) for s in reversed(tuple(situations()))]
        assert answers == reversed_answers[::-1]

    def test_a_save_is_enough_for_a_while(self, policy: AnyPolicy) -> None:
        """A policy that wants a save right after a save would stop the job for ever."""
        for situation in situations():
            saved = replace(situation, last=situation.now, cost=0.0, notices=())
            assert policy.decide(replace(saved, now=saved.now + 1)) is None, situation

    def test_nothing_changes_before_it_wants_to_be_asked_again(self, policy: AnyPolicy) -> None:
        """The simulator skips the time until ``wake``."""
        for situation in situations():
            wake = min(policy.wake(situation), situation.now + 2 * DAY_S)
            if policy.decide(situation) is not None or wake <= situation.now + 1:
                continue
            for part in (0.1, 0.5, 0.9):
                when = situation.now + part * (wake - situation.now)
                assert policy.decide(replace(situation, now=when)) is None, (situation, when)

    def test_its_text_is_read_again(self, policy: AnyPolicy) -> None:
        together = FirstOf((OnNotice(), policy))
        for each in (policy, together):
            assert checked_policy(text_of(each)) == each

    def test_the_service_plans_by_it(self, policy: AnyPolicy) -> None:
        for situation in situations():
            run = JobRun(
                job=7, label="7", attempt=0, user="ann", uid=1001, gid=100, nodes=("burst1",),
                partition="pub", started=situation.started,
            )  # fmt: skip
            choice = MethodChoice(method="signal", policy=policy)
            plans = plan_all([JobFacts(run=run, choice=choice, situations=(situation,))], 5.0)
            assert len(plans) == (policy.decide(situation) is not None)

    def test_the_simulator_ends_every_job_by_it(self, policy: AnyPolicy) -> None:
        start = int(NOON)
        market = SpotMarket(Curve([start, start + 4000], [0.03, 0.09]), bid=0.1)
        for work, blocking in product((30, 5000, 3 * DAY_S), (True, False)):
            trip = Trip(
                job=7, start=start, work=work, launched=start - 60, market=market, lease=3600
            )
            result = ride(Checkpoints(policy=policy, blocking=blocking), trip)
            assert result.done
            assert result.checkpoints * 60 <= max(work, 60), "it saves for longer than it works"
