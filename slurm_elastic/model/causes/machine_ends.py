"""Why machines end, or are stopped."""

from __future__ import annotations

from slurm_elastic.base.units import brief
from slurm_elastic.model.causes.cause import Cause


class SuspendedBySlurm(Cause, frozen=True, kw_only=True):
    """Slurm powered the node down after SuspendTime or ResumeTimeout."""

    @property
    def words(self) -> str:
        return "suspended by Slurm"


class OutOfService(Cause, frozen=True, kw_only=True):
    """Slurm drained the node or set it DOWN, for this ``node_reason``."""

    node_reason: str

    @property
    def words(self) -> str:
        return f"Slurm took it out of service: {self.node_reason}"


class NeverRegistered(Cause, frozen=True, kw_only=True):
    """The node did not come up in its time."""

    @property
    def words(self) -> str:
        return "it did not register in time"


class JobNotWhole(Cause, frozen=True, kw_only=True):
    """The job needs all its nodes at once, and some of them are not available."""

    @property
    def words(self) -> str:
        return "its job could not get all its nodes"


class NodePoweredDown(Cause, frozen=True, kw_only=True):
    """The machine runs, but Slurm has powered its node down. ``for_s``: for how many seconds, None
    if unknown. ``was_stopped``: the machine was stopped before.
    """

    for_s: int | None = None
    was_stopped: bool = False

    @property
    def words(self) -> str:
        before = "it was stopped and runs: " if self.was_stopped else ""
        time = "" if self.for_s is None else f" for {brief(self.for_s)}"
        return f"{before}Slurm has its node powered down{time}"


class SecondMachine(Cause, frozen=True, kw_only=True):
    """The node has another machine (``keeper``), which stays. ``generation``: its launch, "" if it
    stays because it is of the node's own cloud.
    """

    node: str
    keeper: str
    generation: str = ""

    @property
    def words(self) -> str:
        origin = f"of generation {self.generation}" if self.generation else "of its own cloud"
        return f"node {self.node} has machine {self.keeper} {origin}"


class PoweredUpAgain(Cause, frozen=True, kw_only=True):
    """Slurm powers the node up again, and accepts no slurmd that booted before."""

    @property
    def words(self) -> str:
        return "Slurm powers its node up again: it waits for a machine that boots after that"


class StoppedByOthers(Cause, frozen=True, kw_only=True):
    """The machine is stopped in the cloud although we did not stop it."""

    @property
    def words(self) -> str:
        return "it was stopped in the cloud, but not by slurm-elastic: it serves no node"


class NoSuchNode(Cause, frozen=True, kw_only=True):
    """Slurm has no node with the name in the machine's tags."""

    @property
    def words(self) -> str:
        return "Slurm has no such node"


class TooOldWithoutNode(Cause, frozen=True, kw_only=True):
    """The machine's tags name no node, and it has passed its maximum age."""

    @property
    def words(self) -> str:
        return "its tags name no node and it is too old"


class EndPending(Cause, frozen=True, kw_only=True):
    """The end was decided before, and the cloud still lists the machine."""

    @property
    def words(self) -> str:
        return "its end was decided and it is still there"


class NotOurMachine(Cause, frozen=True, kw_only=True):
    """The cloud has the machine, but without this cluster's tags, so we may not end it."""

    machine: str

    @property
    def words(self) -> str:
        return (
            f"{self.machine} runs without this cluster's tags, so slurm-elastic does not end it: "
            "end it in the cloud, or give it its tags back"
        )


class EndConfirmed(Cause, frozen=True, kw_only=True):
    """The end was decided before, and the cloud no longer lists the machine."""

    @property
    def words(self) -> str:
        return "its end was decided and it is gone"


class NotListed(Cause, frozen=True, kw_only=True):
    """The machine was missing in the cloud's list ``missed_listings`` times in a row."""

    missed_listings: int
    was_stopped: bool = False

    @property
    def words(self) -> str:
        stopped = ", stopped," if self.was_stopped else ""
        return f"the cloud did not list it{stopped} {self.missed_listings} times in a row"


class EndedInCloud(Cause, frozen=True, kw_only=True):
    """The cloud's list says that the machine has ended."""

    @property
    def words(self) -> str:
        return "terminated in the cloud"


class EndedWhileUnwritable(Cause, frozen=True, kw_only=True):
    """The machine was launched and ended while the ledger could not be written."""

    @property
    def words(self) -> str:
        return "it had ended before slurm-elasticd could write its records again"


class CountedAsGone(Cause, frozen=True, kw_only=True):
    """An operator (``uid``) declared the machine gone, as its cloud is no longer configured."""

    uid: int

    @property
    def words(self) -> str:
        return f"gone, by the operator (uid {self.uid})"


class IdleStopped(Cause, frozen=True, kw_only=True):
    """The machine is idle, and its pool keeps stopped machines."""

    @property
    def words(self) -> str:
        return "idle: stopped, to be started again"


class CannotBeStopped(Cause, frozen=True, kw_only=True):
    """The cloud refuses to stop the machine, or the ledger does not allow it."""

    error: str

    @property
    def words(self) -> str:
        return f"it cannot be stopped: {self.error}"


class CannotBeStarted(Cause, frozen=True, kw_only=True):
    """The cloud did not start the stopped machine."""

    error: str

    @property
    def words(self) -> str:
        return f"it could not be started: {self.error}"


MachineEnd = (
    SuspendedBySlurm
    | OutOfService
    | NeverRegistered
    | JobNotWhole
    | NodePoweredDown
    | SecondMachine
    | PoweredUpAgain
    | StoppedByOthers
    | NoSuchNode
    | TooOldWithoutNode
    | EndPending
    | NotOurMachine
    | EndConfirmed
    | NotListed
    | EndedInCloud
    | EndedWhileUnwritable
    | CountedAsGone
    | IdleStopped
    | CannotBeStopped
    | CannotBeStarted
)
"""All reasons why machines end or are stopped."""
