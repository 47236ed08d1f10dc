"""The growth policies that a configuration may name: ours, and policies of other packages. Packages
offer policies by an entry point of the group ``slurm_elastic.growth``.
"""

from __future__ import annotations

from slurm_elastic.base.errors import GrowthError, describe_foreign
from slurm_elastic.config.basics.policy_texts import PolicyPoint
from slurm_elastic.policies.growth.capacity import (
    GROWTH,
    AnyGrowth,
    Demand,
    OwnGrowth,
    parse_growth,
)

API = 1
"""The version of the interface for policies. It grows when a change of OwnGrowth, Demand or Growth
breaks policies of other packages.
"""


class _Unusable(OwnGrowth, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def grow(self, demand: Demand) -> None:  # noqa: ARG002
        raise GrowthError(f"growth policy {self.text!r}: {self.trouble}")


def _check_period(policy: AnyGrowth) -> None:
    period: object = policy.period
    if period is not None and (type(period) is not int or period <= 0):
        raise ValueError(
            f"period is {describe_foreign(period)}, expected whole seconds over 0, or None"
        )


POINT = PolicyPoint[AnyGrowth](
    group="slurm_elastic.growth",
    api=API,
    noun="growth policies",
    own_makers=GROWTH,
    parse=parse_growth,
    base=OwnGrowth,
    unusable=_Unusable,
    check=_check_period,
)
checked_growth = POINT.checked
growth_of = POINT.of
