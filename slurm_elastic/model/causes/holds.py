"""Why nodes are held back from Slurm, or released. ``composed`` has the causes of holds for lack of
an offer.
"""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class GrowthStartsIt(Cause, frozen=True, kw_only=True):
    """A growth policy holds the node until it starts it."""

    @property
    def words(self) -> str:
        return "the growth policy starts it when it is needed"


class NoOrderKeepsIt(Cause, frozen=True, kw_only=True):
    """The operator's order that held the node is over."""

    @property
    def words(self) -> str:
        return "the operator's order that held it is over"


class AddressFree(Cause, frozen=True, kw_only=True):
    """No other machine has the node's address in the tunnel."""

    @property
    def words(self) -> str:
        return "its address in the tunnel is no longer another machine's"


class UpOrComing(Cause, frozen=True, kw_only=True):
    """The held node is up, or on its way up."""

    @property
    def words(self) -> str:
        return "it is up or coming"


class MayStart(Cause, frozen=True, kw_only=True):
    """The stop that let nothing start in the pool is over."""

    @property
    def words(self) -> str:
        return "machines may be started"


class NoPoliciesLeft(Cause, frozen=True, kw_only=True):
    """The configuration no longer has growth policies."""

    @property
    def words(self) -> str:
        return "the configuration no longer has growth policies"


class PoliciesStartIt(Cause, frozen=True, kw_only=True):
    """A growth policy starts the node now."""

    @property
    def words(self) -> str:
        return "the policies start it"


NodeHold = (
    GrowthStartsIt
    | NoOrderKeepsIt
    | AddressFree
    | UpOrComing
    | MayStart
    | NoPoliciesLeft
    | PoliciesStartIt
)
"""The causes of holds and of their ends that are defined here."""
