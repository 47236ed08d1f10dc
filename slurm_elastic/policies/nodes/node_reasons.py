"""How the reasons of nodes that we drain or set DOWN begin, so that we lift no other."""

from __future__ import annotations

from slurm_elastic.model.slurm import SlurmNode

OUR_MARK = "slurm-elastic:"
"""The beginning of every node reason of ours."""
HOLD_MARK = f"{OUR_MARK}hold:"
"""The beginning of the reason of a node that we keep from Slurm."""
NOTICE_MARK = f"{OUR_MARK}notice:"
"""The beginning of the reason of a node that is drained because its machine is taken away."""


def has_mark(node: SlurmNode, mark: str | tuple[str, ...]) -> bool:
    """Whether the node's reason begins with this mark of ours, or one of these."""
    return node.reason.startswith(mark)


def without_mark(node: SlurmNode, mark: str) -> str:
    """The node's reason without this mark of ours."""
    return node.reason.removeprefix(mark).strip()
