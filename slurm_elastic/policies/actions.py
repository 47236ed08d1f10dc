"""The actions that policies decide on: one Struct a kind, each with its cause.

A policy only names what is to be done; ``controller`` and ``ckptman`` do it. The class also says
how its actions may be done: ``patient`` ones only after their finding has stood for a while, as a
race could fake it for a moment; of ``capped`` ones only so many a round, as a wrong view would make
us destroy machines, what we know of them, or jobs; ``by_node`` ones only if Slurm's node calls for
them still, as somebody may have changed it since it was read; ``bulk`` ones many in one call.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.exclusion import ExclusionKind
from slurm_elastic.model.memory import Drained


class Action(Struct, frozen=True, kw_only=True):
    """Something to be done, and why. ``kind`` is its word in the log and in ``explain``."""

    cause: AnyCause
    kind: ClassVar[str]
    patient: ClassVar[bool] = False
    capped: ClassVar[bool] = False
    by_node: ClassVar[bool] = False
    bulk: ClassVar[bool] = True

    @property
    def reason(self) -> str:
        """The cause for people."""
        return str(self.cause)

    @property
    def subject(self) -> str:
        """The object of the action, for the log: an id of a machine, a generation or a node."""
        raise AttributeError(type(self).__name__)


class OnMachine(Action, frozen=True, kw_only=True):
    """Done to a machine, by its id in its cloud."""

    machine: str

    @property
    def subject(self) -> str:
        """The machine."""
        return self.machine


class OnLaunch(Action, frozen=True, kw_only=True):
    """Done to an open launch, by its generation; one by one, so that none waits for another."""

    generation: str
    bulk: ClassVar[bool] = False

    @property
    def subject(self) -> str:
        """The launch."""
        return self.generation


class OnNode(Action, frozen=True, kw_only=True):
    """Done to one of Slurm's nodes, by its name."""

    node: str
    by_node: ClassVar[bool] = True

    @property
    def subject(self) -> str:
        """The node."""
        return self.node


# machines


class Adopt(OnMachine, frozen=True, kw_only=True):
    """Write a machine down that bears this cluster's tags and that the ledger lacks."""

    kind: ClassVar[str] = "adopt"


class AdoptStopped(OnMachine, frozen=True, kw_only=True):
    """The same for one that its cloud has stopped: one on its way out is mostly gone soon."""

    kind: ClassVar[str] = "adopt-stopped"
    patient: ClassVar[bool] = True


class NoteEnd(OnMachine, frozen=True, kw_only=True):
    """Write down that a machine whose end was decided is gone."""

    kind: ClassVar[str] = "end"


class NoteMissing(OnMachine, frozen=True, kw_only=True):
    """Write down that a machine is gone which its cloud does not list any more."""

    kind: ClassVar[str] = "end-missing"
    capped: ClassVar[bool] = True


class Terminate(OnMachine, frozen=True, kw_only=True):
    """End a machine once more, whose end was decided before."""

    kind: ClassVar[str] = "terminate"


class NoteStopped(OnMachine, frozen=True, kw_only=True):
    """Write down that a machine is stopped, as it was decided."""

    kind: ClassVar[str] = "stopped"


class StopAgain(OnMachine, frozen=True, kw_only=True):
    """Stop a machine once more, of which that was decided before."""

    kind: ClassVar[str] = "stop"


class StartAgain(OnMachine, frozen=True, kw_only=True):
    """Start a machine once more, of which that was decided before."""

    kind: ClassVar[str] = "start"
    by_node: ClassVar[bool] = True


class RunsAgain(OnMachine, frozen=True, kw_only=True):
    """Write down that a stopped machine is at work: somebody else has started it."""

    kind: ClassVar[str] = "runs-again"
    patient: ClassVar[bool] = True


class EndStopped(OnMachine, frozen=True, kw_only=True):
    """End a stopped machine that is not to be started any more."""

    kind: ClassVar[str] = "end-stopped"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True


class TerminateOrphan(OnMachine, frozen=True, kw_only=True):
    """End a machine that Slurm does not need."""

    kind: ClassVar[str] = "terminate-orphan"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateDouble(OnMachine, frozen=True, kw_only=True):
    """End one of several machines of a node."""

    kind: ClassVar[str] = "terminate-double"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateStopped(OnMachine, frozen=True, kw_only=True):
    """End a machine that its cloud has stopped, which nobody asked for."""

    kind: ClassVar[str] = "terminate-stopped"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class Relaunch(OnMachine, frozen=True, kw_only=True):
    """End a machine of an earlier power-up, and start another for its node."""

    kind: ClassVar[str] = "relaunch"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


# open launches


class Confirm(OnLaunch, frozen=True, kw_only=True):
    """Write down the machines of a launch whose answer was lost: all are there."""

    kind: ClassVar[str] = "confirm"


class Retry(OnLaunch, frozen=True, kw_only=True):
    """Make the same call once more under the same token."""

    kind: ClassVar[str] = "retry"


class Abandon(OnLaunch, frozen=True, kw_only=True):
    """Write down that a launch has made nothing."""

    kind: ClassVar[str] = "abandon"


# nodes


class Launch(OnNode, frozen=True, kw_only=True):
    """Start a machine for a node that Slurm waits for and nothing serves, once its machines of
    an earlier power-up (``past``) have ended.
    """

    kind: ClassVar[str] = "launch"
    patient: ClassVar[bool] = True
    past: tuple[str, ...] = ()


class FailNode(OnNode, frozen=True, kw_only=True):
    """Set a node DOWN whose machine is gone, so that Slurm requeues its jobs now."""

    kind: ClassVar[str] = "fail-node"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True


class FailLost(OnNode, frozen=True, kw_only=True):
    """The same by the cloud's word that the machine has ended, which is no race."""

    kind: ClassVar[str] = "fail-lost"


class GiveBack(OnNode, frozen=True, kw_only=True):
    """Power a node down by force for which no offer is left; its jobs move on."""

    kind: ClassVar[str] = "give-back"


class Recycle(OnNode, frozen=True, kw_only=True):
    """Give a node another machine that Slurm has taken out of service."""

    kind: ClassVar[str] = "recycle"
    capped: ClassVar[bool] = True


class PowerDown(OnNode, frozen=True, kw_only=True):
    """Power an idle node down, as its machine is over its maximum age."""

    kind: ClassVar[str] = "power-down"


class PowerDownWhenIdle(OnNode, frozen=True, kw_only=True):
    """The same for a busy node, once its jobs have ended."""

    kind: ClassVar[str] = "power-down-asap"


class Clear(OnNode, frozen=True, kw_only=True):
    """Power a DOWN node down, so that it can be asked for again."""

    kind: ClassVar[str] = "clear"


class Disclaim(OnNode, frozen=True, kw_only=True):
    """Set DOWN a powered-down node that slurmctld has allocated, unless a job has it: nothing else
    ends that, and the machine of a node in use is paid as long as it is.
    """

    kind: ClassVar[str] = "disclaim"
    patient: ClassVar[bool] = True


class PowerDownAgain(OnNode, frozen=True, kw_only=True):
    """Power a powered-down node down once more that is NOT_RESPONDING, which ends that: once
    slurmctld has started anew, it would give no job to it.
    """

    kind: ClassVar[str] = "power-down-again"
    patient: ClassVar[bool] = True


class Restore(OnNode, frozen=True, kw_only=True):
    """End DOWN or DRAIN of a node that is powered down, so that it can be asked for again."""

    kind: ClassVar[str] = "restore"


# the books


class NoteRead(Action, frozen=True, kw_only=True):
    """Write down that all machines of a cloud's list are in the ledger."""

    kind: ClassVar[str] = "note-read"
    cloud: str

    @property
    def subject(self) -> str:
        """The cloud."""
        return self.cloud


class Register(OnMachine, frozen=True, kw_only=True):
    """Write down that a machine's node came up."""

    kind: ClassVar[str] = "register"


class ReopenPool(Action, frozen=True, kw_only=True):
    """End the cool-down and the pause of a pool that works again, as ``nodes`` show."""

    kind: ClassVar[str] = "reopen-pool"
    bulk: ClassVar[bool] = False
    pool: str
    nodes: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The pool."""
        return self.pool


class SetAddress(OnNode, frozen=True, kw_only=True):
    """Tell slurmctld the address of a node's machine."""

    kind: ClassVar[str] = "set-address"
    by_node: ClassVar[bool] = False
    address: str


class HideName(OnNode, frozen=True, kw_only=True):
    """Give a powered-down node an address that leads nowhere, instead of a name that no DNS has."""

    kind: ClassVar[str] = "hide-name"
    by_node: ClassVar[bool] = False


class Release(OnNode, frozen=True, kw_only=True):
    """Let go of a node that is held for a cause (``hold``: a kind of
    ``model.exclusion.Exclusion``).
    """

    kind: ClassVar[str] = "release"
    by_node: ClassVar[bool] = False
    hold: ExclusionKind


class Hold(OnNode, frozen=True, kw_only=True):
    """Keep a node from Slurm until an offer may have room, with the reason of its hold."""

    kind: ClassVar[str] = "hold"
    by_node: ClassVar[bool] = False
    pool: str


# what a request names


class Suspend(OnMachine, frozen=True, kw_only=True):
    """End, or stop, a machine whose node Slurm has powered down. ``unproven``: only where no job
    can be on it, as it looks younger than the request.
    """

    kind: ClassVar[str] = "suspend"
    unproven: bool = False


class FailBoot(OnMachine, frozen=True, kw_only=True):
    """Count a machine whose node did not come up in time against its pool; it ``ends``, unless the
    node is up by now.
    """

    kind: ClassVar[str] = "fail-boot"
    ends: bool


class Drop(OnNode, frozen=True, kw_only=True):
    """Do nothing for a node, and say why."""

    kind: ClassVar[str] = "dropped"


# what calls for a person, and jobs


class NoteDrain(Action, frozen=True, kw_only=True):
    """Write down the begin or the end of a span in which a node takes no jobs."""

    kind: ClassVar[str] = "note-drain"
    span: Drained

    @property
    def subject(self) -> str:
        """The node."""
        return self.span.node


class DoubtList(Action, frozen=True, kw_only=True):
    """Say that a cloud's list of machines cannot be true; nothing ends by it."""

    kind: ClassVar[str] = "doubt"
    patient: ClassVar[bool] = True

    @property
    def subject(self) -> str:
        """The list as a whole."""
        return "list"


class SaveJob(Action, frozen=True, kw_only=True):
    """Take a checkpoint of a job, by its label in Slurm."""

    kind: ClassVar[str] = "checkpoint"
    job: str

    @property
    def subject(self) -> str:
        """The job."""
        return self.job
