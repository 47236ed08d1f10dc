"""The root service ``slurm-elastic-copier``: starts the head's end of a copy as the job's user.

A client sends one line, the order, with three descriptors: the input and output that lead to the
machine, and the pipe for the result. The client gets a line when the end has ended. If it closes
the connection before that, the end is killed. root itself opens no path of a user.

The end starts as root and becomes the user itself, before it opens a file: no program is started
after that, so the user cannot trace it, write to its connection, or add modules to its Python.
"""

from __future__ import annotations

import array
import contextlib
import json
import logging
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes.unixsocket import bind_socket, peer_of, remove_socket

log = logging.getLogger(__name__)

_MAX_ORDER_BYTES = 256 << 10
_MAX_CLIENTS = 64
_REQUEST_TIMEOUT_S = 10.0
GROUPS_DOUBT_S = 300.0
"""The longest doubt. It also ends after half of copy.back_within, or the files of a user who has
really left a group would be lost.
"""
KILL_WAIT_S = 5.0
MAX_STUCK_ENDS = 8
"""Copies of one user that may wait for a directory that does not answer."""
_PLACE_WAIT_S = 5.0
_PATH = "/usr/local/bin:/usr/bin:/bin"


class CopierRefusalError(Exception):
    """The order is not carried out."""


def start_head(order: Mapping[str, Any], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the head's end as the order's user, with three descriptors as its standard files.
    CopierRefusalError if it is no user whose files are copied, or if copies of the user hang.
    """
    uid = order.get("uid")
    if not isinstance(uid, int) or uid <= 0:
        raise CopierRefusalError(f"the files of uid {uid} are not copied")
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise CopierRefusalError(f"this host has no user with uid {uid}") from None
    stuck_ends.check(uid)
    # The groups are ours and not the order's: slurm-elasticd names a user, and no rights.
    groups = groups_of(account)
    named, doubt_s = order.get("groups", groups), order.get("groups_doubt", GROUPS_DOUBT_S)
    if not isinstance(named, list) or not isinstance(doubt_s, int | float):
        raise CopierRefusalError("groups of the order is no list, or groups_doubt no number")
    _memory.check(uid, groups, doubt_s)
    if not all(group in named for group in groups):
        raise CopierRefusalError(f"slurm-elasticd named fewer groups of uid {uid}")
    text = json.dumps({**order, "gid": account.pw_gid, "groups": groups})
    # -P and -s keep the current directory and the user's own packages out of the path: it starts as
    # root. Its own session lets ``_run`` kill it with all its children.
    python_path = os.environ.get("PYTHONPATH")
    source, sink = os.pipe()
    with open(sink, "wb", buffering=0) as pipe:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", f"{__package__}.run", "head", str(source)],
                stdin=descriptors[0], stdout=descriptors[1], stderr=descriptors[2], cwd="/",
                umask=0o022, start_new_session=True, pass_fds=(source,),
                env={"PATH": _PATH} | ({"PYTHONPATH": python_path} if python_path else {}),
            )  # fmt: skip
        finally:
            os.close(source)
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit status counts
            pipe.write(text.encode())
    return process


class GroupMemory:
    """The groups of users. A directory service that does not answer looks like a user with the
    primary group alone, who may read fewer files. So a group that is missing is doubted for a time.
    Only the service that starts the head's end doubts: two doubts in a row would use up the time
    that a copy has.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_groups", "_doubted_at")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, frozenset[int]] = {}
        self._doubted_at: dict[int, float] = {}

    def check(self, uid: int, groups: Collection[int], doubt_s: float = GROUPS_DOUBT_S) -> None:
        """CopierRefusalError if groups of the user have been missing for less than ``doubt_s``."""
        with self._lock:
            missing = self._groups.get(uid, frozenset()).difference(groups)
            now = time.monotonic()
            if missing and now - self._doubted_at.setdefault(uid, now) < doubt_s:
                raise CopierRefusalError(
                    f"this host names fewer groups of uid {uid} than before, without"
                    f" {', '.join(map(str, sorted(missing)))}: its directory service may be away"
                )
            self._doubted_at.pop(uid, None)
            self._groups[uid] = frozenset(groups)


class StuckEnds:
    """The head's ends that were killed and have not ended: they wait in the kernel for a directory
    that does not answer, such as a FUSE of their user. Nobody waits for them, and a user with many
    of them gets no further one, so that they take nothing from other users.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_stuck")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck: list[tuple[int, subprocess.Popen[bytes]]] = []

    def check(self, uid: int) -> None:
        """CopierRefusalError if the user has too many of them."""
        with self._lock:
            self._stuck = [(user, end) for user, end in self._stuck if end.poll() is None]
            count = sum(user == uid for user, _ in self._stuck)
        if count >= MAX_STUCK_ENDS:
            raise CopierRefusalError(
                f"{count} copies of uid {uid} wait for a directory on the head that does not answer"
            )

    def kill(self, uid: int, process: subprocess.Popen[bytes]) -> int | None:
        """Kill a user's end with its children. Return its exit code, None if it does not end."""
        with contextlib.suppress(ProcessLookupError):
            # The group, because the head's end has children of its own.
            os.killpg(process.pid, signal.SIGKILL)
        try:
            return process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            log.warning("a killed copy does not end uid=%d pid=%d", uid, process.pid)
            with self._lock:
                self._stuck.append((uid, process))
            return None


stuck_ends = StuckEnds()
_memory = GroupMemory()


def groups_of(account: pwd.struct_passwd) -> list[int]:
    """The groups of a user, without root's."""
    return [gid for gid in os.getgrouplist(account.pw_name, account.pw_gid) if gid > 0]


class Copier:
    """Serves the users ``uids`` at ``path`` until ``end``."""

    guarded_by: ClassVar[GuardedBy] = {"_places": "to copy, up to a number of copies at a time"}

    def __init__(self, path: Path, uids: Set[int]) -> None:
        self._path, self._uids = path, uids
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.parent.mkdir(parents=True, exist_ok=True)
        other_uids = sorted(uids - {0})
        owner = other_uids[0] if len(other_uids) == 1 else -1
        bind_socket(self._listener, path, owner=owner, backlog=_MAX_CLIENTS)
        self._inode = os.stat(path).st_ino

    def serve(self) -> None:
        """Serve until ``end`` is called."""
        with contextlib.suppress(OSError):  # ``end`` has closed the listener
            while True:
                link, _ = self._listener.accept()
                threading.Thread(target=self._attend, args=(link,), daemon=True).start()

    def end(self) -> None:
        """Stop listening. Copies that run are ended with this process."""
        # By its inode: a newer service may have put its own socket there.
        remove_socket(self._path, self._inode)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _attend(self, link: socket.socket) -> None:
        with link:
            while not self._places.acquire(timeout=_PLACE_WAIT_S):
                if _has_left(link):
                    return
            try:
                self._serve(link)
            finally:
                self._places.release()

    def _serve(self, link: socket.socket) -> None:
        link.settimeout(_REQUEST_TIMEOUT_S)
        answer: Mapping[str, Any]
        try:
            if peer_of(link).uid not in self._uids:
                raise CopierRefusalError("only root and SlurmUser may ask")  # noqa: TRY301
            answer = {"ok": True, "code": _run(link)}
        except (CopierRefusalError, OSError, ValueError) as error:
            log.warning("refused or failed: %s", error)
            answer = {"ok": False, "message": str(error)}
        with contextlib.suppress(OSError):
            link.sendall(json.dumps(answer).encode() + b"\n")


def _has_left(link: socket.socket) -> bool:
    """Whether the client has closed its connection, after its order that nobody has read yet."""
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    return bool(poll.poll(0))


def _run(link: socket.socket) -> int | None:
    order, descriptors = _receive(link)
    try:
        if len(descriptors) != 3:
            raise CopierRefusalError("an order comes with three descriptors")
        process = start_head(order, descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    log.info("started do=%s job=%s uid=%s", order.get("do"), order.get("job"), order.get("uid"))
    handle = os.pidfd_open(process.pid)
    try:
        # The client sends nothing more: if the link can be read, the client has gone.
        poll = select.poll()
        for descriptor in (handle, link.fileno()):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
    finally:
        os.close(handle)
    if link.fileno() in ready:
        return stuck_ends.kill(order["uid"], process)
    return process.wait()


def _receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    descriptors = array.array("i")
    text = b""
    while not text.endswith(b"\n"):
        room = socket.CMSG_SPACE(3 * descriptors.itemsize)
        block, ancillary, _, _ = link.recvmsg(65536, room)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) // 4 * 4])
        text += block
        if not block or len(text) > _MAX_ORDER_BYTES:
            raise CopierRefusalError("no whole order came")
    order = json.loads(text)
    if not isinstance(order, dict):
        raise CopierRefusalError("the order is no object")
    return order, list(descriptors)
