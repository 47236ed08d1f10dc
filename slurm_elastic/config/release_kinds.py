"""The release policies that a configuration may name: ours, and policies of other packages.
Packages offer policies by an entry point of the group ``slurm_elastic.release``.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import ReleaseError
from slurm_elastic.config.policy_texts import PolicyTexts
from slurm_elastic.policies.growth.release import (
    RELEASE,
    AnyRelease,
    IdleMachine,
    OwnRelease,
    parse_release,
)

GROUP = "slurm_elastic.release"
API = 1
"""The version of the interface for policies. It grows when a change of OwnRelease or IdleMachine
breaks policies of other packages.
"""


class ReleaseKind(Struct, frozen=True, kw_only=True):
    """A release policy of another package."""

    policy: type[OwnRelease]
    api: int = API

    @property
    def name(self) -> str:
        """The word in ``release: WORD``."""
        return str(self.policy.__struct_config__.tag)


class _Unusable(OwnRelease, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    trouble: str = ""

    def leaves_at(self, machine: IdleMachine) -> int:  # noqa: ARG002
        raise ReleaseError(f"release policy {self.text!r}: {self.trouble}")


@cache
def table() -> outside.Kinds[ReleaseKind]:
    """The release policies of this installation."""
    own_places = {name: f"{kind.__module__}:{kind.__name__}" for name, kind in RELEASE.items()}
    return outside.Kinds(ReleaseKind, API, "release policies", own_places, outside.installed(GROUP))


_TEXTS = PolicyTexts[AnyRelease](lambda: table(), parse_release, RELEASE, OwnRelease, _Unusable)
checked_release = _TEXTS.checked
release_of = _TEXTS.of
