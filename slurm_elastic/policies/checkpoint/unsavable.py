"""Why a job cannot be saved, in one sentence, and what would help: by the words of a failed save.
Pure. CRIU's own words are those of 4.1 and 4.2 (its sources, and measured).
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

TRIES = 2
"""Saves that must fail in a row: a step of the job, or a connection, may be there for a moment."""
LITTLE = 600.0
"""Seconds of work that are little to lose, for a job that is to begin anew elsewhere."""


class Unsavable(StrEnum):
    """The fate of a job that cannot be saved: it ``stay``s where it is; it stays, and its user
    is told (``warn``); or it is told, and begins anew on a machine that is not taken away.
    """

    STAY = "stay"
    WARN = "warn"
    ON_DEMAND = "on_demand"


class Obstacle(Struct, frozen=True):
    """``why`` completes "it cannot be saved:", and ``remedy`` "it would help to"."""

    why: str
    remedy: str


_PASSES = re.compile(
    r"no answer to|deadline|no time left|is not whole|of the file system|quota|No space left"
    r"|begun to use System V IPC just now"
    r"|Read-only file system|Stale file handle|the job is held|could not be|still at it"
)
"""In the words of a save that may well succeed another time."""
_OWN = "save its state yourself: --comment=ckpt=signal (docs/checkpointing.md)"
STEPS = "start the program without srun, which a job of one node does not need, or " + _OWN
"""The remedy for a job that has steps."""
ONE_NODE = "saves batch jobs of one node"
BY_SBATCH = "submit a script with sbatch"
ON_ONE_NODE = "ask for one node, or " + _OWN
"""The remedies where a method saves no job of that kind."""
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (r"no clocks of its own",
     "its node cannot have its clocks go on elsewhere, and what waits by them would wait for ever",
     "ask your administrator for Linux 5.6 or later (CAP_SYS_TIME in a container), or " + _OWN),
    # Before the network's: a step has connections, which must not be closed.
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
     "close it while the job computes, let it be closed by a move, if the program connects anew"
     " (--comment=ckpt=criu,tcp=close), or " + _OWN),
    (r"runs a terminal", "it runs in script(1) or the like, which a save would end",
     "write its output to a file"),
    (r"in valgrind", "it runs in valgrind, which does not go on after a save",
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
    # The kernel hands no descriptor of one over (-22), which is all that CRIU says of one unmapped.
    (r"io_uring|send_fds failed \(-22\)",
     "it uses io_uring, as node.js does, which CRIU cannot save",
     "have nodes with kernel.io_uring_disabled=2, or " + _OWN),
    (r"may be its own or that of another",
     "it has files in /tmp, and its user has other processes on the node, whose they may be",
     "have it use $TMPDIR"),
    (r"at most travel with it|more than \d+ files are in",
     "it has more files in its node's temporary directories than travel with a save",
     "keep them in the job's directory"),
    (r"of this node alone", "it uses a file that only its node has, and that is not its own",
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
     "it has something open that is in no directory of its node, such as a POSIX message queue",
     "use a pipe or a unix socket, or " + _OWN),
    (r"transport socket: Operation not permitted",
     "a process of it has confined itself (Landlock), as xz does",
     "switch its sandbox off, or " + _OWN),
    (r"more than \d+ groups", "its user is in too many groups", "ask your administrator"),
    (rf"(\w+) {ONE_NODE}, and this one has (\d+)", rf"\1 {ONE_NODE}, and it has \2", ON_ONE_NODE),
    (r"not under the launcher", "it is not under slurm-elastic's launcher on its node",
     "ask your administrator whether the node has the root part, and the job passed the filter"),
)  # fmt: skip


def unfit(method: str, *, batch: bool, nodes: int) -> str:
    """Why a method with a launcher saves no job of that kind; empty where it does."""
    if not batch:
        return f"{method} {ONE_NODE}, and this one is none (srun, salloc)"
    if nodes > 1:
        return f"{method} {ONE_NODE}, and this one has {nodes}"
    return ""


def clearer(before: str, message: str) -> str:
    """The words of two saves that failed in a row that say why: a run that has ended
    meanwhile, or is about to, is under no launcher, which hides what kept it from being saved.
    """
    return before if before and "not under the launcher" in message else message


def obstacle(message: str) -> Obstacle | None:
    """The reason in the words of a save that failed; None where another one may well succeed."""
    if _PASSES.search(message):
        return None
    for words, why, remedy in _KNOWN:
        if found := re.search(words, message):
            return Obstacle(found.expand(why), remedy)
    said = re.sub(r"^job \S+: (no checkpoint: )?", "", message)
    return Obstacle(" ".join(said.split())[:200], _OWN)
