"""Method ``dmtcp``: DMTCP's commands on the node, by the launcher.

Debian has no package of DMTCP: exercised with programs that stand in for its commands.
"""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer


class DmtcpCheckpointer(LaunchedCheckpointer):
    """DMTCP on the nodes. ``directory`` is ``checkpoint.directory``, ``cluster`` its name."""

    def __init__(self, directory: Path, cluster: str, *, poll: float = 0.2) -> None:
        super().__init__("dmtcp", directory / cluster, poll=poll)
