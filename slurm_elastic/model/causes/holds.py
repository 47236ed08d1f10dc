"""Why nodes are kept from Slurm, or no longer. Why no offer serves them: ``composed``."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class GrowthStartsIt(Cause, frozen=True, kw_only=True):
    """A growth policy keeps its idle nodes from Slurm."""

    @property
    def words(self) -> str:
        return "the growth policy starts it when it is needed"


class NoOrderKeepsIt(Cause, frozen=True, kw_only=True):
    """The operator's order that kept the node is over."""

    @property
    def words(self) -> str:
        return "no operator keeps it any more"


class UpOrComing(Cause, frozen=True, kw_only=True):
    """The held node is up, or on its way up."""

    @property
    def words(self) -> str:
        return "it is up or coming"


class MayStart(Cause, frozen=True, kw_only=True):
    """What let nothing start in the pool is over."""

    @property
    def words(self) -> str:
        return "machines may be started"


class NoPoliciesLeft(Cause, frozen=True, kw_only=True):
    """The configuration has no growth policies any more."""

    @property
    def words(self) -> str:
        return "there are no policies any more"


class PoliciesStartIt(Cause, frozen=True, kw_only=True):
    """A growth policy starts the node now."""

    @property
    def words(self) -> str:
        return "the policies start it"


NodeHold = (
    GrowthStartsIt | NoOrderKeepsIt | UpOrComing | MayStart | NoPoliciesLeft | PoliciesStartIt
)
"""Causes of holds and of their ends that have data of their own."""
