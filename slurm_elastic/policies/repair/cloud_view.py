"""The values of one cloud that repair decides on, and what follows from them directly. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum, auto
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.causes.unwanted import Unwanted
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    at_anothers_address,
    is_answering,
    is_down,
    is_unneeded,
    phase,
)
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, Ill, ill
from slurm_elastic.policies.nodes.pings import is_pinged


class NodeState(Struct, frozen=True, gc=False):
    """The meaning of a node's states in Slurm.

    ``phase``: where the node is between powered down and up; ``is_down``: Slurm has given it up;
    ``is_answering``: it answers slurmctld; ``is_unneeded``: no job needs its machine;
    ``illness``: why Slurm took it out of service, None if it did not.
    """

    phase: Phase
    is_down: bool
    is_answering: bool
    is_unneeded: bool
    illness: Ill | None


def states_of(nodes: Mapping[str, SlurmNode], terms: DrainTerms) -> dict[str, NodeState]:
    """Return the meaning of each node's states in Slurm, by node name."""
    return {
        name: NodeState(
            phase(node),
            is_down(node),
            is_answering(node),
            is_unneeded(node),
            ill(node, terms),
        )
        for name, node in nodes.items()
    }


class Recorded(Enum):
    """The recorded state of a paid machine. Each has its rule for each state in which a cloud may
    list the machine (``reconcile_rules``).

    WANTED: it serves its node, or soon will. STOPPING, ENDING: decided, and not yet confirmed.
    """

    WANTED = auto()
    STOPPING = auto()
    STOPPED = auto()
    ENDING = auto()


class TrackedInstance(Struct, frozen=True, kw_only=True):
    """A live machine of the ledger.

    ``decided_at``: when its launch was decided (Unix s, head's clock). ``missed_listings``:
    consecutive lists without it. ``is_ending``: its end is decided; with ``is_stopping`` it will be
    stopped instead of ended. ``max_age`` (s). ``was_listed``: some list of the cloud had it.
    ``has_registered``: its node was up. ``double_of``: the id of the machine that serves its node
    from another cloud, "" if none does; a node may move to another cloud in the configuration.
    ``first_launched_at``: when a machine that was stopped and started again was first launched.
    """

    id: str
    node: str
    generation: str
    decided_at: float
    missed_listings: int = 0
    is_ending: bool = False
    address: str | None = None
    max_age: float | None = None
    was_listed: bool = True
    has_registered: bool = False
    double_of: str = ""
    is_stopping: bool = False
    first_launched_at: float | None = None

    @property
    def recorded(self) -> Recorded:
        """The state of its row."""
        # STOPPING first: a machine that will be stopped has ``is_ending`` set, too.
        if self.is_stopping:
            return Recorded.STOPPING
        return Recorded.ENDING if self.is_ending else Recorded.WANTED


class StoppedInstance(Struct, frozen=True, kw_only=True):
    """A stopped machine of the ledger. ``unwanted``: why it must end, None if it may stay."""

    id: str
    node: str
    missed_listings: int = 0
    unwanted: Unwanted | StoppedByOrder | None = None
    recorded: ClassVar[Recorded] = Recorded.STOPPED


class Intent(Struct, frozen=True, kw_only=True):
    """An open launch: the ledger has no answer of its call yet. ``created``: Unix s."""

    generation: str
    nodes: tuple[str, ...]
    created: float


class CloudView(Struct, frozen=True, kw_only=True, dict=True):
    """One cloud's part of the world at ``now`` (Unix s).

    ``listed``: the cloud's list, None if the cloud could not be read. ``nodes``: the nodes of the
    cloud and of ``tracked`` machines, whose pool may have left the configuration; Slurm does not
    know a node missing there. ``held``: nodes that we keep from Slurm on purpose. ``elsewhere``:
    nodes that machines or open launches of other clouds serve. ``machines`` and ``all_nodes``
    include all clouds. ``slurmd_timeout`` (s): how soon slurmctld itself notices that a node does
    not answer. ``drain_terms``: how to read drains.
    """

    now: float
    nodes: Mapping[str, SlurmNode]
    tracked: tuple[TrackedInstance, ...]
    intents: tuple[Intent, ...]
    listed: tuple[Instance, ...] | None
    held: frozenset[str] = field(default_factory=frozenset)
    elsewhere: frozenset[str] = field(default_factory=frozenset)
    machines: tuple[Instance, ...] = ()
    all_nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    slurmd_timeout: float = 300.0
    drain_terms: DrainTerms = field(default_factory=DrainTerms)
    stopped: tuple[StoppedInstance, ...] = ()

    @cached_property
    def states(self) -> Mapping[str, NodeState]:
        """The meaning of the states of ``nodes``. Cached, because every rule needs it."""
        return states_of(self.nodes, self.drain_terms)

    def phase(self, node: str) -> Phase | None:
        """The phase of a node; None if Slurm does not list it."""
        state = self.states.get(node)
        return None if state is None else state.phase

    @cached_property
    def at_others(self) -> frozenset[str]:
        """Nodes whose address another node, or the machine of another node, has got. Repair asks
        this when a node answers although no known machine serves it.
        """
        return at_anothers_address(self.machines, self.all_nodes.values())

    @cached_property
    def crowded(self) -> frozenset[str]:
        """The nodes of several listed machines whose end is not decided."""
        listed_ids = {i.id for i in self.listed or ()}
        counts = Counter(m.node for m in self.tracked if m.id in listed_ids and not m.is_ending)
        return frozenset(node for node, count in counts.items() if count > 1)

    @property
    def pings(self) -> bool:
        """Whether slurmctld notices by itself, and soon, that a node does not answer."""
        return is_pinged(self.slurmd_timeout)


class Thresholds(Struct, frozen=True, kw_only=True):
    """How long a finding must stand before repair acts on it (s), and how many lists must miss a
    machine.

    ``grace_s``: how long a patient finding must stand. ``invisible_launch_s``: a launch without an
    answer that shows no machine for this long has made none. ``hidden_start_s``: a machine that no
    list has ever had may be hidden for this long after its launch. ``unlisted_node_s``: a
    machine ends if Slurm has not listed its node for this long, as after a pool, or our whole
    include file, was taken out of slurm.conf.
    """

    # A node that changes its state in Slurm may look wrong for a moment.
    grace_s: float = 120.0
    # With fewer misses one bad list would end live machines. With more we would only pay longer for
    # machines that are gone.
    max_missed_listings: int = 3
    invisible_launch_s: float = 600.0
    hidden_start_s: float = 300.0
    # Long: an include file that an administrator comments out by mistake must not end machines.
    unlisted_node_s: float = 3600.0
