"""Slurm's nodes by pyslurm: one RPC in place of a command that writes JSON. The rest by commands.

Pyslurm is bound to one release of Slurm, which ``unusable`` finds out; the calls are made in a
process that is kept (``pyslurm_child``). Jobs stay with ``squeue``: pyslurm tells one word of a
job's state where Slurm has several (COMPLETING hides COMPLETED).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.slurm.client import answers
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.pyslurm_child import Child, ChildAnswer, ChildRequest
from slurm_elastic.slurm.client.shared_reading import SharedReading

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
        # In another process: to import pyslurm ends the process where no slurm.conf is found.
        done = subprocess.run(
            [sys.executable, "-P", "-c", _IMPORT],
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
    """``model.protocols.Slurm``, nodes by pyslurm. Only where ``unusable`` is empty."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_child")}

    def __init__(self, settings: SlurmSettings, stop: threading.Event | None = None) -> None:
        super().__init__(settings, stop)
        self._lock = threading.Lock()
        self._child = Child(settings, self._patience)
        self._all_nodes = SharedReading(self._load)

    def close(self) -> None:
        """End the process of pyslurm."""
        with self._lock:
            self._child.close()

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or those of ``names`` that there are: one RPC, for all threads that wait."""
        found = self._all_nodes.get()
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
        changes = {"state": str(state)} | ({} if reason is None else {"reason": reason})
        self._ask(ChildRequest(names=tuple(names), changes=changes), "Nodes.modify", str(state))

    def _load(self) -> Sequence[SlurmNode]:
        return self._ask(ChildRequest(), "Nodes.load").nodes

    def _ask(self, request: ChildRequest, *words: str) -> ChildAnswer:
        command = ("pyslurm", *words)
        with self._lock:
            self.calls["pyslurm"] += 1
            try:
                answer = self._child.ask(request)
            except OSError as error:
                code = None if isinstance(error, TimeoutError) else 1
                raise SlurmError(command, code, str(error)) from error
        if answer.error:
            raise SlurmError(command, 1, answer.error)
        return answer
