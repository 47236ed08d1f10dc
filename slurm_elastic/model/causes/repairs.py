"""Why a repair round changes nodes, launches and rows of the ledger (``policies.repair``)."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.causes.cause import Cause


class AskedBySlurm(Cause, frozen=True, kw_only=True):
    """slurmctld called ResumeProgram for the node."""

    @property
    def words(self) -> str:
        return "Slurm asks for it"


class RequestLost(Cause, frozen=True, kw_only=True):
    """slurmctld waits for the node, but it has no request, launch or machine."""

    @property
    def words(self) -> str:
        return "Slurm waits for it, and no request, launch or machine serves it"


class NotPoweringUp(Cause, frozen=True, kw_only=True):
    """There is a request to power the node up, but slurmctld does not power it up (or no longer
    does).
    """

    @property
    def words(self) -> str:
        return "Slurm does not power the node up, or no longer does"


class NotAwaited(Cause, frozen=True, kw_only=True):
    """Slurm no longer waits for ``nodes``, a hostlist, of the same job."""

    nodes: str

    @property
    def words(self) -> str:
        return f"Slurm no longer waits for {self.nodes}, which the same job needs"


class NotPoweringDown(Cause, frozen=True, kw_only=True):
    """There is a request to power the node down, but slurmctld does not power it down (or no longer
    does).
    """

    @property
    def words(self) -> str:
        return "Slurm does not power the node down, or no longer does"


class AlreadyServed(Cause, frozen=True, kw_only=True):
    """The node has a machine or an open launch."""

    @property
    def words(self) -> str:
        return "the node has a machine or an open launch already"


class NoOfferLeft(Cause, frozen=True, kw_only=True):
    """No offer was left for the node."""

    @property
    def words(self) -> str:
        return "no offer was left for it"


class TagsOfCluster(Cause, frozen=True, kw_only=True):
    """The machine has this cluster's tags and is missing in the ledger."""

    node: str

    @property
    def words(self) -> str:
        tag = f"tag for node {self.node}," if self.node else "tags, which name no node,"
        return f"carries this cluster's {tag} and has no row in the ledger"


class MachinesOfLaunch(Cause, frozen=True, kw_only=True):
    """``count`` machines of an open launch exist."""

    count: int

    @property
    def words(self) -> str:
        return f"this open launch has {counted(self.count, 'machine')}"


class StillWanted(Cause, frozen=True, kw_only=True):
    """The cloud's answer to a launch is not known, and slurmctld waits for ``count`` nodes."""

    count: int

    @property
    def words(self) -> str:
        return f"no answer is known and Slurm still wants {self.count} of its nodes"


class NothingLaunched(Cause, frozen=True, kw_only=True):
    """No machine of the launch was seen for ``age_s`` seconds (None: its launch seems to be in the
    future, because the head's clock was set back since). ``served``: a node of the launch
    with a machine of another launch, "" if slurmctld does not wait for the launch's nodes.
    """

    age_s: int | None
    served: str = ""

    @property
    def words(self) -> str:
        explanation = (
            f"{self.served} has another machine" if self.served else "Slurm wants none of its nodes"
        )
        how_long = "" if self.age_s is None else f" for {brief(self.age_s)}"
        return f"no machine of this launch was seen{how_long} and {explanation}"


class StopConfirmed(Cause, frozen=True, kw_only=True):
    """The stop was decided before, and the cloud confirms it."""

    @property
    def words(self) -> str:
        return "it is stopped, to be started again"


class StopPending(Cause, frozen=True, kw_only=True):
    """The stop was decided before, and the machine still runs."""

    @property
    def words(self) -> str:
        return "it was to be stopped and still runs"


class StartPending(Cause, frozen=True, kw_only=True):
    """The start was decided before, and the machine is still stopped."""

    @property
    def words(self) -> str:
        return "it was to be started and is still stopped"


class StartedByOthers(Cause, frozen=True, kw_only=True):
    """A stopped machine runs although we did not start it, and its node is up."""

    @property
    def words(self) -> str:
        return "it was started outside slurm-elastic, and its node is up"


class OverAge(Cause, frozen=True, kw_only=True):
    """The machine is older than its pool allows. ``age_s`` None: its age is unknown, because the
    head's clock was set back after its launch.
    """

    age_s: int | None
    maximum_s: int

    @property
    def words(self) -> str:
        age = (
            "from before the clock was set back"
            if self.age_s is None
            else (f"{brief(self.age_s)} old")
        )
        return f"its machine is {age}, the pool's maximum is {brief(self.maximum_s)}"


class MachineLost(Cause, frozen=True, kw_only=True):
    """The node is up in slurmctld, but its machine is gone."""

    @property
    def words(self) -> str:
        return "Slurm has it up and its machine is gone"


class AllocatedWithoutJob(Cause, frozen=True, kw_only=True):
    """slurmctld has allocated a powered-down node, but no job uses it."""

    @property
    def words(self) -> str:
        return "Slurm has it powered down and allocated, and no job has it"


class JobsLeftQueue(Cause, frozen=True, kw_only=True):
    """All jobs for which slurmctld asked for the node have ended."""

    @property
    def words(self) -> str:
        return "the jobs that it was to serve have left the queue"


class NotResponding(Cause, frozen=True, kw_only=True):
    """The node is powered down and NOT_RESPONDING."""

    @property
    def words(self) -> str:
        return "powered down and NOT_RESPONDING: after a restart slurmctld would give it no job"


class DrainOutlived(Cause, frozen=True, kw_only=True):
    """The node was drained because of a machine that is gone."""

    @property
    def words(self) -> str:
        return "drained for a machine that is gone: back to the powered-down nodes"


class IllAndPoweredDown(Cause, frozen=True, kw_only=True):
    """Slurm took the node out of service for ``node_reason``, and its machine is gone."""

    node_reason: str

    @property
    def words(self) -> str:
        return f"{self.node_reason}: its machine is gone, back to the powered-down nodes"


class NodeIll(Cause, frozen=True, kw_only=True):
    """Slurm took the node out of service for ``node_reason``. ``meaning``: its explanation.
    ``remedy``: the action for a person, "" if none is needed.
    """

    node_reason: str
    meaning: str
    remedy: str = ""

    @property
    def finding(self) -> str:
        """The sentence without the remedy."""
        return f"{self.node_reason}: {self.meaning}"

    @property
    def words(self) -> str:
        return f"{self.finding}; do: {self.remedy}" if self.remedy else self.finding


class NodeDown(Cause, frozen=True, kw_only=True):
    """The node is DOWN for ``node_reason``, which we or slurmctld itself set."""

    node_reason: str

    @property
    def words(self) -> str:
        return f"DOWN ({self.node_reason}): back to the powered-down nodes"


class ListRead(Cause, frozen=True, kw_only=True):
    """All machines that the cloud lists are in the ledger."""

    @property
    def words(self) -> str:
        return "all machines that it lists are in the ledger now"


class MachineThere(Cause, frozen=True, kw_only=True):
    """The cloud reports the machine's address."""

    machine: str

    @property
    def words(self) -> str:
        return f"{self.machine} is there"


class NameLookedUp(Cause, frozen=True, kw_only=True):
    """slurmctld would look up the node's name, which no DNS has."""

    @property
    def words(self) -> str:
        return "slurmctld would look up its name"


class NodeUp(Cause, frozen=True, kw_only=True):
    """The machine's node is up."""

    node: str

    @property
    def words(self) -> str:
        return f"node {self.node} is up"


class PoolWorks(Cause, frozen=True, kw_only=True):
    """A machine of the pool has registered."""

    pool: str

    @property
    def words(self) -> str:
        return f"a machine of pool {self.pool} has registered: it works again"


class TakesNoJobs(Cause, frozen=True, kw_only=True):
    """The node is drained."""

    @property
    def words(self) -> str:
        return "it takes no jobs"


class TakesJobs(Cause, frozen=True, kw_only=True):
    """The node is no longer drained, or has no machine."""

    @property
    def words(self) -> str:
        return "it takes jobs, or has no machine"


class HoldNotInLedger(Cause, frozen=True, kw_only=True):
    """The node has our mark of a hold, but the hold is missing in the ledger."""

    @property
    def words(self) -> str:
        return "its hold is not in the ledger"


class NodeOfNoPool(Cause, frozen=True, kw_only=True):
    """No pool of the configuration contains the node any longer."""

    @property
    def words(self) -> str:
        return "it is no longer in any pool of the configuration"


class OfferAvailable(Cause, frozen=True, kw_only=True):
    """The offer (``Offer.key``) has room again."""

    offer: str

    @property
    def words(self) -> str:
        return f"{self.offer} is available again"


class ListShowsAgain(Cause, frozen=True, kw_only=True):
    """The cloud's list, which was doubted, shows a ``machine`` (id) again that it lacked."""

    machine: str

    @property
    def words(self) -> str:
        return f"the list has {self.machine} again"


class NotConfigured(Cause, frozen=True, kw_only=True):
    """slurmctld asks for a node that no pool of the configuration has."""

    @property
    def words(self) -> str:
        return "no pool of the configuration has this node"


class MovedToCloud(Cause, frozen=True, kw_only=True):
    """The ledger has the machine in the ``former`` cloud, which has left the configuration."""

    cloud: str
    former: str

    @property
    def words(self) -> str:
        return f"it is now of cloud {self.cloud}; the configuration no longer has {self.former}"


class ListedAfterEnd(Cause, frozen=True, kw_only=True):
    """The ledger has the machine as ended, but its cloud lists it in this ``state``."""

    state: str

    @property
    def words(self) -> str:
        return f"its end is recorded, but its cloud lists it as {self.state}"


class ListDoubted(Cause, frozen=True, kw_only=True):
    """The cloud's list of machines cannot be true."""

    doubt: str

    @property
    def words(self) -> str:
        return self.doubt


class OtherHeadLaunches(Cause, frozen=True, kw_only=True):
    """A cloud lists a machine of this cluster that a head without this journal has launched."""

    machine: str
    cloud: str
    node: str
    launched_at: float

    @property
    def words(self) -> str:
        return (
            f"another head works for this cluster: it launched machine {self.machine} of cloud "
            f"{self.cloud} for node {self.node or 'unknown'}, and the journal of this head does "
            "not have that launch"
        )


class JournalOfOtherHost(Cause, frozen=True, kw_only=True):
    """The journal was written on another host, so that host may still work with it."""

    host: str
    here: str

    @property
    def words(self) -> str:
        return (
            f"the journal belongs to the head on host {self.host or 'unknown'}, but this host, "
            f"{self.here}, is another host or a clone: both heads may work for this cluster"
        )


class HeadChosen(Cause, frozen=True, kw_only=True):
    """A person has said that this head continues."""

    who: str

    @property
    def words(self) -> str:
        return f"{self.who} has said that this head continues, and no other"


Repair = (
    AskedBySlurm
    | RequestLost
    | NotPoweringUp
    | NotAwaited
    | NotPoweringDown
    | AlreadyServed
    | NoOfferLeft
    | TagsOfCluster
    | MachinesOfLaunch
    | StillWanted
    | NothingLaunched
    | StopConfirmed
    | StopPending
    | StartPending
    | StartedByOthers
    | OverAge
    | MachineLost
    | AllocatedWithoutJob
    | JobsLeftQueue
    | NotResponding
    | DrainOutlived
    | IllAndPoweredDown
    | NodeIll
    | NodeDown
    | ListRead
    | MachineThere
    | NameLookedUp
    | NodeUp
    | PoolWorks
    | TakesNoJobs
    | TakesJobs
    | HoldNotInLedger
    | NodeOfNoPool
    | OfferAvailable
    | ListDoubted
    | ListShowsAgain
    | OtherHeadLaunches
    | JournalOfOtherHost
    | HeadChosen
    | NotConfigured
    | MovedToCloud
    | ListedAfterEnd
)
"""All causes of repairs that do not end a machine."""
