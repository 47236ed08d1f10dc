"""Decides for all jobs, also by checkpoint policies of other packages. If a policy fails or
does not answer in time, the default policy decides for its jobs, and the error is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import PolicyError
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.ckptman.decide import JobFacts, JobPlan, gather, in_order, plan_all
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.config.checkpoint_kinds import policy_of
from slurm_elastic.config.sections.checkpoint import CheckpointSettings
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, is_ours
from slurm_elastic.policies.policy_text import text_of

TIMEOUT_S = 2.0
"""Seconds in which a policy of another package must answer for all its jobs. Notices leave two
minutes, and a tick that waits saves nothing.
"""
FALLBACK = policy_of(CheckpointSettings().policy)


class BoundedPolicies:
    """Asks the checkpoint policies for plans, each within a time limit. For one thread only."""

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._calls = InTime()

    def plans(self, snapshot: Snapshot) -> tuple[JobPlan, ...]:
        """The plans, most urgent first."""
        slack = self._site.config.checkpoint.deadline_margin
        # Group by policy: if a policy of another package fails or hangs, only its own jobs are left
        # to FALLBACK.
        facts_by_policy: defaultdict[AnyPolicy, list[JobFacts]] = defaultdict(list)
        facts_of_ours: list[JobFacts] = []
        for facts in gather(snapshot):
            policy = facts.choice.policy
            (facts_of_ours if is_ours(policy) else facts_by_policy[policy]).append(facts)
        plans = list(plan_all(facts_of_ours, slack))
        for policy, facts_of_policy in facts_by_policy.items():
            plans += self._plans_by(policy, facts_of_policy, slack)
        return in_order(plans)

    def _plans_by(
        self, policy: AnyPolicy, all_facts: Sequence[JobFacts], slack: float
    ) -> Sequence[JobPlan]:
        """The plans of jobs with that policy of another package."""
        name = f"checkpoint policy {text_of(policy)}"
        try:
            plans = self._calls.call(name, lambda: plan_all(all_facts, slack), TIMEOUT_S)
        except (PolicyError, TimeoutError) as error:
            self._site.recorder.report_health(name, f"{error}; {text_of(FALLBACK)} decides instead")
            choices = (replace(facts.choice, policy=FALLBACK) for facts in all_facts)
            return plan_all(
                [
                    replace(facts, choice=choice)
                    for facts, choice in zip(all_facts, choices, strict=True)
                ],
                slack,
            )
        self._site.recorder.report_health(name, None)
        return plans
