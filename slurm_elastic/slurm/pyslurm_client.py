"""Slurm's nodes by pyslurm: one RPC in place of a command that writes JSON. The rest by commands.

pyslurm is bound to one release of Slurm, and to import it ends the process where no slurm.conf is
found: ``unusable`` finds that out in another process. Jobs stay with ``squeue``: pyslurm tells one
word of a job's state where Slurm has several (COMPLETING hides COMPLETED).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.config import SlurmSettings
from slurm_elastic.errors import SlurmError
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.slurm import answers
from slurm_elastic.slurm.cli import SlurmCli

_IMPORT = "import pyslurm; print(pyslurm.__version__)"
_STATES = frozenset(
    {"DOWN", "DRAIN", "POWER_DOWN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE", "POWER_UP", "RESUME",
     "UNDRAIN"}
)  # fmt: skip
"""The states that pyslurm 25.11 can set a node to."""


def unusable(settings: SlurmSettings, version: tuple[int, int]) -> str:
    """Why pyslurm cannot be used with this Slurm; empty where it can."""
    environment = {**os.environ, "SLURM_CONF": settings.conf}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=settings.command_timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be tried: {error}"
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return f"it cannot be imported: {said[-1]}"
    try:
        release = answers.version(done.stdout.strip())
    except ValueError as error:
        return str(error)
    if release != version:
        ours, theirs = (".".join(map(str, v)) for v in (version, release))
        return f"Slurm is {ours}, pyslurm is for {theirs}"
    return ""


class PyslurmClient(SlurmCli):
    """``protocols.Slurm`` with the nodes by pyslurm. Open it only where ``unusable`` is empty.

    libslurm has its own time limits (MessageTimeout), and its fatal errors end this process.
    """

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__(settings)
        os.environ["SLURM_CONF"] = settings.conf  # libslurm reads it when it is imported
        import pyslurm

        self._pyslurm: Any = pyslurm
        self._lock = threading.Lock()

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or those of ``names`` that there are: one RPC."""
        with self._lock:
            self.calls["pyslurm"] += 1
            try:
                found = [_node(raw) for raw in self._pyslurm.Nodes.load().values()]
            except self._pyslurm.PyslurmError as error:
                raise SlurmError(("pyslurm", "Nodes.load"), 1, str(error)) from error
        wanted = None if names is None else set(names)
        return {node.name: node for node in found if wanted is None or node.name in wanted}

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """One RPC for all; by scontrol what pyslurm has no word for, or cannot send (no reason)."""
        spoken = (state or "").upper() in _STATES and reason != "" and address is None
        if not names or not spoken:
            super().update_nodes(names, state=state, reason=reason, address=address)
            return
        changes = {"state": state} | ({} if reason is None else {"reason": reason})
        with self._lock:
            self.calls["pyslurm"] += 1
            try:
                self._pyslurm.Nodes(list(names)).modify(self._pyslurm.Node(**changes))
            except self._pyslurm.PyslurmError as error:
                raise SlurmError(("pyslurm", "Nodes.modify", str(state)), 1, str(error)) from error


def _node(raw: Any) -> SlurmNode:  # noqa: ANN401 - a pyslurm.Node
    return SlurmNode(
        name=raw.name,
        states=answers.states(*raw.state.split("+")),
        reason=raw.reason or "",
        reason_user=raw.reason_user or "",
        partitions=tuple(raw.partitions or ()),
        address=raw.address or "",
        port=int(getattr(raw, "port", 0) or 0),
        cpus=int(raw.total_cpus or 0),
        memory=int(raw.real_memory or 0),
        last_busy=float(raw.last_busy_time or 0),
        boot_time=float(raw.boot_time or 0),
        weight=int(raw.weight or 0),
        comment=raw.comment or "",
    )
