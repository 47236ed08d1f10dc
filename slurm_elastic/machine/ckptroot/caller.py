"""Finds out from the kernel for which job we were started, without believing the caller.

Our parents must be sudo, and above it the slurmstepd of a batch step.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from .site import Refused, Site

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)\.batch\]")
_CGROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""The environment of every program that root runs."""


@dataclass(frozen=True)
class Caller:
    """The job and its user. ``environment`` is the user's own and is given to his program only."""

    job: int
    uid: int
    gid: int
    user: str
    groups: tuple[int, ...]
    environment: dict[bytes, bytes]

    @property
    def node(self) -> str:
        """Slurm's name of this node. It is only shown to people, as the user may
        have changed it.
        """
        return self.environment.get(b"SLURMD_NODENAME", b"").decode(errors="replace")

    @property
    def restarts(self) -> int | None:
        """How often Slurm has restarted the job, by the environment, which the user may have
        changed; None where it does not say, as in a first run.
        """
        text = self.environment.get(b"SLURM_RESTART_COUNT", b"")
        return int(text) if text.isdigit() else None


def identify(site: Site, *, asks: bool = False, proc: Path = Path("/proc")) -> Caller:
    """The caller. Raises Refused unless it is the batch script of a job of the user who called
    sudo.

    With ``asks`` the script has called sudo as a child, to ask whether the job may be checkpointed.
    """
    user, parent = sudo_user(), os.getppid()
    top, step = chain(site, proc, asks=asks)
    job = _job_of(step, proc)
    for found in _CGROUP.findall(_text(proc / "self" / "cgroup")):
        if int(found) != job:
            raise Refused(f"job {job} by its step, job {found} by our control group")
    caller = Caller(
        job=job,
        uid=user.pw_uid,
        gid=sudo_number("SUDO_GID"),
        user=user.pw_name,
        groups=tuple(os.getgrouplist(user.pw_name, sudo_number("SUDO_GID"))),
        environment=_environment(top, proc),
    )
    # While our parent lives it stays our parent, so these pids were not reused as we looked.
    if os.getppid() != parent or chain(site, proc, asks=asks) != (top, step):
        raise Refused("what started us ended meanwhile")
    return caller


def sudo_user() -> pwd.struct_passwd:
    """The user who called sudo, which sets this itself. Raises Refused for root and
    unknown users.
    """
    uid = sudo_number("SUDO_UID")
    try:
        user = pwd.getpwuid(uid)
    except KeyError as error:
        raise Refused(f"this host has no user with uid {uid}") from error
    if uid == 0 or sudo_number("SUDO_GID") == 0:
        raise Refused("jobs of root, or with its group, are not checkpointed")
    return user


def own_environment(sudo: str, proc: Path = Path("/proc")) -> dict[bytes, bytes]:
    """The environment that sudo, our parent, was called with. Raises Refused if it
    cannot be read.
    """
    parent = os.getppid()
    try:
        if program_of(parent, proc) == os.path.realpath(sudo):
            environment = _environment(parent, proc)
            if os.getppid() == parent:  # otherwise its pid may have been reused as we looked
                return environment
    except OSError as error:
        raise Refused(f"the environment of {sudo}, process {parent}: {error.strerror}") from error
    raise Refused("not started by sudo")


def chain(site: Site, proc: Path, *, asks: bool) -> tuple[int, int]:
    """The pids of the step's first process, which is sudo, and of the slurmstepd above it."""
    child, pid = 0, os.getppid()
    while pid > 1 and program_of(pid, proc) == os.path.realpath(site.sudo):
        child, pid = pid, int(_status(pid, proc, "PPid") or 0)
    if not child:
        raise Refused("not started by sudo")
    if asks:
        child, pid = pid, int(_status(pid, proc, "PPid") or 0)
    is_roots = _status(pid, proc, "Uid").split() == ["0"] * 4
    # By its program, as root's: users can give one of their own, or sudo, any name and any
    # arguments.
    if program_of(pid, proc) != os.path.realpath(site.slurmstepd) or not is_roots:
        raise Refused("sudo was not started by the batch script itself")
    return child, pid


def _job_of(step: int, proc: Path) -> int:
    title = (proc / str(step) / "cmdline").read_bytes()
    found = _TITLE.match(title)
    if not found:
        raise Refused("not started in a batch step")
    return int(found[1])


def program_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The path of the file that a process runs; empty if it cannot be read."""
    try:
        return os.readlink(proc / str(pid) / "exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def _status(pid: int, proc: Path, name: str) -> str:
    for line in _text(proc / str(pid) / "status").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _environment(pid: int, proc: Path) -> dict[bytes, bytes]:
    entries = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals and name}


def sudo_number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise Refused(f"{name} is not set: start this by sudo")
    return int(text)
