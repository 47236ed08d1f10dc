"""The points at which an optional feature takes part in the core.

The core calls the functions that features have added here, and knows no feature by name. Each
feature is asked once, when the service starts (``join``). If no feature has joined a point, the
core calls nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import fields

from slurm_elastic.controller.launching.awaited_nodes import AwaitedNodes
from slurm_elastic.model.cluster import Instance, LaunchSpec, NodeRequest, Offer
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import Action
from slurm_elastic.policies.growth.stopped import Recipes
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Machine

if TYPE_CHECKING:
    from slurm_elastic.controller.context import Site
    from slurm_elastic.controller.periodic import SiteTask

Jobs = Mapping[int, Sequence[str]]
"""All nodes of each job, by job number."""
Owners = Mapping[int, Mapping[str, str]]
"""Each job's ``account`` and ``user`` as far as they are known, by job number."""
Caps = Sequence[tuple[str, int]]
"""How many machines may boot at once, by scope (``cloud:aws``, ``pool:gpu``)."""
Doer = Callable[[ClusterSnapshot, Sequence[Any]], None]
"""Carries out actions of one class, which were decided by this snapshot of a cloud."""


class Part:
    """A feature that works beside the rounds: ``task`` is its periodic task."""

    task: SiteTask

    def close(self) -> None:
        """Release the resources of the part, because the service ends."""


class Extensions(Struct, kw_only=True):
    """The functions of features by the point of the core that calls them, in the order in which
    the features joined. The verb of a name says what its functions may do: filter and complete
    return the value to continue with, find only looks, serve and spare act and return what they
    have dealt with, on only notes an event.
    """

    parts: list[tuple[str, Callable[[Executor], Part]]] = field(default_factory=list)
    """The name of a part's worker thread, and the function that makes the part."""
    doers: list[tuple[type[Action], Doer]] = field(default_factory=list)
    """The functions that carry out a feature's own actions, by class of action."""
    complete_listed: list[Callable[[str, Sequence[Instance]], tuple[Instance, ...]]] = field(
        default_factory=list
    )
    """A cloud and the machines of its list -> the machines as the ledger is to keep them."""
    filter_admitted: list[Callable[[str, str, Sequence[str], Jobs], tuple[Sequence[str], Jobs]]] = (
        field(default_factory=list)
    )
    """A cloud, a correlation, requested nodes and their jobs -> the nodes and jobs that get
    machines. The function has given the others back to Slurm.
    """
    find_owners: list[Callable[[Sequence[str], Jobs], Owners]] = field(default_factory=list)
    """Requested nodes and their jobs -> the jobs' owners. Called once for each request."""
    split_requests: list[Callable[[NodeRequest], Sequence[NodeRequest]]] = field(
        default_factory=list
    )
    """The request for a pool -> requests for all its nodes, each of which is served by itself."""
    serve_before_buying: list[
        Callable[
            [NodeRequest, Sequence[Gang], Sequence[Offer], Caps, AwaitedNodes], Collection[str]
        ]
    ] = field(default_factory=list)
    """A request, the gangs without machines, offers, caps and which nodes may still get a machine
    -> the nodes that the feature has given machines to.
    """
    complete_spec: list[Callable[[LaunchSpec], LaunchSpec]] = field(default_factory=list)
    """A decided launch -> the same launch with further settings for its machines."""
    on_intent: list[Callable[[LaunchSpec], None]] = field(default_factory=list)
    """A launch whose intent is in the ledger. Its cloud has not been called yet."""
    on_answer: list[Callable[[str, str], None]] = field(default_factory=list)
    """The generation and pool of a launch that the cloud has answered. The ledger does not have
    its machines yet.
    """
    find_unfinished: list[Callable[[Sequence[Machine]], Collection[Machine]]] = field(
        default_factory=list
    )
    """Machines about to end -> the machines that must not end yet, for a bounded time."""
    spare_from_end: list[
        Callable[[str, Sequence[Machine], Mapping[str, SlurmNode], str], Collection[Machine]]
    ] = field(default_factory=list)
    """A cloud, machines that Slurm does not need, Slurm's nodes and a correlation -> the machines
    that the feature keeps. The core ends the others.
    """
    spare_of_refused: list[
        Callable[[str, Sequence[Machine], Mapping[str, SlurmNode], str], Collection[Machine]]
    ] = field(default_factory=list)
    """The same for booting machines of refused jobs. Their nodes are seen as they were before."""
    find_recipes: list[Callable[[str, Collection[Machine]], Recipes]] = field(default_factory=list)
    """A cloud and stopped machines -> the recipes of these and of fresh machines."""
    on_job_end: list[Callable[[], None]] = field(default_factory=list)
    """The epilog of a job has reported that the job is over."""

    def replace(self, joined: Sequence[Extensions]) -> None:
        """Replace the functions of each point by those of ``joined``."""
        for point in fields(self):
            functions = [f for extensions in joined for f in getattr(extensions, point.name)]
            setattr(self, point.name, functions)


Feature = Callable[["Site"], Extensions | None]
"""Returns the points at which the feature takes part at this site; None if it is switched off."""


def join(site: Site, features: Sequence[Feature]) -> None:
    """Ask each feature once, and keep its functions in ``site.extensions``."""
    asked = (feature(site) for feature in features)
    site.extensions.replace([extensions for extensions in asked if extensions is not None])
