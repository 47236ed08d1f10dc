"""Programs that CRIU can save but that would not work once restored. We refuse to save them, which
costs them nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from .proc import status_of

_VALGRIND = re.compile(
    r"/valgrind/[^/]+$|/[a-z]+-(amd64|x86|arm64|arm|ppc64\w*|s390x|mips\w*)-linux$"
)
"""Each valgrind tool is a program in which the user's one runs: .../memcheck-amd64-linux."""
_TICKETS = b"\0KRB5CCNAME=KEYRING:"
_USERS = Path("/proc/key-users")
_EMPTY = 2
"""Keys of a user who has none: two empty keyrings (user-keyring(7))."""
_MOST = 1 << 20
"""Bytes of an environment that we read."""


def why(tasks: Iterable[int], uid: int) -> str:
    """Why the job of user ``uid`` would not work elsewhere; empty if nothing says so."""
    has_keys = _has_keys(uid)
    for pid in tasks:
        name = status_of(pid).get("Name", str(pid))
        if _VALGRIND.search(_program(pid)):
            return f"process {name} runs in valgrind, which does not go on after a restore"
        # The variable alone proves nothing: it may come from the host that the job was submitted
        # on.
        if has_keys and _TICKETS in b"\0" + _environment(pid):
            return f"process {name} has its Kerberos tickets in a keyring of this node's kernel"
    return ""


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink())
    return ""


def _has_keys(uid: int) -> bool:
    """Whether the kernel keeps keys of the user (keyrings(7))."""
    with contextlib.suppress(OSError, ValueError):
        for line in _USERS.read_text(encoding="ascii").splitlines():
            user, _, counts = line.partition(":")
            if int(user) == uid:
                return int(counts.split()[1].partition("/")[0]) > _EMPTY
    return False


def _environment(pid: int) -> bytes:
    """The environment that the program was started with."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        first, last = int(stat[47]), int(stat[48])  # env_start, env_end (proc(5))
        # Only where the kernel has put it: a user may map a file in its place, whose server may
        # hang (fuse(4)).
        if _is_stack(pid, first, last):
            with open(f"/proc/{pid}/environ", "rb") as file:
                return file.read(_MOST)
    return b""


def _is_stack(pid: int, first: int, last: int) -> bool:
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            begin, _, rest = line.partition(b"-")
            end = rest.partition(b" ")[0]
            if int(begin, 16) <= first < int(end, 16):
                return last <= int(end, 16) and line.rstrip().endswith(b" [stack]")
    return False
