"""How the reasons of nodes that we drain or set DOWN begin, so that we lift no other."""

from __future__ import annotations

OUR_MARK = "slurm-elastic:"
"""The beginning of every node reason of ours."""
HOLD_MARK = f"{OUR_MARK}hold:"
"""The beginning of the reason of a node that we keep from Slurm."""
NOTICE_MARK = f"{OUR_MARK}notice:"
"""The beginning of the reason of a node that is drained because its machine is taken away."""
