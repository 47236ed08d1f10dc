"""The checkpoint policies that a configuration may name: ours, and policies of other packages.
Packages offer policies by an entry point of the group ``slurm_elastic.checkpoint_policy``.
"""

from __future__ import annotations

from functools import cache

from slurm_elastic.base.errors import SavePolicyError
from slurm_elastic.config.basics.policy_texts import PolicyPoint
from slurm_elastic.policies.checkpoint.checkpoint import MAKERS, AnyPolicy, parse
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint
from slurm_elastic.policies.checkpoint.situation import Situation

API = 1
"""The version of the interface for policies. It grows when a change of OwnCheckpoint or Situation
breaks policies of other packages.
"""


class _Unusable(OwnCheckpoint, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def save_now(self, situation: Situation) -> None:  # noqa: ARG002
        raise SavePolicyError(f"checkpoint policy {self.text!r}: {self.trouble}")


POINT = PolicyPoint[AnyPolicy](
    group="slurm_elastic.checkpoint_policy",
    api=API,
    noun="checkpoint policies",
    own_makers=MAKERS,
    parse=parse,
    base=OwnCheckpoint,
    unusable=_Unusable,
)
checked_policy = POINT.checked
policy_of = cache(POINT.of)
"""``PolicyPoint.of``, cached because ckptman parses the policy of each job."""
