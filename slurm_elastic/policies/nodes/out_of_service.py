"""Nodes that Slurm itself has taken out of service: why, whose fault it is, what to do. Pure.
``policies/repair/node_repairs.py`` makes of it that a machine is replaced.
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
    """How drains are read: by which user slurmctld takes nodes out of service, and for which
    reasons (patterns of shells) the site says that the machine is at fault, such as ``NHC: *``.
    """

    slurm_user: str = "slurm"
    machine_reasons: tuple[str, ...] = ()


class Ill(Struct, frozen=True, kw_only=True):
    """The illness of one node: Slurm's words, and the first cause that counts against its pool."""

    words: str
    why: str
    strike: Strike
    remedy: str

    @property
    def cause(self) -> NodeIll:
        """What is decided because of it."""
        return NodeIll(node_reason=self.words, meaning=self.why, remedy=self.remedy)

    def __str__(self) -> str:
        return str(self.cause)


_COMPILED = tuple((cause, re.compile(cause.words)) for cause in CAUSES)


def ill(node: SlurmNode, terms: DrainTerms) -> Ill | None:
    """The illness of a node that Slurm keeps from jobs; None if a person or nobody does."""
    if not (is_down(node) or is_drained(node)):
        return None
    # The reason of anybody else is a person's, who also takes it back.
    if node.reason_user not in ("", "root", terms.slurm_user):
        return None
    return told_by(node.reason) or _declared(node.reason, terms)


def _declared(reason: str, terms: DrainTerms) -> Ill | None:
    """The illness that the site's own health check names."""
    if not any(fnmatchcase(reason, pattern) for pattern in terms.machine_reasons):
        return None
    return Ill(
        words=reason,
        why="the site's health check took the machine out of service",
        # A check that fails on every new machine must pause the pool.
        strike=Strike.POOL,
        remedy="the check's words say what it found on the machine",
    )


def told_by(reason: str) -> Ill | None:
    """The cause that a reason of Slurm's own names; None of any other text, and of a text of which
    Slurm wrote only a part.
    """
    # The words before "reboot timed out" are a person's and may have a comma.
    if (whole := _cause(reason)) is not None:
        return whole
    causes = [_cause(part) for part in reason.split(", ")]
    known = [cause for cause in causes if cause is not None]
    if not known or len(known) < len(causes):
        return None
    first = next((cause for cause in known if cause.strike is Strike.POOL), known[0])
    remedies = "; ".join(dict.fromkeys(cause.remedy for cause in known if cause.remedy))
    return Ill(words=reason, why=first.why, strike=first.strike, remedy=remedies)


def _cause(words: str) -> Ill | None:
    for cause, pattern in _COMPILED:
        if found := pattern.fullmatch(words.strip()):
            remedy = cause.remedy(found)
            return Ill(words=words, why=cause.why, strike=cause.strike, remedy=remedy)
    return None
