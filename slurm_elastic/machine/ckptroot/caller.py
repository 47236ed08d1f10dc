"""For which job we were started: found out from the kernel, not believed.

The chain of parents must be slurmstepd of a batch step, then sudo, then us. A process is slurmstepd
only if it runs the installed program as root: its name and its arguments are words that a user may
give to a program of his own, sudo included.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.machine.ckptroot.site import Refused, Site

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)\.batch\]")
_CGROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""The environment of all that root runs."""
_PREEMPTED = re.compile(r" PreemptTime=(\S+)")
"""The first one of what follows BatchFlag is Slurm's: texts of the user's come later."""
_LOOK = 0.5
"""Seconds between two looks at what might end an unanswered question."""


@dataclass(frozen=True)
class Caller:
    """The job and its user. ``environment`` is the user's own, for his program only."""

    job: int
    uid: int
    gid: int
    user: str
    groups: tuple[int, ...]
    environment: dict[bytes, bytes]

    @property
    def node(self) -> str:
        """Slurm's name of this node; a name for people, as the user may set what he likes."""
        return self.environment.get(b"SLURMD_NODENAME", b"").decode(errors="replace")

    @property
    def restarts(self) -> int | None:
        """How often Slurm had restarted the job by the environment, which the user may change;
        None where that says nothing, as in a first run.
        """
        text = self.environment.get(b"SLURM_RESTART_COUNT", b"")
        return int(text) if text.isdigit() else None


@dataclass(frozen=True)
class JobState:
    """A job as slurmctld has it. ``state`` is its base state, such as RUNNING; ``preempted``: it is
    to make room for another one soon.
    """

    state: str
    uid: int
    restarts: int
    array_job: int = 0
    array_task: int | None = None
    preempted: bool = False

    def label(self, job: int) -> str:
        """The name that users have for the job: ``12``, or ``12_3`` of an array."""
        return str(job) if self.array_task is None else f"{self.array_job}_{self.array_task}"


def identify(site: Site, *, asks: bool = False, proc: Path = Path("/proc")) -> Caller:
    """The caller; Refused unless it is the batch script of a job of the user who called sudo.

    With ``asks`` the script has called sudo as a child, to ask whether it may be run so.
    """
    user, parent = sudo_user(), os.getppid()
    top, step = _chain(site, proc, asks=asks)
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
    # Whose parent is alive still has that parent: so none of these numbers was another's meanwhile.
    if os.getppid() != parent or _chain(site, proc, asks=asks) != (top, step):
        raise Refused("what started us ended meanwhile")
    return caller


def sudo_user() -> pwd.struct_passwd:
    """Who called sudo, which sets this itself; Refused for root and for unknown users."""
    uid = sudo_number("SUDO_UID")
    try:
        user = pwd.getpwuid(uid)
    except KeyError as error:
        raise Refused(f"this host has no user with uid {uid}") from error
    if uid == 0 or sudo_number("SUDO_GID") == 0:
        raise Refused("jobs of root, or with its group, are not checkpointed")
    return user


def own_environment(sudo: str, proc: Path = Path("/proc")) -> dict[bytes, bytes]:
    """That of sudo, our parent, as its caller gave it; Refused where it is not to be had."""
    parent = os.getppid()
    try:
        if program_of(parent, proc) == os.path.realpath(sudo):
            environment = _environment(parent, proc)
            if os.getppid() == parent:  # else its number may have been another's meanwhile
                return environment
    except OSError as error:
        raise Refused(f"the environment of {sudo}, process {parent}: {error.strerror}") from error
    raise Refused("not started by sudo")


def ask(
    site: Site, job: int, timeout: float = 10.0, look: Callable[[], None] = lambda: None
) -> JobState | None:
    """The job as slurmctld has it; None where it does not answer, state ``GONE`` where it no
    longer knows the job. ``look`` is called now and then, and may end it by what it raises.
    """
    environment = {**CLEAN, **({"SLURM_CONF": site.slurm_conf} if site.slurm_conf else {})}
    command = [site.scontrol, "-o", "show", "job", str(job)]
    try:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace",
        ) as asked:  # fmt: skip
            out, err = _answer(asked, timeout, look)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode != 0:
        gone = "Invalid job id" in err + out
        return JobState(state="GONE", uid=-1, restarts=0) if gone else None
    return _job_state(out, job)


def _answer(
    asked: subprocess.Popen[str], timeout: float, look: Callable[[], None]
) -> tuple[str, str]:
    until = time.monotonic() + timeout
    try:
        while (left := until - time.monotonic()) > _LOOK:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return asked.communicate(timeout=_LOOK)
            look()
        return asked.communicate(timeout=max(left, 0.0))
    except BaseException:
        asked.kill()
        raise


def _job_state(text: str, job: int) -> JobState | None:
    """One line a job; an array's id names all of its tasks, so ours is looked for.

    Its user's own texts may imitate any field. All but the job's name come after BatchFlag, which
    follows Restarts, and of what the name imitates the real one comes later; those of an array come
    before it. Where BatchFlag itself is imitated nothing is certain.
    """
    for line in text.splitlines():
        if not line.startswith(f"JobId={job} "):
            continue
        fixed, _, rest = line.partition(" BatchFlag=")
        if " BatchFlag=" in rest:
            return None
        ids, words = _words(fixed.partition(" JobName=")[0]), _words(fixed)
        uid = re.search(r"\((\d+)\)", words.get("UserId", ""))
        task = ids.get("ArrayTaskId", "")
        preempted = _PREEMPTED.search(rest)
        return JobState(
            state=words.get("JobState", ""),
            uid=int(uid[1]) if uid else -1,
            restarts=int(words.get("Restarts", "0") or 0),
            array_job=int(ids.get("ArrayJobId", "0") or 0),
            array_task=int(task) if task.isdigit() else None,
            preempted=preempted is not None and preempted[1] != "None",
        )
    return None


def _words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _chain(site: Site, proc: Path, *, asks: bool) -> tuple[int, int]:
    """The pids of the step's first process, which is sudo, and of its slurmstepd."""
    child, pid = 0, os.getppid()
    while pid > 1 and program_of(pid, proc) == os.path.realpath(site.sudo):
        child, pid = pid, _parent(pid, proc)
    if not child:
        raise Refused("not started by sudo")
    if asks:
        child, pid = pid, _parent(pid, proc)
    if program_of(pid, proc) != os.path.realpath(site.slurmstepd) or not _is_root(pid, proc):
        raise Refused("sudo was not started by the batch script itself")
    return child, pid


def _job_of(step: int, proc: Path) -> int:
    title = (proc / str(step) / "cmdline").read_bytes()
    found = _TITLE.match(title)
    if not found:
        raise Refused("not started in a batch step")
    return int(found[1])


def program_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The path of the file that a process runs; empty where it cannot be read."""
    try:
        return os.readlink(proc / str(pid) / "exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def _is_root(pid: int, proc: Path) -> bool:
    return _status(pid, proc, "Uid").split() == ["0"] * 4


def _parent(pid: int, proc: Path) -> int:
    return int(_status(pid, proc, "PPid") or 0)


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
    """One of the numbers that sudo sets."""
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise Refused(f"{name} is not set: start this by sudo")
    return int(text)
