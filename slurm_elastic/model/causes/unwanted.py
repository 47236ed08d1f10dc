"""Why a stopped machine is not started again."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.causes.cause import Cause


class NodeNotOfPool(Cause, frozen=True, kw_only=True):
    """The machine's node no longer belongs to its pool."""

    @property
    def words(self) -> str:
        return "the configuration no longer has its node in this pool"


class NoLongerUsed(Cause, frozen=True, kw_only=True):
    """The pool no longer uses the machine's market, instance type or zone. ``property_name``: which
    of the three, ``name``: its value.
    """

    property_name: str
    name: str

    @property
    def words(self) -> str:
        return f"the pool no longer uses the {self.property_name} {self.name}"


class TooOld(Cause, frozen=True, kw_only=True):
    """The machine is older than its pool allows. ``age_s`` None: its age is unknown, because the
    head's clock was set back after its launch.
    """

    age_s: float | None
    maximum_s: float

    @property
    def words(self) -> str:
        age = "an unknown time" if self.age_s is None else brief(self.age_s)
        return f"it is {age} old, the pool's maximum is {brief(self.maximum_s)}"


class RecipeChanged(Cause, frozen=True, kw_only=True):
    """A new machine would be made of another image, user data or settings."""

    @property
    def words(self) -> str:
        return "a fresh machine would be made of another image, user data or settings"


class EnoughStopped(Cause, frozen=True, kw_only=True):
    """The pool already keeps its maximum number (``max_stopped``) of stopped machines."""

    max_stopped: int

    @property
    def words(self) -> str:
        return f"the pool keeps {counted(self.max_stopped, 'stopped machine')}"


class YoungerStopped(Cause, frozen=True, kw_only=True):
    """The node has a younger stopped machine."""

    node: str

    @property
    def words(self) -> str:
        return f"node {self.node} has a younger machine"


Unwanted = NodeNotOfPool | NoLongerUsed | TooOld | RecipeChanged | EnoughStopped | YoungerStopped
"""All reasons why a stopped machine is not started again."""
