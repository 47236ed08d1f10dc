"""Slurm's nodes by pyslurm: one RPC instead of a command that writes JSON. The rest by commands.

pyslurm fits one release of Slurm, which ``unusable`` checks. The calls are made in a process that
stays (``pyslurm_child``). Jobs still come from ``squeue``: pyslurm gives one word of a job's state
where Slurm has several (COMPLETING hides COMPLETED).
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
from slurm_elastic.slurm.client.pyslurm_child import ChildAnswer, ChildRequest, PyslurmChild
from slurm_elastic.slurm.client.shared_reading import SharedReading

_IMPORT = "import pyslurm; print(pyslurm.__version__)"
_STATES = frozenset(
    {"DOWN", "DRAIN", "POWER_DOWN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE", "POWER_UP", "RESUME",
     "UNDRAIN"}
)  # fmt: skip
"""The states to which pyslurm 25.11 can set a node."""


def unusable(settings: SlurmSettings, version: tuple[int, int]) -> str:
    """Why pyslurm cannot be used with this Slurm. Empty if it can."""
    environment = {**os.environ, "SLURM_CONF": settings.conf}
    try:
        # In another process, because the import ends the process if there is no slurm.conf.
        process = subprocess.run(
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
    if process.returncode != 0:
        error_lines = process.stderr.strip().splitlines() or [f"exit {process.returncode}"]
        return f"it cannot be imported: {error_lines[-1]}"
    try:
        release = answers.version(process.stdout.strip())
    except ValueError as error:
        return str(error)
    if release != version:
        slurm_release, pyslurm_release = (".".join(map(str, v)) for v in (version, release))
        return f"Slurm is {slurm_release}, pyslurm is for {pyslurm_release}"
    return ""


class PyslurmClient(SlurmCli):
    """``model.protocols.Slurm``, with nodes by pyslurm. Only for use if ``unusable`` is empty."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_child")}

    def __init__(self, settings: SlurmSettings, stop: threading.Event | None = None) -> None:
        super().__init__(settings, stop)
        self._lock = threading.Lock()
        self._child = PyslurmChild(settings, self._timeout)
        self._all_nodes = SharedReading(self._load)

    def close(self) -> None:
        """End the process with pyslurm."""
        with self._lock:
            self._child.close()

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or the existing ones of ``names``: one RPC for all threads that wait."""
        nodes = self._all_nodes.get()
        requested = None if names is None else set(names)
        return {node.name: node for node in nodes if requested is None or node.name in requested}

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """One RPC for all nodes. By scontrol, if pyslurm lacks the state or cannot send the value
        (an empty reason).
        """
        is_supported = (state or "").upper() in _STATES and reason != "" and address is None
        if not names or not is_supported:
            super().update_nodes(names, state=state, reason=reason, address=address)
            return
        changes = {"state": str(state)} | ({} if reason is None else {"reason": reason})
        self._ask(ChildRequest(names=tuple(names), changes=changes), "Nodes.modify", str(state))

    def _load(self) -> Sequence[SlurmNode]:
        return self._ask(ChildRequest(), "Nodes.load").nodes

    def _ask(self, request: ChildRequest, *details: str) -> ChildAnswer:
        command = ("pyslurm", *details)
        with self._lock:
            self.calls["pyslurm"] += 1
            try:
                answer = self._child.ask(request)
            except OSError as error:
                # A SlurmError without a code means that Slurm did not answer in time.
                code = None if isinstance(error, TimeoutError) else 1
                raise SlurmError(command, code, str(error)) from error
        if answer.error:
            raise SlurmError(command, 1, answer.error)
        return answer
