"""One cloud's part of the world as values that repair decides on, and what is read off it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

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
    """The meaning of Slurm's words for a node: where it is in its life, whether Slurm has given it
    up, whether it answers (``is_answering``), whether a machine of it is of use (``is_unneeded``),
    and what ails it.
    """

    phase: Phase
    down: bool
    answers: bool
    unneeded: bool
    ails: Ill | None


def states_of(nodes: Mapping[str, SlurmNode], terms: DrainTerms) -> dict[str, NodeState]:
    """By name, what Slurm's words for each node mean."""
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


class TrackedInstance(Struct, frozen=True, kw_only=True):
    """A live machine by the ledger. ``decided`` is when its launch was decided (head's clock);
    ``shown`` whether any read of the cloud has had it, ``registered`` whether its node was up.
    ``double_of``: where the configuration has given its node to another cloud, the machine of that
    at whose address the node is, if it is. ``stopping``: with ``suspending``, it is to be stopped
    instead of ended. ``born``: when it was first launched, of one that was stopped since.
    """

    id: str
    node: str
    generation: str
    decided: float
    misses: int = 0
    suspending: bool = False
    address: str | None = None
    max_age: float | None = None
    shown: bool = True
    registered: bool = False
    double_of: str = ""
    stopping: bool = False
    born: float | None = None


class StoppedInstance(Struct, frozen=True, kw_only=True):
    """A machine that is stopped, by the ledger; ``unwanted``: why it is to end, if it is."""

    id: str
    node: str
    misses: int = 0
    unwanted: Unwanted | StoppedByOrder | None = None


class Intent(Struct, frozen=True, kw_only=True):
    """An open launch: its call is not known to have answered."""

    generation: str
    nodes: tuple[str, ...]
    created: float


class CloudView(Struct, frozen=True, kw_only=True, dict=True):
    """One cloud's part of the world at ``now``. ``seen`` is None where the cloud could not be read.

    ``nodes`` are the cloud's nodes by Slurm, and those of ``known``, which may be of no pool any
    more: one that is not there is not listed by Slurm. ``held`` are kept from Slurm on purpose;
    ``elsewhere`` are served by machines or open launches of other clouds; ``machines`` and
    ``all_nodes`` are those of all clouds. ``slurmd_timeout`` is how soon (s) slurmctld finds out by
    itself that a node does not answer, ``drain_terms`` how its drains are read.
    """

    now: float
    nodes: Mapping[str, SlurmNode]
    known: tuple[TrackedInstance, ...]
    intents: tuple[Intent, ...]
    seen: tuple[Instance, ...] | None
    held: frozenset[str] = field(default_factory=frozenset)
    elsewhere: frozenset[str] = field(default_factory=frozenset)
    machines: tuple[Instance, ...] = ()
    all_nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    slurmd_timeout: float = 300.0
    drain_terms: DrainTerms = field(default_factory=DrainTerms)
    stopped: tuple[StoppedInstance, ...] = ()

    @cached_property
    def states(self) -> Mapping[str, NodeState]:
        """The meaning of Slurm's words for ``nodes``, read once: each rule asks for it."""
        return states_of(self.nodes, self.drain_terms)

    def phase(self, node: str) -> Phase | None:
        """The phase of one node; None where Slurm does not list it."""
        state = self.states.get(node)
        return None if state is None else state.phase

    @cached_property
    def at_others(self) -> frozenset[str]:
        """Nodes that have the address of another one, or of its machine, by now: asked where a node
        answers though nothing is known to serve it.
        """
        return at_anothers_address(self.machines, self.all_nodes.values())

    @property
    def pings(self) -> bool:
        """Whether slurmctld finds out by itself, and soon, that a node does not answer."""
        return is_pinged(self.slurmd_timeout)


class Thresholds(Struct, frozen=True, kw_only=True):
    """How long (s) a finding must stand before it is acted on, and how many reads must miss.

    ``visibility``: after that a launch without an answer has made nothing; ``fresh``: after that a
    machine that no read has had is gone. ``unlisted``: how old a machine must be to end because
    Slurm does not list its node, as after a pool or all of us was taken out of slurm.conf.
    """

    grace: float = 120.0
    # Fewer would believe a bad list, and more would only pay for longer.
    misses: int = 3
    visibility: float = 600.0
    fresh: float = 300.0
    unlisted: float = 3600.0
