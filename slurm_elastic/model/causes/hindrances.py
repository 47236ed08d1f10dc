"""Why a job cannot be saved, and what its user can do (``policies.checkpoint.unsavable``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from slurm_elastic.base.pages import page
from slurm_elastic.model.causes.cause import Cause
from slurm_elastic.model.causes.save_refusals import ONE_NODE

SAVE_ITSELF = f"save its state yourself: --comment=ckpt=signal ({page('checkpointing')})"
STEPS = "start the program without srun, which a job of one node does not need, or " + SAVE_ITSELF
"""The remedy for a job with steps."""
UNCAUGHT = "its batch script, which alone gets the signal, does not catch it"
CATCH = f"start its program by exec, or catch the signal by trap ({page('checkpointing')})"
"""The reason and the remedy for a job whose shell dies of the signal to save itself."""
BY_MPIRUN = f"start the program by mpirun, or {SAVE_ITSELF}"
"""The remedy for a job of several nodes with steps."""
BY_SBATCH = "submit a script with sbatch"
ON_ONE_NODE = "ask for one node, or " + SAVE_ITSELF
"""The remedies where a method saves no job of that kind."""


class SaveObstacleKind(StrEnum):
    """What prevents the saves of a job."""

    CLOCKS = "clocks"
    OTHER_DMTCP = "other-dmtcp"
    STEP = "step"
    FILE_LOCK = "file-lock"
    SHARED_FILE = "shared-file"
    LARGE_DELETED_FILE = "large-deleted-file"
    UNACCEPTED_SOCKET = "unaccepted-socket"
    CONNECTION = "connection"
    TERMINAL = "terminal"
    VALGRIND = "valgrind"
    KERBEROS_KEYRING = "kerberos-keyring"
    OLD_CRIU = "old-criu"
    NETWORK_SOCKET = "network-socket"
    INOTIFY = "inotify"
    OWN_CONTAINER = "own-container"
    OLD_KERNEL = "old-kernel"
    SEM_UNDO = "sem-undo"
    BOUND_ADDRESS = "bound-address"
    TRACER = "tracer"
    IO_URING = "io-uring"
    SHARED_TMP = "shared-tmp"
    MANY_TEMP_FILES = "many-temp-files"
    NODE_FILE = "node-file"
    DEVICE = "device"
    OUTSIDE_CONNECTION = "outside-connection"
    OUTSIDE_PROCESS = "outside-process"
    OTHER_RIGHTS = "other-rights"
    HIDDEN_MEMORY = "hidden-memory"
    SECCOMP = "seccomp"
    UNKNOWN_MOUNT = "unknown-mount"
    LANDLOCK = "landlock"
    MANY_GROUPS = "many-groups"
    SEVERAL_NODES = "several-nodes"
    NOT_LAUNCHED = "not-launched"
    SIGNAL_NOT_CAUGHT = "signal-not-caught"


_TEXTS: Mapping[SaveObstacleKind, tuple[str, str]] = {
    SaveObstacleKind.CLOCKS: (
        "its node cannot set its clocks after a move, so its timers would never end",
        "ask your administrator for Linux 5.6 or later (CAP_SYS_TIME in a container), or "
        + SAVE_ITSELF,
    ),
    SaveObstacleKind.OTHER_DMTCP: (
        "its nodes have a DMTCP that cannot save jobs of several hosts",
        f"ask your administrator for DMTCP with two changes ({page('checkpoint-methods')})",
    ),
    SaveObstacleKind.STEP: (
        "it runs a step (srun), which {method} does not save",
        STEPS,
    ),
    SaveObstacleKind.FILE_LOCK: (
        "it holds a lock on a file",
        "run it without the lock, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.SHARED_FILE: (
        "it uses a named semaphore or a deleted file that others hold",
        "keep the file as long as it is open, have semaphores without names (in Python's"
        " multiprocessing: the start method fork), or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.LARGE_DELETED_FILE: (
        "it has a large file open that was deleted",
        "keep the file, or write it in the job's directory",
    ),
    SaveObstacleKind.UNACCEPTED_SOCKET: (
        "it has a unix socket with a connection that it has not accepted yet",
        "accept connections as they come, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.CONNECTION: (
        "it has a network connection open",
        "close it while the job computes, or let a move close it if the program reconnects"
        " (--comment=ckpt=criu,tcp=close), or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.TERMINAL: (
        "it runs in script(1) or the like, which a save would end",
        "write its output to a file",
    ),
    SaveObstacleKind.VALGRIND: (
        "it runs in valgrind, which does not continue after a save",
        "run it without valgrind",
    ),
    SaveObstacleKind.KERBEROS_KEYRING: (
        "it has its Kerberos tickets in a keyring of its node's kernel",
        "keep them in a file before kinit (export KRB5CCNAME=FILE:$HOME/.krb5cc), or "
        + SAVE_ITSELF,
    ),
    SaveObstacleKind.OLD_CRIU: (
        "it has a network socket open, which its node's CRIU cannot save on that kernel",
        "ask your administrator for CRIU 4.2, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.NETWORK_SOCKET: (
        "it has a network socket open, as MPI has",
        "close it while the job computes, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.INOTIFY: (
        "it watches files (inotify)",
        "let it check the files at intervals instead",
    ),
    SaveObstacleKind.OWN_CONTAINER: (
        "it runs in a container of its own",
        "run it without the container, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.OLD_KERNEL: (
        "it uses System V IPC, which its node's kernel is too old for",
        "ask your administrator for Linux 5.17 or later, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.SEM_UNDO: (
        "it has semaphores that may be undone at the end of a process (SEM_UNDO)",
        "have it use POSIX semaphores, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.BOUND_ADDRESS: (
        "it has a network socket bound to an address that only its node has",
        "have nodes with net.ipv4.ip_nonlocal_bind=1, let it listen on 127.0.0.1 alone, or "
        + SAVE_ITSELF,
    ),
    SaveObstacleKind.TRACER: (
        "another process traces it, as a debugger does",
        "run it without the debugger",
    ),
    SaveObstacleKind.IO_URING: (
        "it uses io_uring, as node.js does, which CRIU cannot save",
        "have nodes with kernel.io_uring_disabled=2, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.SHARED_TMP: (
        "it has files in /tmp, and its user has other processes on the node, which may own them",
        "have it use $TMPDIR",
    ),
    SaveObstacleKind.MANY_TEMP_FILES: (
        "it has more files in its node's temporary directories than travel with a save",
        "keep them in the job's directory",
    ),
    SaveObstacleKind.NODE_FILE: (
        "it uses a file that only its node has and that does not belong to it",
        "keep it in the job's directory",
    ),
    SaveObstacleKind.DEVICE: (
        "it has a device open, such as a GPU",
        "use the CRIU plug-in of the device where there is one, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.OUTSIDE_CONNECTION: (
        "it is connected to a program outside of the job",
        "close the connection, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.OUTSIDE_PROCESS: (
        "a process of it has left the job",
        "run its helpers in the foreground",
    ),
    SaveObstacleKind.OTHER_RIGHTS: (
        "a process of it has other rights than its user, as sudo gives",
        "run it without sudo and set-uid programs",
    ),
    SaveObstacleKind.HIDDEN_MEMORY: (
        "a process of it hides its memory, as agents of keys do",
        "start ssh-agent and the like outside of the job",
    ),
    SaveObstacleKind.SECCOMP: (
        "a process of it has a seccomp filter, as browsers and sandboxes have",
        "switch its sandbox off, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.UNKNOWN_MOUNT: (
        (
            "it has something open that no directory of its node contains, such as a POSIX"
            " message queue"
        ),
        "use a pipe or a unix socket, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.LANDLOCK: (
        "a process of it has confined itself (Landlock), as xz does",
        "switch its sandbox off, or " + SAVE_ITSELF,
    ),
    SaveObstacleKind.MANY_GROUPS: (
        "its user is in too many groups",
        "ask your administrator",
    ),
    SaveObstacleKind.SEVERAL_NODES: (
        f"{{method}} {ONE_NODE}, and it has {{nodes}}",
        ON_ONE_NODE,
    ),
    SaveObstacleKind.NOT_LAUNCHED: (
        "it is not under slurm-elastic's launcher on its node",
        "ask your administrator whether the node has the root part, and the job passed the filter",
    ),
    SaveObstacleKind.SIGNAL_NOT_CAUGHT: (
        UNCAUGHT,
        CATCH,
    ),
}
"""The text after "it cannot be saved:", and the one after "it would help to"."""


class JobHindered(Cause, frozen=True, kw_only=True):
    """The job cannot be saved, for a known reason. ``method`` and ``nodes`` (their number): those
    that the reason names.
    """

    obstacle: SaveObstacleKind
    method: str = ""
    nodes: str = ""

    @property
    def words(self) -> str:
        return _TEXTS[self.obstacle][0].format(method=self.method, nodes=self.nodes)

    @property
    def remedy(self) -> str:
        """The advice to the job's user, worded to follow "it would help to"."""
        return _TEXTS[self.obstacle][1]


class SaveErrorLasts(Cause, frozen=True, kw_only=True):
    """The job cannot be saved, because of an ``error`` of its method that we do not know."""

    error: str

    @property
    def words(self) -> str:
        return self.error

    @property
    def remedy(self) -> str:
        """The advice to the job's user, as in ``JobHindered``."""
        return SAVE_ITSELF


Hindrance = JobHindered | SaveErrorLasts
"""Why a job cannot be saved."""


class JobUnsavable(Cause, frozen=True, kw_only=True):
    """The job cannot be saved."""

    cause: Hindrance

    @property
    def words(self) -> str:
        return f"it cannot be saved: {self.cause}. It would help to {self.cause.remedy}"


SavabilityStep = JobUnsavable | Hindrance
"""All causes of this module."""
