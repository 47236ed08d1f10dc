"""The ``policies`` sections of the configuration: of the cluster, of a cloud, of a pool.

A pool goes by its own value, else its cloud's, else the cluster's, key by key; ``rules`` says
what that comes to. The texts' meaning is in ``policies.growth.capacity`` and
``policies.growth.release``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.policies.growth.release import Order

Billed = Annotated[float, Meta(ge=1, extra={"unit": "duration"})]
Look = Annotated[float, Meta(ge=1, le=3600, extra={"unit": "duration"})]
Money = Annotated[float, Meta(gt=0)]


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars after which no machine is started any more, in a day and a month (of UTC)."""

    per_day: Money | None = None
    per_month: Money | None = None


class Policies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How machines come and go. None: what the next wider section says.

    ``growth`` and ``release`` are policies' texts; ``order``: which idle machines jobs get first;
    ``lease``: seconds that the cloud bills at a time; ``boot``: seconds that a machine takes to be
    ready; ``windows``: times of the day (UTC) at which machines may be started.
    """

    growth: str | None = None
    release: str | None = None
    order: Order | None = None
    lease: Billed | None = None
    boot: Billed | None = None
    windows: tuple[str, ...] = ()


class PoolPolicies(Policies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool's own. ``min_idle``: so many of its machines are kept up without work."""

    min_idle: Annotated[int, Meta(ge=0)] = 0


class CloudPolicies(Policies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud's own."""

    budget: Budget = field(default_factory=Budget)


class SitePolicies(CloudPolicies, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster's. ``look``: seconds between two looks at queue and machines;
    ``account_budgets`` and ``user_budgets``: by Slurm account and by user, what they may spend
    (``policies.money.account_budgets``).
    """

    look: Look = 15.0
    account_budgets: dict[str, Budget] = field(default_factory=dict)
    user_budgets: dict[str, Budget] = field(default_factory=dict)

    @property
    def payer_budgets(self) -> dict[str, Budget]:
        """Both, by scope (``account:physics``, ``user:alice``)."""
        return {
            **{f"account:{name}": budget for name, budget in self.account_budgets.items()},
            **{f"user:{name}": budget for name, budget in self.user_budgets.items()},
        }
