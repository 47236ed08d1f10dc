"""Method ``criu``: transparent checkpoints of a job on one node, by the launcher."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer


class CriuCheckpointer(LaunchedCheckpointer):
    """CRIU 4 on the nodes. ``directory`` is ``checkpoint.directory``, ``cluster`` its name."""

    def __init__(self, directory: Path, cluster: str, *, poll: float = 0.2) -> None:
        super().__init__("criu", directory / cluster, poll=poll)
