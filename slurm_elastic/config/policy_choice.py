"""The cluster's policy that slurm-elasticd has chosen (``policies.choose``). It is kept in a file
of the state directory, so that every service and command counts with the same policy.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.config import Config
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.policy_text import split

FILE = "policy-choice.json"
PLUS = "+"


class PolicyChoice(Struct, frozen=True, kw_only=True):
    """``policy``: the chosen GROWTH[+RELEASE][+ORDER]. ``own``: the policy of the file at that
    time. ``checked_at``, ``chosen_at`` (Unix s). ``reason``: for people.
    """

    policy: str
    own: str
    checked_at: float
    chosen_at: float
    reason: str


def own_policy(policies: SitePolicies) -> str:
    """The policy of the section itself, as one text."""
    parts = (policies.growth or "slurm", policies.release, policies.machine_order)
    return PLUS.join(str(part) for part in parts if part is not None)


def candidates(policies: SitePolicies) -> tuple[str, ...]:
    """All policies that may be chosen, the section's own first; empty without ``choose``."""
    among = policies.choose.among
    return tuple(dict.fromkeys((own_policy(policies), *among))) if among else ()


def with_policy(policies: SitePolicies, text: str) -> SitePolicies:
    """The section with that policy in place of its own."""
    growth, *others = split(text, PLUS)
    orders = [IdleOrder(part) for part in others if part in tuple(IdleOrder)]
    releases = [part for part in others if part not in tuple(IdleOrder)]
    return replace(
        policies, growth=growth, release=next(iter(releases), None),
        machine_order=next(iter(orders), None),
    )  # fmt: skip


def path_of(config: Config) -> Path:
    """The file with the choice."""
    return config.state / FILE


def kept(config: Config) -> PolicyChoice | None:
    """The choice in the file. None if there is none, or if a person has changed the policies since:
    a person's choice counts.
    """
    try:
        choice = msgspec.json.decode(path_of(config).read_bytes()[:100_000], type=PolicyChoice)
    except (OSError, msgspec.DecodeError):
        return None
    policies = config.policies
    is_current = choice.own == own_policy(policies) and choice.policy in candidates(policies)
    return choice if is_current else None


def keep(config: Config, choice: PolicyChoice) -> None:
    """Write the choice. OSError if that fails."""
    # If there are two heads, the name is a link to the shared file. A rename of a new file to
    # this name would replace the link.
    writing.replace(path_of(config).resolve(), msgspec.json.encode(choice), 0o644)


def with_choice(config: Config) -> Config:
    """The configuration as read, with the chosen policy. The policy of the file stays a
    candidate.
    """
    policies = config.policies
    choice = kept(config) if policies.choose.among else None
    if choice is None:
        return config
    choose = replace(policies.choose, among=candidates(policies))
    return replace(config, policies=with_policy(replace(policies, choose=choose), choice.policy))
