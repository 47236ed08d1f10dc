"""The steps of slurm-elasticd that an optional feature may take part in.

Each feature is asked once, at the start (``features``). The core calls what has joined a step and
knows no feature by name; where none has joined, none of their code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import fields

from slurm_elastic.model.cluster import Instance, LaunchSpec, NodeRequest, Offer
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.state.ledger import Machine

if TYPE_CHECKING:
    from slurm_elastic.controller.periodic import SiteTask

Jobs = Mapping[int, Sequence[str]]
"""Jobs with all of their nodes."""
Owners = Mapping[int, Mapping[str, str]]
"""By job, its ``account`` and ``user``, as far as they are known."""
Caps = Sequence[tuple[str, int]]
"""How many machines may boot at once, by scope."""


class Part(Protocol):
    """What runs beside the rounds: ``looks`` is a task of the daemon's."""

    @property
    def looks(self) -> SiteTask: ...

    def close(self) -> None:
        """The service ends."""


class Steps(Struct, kw_only=True):
    """By step, in its order, what is called there."""

    parts: list[tuple[str, Callable[[Executor], Part]]] = field(default_factory=list)
    """By the name of its thread, what makes a part that runs beside the rounds."""
    listed: list[Callable[[str, Sequence[Instance]], tuple[Instance, ...]]] = field(
        default_factory=list
    )
    """A cloud's machines as it tells them: the same as they are to be kept."""
    admitted: list[Callable[[str, str, Sequence[str], Jobs], tuple[Sequence[str], Jobs]]] = field(
        default_factory=list
    )
    """Of a cloud, a correlation, nodes that are wanted and jobs: those for which is bought."""
    owned: list[Callable[[Sequence[str], Jobs], Owners]] = field(default_factory=list)
    """Of nodes that are wanted and jobs, once a request: whose these jobs are."""
    served: list[
        Callable[[NodeRequest, Sequence[Gang], Sequence[Offer], Caps], Collection[str]]
    ] = field(default_factory=list)
    """Before machines are bought for these gangs of a request: nodes that need none any more."""
    described: list[Callable[[LaunchSpec], LaunchSpec]] = field(default_factory=list)
    """A launch that is decided: the same with more for its machines to know."""
    intended: list[Callable[[LaunchSpec], None]] = field(default_factory=list)
    """A launch whose intent is in the ledger, before its call."""
    answered: list[Callable[[str, str], None]] = field(default_factory=list)
    """A launch by its generation and pool; its machines are there, and not yet written down."""
    spared: list[
        Callable[[str, Sequence[Machine], Mapping[str, SlurmNode], str], Collection[Machine]]
    ] = field(default_factory=list)
    """Machines of a cloud that Slurm does not need, its nodes, a correlation: those that stay."""
    job_ended: list[Callable[[], None]] = field(default_factory=list)
    """The epilog of a job has said that it is over."""

    def join(self, found: Sequence[Steps]) -> None:
        """These instead of what has joined before."""
        for step in fields(self):
            setattr(self, step.name, [one for some in found for one in getattr(some, step.name)])
