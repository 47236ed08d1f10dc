"""The actions that policies decide: one Struct per kind, each with its cause.

A policy only decides; ``controller`` and ``ckptman`` carry the actions out. The class also declares
how its actions may be carried out:

- ``patient``: only after the finding has stood for a while, because a race could fake it for a
  moment.
- ``capped``: only a limited number per round. Otherwise a wrong view of the world would destroy
  many machines, jobs or records at once.
- ``by_node``: only if the state of Slurm's node still requires it, because the node may have
  changed since it was read.
- ``bulk``: many in one call.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.sentence import Sentence
from slurm_elastic.model.causes import AnyCause, JobSave, Quoted
from slurm_elastic.model.causes.repairs import NothingLaunched
from slurm_elastic.model.exclusion import ExclusionKind
from slurm_elastic.model.memory import Drained


class Action(Struct, frozen=True, kw_only=True):
    """An action and its cause. ``kind``: its name in the log and in ``explain``."""

    cause: AnyCause
    kind: ClassVar[str]
    patient: ClassVar[bool] = False
    capped: ClassVar[bool] = False
    by_node: ClassVar[bool] = False
    bulk: ClassVar[bool] = True

    @property
    def reason(self) -> Sentence:
        """The cause for people."""
        return self.cause.sentence

    @property
    def subject(self) -> str:
        """The object of the action, for the log: an id of a machine, a generation or a node."""
        raise AttributeError(type(self).__name__)


class OnMachine(Action, frozen=True, kw_only=True):
    """An action on a machine, given by its id in its cloud."""

    machine: str

    @property
    def subject(self) -> str:
        """The object of the action: the machine."""
        return self.machine


class OnLaunch(Action, frozen=True, kw_only=True):
    """An action on an open launch, given by its generation. Launches are handled one by one, so
    that no launch waits for another.
    """

    generation: str
    bulk: ClassVar[bool] = False

    @property
    def subject(self) -> str:
        """The object of the action: the launch."""
        return self.generation


class OnNode(Action, frozen=True, kw_only=True):
    """An action on a node of Slurm, given by its name."""

    node: str
    by_node: ClassVar[bool] = True

    @property
    def subject(self) -> str:
        """The object of the action: the node."""
        return self.node


# machines


class Adopt(OnMachine, frozen=True, kw_only=True):
    """Record a machine that has this cluster's tags and is missing in the ledger."""

    kind: ClassVar[str] = "adopt"


class AdoptStopped(OnMachine, frozen=True, kw_only=True):
    """Record a stopped machine missing in the ledger. It is patient because a machine about to be
    deleted often disappears soon.
    """

    kind: ClassVar[str] = "adopt-stopped"
    patient: ClassVar[bool] = True


class NoteEnd(OnMachine, frozen=True, kw_only=True):
    """Record that a machine whose end was decided is gone, once its cloud says so by its id."""

    kind: ClassVar[str] = "end"


class NoteMissing(OnMachine, frozen=True, kw_only=True):
    """Record that a machine is gone because its cloud no longer lists it."""

    kind: ClassVar[str] = "end-missing"
    capped: ClassVar[bool] = True


class Terminate(OnMachine, frozen=True, kw_only=True):
    """Repeat the end of a machine whose end was decided before."""

    kind: ClassVar[str] = "terminate"


class NoteStopped(OnMachine, frozen=True, kw_only=True):
    """Record that a machine is stopped after we had decided its stop."""

    kind: ClassVar[str] = "stopped"


class StopAgain(OnMachine, frozen=True, kw_only=True):
    """Repeat the stop of a machine whose stop was decided before."""

    kind: ClassVar[str] = "stop"


class StartAgain(OnMachine, frozen=True, kw_only=True):
    """Repeat the start of a machine whose start was decided before."""

    kind: ClassVar[str] = "start"
    by_node: ClassVar[bool] = True


class RunsAgain(OnMachine, frozen=True, kw_only=True):
    """Record that a stopped machine runs, because it was started outside slurm-elastic."""

    kind: ClassVar[str] = "runs-again"
    patient: ClassVar[bool] = True


class EndStopped(OnMachine, frozen=True, kw_only=True):
    """End a stopped machine that must not be started again."""

    kind: ClassVar[str] = "end-stopped"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateOrphan(OnMachine, frozen=True, kw_only=True):
    """End a machine that Slurm does not need."""

    kind: ClassVar[str] = "terminate-orphan"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateUnlisted(OnMachine, frozen=True, kw_only=True):
    """End a machine whose node Slurm does not list."""

    kind: ClassVar[str] = "terminate-unlisted"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateDouble(OnMachine, frozen=True, kw_only=True):
    """End a surplus machine of a node that has several."""

    kind: ClassVar[str] = "terminate-double"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class TerminateStopped(OnMachine, frozen=True, kw_only=True):
    """End a machine stopped in its cloud although we did not stop it."""

    kind: ClassVar[str] = "terminate-stopped"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


class Relaunch(OnMachine, frozen=True, kw_only=True):
    """End a machine of an earlier power-up and start a new one for its node."""

    kind: ClassVar[str] = "relaunch"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True
    by_node: ClassVar[bool] = True


# open launches


class Confirm(OnLaunch, frozen=True, kw_only=True):
    """Record the machines of a launch whose answer was lost: all its machines exist."""

    kind: ClassVar[str] = "confirm"


class Retry(OnLaunch, frozen=True, kw_only=True):
    """Repeat the launch call with the same idempotency token. If the launch would be forbidden now,
    its call must not be repeated. ``lapse`` is then why it has started no machine; None if one may
    still appear in the list.
    """

    lapse: NothingLaunched | None = None
    kind: ClassVar[str] = "retry"


class Abandon(OnLaunch, frozen=True, kw_only=True):
    """Record that a launch has started no machine."""

    kind: ClassVar[str] = "abandon"


# nodes


class LaunchMachine(OnNode, frozen=True, kw_only=True):
    """Start a machine for a node that Slurm waits for and that has no machine. Its machines of an
    earlier power-up (``machines_to_end_first``) must end before.
    """

    kind: ClassVar[str] = "launch"
    patient: ClassVar[bool] = True
    machines_to_end_first: tuple[str, ...] = ()


class FailNode(OnNode, frozen=True, kw_only=True):
    """Set a node DOWN whose machine is gone, so that Slurm requeues its jobs now."""

    kind: ClassVar[str] = "fail-node"
    patient: ClassVar[bool] = True
    capped: ClassVar[bool] = True


class FailLost(OnNode, frozen=True, kw_only=True):
    """Set a node DOWN because the cloud lists its machine as ended. It is not patient, because a
    race cannot fake that.
    """

    kind: ClassVar[str] = "fail-lost"
    capped: ClassVar[bool] = True


class GiveBack(OnNode, frozen=True, kw_only=True):
    """Power a node down by force because no offer is left for it. Its jobs start elsewhere."""

    kind: ClassVar[str] = "give-back"


class Recycle(OnNode, frozen=True, kw_only=True):
    """Replace the machine of a node that Slurm has taken out of service."""

    kind: ClassVar[str] = "recycle"
    capped: ClassVar[bool] = True


class PowerDown(OnNode, frozen=True, kw_only=True):
    """Power an idle node down now."""

    kind: ClassVar[str] = "power-down"


class PowerDownWhenIdle(OnNode, frozen=True, kw_only=True):
    """Power a node down after the end of its jobs. Until then Slurm starts no new job on it."""

    kind: ClassVar[str] = "power-down-asap"


class Clear(OnNode, frozen=True, kw_only=True):
    """Power a DOWN node down, so that Slurm can request it again."""

    kind: ClassVar[str] = "clear"


class Disclaim(OnNode, frozen=True, kw_only=True):
    """Set a powered-down node DOWN that slurmctld has allocated although no job uses it. Nothing
    else ends this allocation, and a machine of an allocated node would be paid without end.
    """

    kind: ClassVar[str] = "disclaim"
    patient: ClassVar[bool] = True


class PowerDownAgain(OnNode, frozen=True, kw_only=True):
    """Power down a powered-down NOT_RESPONDING node once more, which removes this flag. slurmctld
    would allocate no job to a node with this flag after its next restart.
    """

    kind: ClassVar[str] = "power-down-again"
    patient: ClassVar[bool] = True


class Restore(OnNode, frozen=True, kw_only=True):
    """Remove DOWN or DRAIN from a powered-down node, so that Slurm can request it again."""

    kind: ClassVar[str] = "restore"


# the books


class NoteRead(Action, frozen=True, kw_only=True):
    """Record that all machines of a cloud's list are in the ledger."""

    kind: ClassVar[str] = "note-read"
    cloud: str

    @property
    def subject(self) -> str:
        """The object of the action: the cloud."""
        return self.cloud


class Register(OnMachine, frozen=True, kw_only=True):
    """Record that a machine's node came up."""

    kind: ClassVar[str] = "register"


class ReopenPool(Action, frozen=True, kw_only=True):
    """End the cool-down and the pause of a pool that works again, because ``nodes`` came up."""

    kind: ClassVar[str] = "reopen-pool"
    bulk: ClassVar[bool] = False
    pool: str
    nodes: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The object of the action: the pool."""
        return self.pool


class SetAddress(OnNode, frozen=True, kw_only=True):
    """Set a node's address in slurmctld to its machine's address."""

    kind: ClassVar[str] = "set-address"
    by_node: ClassVar[bool] = False
    address: str


class HideName(OnNode, frozen=True, kw_only=True):
    """Set an unreachable address for a powered-down node, because no DNS has its name."""

    kind: ClassVar[str] = "hide-name"
    by_node: ClassVar[bool] = False


class Release(OnNode, frozen=True, kw_only=True):
    """Release a held node. ``hold``: the kind of its ``model.exclusion.Exclusion``."""

    kind: ClassVar[str] = "release"
    by_node: ClassVar[bool] = False
    hold: ExclusionKind


class Hold(OnNode, frozen=True, kw_only=True):
    """Hold a node back from Slurm until an offer may have room, with the cause as reason."""

    kind: ClassVar[str] = "hold"
    by_node: ClassVar[bool] = False
    pool: str


# what a request names


class Suspend(OnMachine, frozen=True, kw_only=True):
    """End or stop a machine whose node Slurm has powered down. ``unproven``: the machine
    looks younger than the request. It ends only if it has registered before, its node is no longer
    up, and no job runs on it.
    """

    kind: ClassVar[str] = "suspend"
    unproven: bool = False


class FailBoot(OnMachine, frozen=True, kw_only=True):
    """Count a machine whose node did not come up in time against its pool. ``ends``: also end the
    machine, unless its node has come up by the time of the action.
    """

    kind: ClassVar[str] = "fail-boot"
    ends: bool


class Drop(OnNode, frozen=True, kw_only=True):
    """Do nothing for a node, and record why."""

    kind: ClassVar[str] = "dropped"


# what calls for a person, and jobs


class NoteDrain(Action, frozen=True, kw_only=True):
    """Record the begin or the end of a span in which a node takes no jobs."""

    kind: ClassVar[str] = "note-drain"
    span: Drained

    @property
    def subject(self) -> str:
        """The object of the action: the node."""
        return self.span.node


class DoubtList(Action, frozen=True, kw_only=True):
    """Record that a cloud's list of machines cannot be true. No machine is ended because of it."""

    kind: ClassVar[str] = "doubt"
    patient: ClassVar[bool] = True

    @property
    def subject(self) -> str:
        """The list as a whole."""
        return "list"


class SaveJob(Action, frozen=True, kw_only=True):
    """Take a checkpoint of a job, by its label in Slurm."""

    kind: ClassVar[str] = "checkpoint"
    cause: Quoted | JobSave
    job: str

    @property
    def subject(self) -> str:
        """The object of the action: the job."""
        return self.job
