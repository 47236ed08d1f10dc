"""The rights of one thread of a process of root.

Linux keeps the user, the group and the further groups of each thread apart (credentials(7)).
Python calls setresuid(2), setresgid(2) and setgroups(2) of glibc, which change all threads at once
(nptl(7)): another thread of the process would open its files and start its programs with the wrong
rights. We therefore make the system calls ourselves, as Samba does.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import NamedTuple

_SAME = -1
"""The number that leaves an identity as it is."""


class _Calls(NamedTuple):
    """The numbers of the system calls (syscalls(2)), in the variant with identities of 32 bits."""

    groups: int
    gids: int
    uids: int


_GENERIC = _Calls(groups=159, gids=149, uids=147)
_CALLS = {
    "x86_64": _Calls(groups=116, gids=119, uids=117),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "ppc64le": _Calls(groups=81, gids=169, uids=164),
    "s390x": _Calls(groups=206, gids=210, uids=208),
}


def set_groups(groups: Sequence[int]) -> None:
    """Set the further groups of this thread. OSError if the kernel refuses."""
    numbers = (ctypes.c_uint32 * len(groups))(*groups)
    _call(_calls().groups, ctypes.c_size_t(len(groups)), numbers)


def set_effective_gid(gid: int) -> None:
    """Set the effective group of this thread. OSError if the kernel refuses."""
    _call(_calls().gids, ctypes.c_int(_SAME), ctypes.c_uint32(gid), ctypes.c_int(_SAME))


def set_effective_uid(uid: int) -> None:
    """Set the effective user of this thread. OSError if the kernel refuses."""
    _call(_calls().uids, ctypes.c_int(_SAME), ctypes.c_uint32(uid), ctypes.c_int(_SAME))


def _calls() -> _Calls:
    """The numbers of this processor. OSError for an unknown processor."""
    machine = platform.machine()
    try:
        return _CALLS[machine]
    except KeyError:
        raise OSError(f"no system calls are known for the processor {machine}") from None


def _call(number: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
