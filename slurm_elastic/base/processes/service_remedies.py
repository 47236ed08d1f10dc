"""The commands in messages that start or stop a service, or show its state.

systemd runs the services of most heads. It does not know the services of a sandbox: in a sandbox,
``systemctl`` would start the services of the host. On a head without systemd, such as a container,
only its admin knows the command, so the message has none.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

SANDBOX_OF_SHELL = "SLURM_ELASTIC_SANDBOX"
"""In the environment of a shell after ``sandbox env``: the directory of its sandbox."""
SANDBOX_OF_PROCESS = "SLURM_ELASTIC_SANDBOX_DIR"
"""In the environment of all processes that a sandbox starts: the directory of the sandbox."""


def has_systemd() -> bool:
    """Whether systemd runs this host: sd_booted(3). The program systemctl may be there even if
    systemd does not run.
    """
    return Path("/run/systemd/system").is_dir()


def start(service: str) -> str:
    """Return the command that starts a service."""
    return _command("start", service)


def stop(service: str) -> str:
    """Return the command that stops a service."""
    return _command("stop", service)


def restart(*services: str) -> str:
    """Return the command that restarts services."""
    if _sandbox():
        return "; ".join(f"{stop(service)}; {start(service)}" for service in services)
    return _command("restart", *services)


def install_and_restart() -> str:
    """Return the command that installs our part of slurm.conf and has slurmctld read it."""
    if not _sandbox() and has_systemd():
        return "slurm-elastic conf install --restart 'systemctl restart slurmctld'"
    return f"slurm-elastic conf install; {restart('slurmctld')}"


def start_or_log(service: str) -> str:
    """Return the command that starts a service, and where its log is."""
    if directory := _sandbox():
        return f"{start(service)}; its log is in {directory}/log"
    if not has_systemd():
        return f"{start(service)}; its log says why it stopped"
    return f"{start(service)}; journalctl -u {service} says why it stopped"


def enable(*services: str) -> str:
    """Return the command that starts services now and at each boot."""
    if _sandbox() or not has_systemd():
        return _command("start", *services)
    return f"systemctl enable --now {' '.join(services)}"


def enable_or_log(service: str) -> str:
    """Return the command that starts a service now and at each boot, and where its log is."""
    if _sandbox() or not has_systemd():
        return start_or_log(service)
    return f"{enable(service)}; journalctl -u {service} says why it stopped"


def state(service: str) -> str:
    """Return the command that shows whether a service runs."""
    if _sandbox():
        return f"slurm-elastic sandbox status{_option()}"
    if not has_systemd():
        return f"look whether {service} runs"
    return f"systemctl status {service}"


def slurmctld_state() -> str:
    """Return what to do if slurmctld does not answer."""
    if directory := _sandbox():
        return f"{state('slurmctld')}; {start('slurmctld')}; its log is in {directory}/log"
    return f"{state('slurmctld')}; its log says why it stopped or hangs"


def _command(verb: str, *services: str) -> str:
    names = " ".join(services)
    if option := _option():
        return f"slurm-elastic sandbox {verb} {names}{option}"
    if not has_systemd():
        return f"{verb} {names} (no systemd runs here)"
    return f"systemctl {verb} {names}"


def _sandbox() -> str:
    return os.environ.get(SANDBOX_OF_PROCESS) or os.environ.get(SANDBOX_OF_SHELL) or ""


def _option() -> str:
    directory = _sandbox()
    return f" --dir {shlex.quote(directory)}" if directory else ""
