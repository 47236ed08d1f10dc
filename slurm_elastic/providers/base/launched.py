"""The outcome of a launch: its machines in the order of its nodes, or the reason why there are
none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from slurm_elastic.base.errors import CapacityError, ProviderError
from slurm_elastic.model.cluster import Instance, LaunchSpec

log = logging.getLogger(__name__)


def launched(
    cloud: str, spec: LaunchSpec, machines: Iterable[Instance], refusal: ProviderError | None = None
) -> tuple[Instance, ...]:
    """The machines in the order of ``spec.nodes``. ``refusal``: why there are not more of them.

    If there are none, raises the refusal. If nothing was refused either, all machines of this
    launch have ended, and a CapacityError says so.
    """
    order = {node: n for n, node in enumerate(spec.nodes)}
    machines_in_order = tuple(
        sorted(machines, key=lambda machine: order.get(machine.node, len(order)))
    )
    if not machines_in_order:
        text = f"{len(spec.nodes)} machines of this launch have ended"
        # A repeated call that raises CapacityError tells its caller that no machine exists, so a
        # new launch can start.
        raise refusal or CapacityError(cloud, "MachinesGone", text)
    if refusal is not None:
        log.info("launch is partial generation=%s error=%s", spec.generation, refusal)
    return machines_in_order
