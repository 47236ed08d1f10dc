"""Why a job cannot be saved, from the message of a failed save. Pure. CRIU's messages are from 4.1
and 4.2 (its sources, and measured).
"""

from __future__ import annotations

import re
from enum import StrEnum

from slurm_elastic.model.causes.hindrances import (
    Hindrance,
    JobHindered,
    SaveErrorLasts,
    SaveObstacleKind,
)
from slurm_elastic.model.causes.save_refusals import ONE_NODE, NoBatchJob, SeveralNodes

TRIES = 2
"""The number of saves that must fail in a row. A step of the job, or a connection, may be gone at
the next save.
"""
LITTLE = 600.0
"""Seconds of work. A job that has worked for less time loses little by starting over elsewhere."""


class Unsavable(StrEnum):
    """The fate of a job that cannot be saved: ``stay`` where it is; stay and ``warn`` its user; or
    inform the user and start over on a machine that no cloud takes away.
    """

    STAY = "stay"
    WARN = "warn"
    ON_DEMAND = "on_demand"


_NO_LAUNCHER = "not under the launcher"
_PASSES = re.compile(
    r"no answer to|deadline|no time left|is not whole|of the file system|quota|No space left"
    r"|begun to use System V IPC just now"
    r"|does not answer|images are there"
    r"|Read-only file system|Stale file handle|the job is held|could not be|still at it"
    r"|cannot be (?:read now|verified within)"
)
"""Matches the message of a failed save whose next try may succeed."""
SEVERAL_NODES = ("dmtcp",)
"""The methods with a launcher that save batch jobs of several nodes, if a job names the method
itself.
"""
_KNOWN: tuple[tuple[SaveObstacleKind, str], ...] = (
    (SaveObstacleKind.CLOCKS, r"no clocks of its own"),
    (SaveObstacleKind.OTHER_DMTCP, r"another DMTCP than|DMTCP lacks"),
    # Before the network's rows: a step has connections, and these must not be closed.
    (SaveObstacleKind.STEP, r"runs a step \(srun\), which (?P<method>\w+) does not save"),
    (SaveObstacleKind.FILE_LOCK, r"file locks"),
    (SaveObstacleKind.SHARED_FILE, r"link.?remap|/dev/shm/sem\."),
    (SaveObstacleKind.LARGE_DELETED_FILE, r"ghost file|ghost-limit"),
    (SaveObstacleKind.UNACCEPTED_SOCKET, r"sk-unix\.c.*[Ii]n-flight"),
    (SaveObstacleKind.CONNECTION, r"[Cc]onnected TCP|TCP socket|tcp-established|[Ii]n-flight"),
    (SaveObstacleKind.TERMINAL, r"runs a terminal"),
    (SaveObstacleKind.VALGRIND, r"in valgrind"),
    (SaveObstacleKind.KERBEROS_KEYRING, r"Kerberos tickets in"),
    (SaveObstacleKind.OLD_CRIU, r"1:16 opt"),
    (SaveObstacleKind.NETWORK_SOCKET, r"sk-inet|listen|UDP|sk-netlink|packet socket"),
    (SaveObstacleKind.INOTIFY, r"[Ii]notify|fsnotify|fanotify"),
    (
        SaveObstacleKind.OWN_CONTAINER,
        r"nested .*(namespace|ns)|userns|user namespace|mnt ns|has namespaces or mounts",
    ),
    (SaveObstacleKind.OLD_KERNEL, r"System V IPC, which"),
    (SaveObstacleKind.SEM_UNDO, r"SEM_UNDO"),
    (SaveObstacleKind.BOUND_ADDRESS, r"socket bound to"),
    (SaveObstacleKind.TRACER, r"traced|ptrace|[Uu]nseizable"),
    # The kernel passes on no descriptor of an io_uring (-22). CRIU's message says no more than that
    # if the ring is unmapped.
    (SaveObstacleKind.IO_URING, r"io_uring|send_fds failed \(-22\)"),
    (SaveObstacleKind.SHARED_TMP, r"may be its own or that of another"),
    (SaveObstacleKind.MANY_TEMP_FILES, r"at most travel with it|more than \d+ files are in"),
    (SaveObstacleKind.NODE_FILE, r"of this node alone"),
    (SaveObstacleKind.DEVICE, r"chr \d+:\d+|of that type|device"),
    (SaveObstacleKind.OUTSIDE_CONNECTION, r"half of stream unix|external (unix )?socket|unix:"),
    (SaveObstacleKind.OUTSIDE_PROCESS, r"outside of its (pid )?namespace|session leader"),
    (SaveObstacleKind.OTHER_RIGHTS, r"other rights than"),
    (SaveObstacleKind.HIDDEN_MEMORY, r"not dumpable"),
    (SaveObstacleKind.SECCOMP, r"seccomp"),
    (SaveObstacleKind.UNKNOWN_MOUNT, r"Can't lookup mount"),
    (SaveObstacleKind.LANDLOCK, r"transport socket: Operation not permitted"),
    (SaveObstacleKind.MANY_GROUPS, r"more than \d+ groups"),
    (
        SaveObstacleKind.SEVERAL_NODES,
        rf"(?P<method>\w+) {ONE_NODE}, and this one has (?P<nodes>\d+)",
    ),
    (SaveObstacleKind.NOT_LAUNCHED, _NO_LAUNCHER),
    (SaveObstacleKind.SIGNAL_NOT_CAUGHT, r"batch script, which .*d(?:oes|id) not catch it"),
)


def unfit(method: str, *, batch: bool, nodes: int) -> NoBatchJob | SeveralNodes | None:
    """Return why a method with a launcher cannot save such a job; None if it can."""
    saves_several = method in SEVERAL_NODES
    if not batch:
        return NoBatchJob(method=method, one_node=not saves_several)
    return SeveralNodes(method=method, nodes=nodes) if nodes > 1 and not saves_several else None


def lacks_launcher(message: str) -> bool:
    """Whether a save failed because the run is not under the launcher. The launcher of a restarted
    run may still wait, so this is no obstacle yet while the run is young.
    """
    return _NO_LAUNCHER in message


def clearer(before: str, message: str) -> str:
    """Return the message that explains more, of two saves that failed in a row. If a run has ended,
    it is not under the launcher, and the message about that would hide the real obstacle.
    """
    return before if before and lacks_launcher(message) else message


def obstacle(message: str) -> Hindrance | None:
    """Return the reason in the message of a failed save; None if another save may succeed."""
    if _PASSES.search(message):
        return None
    for kind, pattern in _KNOWN:
        if match := re.search(pattern, message):
            return JobHindered(obstacle=kind, **match.groupdict())
    text = re.sub(r"^job \S+: (no checkpoint: )?", "", message)
    return SaveErrorLasts(error=" ".join(text.split())[:200])
