"""Nodes that Slurm itself has taken out of service: why, what is at fault, what to do. Pure.
``policies/repair/node_repairs.py`` then replaces the machine.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from msgspec import Struct

from slurm_elastic.model.causes.repairs import NodeIll
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words.node_causes import CAUSES, Strike
from slurm_elastic.policies.nodes.node_state import is_down, is_drained


class DrainTerms(Struct, frozen=True, kw_only=True):
    """How to read drains.

    ``slurm_user``: the user as whom slurmctld takes nodes out of service. ``replace_reasons``:
    shell patterns of reasons for which, says the site, the machine is at fault, such as ``NHC: *``.
    """

    slurm_user: str = "slurm"
    replace_reasons: tuple[str, ...] = ()


class Ill(Struct, frozen=True, kw_only=True):
    """Why Slurm took a node out of service.

    ``slurm_reason``: Slurm's reason. ``meaning``: its meaning. ``strike``: whether it counts
    against the pool; of several causes the first that counts. ``remedy``: what a person can do.
    """

    slurm_reason: str
    meaning: str
    strike: Strike
    remedy: str

    @property
    def cause(self) -> NodeIll:
        """The cause to record for decisions."""
        return NodeIll(node_reason=self.slurm_reason, meaning=self.meaning, remedy=self.remedy)

    def __str__(self) -> str:
        return str(self.cause)


_COMPILED = tuple((cause, re.compile(cause.pattern)) for cause in CAUSES)


def ill(node: SlurmNode, terms: DrainTerms) -> Ill | None:
    """Return why Slurm keeps the node from jobs; None if it does not, or if a person does."""
    if not (is_down(node) or is_drained(node)):
        return None
    # Any other user is a person, who will lift the drain.
    if node.reason_user not in ("", "root", terms.slurm_user):
        return None
    # Slurm's own words first: a site's pattern such as * must not hide what they mean.
    return known_illness(node.reason) or _declared(node.reason, terms)


def _declared(reason: str, terms: DrainTerms) -> Ill | None:
    """Return the illness that the site's own health check reports."""
    if not any(fnmatchcase(reason, pattern) for pattern in terms.replace_reasons):
        return None
    return Ill(
        slurm_reason=reason,
        meaning="the site's health check took the machine out of service",
        # A check that fails on every new machine must pause the pool.
        strike=Strike.POOL,
        remedy="the check's words say what it found on the machine",
    )


def known_illness(reason: str) -> Ill | None:
    """Return the cause that one of Slurm's own reasons names; None for any other text, also if it
    is only partly Slurm's.
    """
    # First the whole text, because a person's words before "reboot timed out" may contain a comma.
    if (whole := _cause(reason)) is not None:
        return whole
    # slurmctld joins several reasons by ", ". One unknown part may be a person's: then it stays.
    causes = [_cause(part) for part in reason.split(", ")]
    known_causes = [cause for cause in causes if cause is not None]
    if not known_causes or len(known_causes) < len(causes):
        return None
    decisive = next(
        (cause for cause in known_causes if cause.strike is Strike.POOL), known_causes[0]
    )
    remedies = "; ".join(dict.fromkeys(cause.remedy for cause in known_causes if cause.remedy))
    return Ill(
        slurm_reason=reason, meaning=decisive.meaning, strike=decisive.strike, remedy=remedies
    )


def _cause(reason: str) -> Ill | None:
    for cause, pattern in _COMPILED:
        if match := pattern.fullmatch(reason.strip()):
            remedy = cause.remedy(match)
            return Ill(
                slurm_reason=reason, meaning=cause.meaning, strike=cause.strike, remedy=remedy
            )
    return None
