"""Find out from the kernel which job started us, without trusting the caller.

Our parents must be sudo, and above sudo the slurmstepd of a batch step.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from .site import HelperSite, RequestRefused

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)\.(batch|\d+)\]")
_CGROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""The environment of every program that root runs."""


@dataclass(frozen=True)
class Caller:
    """The job and its user. ``environment`` is the user's; only the user's programs get it.
    ``step``: the step that called us, such as ``12.batch``.
    """

    job: int
    uid: int
    gid: int
    user: str
    groups: tuple[int, ...]
    environment: dict[bytes, bytes]
    step: str = ""

    @property
    def node(self) -> str:
        """Slurm's name of this node. Only for display, because the user may have changed the
        variable.
        """
        return self.environment.get(b"SLURMD_NODENAME", b"").decode(errors="replace")

    @property
    def restarts(self) -> int | None:
        """Return how often Slurm has restarted the job, as its environment says; None if it does
        not say, as in a first run.

        The user may have changed the environment.
        """
        text = self.environment.get(b"SLURM_RESTART_COUNT", b"")
        return int(text) if text.isdigit() else None


def identify(
    site: HelperSite, *, asks: bool = False, attends: bool = False, proc: Path = Path("/proc")
) -> Caller:
    """Return the caller. RequestRefused unless it is the batch script of a job of the user who
    called sudo.

    ``asks``: the script has called sudo as a child, to ask whether the job can be checkpointed.
    ``attends``: it must be a step that srun has started, instead of the batch script.
    """
    user, parent = sudo_user(), os.getppid()
    top, step = chain(site, proc, asks=asks)
    job, step_name = _step_of(step, proc)
    if (step_name == "batch") == attends:
        raise RequestRefused("not started in a " + ("step of srun" if attends else "batch step"))
    for cgroup_job in _CGROUP.findall(_text(proc / "self" / "cgroup")):
        if int(cgroup_job) != job:
            raise RequestRefused(f"job {job} by its step, job {cgroup_job} by our control group")
    caller = Caller(
        job=job,
        uid=user.pw_uid,
        gid=sudo_number("SUDO_GID"),
        user=user.pw_name,
        groups=slurms_groups(user, sudo_number("SUDO_GID")),
        environment=_environment(top, proc),
        step=f"{job}.{step_name}",
    )
    # While our parent lives it stays our parent. If it is the same now, no pid was reused during
    # the checks.
    if os.getppid() != parent or chain(site, proc, asks=asks) != (top, step):
        raise RequestRefused("the process that started us has ended")
    return caller


def sudo_user() -> pwd.struct_passwd:
    """Return the user who called sudo, from variables that sudo itself sets. RequestRefused for
    root and unknown users.
    """
    uid = sudo_number("SUDO_UID")
    try:
        user = pwd.getpwuid(uid)
    except KeyError as error:
        raise RequestRefused(f"this host has no user with uid {uid}") from error
    if uid == 0 or sudo_number("SUDO_GID") == 0:
        raise RequestRefused("jobs of root, or with its group, are not checkpointed")
    return user


def slurms_groups(user: pwd.struct_passwd, gid: int) -> tuple[int, ...]:
    """Return the supplementary groups that Slurm gave the job, which sudo passes on to us.

    The groups come with the job's credential (slurm.conf(5), send_gids). This node may not know
    them: its image may lack them, or its directory service may not answer yet.
    """
    groups = os.getgroups()
    if 0 not in groups:
        return tuple(groups)
    # These are root's: the rule for sudo lacks preserve_groups.
    return tuple(os.getgrouplist(user.pw_name, gid))


def own_environment(sudo: str, proc: Path = Path("/proc")) -> dict[bytes, bytes]:
    """Return the environment that sudo, our parent, was called with. RequestRefused if it cannot be
    read.
    """
    parent = os.getppid()
    try:
        if program_of(parent, proc) == os.path.realpath(sudo):
            environment = _environment(parent, proc)
            if os.getppid() == parent:  # otherwise its pid may have been reused meanwhile
                return environment
    except OSError as error:
        raise RequestRefused(
            f"the environment of {sudo}, process {parent}: {error.strerror}"
        ) from error
    raise RequestRefused("not started by sudo")


def chain(site: HelperSite, proc: Path, *, asks: bool) -> tuple[int, int]:
    """Return the pids of sudo, the step's first process, and of the slurmstepd above it.
    RequestRefused if there are none.
    """
    child, pid = 0, os.getppid()
    while pid > 1 and program_of(pid, proc) == os.path.realpath(site.sudo):
        child, pid = pid, int(_status(pid, proc, "PPid") or 0)
    if not child:
        raise RequestRefused("not started by sudo")
    if asks:
        child, pid = pid, int(_status(pid, proc, "PPid") or 0)
    is_roots = _status(pid, proc, "Uid").split() == ["0"] * 4
    # Check its program and its user: users can give a process of their own, or sudo, any name and
    # any arguments.
    if program_of(pid, proc) != os.path.realpath(site.slurmstepd) or not is_roots:
        raise RequestRefused("sudo was not started by the batch script itself")
    return child, pid


def _step_of(step: int, proc: Path) -> tuple[int, str]:
    """Return the job and the name of the step for which a slurmstepd runs."""
    title = (proc / str(step) / "cmdline").read_bytes()
    title_match = _TITLE.match(title)
    if not title_match:
        raise RequestRefused("not started in a batch step")
    return int(title_match[1]), title_match[2].decode()


def program_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the path of the program that a process runs; "" if it cannot be read."""
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
        raise RequestRefused(f"{name} is not set: start this by sudo")
    return int(text)
