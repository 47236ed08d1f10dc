"""The release policies that a configuration may name: ours, and policies of other packages.
Packages offer policies by an entry point of the group ``slurm_elastic.release``.
"""

from __future__ import annotations

from slurm_elastic.base.errors import ReleaseError
from slurm_elastic.config.basics.policy_texts import PolicyPoint
from slurm_elastic.policies.growth.release import (
    RELEASE,
    AnyRelease,
    IdleMachine,
    OwnRelease,
    parse_release,
)

API = 1
"""The version of the interface for policies. It grows when a change of OwnRelease or IdleMachine
breaks policies of other packages.
"""


class _Unusable(OwnRelease, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def leaves_at(self, machine: IdleMachine) -> int:  # noqa: ARG002
        raise ReleaseError(f"release policy {self.text!r}: {self.trouble}")


POINT = PolicyPoint[AnyRelease](
    group="slurm_elastic.release",
    api=API,
    noun="release policies",
    own_makers=RELEASE,
    parse=parse_release,
    base=OwnRelease,
    unusable=_Unusable,
)
checked_release = POINT.checked
release_of = POINT.of
