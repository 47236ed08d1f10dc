"""The machines that a growth policy has started for one multi-node job, for their launch.

Slurm powers the nodes up without a job, so a launch cannot know that some of the machines are
of no use without the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.growth.scaling import ScaleUp
from slurm_elastic.policies.nodes.node_state import Phase, phase


class StartedTogether:
    """``_least``: by node that boots, how many machines of its start are of use to a job. After a
    restart of slurm-elasticd it comes from the journal (``autoscaler.recalled_starts``).
    """

    def __init__(self) -> None:
        # The autoscaler's thread replaces the mapping and never changes it, because the threads of
        # the clouds read it.
        self._least: Mapping[str, int] = {}

    def add(self, starts: Iterable[tuple[ScaleUp, Sequence[str]]]) -> None:
        """Note the nodes of these starts before they are powered up."""
        new = {node: start.least for start, nodes in starts for node in nodes}
        self._least = {**self._least, **new}

    def forget_unless_booting(self, nodes: Mapping[str, SlurmNode]) -> None:
        """Forget the nodes that no longer boot. They may start again for another reason."""
        self._least = {
            name: least
            for name, least in self._least.items()
            if name in nodes and phase(nodes[name]) is Phase.POWERING_UP
        }

    def complete(self, request: NodeRequest) -> Sequence[NodeRequest]:
        """Return the request with what is known of its nodes."""
        # The jobs of such a pool can use any number of its machines.
        if request.pool.partial_jobs:
            return (request,)
        least = self._least
        known = {node: least[node] for node in request.nodes if node in least}
        return (replace(request, least_by_node=known),) if known else (request,)
