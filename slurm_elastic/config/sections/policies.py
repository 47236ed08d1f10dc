"""The sections ``policies`` of the cluster, of a cloud and of a pool. The narrowest one counts
(``pool_rules``). ``policies.growth.capacity`` and ``policies.growth.release`` read the texts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.policies.growth.release import IdleOrder

Billed = Annotated[float, Meta(ge=1, extra={"unit": "duration"})]
Look = Annotated[float, Meta(ge=1, le=3600, extra={"unit": "duration"})]
Money = Annotated[float, Meta(gt=0)]


class PayerBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After so many dollars in a day or a month (UTC) no more machines start."""

    per_day: Money | None = None
    """Change it when a day may cost at most so much, for example to bound a job that runs wild."""
    per_month: Money | None = None
    """Change it when a grant or a bill sets what a month may cost."""


class WhenSpent(StrEnum):
    """The effect of a spent budget on running machines. FINISH: they take no new jobs and
    end after their jobs. KEEP: they get jobs as before.
    """

    FINISH = "finish"
    KEEP = "keep"


class Budget(PayerBudget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of all machines of the cluster or of a cloud."""

    when_spent: WhenSpent = WhenSpent.FINISH
    """Change it when running machines should get further jobs although that costs more than the
    budget.
    """


class Policies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How machines come and go. None leaves it to the next wider section."""

    growth: str | None = None
    """Change it when simulations of your job history show a policy that waits less or costs less
    than Slurm's own way.
    """
    release: str | None = None
    """Change it when idle machines should end by another rule than `suspend_time`, such as at the
    end of a paid hour.
    """
    machine_order: IdleOrder | None = None
    """Change it when jobs should fill machines so that others become idle sooner."""
    billing_increment: Billed | None = None
    """Change it when the cloud bills by the hour or the minute instead of the second."""
    expected_boot_time: Billed | None = None
    """Change it when machines need longer or shorter to become nodes than two minutes, so that
    predictions fit.
    """
    start_windows: tuple[str, ...] = ()
    """Change it when machines should start only at some times, such as when power is cheap."""


class PoolPolicies(Policies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    min_idle_machines: Annotated[int, Meta(ge=0)] = 0
    """Change it when jobs must start at once, and a machine kept for them is worth its price."""


class CloudPolicies(Policies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    budget: Budget = field(default_factory=Budget)


class Choose(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """slurm-elasticd chooses the cluster's policy ``among`` these and the cluster's own, by their
    costs and waits in a simulation of the last weeks.
    """

    among: tuple[str, ...] = ()
    """Change it when the best policy changes with the season, and slurm-elasticd should follow."""
    max_wait: Seconds | None = None
    """Change it when another mean wait is acceptable than that of the cluster's own policy."""
    history: Annotated[float, Meta(ge=86400, extra={"unit": "duration"})] = 28 * 86400.0
    """Change it when older jobs say more about the next ones, or the simulation takes too long."""
    interval: Annotated[float, Meta(ge=3600, extra={"unit": "duration"})] = 86400.0
    """Change it when the work changes sooner than within days."""


class SitePolicies(CloudPolicies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    poll_interval: Look = 15.0
    """Change it when leases are so short that a look every 15 s would miss their ends, or the
    queue is so long that looks cost too much.
    """
    max_poll_interval: Look = 300.0
    """Change it when looks should also become rarer, or not become rarer, while no job waits and no
    machine is up.
    """
    choose: Choose = field(default_factory=Choose)
    account_budgets: dict[str, PayerBudget] = field(default_factory=dict)
    """Change it when accounts pay for themselves and one must not spend another's money."""
    user_budgets: dict[str, PayerBudget] = field(default_factory=dict)
    """Change it when single users should not use up what all have."""

    @property
    def payer_budgets(self) -> dict[str, PayerBudget]:
        """The budgets of accounts and users by scope (``account:physics``, ``user:alice``)."""
        return {
            **{f"account:{name}": budget for name, budget in self.account_budgets.items()},
            **{f"user:{name}": budget for name, budget in self.user_budgets.items()},
        }
