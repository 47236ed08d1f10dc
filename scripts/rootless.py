"""Run a command in a user namespace with one user: ``scripts/rootless`` calls it there.

slurmd drops a job's groups with setgroups(2), which the kernel refuses in a namespace that somebody
made without rights (user_namespaces(7)). A filter makes the call succeed without effect: the only
user there has no other groups.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
import sys

SETGROUPS = {"x86_64": (0xC000003E, 116), "aarch64": (0xC00000B7, 159)}
"""The AUDIT_ARCH_ number and the number of setgroups(2), by machine."""
ADDRESS = "192.0.2.1"
"""With 127.0.0.1 alone glibc resolves no host name (AI_ADDRCONFIG)."""
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, SUCCEED = 0x7FFF0000, 0x00050000
NUMBER_AT, ARCH_AT = 0, 4
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER_MODE = 22, 38, 2
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1


class Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def ignore_setgroups() -> None:
    """Let setgroups(2) succeed without effect, in this process and all that it starts."""
    arch, number = SETGROUPS[platform.machine()]
    steps = (
        (LOAD, 0, 0, ARCH_AT),
        (EQUAL, 0, 3, arch),
        (LOAD, 0, 0, NUMBER_AT),
        (EQUAL, 0, 1, number),
        (RETURN, 0, 0, SUCCEED),
        (RETURN, 0, 0, ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = Program(len(steps), ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def loopback_up() -> None:
    """Start the loopback, with a second address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


if __name__ == "__main__":
    if platform.machine() not in SETGROUPS:
        sys.exit(f"this works on {' and '.join(SETGROUPS)} only, found {platform.machine()}")
    loopback_up()
    ignore_setgroups()
    os.execvp(sys.argv[1], sys.argv[1:])
