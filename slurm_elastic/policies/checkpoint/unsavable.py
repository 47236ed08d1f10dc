"""Why a job cannot be saved, in one sentence, and what would help, from the message of a failed
save. Pure. CRIU's messages are from 4.1 and 4.2 (its sources, and measured).
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.base.pages import page
from slurm_elastic.model.causes.save_refusals import ONE_NODE, NoBatchJob, SeveralNodes

TRIES = 2
"""The number of saves that must fail in a row. A step of the job, or a connection, may be gone at
the next save.
"""
LITTLE = 600.0
"""A job that has worked for less than this (s) loses little by starting over elsewhere."""


class Unsavable(StrEnum):
    """The fate of a job that cannot be saved: ``stay`` where it is; stay and ``warn`` its user; or
    inform the user and start over on a machine that no cloud takes away.
    """

    STAY = "stay"
    WARN = "warn"
    ON_DEMAND = "on_demand"


class Obstacle(Struct, frozen=True):
    """``why`` completes "it cannot be saved:", and ``remedy`` completes "it would help to"."""

    why: str
    remedy: str


_PASSES = re.compile(
    r"no answer to|deadline|no time left|is not whole|of the file system|quota|No space left"
    r"|begun to use System V IPC just now"
    r"|does not answer|images are there"
    r"|Read-only file system|Stale file handle|the job is held|could not be|still at it"
)
"""Matches the message of a failed save whose next try may succeed."""
_OWN = f"save its state yourself: --comment=ckpt=signal ({page('checkpointing')})"
STEPS = "start the program without srun, which a job of one node does not need, or " + _OWN
"""The remedy for a job with steps."""
SEVERAL_NODES = ("dmtcp",)
"""The methods with a launcher that save batch jobs of several nodes, if a job names the method
itself.
"""
BY_MPIRUN = f"start the program by mpirun, or {_OWN}"
"""The remedy for a job of several nodes with steps."""
BY_SBATCH = "submit a script with sbatch"
ON_ONE_NODE = "ask for one node, or " + _OWN
"""The remedies where a method saves no job of that kind."""
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (r"no clocks of its own",
     "its node cannot set its clocks after a move, so its timers would never end",
     "ask your administrator for Linux 5.6 or later (CAP_SYS_TIME in a container), or " + _OWN),
    (r"another DMTCP than|DMTCP lacks",
     "its nodes have a DMTCP that cannot save jobs of several hosts",
     f"ask your administrator for DMTCP with two changes ({page('checkpoint-methods')})"),
    # Before the network's rows: a step has connections, and these must not be closed.
    (r"runs a step \(srun\), which (\w+) does not save",
     r"it runs a step (srun), which \1 does not save", STEPS),
    (r"file locks", "it holds a lock on a file", "run it without the lock, or " + _OWN),
    (r"link.?remap|/dev/shm/sem\.", "it uses a named semaphore or a deleted file that others hold",
     "keep the file as long as it is open, have semaphores without names (in Python's"
     " multiprocessing: the start method fork), or " + _OWN),
    (r"ghost file|ghost-limit", "it has a large file open that was deleted",
     "keep the file, or write it in the job's directory"),
    (r"sk-unix\.c.*[Ii]n-flight",
     "it has a unix socket with a connection that it has not accepted yet",
     "accept connections as they come, or " + _OWN),
    (r"[Cc]onnected TCP|TCP socket|tcp-established|[Ii]n-flight",
     "it has a network connection open",
     "close it while the job computes, or let a move close it if the program reconnects"
     " (--comment=ckpt=criu,tcp=close), or " + _OWN),
    (r"runs a terminal", "it runs in script(1) or the like, which a save would end",
     "write its output to a file"),
    (r"in valgrind", "it runs in valgrind, which does not continue after a save",
     "run it without valgrind"),
    (r"Kerberos tickets in", "it has its Kerberos tickets in a keyring of its node's kernel",
     "keep them in a file before kinit (export KRB5CCNAME=FILE:$HOME/.krb5cc), or " + _OWN),
    (r"1:16 opt", "it has a network socket open, which its node's CRIU cannot save on that kernel",
     "ask your administrator for CRIU 4.2, or " + _OWN),
    (r"sk-inet|listen|UDP|sk-netlink|packet socket",
     "it has a network socket open, as MPI has",
     "close it while the job computes, or " + _OWN),
    (r"[Ii]notify|fsnotify|fanotify", "it watches files (inotify)", "let it look at them instead"),
    (r"nested .*(namespace|ns)|userns|user namespace|mnt ns|has namespaces or mounts",
     "it runs in a container of its own", "run it without the container, or " + _OWN),
    (r"System V IPC, which", "it uses System V IPC, which its node's kernel is too old for",
     "ask your administrator for Linux 5.17 or later, or " + _OWN),
    (r"SEM_UNDO", "it has semaphores that may be undone at the end of a process (SEM_UNDO)",
     "have it use POSIX semaphores, or " + _OWN),
    (r"socket bound to", "it has a network socket bound to an address that only its node has",
     "have nodes with net.ipv4.ip_nonlocal_bind=1, let it listen on 127.0.0.1 alone, or " + _OWN),
    (r"traced|ptrace|[Uu]nseizable", "another process traces it, as a debugger does",
     "run it without the debugger"),
    # The kernel passes on no descriptor of an io_uring (-22). CRIU's message says no more than that
    # if the ring is unmapped.
    (r"io_uring|send_fds failed \(-22\)",
     "it uses io_uring, as node.js does, which CRIU cannot save",
     "have nodes with kernel.io_uring_disabled=2, or " + _OWN),
    (r"may be its own or that of another",
     "it has files in /tmp, and its user has other processes on the node, which may own them",
     "have it use $TMPDIR"),
    (r"at most travel with it|more than \d+ files are in",
     "it has more files in its node's temporary directories than travel with a save",
     "keep them in the job's directory"),
    (r"of this node alone", "it uses a file that only its node has and that does not belong to it",
     "keep it in the job's directory"),
    (r"chr \d+:\d+|of that type|device", "it has a device open, such as a GPU",
     "use the CRIU plug-in of the device where there is one, or " + _OWN),
    (r"half of stream unix|external (unix )?socket|unix:",
     "it is connected to a program outside of the job", "close the connection, or " + _OWN),
    (r"outside of its (pid )?namespace|session leader", "a process of it has left the job",
     "run its helpers in the foreground"),
    (r"other rights than", "a process of it has other rights than its user, as sudo gives",
     "run it without sudo and set-uid programs"),
    (r"not dumpable", "a process of it hides its memory, as agents of keys do",
     "start ssh-agent and the like outside of the job"),
    (r"seccomp", "a process of it has a seccomp filter, as browsers and sandboxes have",
     "switch its sandbox off, or " + _OWN),
    (r"Can't lookup mount",
     "it has something open that no directory of its node contains, such as a POSIX message queue",
     "use a pipe or a unix socket, or " + _OWN),
    (r"transport socket: Operation not permitted",
     "a process of it has confined itself (Landlock), as xz does",
     "switch its sandbox off, or " + _OWN),
    (r"more than \d+ groups", "its user is in too many groups", "ask your administrator"),
    (rf"(\w+) {ONE_NODE}, and this one has (\d+)", rf"\1 {ONE_NODE}, and it has \2", ON_ONE_NODE),
    (r"not under the launcher", "it is not under slurm-elastic's launcher on its node",
     "ask your administrator whether the node has the root part, and the job passed the filter"),
)  # fmt: skip


def unfit(method: str, *, batch: bool, nodes: int) -> NoBatchJob | SeveralNodes | None:
    """Return why a method with a launcher cannot save such a job; None if it can."""
    saves_several = method in SEVERAL_NODES
    if not batch:
        return NoBatchJob(method=method, one_node=not saves_several)
    return SeveralNodes(method=method, nodes=nodes) if nodes > 1 and not saves_several else None


def clearer(before: str, message: str) -> str:
    """Return the message that explains more, of two saves that failed in a row. A run that has
    ended is not under the launcher, and this message would hide the real obstacle.
    """
    return before if before and "not under the launcher" in message else message


def obstacle(message: str) -> Obstacle | None:
    """Return the reason in the message of a failed save; None if another save may succeed."""
    if _PASSES.search(message):
        return None
    for pattern, reason, remedy in _KNOWN:
        if match := re.search(pattern, message):
            return Obstacle(match.expand(reason), remedy)
    text = re.sub(r"^job \S+: (no checkpoint: )?", "", message)
    return Obstacle(" ".join(text.split())[:200], _OWN)
