"""The growth policies that a configuration may name: ours, and policies of other packages. Packages
offer policies by an entry point of the group ``slurm_elastic.growth``.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import GrowthError, describe_foreign
from slurm_elastic.config.policy_texts import PolicyTexts
from slurm_elastic.policies.growth.capacity import (
    GROWTH,
    AnyGrowth,
    Demand,
    OwnGrowth,
    parse_growth,
)

GROUP = "slurm_elastic.growth"
API = 1
"""The version of the interface for policies. It grows when a change of OwnGrowth, Demand or Growth
breaks policies of other packages.
"""


class GrowthKind(Struct, frozen=True, kw_only=True):
    """A growth policy of another package."""

    policy: type[OwnGrowth]
    api: int = API

    @property
    def name(self) -> str:
        """The word in ``growth: WORD``."""
        return str(self.policy.__struct_config__.tag)


class _Unusable(OwnGrowth, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def grow(self, demand: Demand) -> None:  # noqa: ARG002
        raise GrowthError(f"growth policy {self.text!r}: {self.trouble}")


@cache
def table() -> outside.Kinds[GrowthKind]:
    """The growth policies of this installation."""
    own_places = {name: f"{kind.__module__}:{kind.__name__}" for name, kind in GROWTH.items()}
    return outside.Kinds(GrowthKind, API, "growth policies", own_places, outside.installed(GROUP))


def _check_period(policy: AnyGrowth) -> None:
    period: object = policy.period
    if period is not None and (type(period) is not int or period <= 0):
        raise ValueError(
            f"period is {describe_foreign(period)}, expected whole seconds over 0, or None"
        )


_TEXTS = PolicyTexts[AnyGrowth](
    lambda: table(), parse_growth, GROWTH, OwnGrowth, _Unusable, _check_period
)
checked_growth = _TEXTS.checked
growth_of = _TEXTS.of
