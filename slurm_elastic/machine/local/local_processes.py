"""Machines that are processes: a slurmd with all its jobs, started and powered off as one.

We identify a process by pid *and* start time (``/proc/PID/stat`` field 22, proc(5)), so that we
never take a reused pid for our process. We find the processes of a machine without relying on
names:

- Root's processes with ``SLURM_ELASTIC_MACHINE=<directory>`` in their environment: slurmd and its
  prologs. The value is the directory and not an id, because several clusters on this host may each
  have an ``st1``. slurmstepd overwrites its environment with its title, but like slurmd it works in
  the machine's directory (measured on 22.05). Users can imitate neither.
- The processes in the machine's UTS namespace. Each machine has its own where the kernel permits
  it. A job cannot leave the namespace as its user, neither by setsid nor by a double fork. The
  namespace changes nothing else; the host name stays.
- All children of these processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from msgspec import Struct

MARKER = "SLURM_ELASTIC_MACHINE"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROC = Path("/proc")
_UTS_NAMESPACE = "ns/uts"
# O_NOFOLLOW: the owner of the log's directory could otherwise place a link and choose which file
# root writes to.
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Process(Struct, frozen=True, kw_only=True):
    """One process. Its pid may be reused, so ``start`` is its start in clock ticks since boot."""

    pid: int
    start: int


class SlurmdSettings(Struct, frozen=True, kw_only=True):
    """The settings of a slurmd. ``directory`` is its working directory, used by nothing else.

    ``conf_server`` (``host:port``): slurmd fetches its configuration there and ``conf`` is not used
    ("configless", slurmd(8) --conf-server).
    """

    id: str
    node: str
    directory: str
    log: str
    conf: str = "/etc/slurm/slurm.conf"
    conf_server: str | None = None
    slurmd: str = "/usr/sbin/slurmd"
    environment: dict[str, str] = {}


def start(machine: SlurmdSettings) -> Process:
    """Start the machine's slurmd, which outlives us. OSError if it cannot be started."""
    Path(machine.directory).mkdir(parents=True, exist_ok=True)
    config = ["--conf-server", machine.conf_server] if machine.conf_server else ["-f", machine.conf]
    argv = [machine.slurmd, "-N", machine.node, "-b", "-D", *config]
    environment = {"PATH": _PATH, **machine.environment, MARKER: machine.directory}
    if machine.conf_server is None:
        environment["SLURM_CONF"] = machine.conf
    return spawn(
        argv, environment, log=machine.log, directory=machine.directory, namespace=has_namespaces()
    )


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: str,
    directory: str = "/",
    user: str | None = None,
    namespace: bool = False,
) -> Process:
    """Start a program in its own session, with default signals and an empty signal mask.

    ``user``: run it as this user. ``namespace``: give it its own UTS namespace.
    """
    # Each program of the chain replaces itself by the next (execve), so the pid stays the same.
    chain = ["/usr/bin/env", f"--chdir={directory}"]
    if namespace:
        chain += ["unshare", "--uts"]
    if user is not None:
        account = pwd.getpwnam(user)
        chain += [
            "setpriv",
            f"--reuid={account.pw_uid}",
            f"--regid={account.pw_gid}",
            "--init-groups",
        ]
    output = os.open(log, _LOG_FLAGS, 0o644)
    try:
        pid = os.posix_spawn(
            chain[0],
            [*chain, *argv],
            {"PATH": _PATH, **environment},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            # slurmctld's children inherit a mask that blocks SIGTERM, and slurmctld kills their
            # process group. A daemon must inherit neither.
            setsid=True,
            setsigmask=[],
            setsigdef=[
                s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)
            ],
        )
    finally:
        os.close(output)
    stat = _stat(pid)
    return Process(pid=pid, start=stat.start if stat else 0)


def alive(process: Process) -> bool:
    """Return whether this process still runs. If it has ended and was our child, reap it."""
    stat = _stat(process.pid)
    if stat is None or stat.start != process.start:
        return False
    if not stat.has_ended:
        return True
    with contextlib.suppress(OSError):
        os.waitpid(process.pid, os.WNOHANG)
    return False


def send(process: Process, signum: signal.Signals) -> None:
    """Signal this process; no error if it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The descriptor belongs to the process that has the pid now, maybe a later process. So open
        # first, then compare the start time, then signal.
        if alive(process):
            signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def stop(process: Process, deadline: float = 10.0) -> None:
    """Send SIGTERM, then SIGKILL after ``deadline`` seconds. Return when the process is gone."""
    send(process, signal.SIGTERM)
    if not wait_gone([process], deadline):
        send(process, signal.SIGKILL)
        wait_gone([process], 10.0)


def wait_gone(processes: Iterable[Process], timeout: float) -> bool:
    """Wait until all processes have ended. Return False after ``timeout`` seconds."""
    running = list(processes)
    until = time.monotonic() + timeout
    while running := [p for p in running if alive(p)]:
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def power_off(directory: str, *, slurmd: Process | None = None) -> None:
    """Kill all processes of the machine of ``directory``, as a power cut would. Gives up after 30
    s.
    """
    if slurmd is not None:
        send(slurmd, signal.SIGKILL)
    until = time.monotonic() + 30
    # Repeat: a process may have forked between the listing and its end.
    while (members := belonging(directory)) and time.monotonic() < until:
        for process in members:
            send(process, signal.SIGKILL)
        wait_gone(members, 1.0)


def carrying(name: str, value: str, uids: Set[int]) -> list[Process]:
    """Return processes with any of these real uids and with ``name=value`` in their first
    environment.
    """
    entry = f"{name}={value}".encode()
    return [
        s.process
        for s in _running_processes()
        if entry in _environment(s.process.pid) and _uid(s.process.pid) in uids
    ]


def values(name: str) -> set[str]:
    """Return the values of the variable ``name`` in the environments of our and root's
    processes.
    """
    prefix = f"{name}=".encode()
    return {
        entry.removeprefix(prefix).decode(errors="replace")
        for s in _running_processes()
        for entry in _environment(s.process.pid)
        if entry.startswith(prefix) and _is_trusted(s.process.pid)
    }


def find(directory: str) -> Process | None:
    """Return the running slurmd that was started in ``directory``, or None.

    It finds a slurmd that was not recorded because of a crash.
    """
    marked = [s.process for s in _running_processes() if _has_marker(s.process.pid, directory)]
    # Take the oldest: until it calls execve its name is not slurmd yet.
    return min(marked, key=lambda p: (p.start, p.pid), default=None)


def belonging(directory: str) -> list[Process]:
    """Return the machine's processes: slurmd first, then slurmstepd, then all others."""
    by_pid = {s.process.pid: s for s in _running_processes()}
    pids = {pid for pid, s in by_pid.items() if _is_root_of(s, directory)}
    namespaces = {_link(pid, _UTS_NAMESPACE) for pid in pids}
    namespaces -= {_link(os.getpid(), _UTS_NAMESPACE), _link(1, _UTS_NAMESPACE), None}
    if namespaces:
        pids |= {pid for pid in by_pid if _link(pid, _UTS_NAMESPACE) in namespaces}
    pids |= _descendants(pids, by_pid.values())
    pids -= {os.getpid(), os.getppid(), 1}
    members = [by_pid[pid] for pid in pids]
    # Kill slurmd first, then its slurmstepd: otherwise one of them tells slurmctld that the job
    # ended.
    members.sort(key=lambda s: (_ORDER.get(s.name, len(_ORDER)), s.process.start))
    return [s.process for s in members]


@functools.cache
def has_namespaces() -> bool:
    """Return whether a machine can have its own UTS namespace here (needs CAP_SYS_ADMIN)."""
    try:
        result = subprocess.run(
            ["unshare", "--uts", "true"], capture_output=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


class _ProcessEntry(Struct, frozen=True, kw_only=True):
    process: Process
    parent: int
    name: str


_ORDER = {"slurmd": 0, "slurmstepd": 1}


def _running_processes() -> Iterator[_ProcessEntry]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (stat := _stat(int(entry))) and not stat.has_ended:
            process = Process(pid=int(entry), start=stat.start)
            yield _ProcessEntry(process=process, parent=stat.parent, name=stat.name)


class _Stat(Struct, frozen=True, kw_only=True):
    name: str
    state: str
    parent: int
    start: int
    threads: int

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        # A zombie leader may still have running threads, which hold its files.
        return self.state in "ZX" and self.threads <= 1


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name may contain spaces and brackets, so split after the last bracket.
    before, _, after = text.rpartition(")")
    fields = after.split()
    return _Stat(
        name=before.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        threads=int(fields[17]),
        start=int(fields[19]),
    )


def _is_root_of(entry: _ProcessEntry, directory: str) -> bool:
    pid = entry.process.pid
    if _has_marker(pid, directory):
        return True
    if entry.name not in _ORDER:
        return False
    directory_now = _link(pid, "cwd") or ""
    return directory_now.removesuffix(" (deleted)") == directory and _is_trusted(pid)


def _has_marker(pid: int, directory: str) -> bool:
    """Return whether the process was started as part of that machine."""
    # Check the uid first and do not read environments of users' processes. An environment is
    # memory; a user can map it from a file system that never answers, and the read would hang.
    return _is_trusted(pid) and f"{MARKER}={directory}".encode() in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_trusted(pid: int) -> bool:
    """Return whether the process runs as root or as our user. Users can forge everything else that
    we check.
    """
    return _uid(pid) in (0, os.getuid())


def _uid(pid: int) -> int | None:
    """Return the real uid. slurmstepd sometimes sets its effective uid to the job's user."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    uids = (line.split()[1] for line in status.splitlines() if line.startswith("Uid:"))
    return next((int(uid) for uid in uids), None)


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(_PROC / str(pid) / name)
    except OSError:
        return None


def _descendants(roots: Set[int], processes: Iterable[_ProcessEntry]) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in processes:
        children.setdefault(entry.parent, []).append(entry.process.pid)
    descendants: set[int] = set()
    queue = list(roots)
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), []) if pid not in descendants]
        descendants.update(fresh)
        queue.extend(fresh)
    return descendants
