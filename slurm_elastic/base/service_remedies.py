"""The commands in messages that start a service or show its state.

systemd runs the services of a head. It does not know the services of a sandbox: in a sandbox,
``systemctl`` would start the services of the host.
"""

from __future__ import annotations

import os
import shlex

SANDBOX_OF_SHELL = "SLURM_ELASTIC_SANDBOX"
"""In the environment of a shell after ``sandbox env``: the directory of its sandbox."""
SANDBOX_OF_PROCESS = "SLURM_ELASTIC_SANDBOX_DIR"
"""The same in the environment of all processes that a sandbox starts."""


def start(service: str) -> str:
    """Return the command that starts a service."""
    if option := _option():
        return f"slurm-elastic sandbox start {service}{option}"
    return f"systemctl start {service}"


def start_or_log(service: str) -> str:
    """Return the command that starts a service, and where its log is."""
    if directory := _sandbox():
        return f"{start(service)}; its log is in {directory}/log"
    return f"{start(service)}; journalctl -u {service} says why it stopped"


def slurmctld_state() -> str:
    """Return what to do if slurmctld does not answer."""
    if directory := _sandbox():
        state = f"slurm-elastic sandbox status{_option()}; {start('slurmctld')}"
        return f"{state}; its log is in {directory}/log"
    return "systemctl status slurmctld; its log says why it stopped or hangs"


def _sandbox() -> str:
    return os.environ.get(SANDBOX_OF_PROCESS) or os.environ.get(SANDBOX_OF_SHELL) or ""


def _option() -> str:
    directory = _sandbox()
    return f" --dir {shlex.quote(directory)}" if directory else ""
