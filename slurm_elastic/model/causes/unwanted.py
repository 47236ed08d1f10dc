"""Why a stopped machine is not started again."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.causes.cause import Cause


class NodeNotOfPool(Cause, frozen=True, kw_only=True):
    """The machine's node is of its pool no more."""

    @property
    def words(self) -> str:
        return "the configuration has its node in this pool no more"


class NoLongerUsed(Cause, frozen=True, kw_only=True):
    """The pool does not use the machine's market, instance type or zone (``what``) any more."""

    what: str
    name: str

    @property
    def words(self) -> str:
        return f"the pool does not use the {self.what} {self.name} any more"


class TooOld(Cause, frozen=True, kw_only=True):
    """The machine is older than its pool allows; ``age_s`` None: it is from before the head's
    clock was set back.
    """

    age_s: float | None
    maximum_s: float

    @property
    def words(self) -> str:
        age = "an unknown time" if self.age_s is None else brief(self.age_s)
        return f"it is {age} old, the pool's maximum is {brief(self.maximum_s)}"


class RecipeChanged(Cause, frozen=True, kw_only=True):
    """A fresh machine would be made otherwise."""

    @property
    def words(self) -> str:
        return "a fresh machine would be made of another image, user data or settings"


class EnoughStopped(Cause, frozen=True, kw_only=True):
    """The pool keeps at most so many stopped machines."""

    most: int

    @property
    def words(self) -> str:
        return f"the pool keeps {counted(self.most, 'stopped machine')}"


class YoungerStopped(Cause, frozen=True, kw_only=True):
    """The node has a younger stopped machine."""

    node: str

    @property
    def words(self) -> str:
        return f"node {self.node} has a younger one"


Unwanted = NodeNotOfPool | NoLongerUsed | TooOld | RecipeChanged | EnoughStopped | YoungerStopped
"""All causes for which a stopped machine is not started again."""
