"""Linux calls that Python has no function for: parent-death signals, namespaces, mounts.

os.unshare and os.setns exist only from Python 3.12 on.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Sequence

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000  # unshare(2)
CLONE_NEWTIME = 0x00000080
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000  # mount(2)
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MNT_DETACH = 2  # umount(2)
PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def descriptor_of(pidfd: int, number: int) -> int:
    """Return a copy of descriptor ``number`` of the process behind a pidfd (pidfd_getfd(2))."""
    # Opening its file in /proc instead could break a lease, and does not work for sockets.
    copy: int = LIBC.syscall(PIDFD_GETFD, pidfd, number, 0)
    if copy < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return copy


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, in whatever way."""
    _check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, such as daemons.

    They stay below this process, also after an execve, and are saved with it.
    """
    _check(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def unshare_processes() -> None:
    """Give this process its own mounts and System V IPC, and its later children their own process
    numbers.
    """
    _check(LIBC.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC), "unshare")


def unshare_time() -> None:
    """Give later children their own clocks; our clocks stay (time_namespaces(7))."""
    _check(LIBC.unshare(CLONE_NEWTIME), "unshare --time")


def share_time() -> None:
    """Give later children our clocks again. Fails if we have threads (setns(2))."""
    _join("/proc/self/ns/time", CLONE_NEWTIME)


def unshare_ipc() -> None:
    """Move to an empty System V IPC namespace. The old namespace is destroyed unless other
    processes use it.
    """
    _check(LIBC.unshare(CLONE_NEWIPC), "unshare")


def join_ipc(path: str) -> None:
    """Use the System V IPC of the namespace at ``path`` from now on."""
    _join(path, CLONE_NEWIPC)


def _join(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(LIBC.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


def unshare_mounts() -> None:
    """Give this process its own mounts. Later mounts of the host (autofs) still appear."""
    _check(LIBC.unshare(CLONE_NEWNS), "unshare")
    _check(LIBC.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount /")


def mount_bind(source: str, place: str) -> None:
    """Make the directory ``source`` appear at ``place``, too."""
    result = LIBC.mount(os.fsencode(source), os.fsencode(place), None, MS_BIND, None)
    _check(result, f"mount {place}")


def mount_small(path: str, uid: int, gid: int, nodes: int) -> None:
    """Mount a file system in memory for the user, with room for a few small files, and for a few of
    each of the ``nodes`` of the job.
    """
    # DMTCP 4.2.0 keeps 2.3 MB there (dmtcpSharedArea), and a few bytes a process. mpirun's command
    # for each other node is there with its environment, which modules may make 100 KiB long.
    size, inodes = (16 << 20) + nodes * (256 << 10), 256 + 8 * nodes
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    options = f"size={size},nr_inodes={inodes},mode=700,uid={uid},gid={gid}".encode()
    _check(LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), f"mount {path}")


def mount_beside(path: str, aside: str, names: Sequence[str]) -> None:
    """Mount a directory over ``path`` that contains empty files of these ``names`` (or paths).

    All users may write these files. The other entries are links, which lead through its directory
    ``aside`` to the real directory.
    """
    real = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        other_entries = set(os.listdir(path)) - {name.partition("/")[0] for name in names}
        _check(LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", flags, b"mode=755"), f"mount {path}")
        os.mkdir(f"{path}/{aside}")
        source, place = f"/proc/self/fd/{real}".encode(), f"{path}/{aside}".encode()
        _check(LIBC.mount(source, place, None, MS_BIND, None), f"mount {path}/{aside}")
        for name in other_entries:
            os.symlink(f"{aside}/{name}", f"{path}/{name}")
        for name in names:
            directory = os.path.dirname(f"{path}/{name}")
            os.makedirs(directory, exist_ok=True)
            os.close(os.open(f"{path}/{name}", os.O_CREAT))
            os.chmod(directory, 0o755)  # noqa: S103 - whatever our umask is
            os.chmod(f"{path}/{name}", 0o666)  # noqa: S103 - a dummy; its content is not used
    finally:
        os.close(real)


def unmount(path: str) -> None:
    """Unmount at once, even if it is in use."""
    _check(LIBC.umount2(os.fsencode(path), MNT_DETACH), f"umount {path}")


def mount_own_proc() -> None:
    """Mount a /proc of our namespace, and unmount all others."""
    # Slave, not private: later mounts of the host (autofs) must still appear.
    _check(LIBC.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount /")
    _check(LIBC.mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")
    with open("/proc/self/mountinfo", "rb") as file:
        host_procs = other_procs(file.read())
    for place in host_procs:
        unmount(os.fsdecode(place))


def other_procs(mountinfo: bytes) -> list[bytes]:
    """Return the other places where the host has mounted proc, as in a chroot (proc(5),
    mountinfo).
    """
    places = []
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(b" - ")
        place = mount.split(b" ")[4]
        if source.startswith(b"proc ") and not (place + b"/").startswith(b"/proc/"):
            places.append(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), place))
    return places


def cover(path: str) -> None:
    """Mount /dev/null over ``path``, so that no process in our mounts can open that file."""
    _check(LIBC.mount(b"/dev/null", path.encode(), None, MS_BIND, None), f"mount {path}")
