"""Find out whether DMTCP on this node can save processes on different hosts.

DMTCP 4.2.0 needs two changes for that, and none of its files shows whether it has them. A save
without the first change hangs, and the job with it: a process waits only for the others of its host
before it sends data of its sockets. A restart without the second change dies, because a process
publishes no address of its host. So we save and restore two processes on two hosts (network
namespaces), once for each build of DMTCP, before we save the first job of several nodes.

All users' jobs believe the answer, so the two processes run as a user that nobody is: the job's own
user could write their files and end them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from . import files
from .caller import CLEAN
from .payload import calm
from .proc import processes
from .site import HelperSite, RequestRefused

LACKS = "DMTCP lacks a change that jobs of several hosts need (docs/checkpoint-methods.md, dmtcp)"
_SAVE_TIMEOUT_S = 45.0
_RESTORE_TIMEOUT_S = 45.0
_START_TIMEOUT_S = 30.0
_RECHECK_S = 3600.0
"""Seconds after which a DMTCP that was found wanting is tried again."""
_MAX_ANSWER_BYTES = 1000
_POLL_EVERY_S = 0.1
_ADDRESSES = ("10.255.255.1", "10.255.255.2")
_PORTS = ("7901", "7902")
"""The coordinators' ports, for the save and for the restore. Nothing else listens there."""
_UIDS = range(61_184, 65_520)
"""For users without a name (systemd's DynamicUser)."""
_PROGRAM = """\
import os, socket, sys, time
if sys.argv[1] == "0":
    listener = socket.create_server(("10.255.255.1", 7800))
    ends = [listener.accept()[0] for _ in range(20)]
else:
    ends = []
    while len(ends) < 20:
        try:
            ends.append(socket.create_connection(("10.255.255.1", 7800)))
        except ConnectionRefusedError:
            time.sleep(0.1)
n = 0
while True:
    for end in ends:
        if sys.argv[1] == "0":
            end.sendall(b"%8d" % n)
            assert int(end.recv(8)) == n
        else:
            end.sendall(end.recv(8))
    n += 1
    if sys.argv[1] == "0":
        with open("count.new", "w") as file:
            file.write(str(n))
        os.rename("count.new", "count")
    time.sleep(0.02)
"""


def check(site: HelperSite, digest: str) -> None:
    """Raise RequestRefused if DMTCP cannot save processes on different hosts. ``digest``: of its
    libraries. All nodes share the answer.
    """
    record = site.jobs / f".dmtcp-{digest[:32]}"
    answer = _recorded(record)
    if answer is None:
        answer = _tried(site)
        _write(record, answer)
    if answer:
        raise RequestRefused(answer)


def _recorded(record: Path) -> str | None:
    """Return the recorded answer of an earlier probe: the reason why DMTCP cannot save such jobs,
    or "" if it can. None if no answer is recorded.
    """
    with contextlib.suppress(OSError, RequestRefused):
        answer = files.read(record, _MAX_ANSWER_BYTES, owners=(0,)).decode(errors="replace")
        if not answer or time.time() - record.stat().st_mtime < _RECHECK_S:
            return answer
    return None


def _write(record: Path, answer: str) -> None:
    # A name of our own, then a rename: probes of several nodes may end at the same time.
    new = record.with_name(f"{record.name}.{os.getpid()}")
    with contextlib.suppress(OSError, RequestRefused):
        with open(files.opened(new, files.NEW, mode=0o644), "w") as file:
            file.write(answer)
        new.rename(record)


def _tried(site: HelperSite) -> str:
    """Save and restore the two processes. Return the reason if DMTCP cannot do that, else ""."""
    site.scratch.mkdir(exist_ok=True)
    # The probe's user must pass through, but see no other names.
    site.scratch.chmod(0o711)
    place = Path(tempfile.mkdtemp(prefix="probe-", dir=site.scratch))
    try:
        uid = _unused_uid()
        os.chown(place, uid, uid)
        with _two_hosts() as hosts:
            return _Probe(site, uid, place, hosts).answer()
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestRefused(f"DMTCP cannot be tried on this node: {error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _unused_uid() -> int:
    """Return the number of a user without a name, a group or a process."""
    in_use = set()
    for pid in processes():
        with contextlib.suppress(OSError):
            in_use.add(os.stat(f"/proc/{pid}").st_uid)
    for uid in random.sample(_UIDS, 100):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            if uid not in in_use:
                return uid
    raise RequestRefused("DMTCP cannot be tried on this node: no number of a user is unused")


@contextlib.contextmanager
def _two_hosts() -> Iterator[tuple[int, int]]:
    """Yield the pids of two processes in connected network namespaces, with names of hosts."""
    with contextlib.ExitStack() as stack:
        pids = []
        for number in range(len(_ADDRESSES)):
            process = subprocess.Popen(
                ["unshare", "--net", "--uts", "sleep", "600"], env=CLEAN, stdin=subprocess.DEVNULL
            )
            # In reverse order at the end: first killed, then waited for.
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
            _wait(partial(_is_apart, process.pid), _START_TIMEOUT_S)
            _run("nsenter", "-t", str(process.pid), "-u", "hostname", f"probe{number}")
            if number:
                _in_net(pids[0], "link", "add", "probe0", "type", "veth", "peer", "name", "probe1",
                        "netns", str(process.pid))  # fmt: skip
        for number, address in enumerate(_ADDRESSES):
            _in_net(pids[number], "address", "add", f"{address}/30", "dev", f"probe{number}")
            _in_net(pids[number], "link", "set", f"probe{number}", "up")
            _in_net(pids[number], "link", "set", "lo", "up")
        yield pids[0], pids[1]


def _is_apart(pid: int) -> bool:
    """Return whether the process runs in its namespaces already."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"


def _in_net(pid: int, *arguments: str) -> None:
    _run("nsenter", "-t", str(pid), "-n", "ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(
        command, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=30
    )


def _wait(condition: Callable[[], bool], within: float) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_EVERY_S)
    return True


class _Probe:
    """Two processes of the user ``uid``, each on its host, in ``place``."""

    def __init__(self, site: HelperSite, uid: int, place: Path, hosts: tuple[int, int]) -> None:
        self._dmtcp = site.dmtcp
        self._uid = uid
        self._place = place
        self._hosts = hosts

    def answer(self) -> str:
        for name in ("0", "1", "tmp0", "tmp1"):
            (self._place / name).mkdir()
            os.chown(self._place / name, self._uid, self._uid)
        program = ["/usr/bin/python3", "-IS", "-c", _PROGRAM]
        arguments = {n: [*program, n] for n in ("0", "1")}
        with self._both(_PORTS[0], ["dmtcp_launch"], arguments) as tasks:
            if not _wait(lambda: self._count() > 0, _START_TIMEOUT_S):
                raise RequestRefused("DMTCP cannot be tried on this node: nothing began")
            self._start(0, "dmtcp_command", "--coord-host", _ADDRESSES[0], "--coord-port",
                        _PORTS[0], "--kcheckpoint").wait(_SAVE_TIMEOUT_S)  # fmt: skip
            if not _wait(lambda: all(t.poll() is not None for t in tasks), _SAVE_TIMEOUT_S):
                return f"{LACKS}: a save of two hosts hangs"
        before = self._count()
        images = {n: [str(p) for p in (self._place / n).glob("*.dmtcp")] for n in ("0", "1")}
        if not all(images.values()):
            return f"{LACKS}: a save of two hosts writes no images"
        restart = ["dmtcp_restart", "--no-strict-checking"]
        with self._both(_PORTS[1], restart, images):
            if not _wait(lambda: self._count() > before, _RESTORE_TIMEOUT_S):
                return f"{LACKS}: a restart on two hosts fails"
        return ""

    @contextlib.contextmanager
    def _both(
        self, port: str, program: list[str], arguments: dict[str, list[str]]
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Start a coordinator, and one process of DMTCP on each host."""
        self._start(0, "dmtcp_coordinator", "--daemon", "--exit-on-last", "--coord-port", port,
                    "--ckptdir", str(self._place)).wait(_START_TIMEOUT_S)  # fmt: skip
        tasks: list[subprocess.Popen[bytes]] = []
        try:
            for host, name in enumerate(("0", "1")):
                options = ["--join-coordinator", "--coord-host", _ADDRESSES[0], "--coord-port",
                           port, "--ckptdir", str(self._place / name)]  # fmt: skip
                tasks.append(self._start(host, *program, *options, *arguments[name]))
            yield tasks
        finally:
            for task in tasks:
                with contextlib.suppress(ProcessLookupError):
                    # dmtcp_launch becomes the program, and dmtcp_restart its processes: the whole
                    # group must go.
                    os.killpg(task.pid, 9)
                task.wait()

    def _start(self, host: int, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        inside = ["nsenter", "-t", str(self._hosts[host]), "-n", "-u", "-S",
                  str(self._uid), "-G", str(self._uid)]  # fmt: skip
        temporary = str(self._place / f"tmp{host}")
        return subprocess.Popen(
            [*inside, f"{self._dmtcp}/{program}", *arguments],
            env={**CLEAN, "DMTCP_TMPDIR": temporary, "DMTCP_QUIET": "2"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            # Our own blocked signals would stay blocked, DMTCP's (SIGUSR2) among them.
            cwd=self._place, start_new_session=True, preexec_fn=calm,
        )  # fmt: skip

    def _count(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self._place / "count").read_text())
        return 0
