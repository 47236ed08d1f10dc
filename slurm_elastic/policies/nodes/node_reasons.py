"""How the reasons begin that we give to nodes, so that we lift only our own drains."""

from __future__ import annotations

from slurm_elastic.model.slurm import SlurmNode

OUR_MARK = "slurm-elastic:"
"""The beginning of every node reason that we set."""
HOLD_MARK = f"{OUR_MARK}hold:"
"""The beginning of the reason of a node that we keep from Slurm."""
ASAP = "POWER_DOWN_ASAP"
"""slurmctld 22.05 replaces the reason of a node by this text when a command asks it to power the
node down after its jobs. The mark of our own order is then lost.
"""
NOTICE_MARK = f"{OUR_MARK}notice:"
"""The beginning of the reason of a node that we drained because its cloud takes its machine away.
"""


def has_mark(node: SlurmNode, mark: str | tuple[str, ...]) -> bool:
    """Whether the node's reason begins with ``mark`` (or, of several marks, with any)."""
    return node.reason.startswith(mark)


def without_mark(node: SlurmNode, mark: str) -> str:
    """Return the node's reason without ``mark``."""
    return node.reason.removeprefix(mark).strip()
