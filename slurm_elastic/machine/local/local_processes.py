"""Machines that are processes: a slurmd with all its jobs, started and powered off as one.

A process is identified by pid *and* start time (``/proc/PID/stat`` field 22, proc(5)), so that a
reused pid is never taken for ours. We find the processes of a machine without going by names:

- Root's processes with ``SLURM_ELASTIC_MACHINE=<directory>`` in their environment: slurmd and its
  prologs. The directory and not an id, as several clusters on this host may each have an ``st1``.
  slurmstepd writes its title over its environment, but like slurmd it works in the machine's
  directory (measured on 22.05). Users can imitate neither.
- Where the kernel permits it, each machine has a UTS namespace of its own. Nothing that a job does
  as its user leaves that, neither setsid nor a daemon's double fork. It changes nothing else; the
  host name stays.
- All children of those.
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
_SPACE = "ns/uts"
# Whoever owns the log's directory must not choose by a link which file root writes to.
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Process(Struct, frozen=True, kw_only=True):
    """One process, whatever happens to its pid: ``start`` is its start in clock
    ticks since boot.
    """

    pid: int
    start: int


class SlurmdSettings(Struct, frozen=True, kw_only=True):
    """The settings of a slurmd. ``directory`` is its working directory, which nothing else uses.

    With ``conf_server`` (``host:port``) slurmd fetches its configuration there and ``conf`` is not
    used ("configless", slurmd(8) --conf-server).
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
    """Start a program in its own session, with default signals and none blocked."""
    # Each of these small programs replaces itself by the next: the pid is the program's own.
    chain = ["/usr/bin/env", f"--chdir={directory}"]
    if namespace:
        chain += ["unshare", "--uts"]
    if user is not None:
        who = pwd.getpwnam(user)
        chain += ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--init-groups"]
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
            # slurmctld's children inherit a mask that blocks SIGTERM, and their process group is
            # killed with them: a daemon must get neither.
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
    """Whether this very process runs. If it has ended and was our child, it is reaped."""
    stat = _stat(process.pid)
    if stat is None or stat.start != process.start:
        return False
    if not stat.over:
        return True
    with contextlib.suppress(OSError):
        os.waitpid(process.pid, os.WNOHANG)
    return False


def send(process: Process, signum: signal.Signals) -> None:
    """Signal this very process; no error if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The descriptor holds on to whoever has the pid now: check after opening, then signal.
        if alive(process):
            signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def stop(process: Process, deadline: float = 10.0) -> None:
    """Send SIGTERM, and SIGKILL after ``deadline`` seconds; returns when the process is gone."""
    send(process, signal.SIGTERM)
    if not wait_gone([process], deadline):
        send(process, signal.SIGKILL)
        wait_gone([process], 10.0)


def wait_gone(processes: Iterable[Process], timeout: float) -> bool:
    """Whether all of them end within ``timeout`` seconds."""
    left = list(processes)
    until = time.monotonic() + timeout
    while left := [p for p in left if alive(p)]:
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def power_off(directory: str, *, slurmd: Process | None = None) -> None:
    """End all that runs on the machine of ``directory`` at once, as pulling its plug would."""
    if slurmd is not None:
        send(slurmd, signal.SIGKILL)
    until = time.monotonic() + 30
    while (members := belonging(directory)) and time.monotonic() < until:
        for process in members:
            send(process, signal.SIGKILL)
        wait_gone(members, 1.0)


def carrying(name: str, value: str, uids: Set[int]) -> list[Process]:
    """Processes of these real uids that were started with ``name=value`` in the environment."""
    wanted = f"{name}={value}".encode()
    return [
        s.process
        for s in _all()
        if wanted in _environment(s.process.pid) and _uid(s.process.pid) in uids
    ]


def values(name: str) -> set[str]:
    """The values that ``name`` has in the environments of our processes and root's."""
    prefix = f"{name}=".encode()
    return {
        entry.removeprefix(prefix).decode(errors="replace")
        for s in _all()
        for entry in _environment(s.process.pid)
        if entry.startswith(prefix) and _trusted(s.process.pid)
    }


def find(directory: str) -> Process | None:
    """The slurmd that was started in ``directory``, if it runs (after a crash before it was
    recorded).
    """
    found = [s.process for s in _all() if _marked(s.process.pid, directory)]
    # The oldest that carries the marker: its name may not be slurmd yet.
    return min(found, key=lambda p: (p.start, p.pid), default=None)


def belonging(directory: str) -> list[Process]:
    """The processes that run on the machine: slurmd's first, then slurmstepd's, then all others."""
    everyone = {s.process.pid: s for s in _all()}
    ours = {pid for pid, s in everyone.items() if _is_root_of(s, directory)}
    spaces = {_link(pid, _SPACE) for pid in ours}
    spaces -= {_link(os.getpid(), _SPACE), _link(1, _SPACE), None}
    if spaces:
        ours |= {pid for pid in everyone if _link(pid, _SPACE) in spaces}
    ours |= _descendants(ours, everyone.values())
    ours -= {os.getpid(), os.getppid(), 1}
    members = [everyone[pid] for pid in ours]
    # slurmd first and its slurmstepd's next, so that none of them tells slurmctld that a job has
    # ended.
    members.sort(key=lambda s: (_ORDER.get(s.name, len(_ORDER)), s.process.start))
    return [s.process for s in members]


@functools.cache
def has_namespaces() -> bool:
    """Whether a machine can have its own UTS namespace here (needs CAP_SYS_ADMIN)."""
    try:
        done = subprocess.run(
            ["unshare", "--uts", "true"], capture_output=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class _Seen(Struct, frozen=True, kw_only=True):
    process: Process
    parent: int
    name: str


_ORDER = {"slurmd": 0, "slurmstepd": 1}


def _all() -> Iterator[_Seen]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (stat := _stat(int(entry))) and not stat.over:
            process = Process(pid=int(entry), start=stat.start)
            yield _Seen(process=process, parent=stat.parent, name=stat.name)


class _Stat(Struct, frozen=True, kw_only=True):
    name: str
    state: str
    parent: int
    start: int
    threads: int

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        # A leader that has ended may still have threads, which hold its files.
        return self.state in "ZX" and self.threads <= 1


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name may contain spaces and brackets; after the last bracket fields are regular.
    before, _, after = text.rpartition(")")
    fields = after.split()
    return _Stat(
        name=before.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        threads=int(fields[17]),
        start=int(fields[19]),
    )


def _is_root_of(seen: _Seen, directory: str) -> bool:
    pid = seen.process.pid
    if _marked(pid, directory):
        return True
    if seen.name not in _ORDER:
        return False
    place = _link(pid, "cwd") or ""
    return place.removesuffix(" (deleted)") == directory and _trusted(pid)


def _marked(pid: int, directory: str) -> bool:
    """Whether it was started as a process of that machine."""
    # Users' processes are not looked at: their environment is memory, which may be mapped from a
    # file whose file system never answers.
    return _trusted(pid) and f"{MARKER}={directory}".encode() in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _trusted(pid: int) -> bool:
    """Whether it runs as root or as we do. Users can forge all else that we look for."""
    return _uid(pid) in (0, os.getuid())


def _uid(pid: int) -> int | None:
    """The real uid, as slurmstepd sometimes sets its effective one to the job's user."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    found = (line.split()[1] for line in status.splitlines() if line.startswith("Uid:"))
    return next((int(uid) for uid in found), None)


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(_PROC / str(pid) / name)
    except OSError:
        return None


def _descendants(roots: Set[int], everyone: Iterable[_Seen]) -> set[int]:
    children: dict[int, list[int]] = {}
    for seen in everyone:
        children.setdefault(seen.parent, []).append(seen.process.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(fresh)
        queue.extend(fresh)
    return found
