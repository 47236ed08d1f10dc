"""How a launch comes out: the machines that stand, in its nodes' order, or why there is none."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from slurm_elastic.base.errors import CapacityError, ProviderError
from slurm_elastic.model.cluster import Instance, LaunchSpec

log = logging.getLogger(__name__)


def launched(
    cloud: str, spec: LaunchSpec, machines: Iterable[Instance], refusal: ProviderError | None = None
) -> tuple[Instance, ...]:
    """``refusal``: why there are no more of them. Without one all that were started have ended."""
    place = {node: n for n, node in enumerate(spec.nodes)}
    found = tuple(sorted(machines, key=lambda one: place.get(one.node, len(place))))
    if not found:
        text = f"{len(spec.nodes)} machines of this launch have ended"
        raise refusal or CapacityError(cloud, "MachinesGone", text)
    if refusal is not None:
        log.info("launch is partial generation=%s error=%s", spec.generation, refusal)
    return found
