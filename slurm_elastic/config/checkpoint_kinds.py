"""The checkpoint policies that a configuration may name: ours, and policies of other packages.
Packages offer policies by an entry point of the group ``slurm_elastic.checkpoint_policy``.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import SavePolicyError
from slurm_elastic.config.policy_texts import PolicyTexts
from slurm_elastic.policies.checkpoint.checkpoint import MAKERS, AnyPolicy, parse
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint
from slurm_elastic.policies.checkpoint.situation import Situation

GROUP = "slurm_elastic.checkpoint_policy"
API = 1
"""The version of the interface for policies. It grows when a change of OwnCheckpoint or Situation
breaks policies of other packages.
"""


class CheckpointKind(Struct, frozen=True, kw_only=True):
    """A checkpoint policy of another package."""

    policy: type[OwnCheckpoint]
    api: int = API

    @property
    def name(self) -> str:
        """The word in ``policy: WORD``."""
        return str(self.policy.__struct_config__.tag)


class _Unusable(OwnCheckpoint, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def save_now(self, situation: Situation) -> None:  # noqa: ARG002
        raise SavePolicyError(f"checkpoint policy {self.text!r}: {self.trouble}")


@cache
def table() -> outside.Kinds[CheckpointKind]:
    """The checkpoint policies of this installation."""
    module = "slurm_elastic.policies.checkpoint.checkpoint"
    own_places = {name: f"{module}:{name}" for name in MAKERS}
    return outside.Kinds(
        CheckpointKind, API, "checkpoint policies", own_places, outside.installed(GROUP)
    )


_TEXTS = PolicyTexts[AnyPolicy](lambda: table(), parse, MAKERS, OwnCheckpoint, _Unusable)
checked_policy = _TEXTS.checked
policy_of = cache(_TEXTS.of)
"""``PolicyTexts.of``, cached because ckptman parses the policy of each job."""
