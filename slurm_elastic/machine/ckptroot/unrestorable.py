"""Find programs that CRIU can save but that would not work once restored.

We refuse to save them, which costs them nothing.
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
"""A valgrind tool is a program that runs the user's program inside: .../memcheck-amd64-linux."""
_TICKETS = b"\0KRB5CCNAME=KEYRING:"
_USERS = Path("/proc/key-users")
_KEYS_OF_NONE = 2
"""The number of keys of a user without keys: two empty keyrings (user-keyring(7))."""
_MAX_ENVIRONMENT_BYTES = 1 << 20
"""We read no more of an environment."""


def why(tasks: Iterable[int], uid: int) -> str:
    """Return why the job of user ``uid`` would not work elsewhere, or ""."""
    has_keys = _has_keys(uid)
    for pid in tasks:
        name = status_of(pid).get("Name", str(pid))
        if _VALGRIND.search(_program(pid)):
            return f"process {name} runs in valgrind, which does not work after a restore"
        # The variable alone proves nothing: it may come from the host on which the job was
        # submitted.
        if has_keys and _TICKETS in b"\0" + _environment(pid):
            return f"process {name} has its Kerberos tickets in a keyring of this node's kernel"
    return ""


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink())
    return ""


def _has_keys(uid: int) -> bool:
    """Return whether the kernel keeps keys of the user (keyrings(7))."""
    with contextlib.suppress(OSError, ValueError):
        for line in _USERS.read_text(encoding="ascii").splitlines():
            user, _, counts = line.partition(":")
            if int(user) == uid:
                return int(counts.split()[1].partition("/")[0]) > _KEYS_OF_NONE
    return False


def _environment(pid: int) -> bytes:
    """Return the environment that the program was started with."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        env_start, env_end = int(stat[47]), int(stat[48])  # env_start, env_end (proc(5))
        # Read it only if it is on the stack, where the kernel has put it. A user may map a file in
        # its place, whose server may hang (fuse(4)).
        if _is_stack(pid, env_start, env_end):
            with open(f"/proc/{pid}/environ", "rb") as file:
                return file.read(_MAX_ENVIRONMENT_BYTES)
    return b""


def _is_stack(pid: int, env_start: int, env_end: int) -> bool:
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            begin, _, after_start = line.partition(b"-")
            end = after_start.partition(b" ")[0]
            if int(begin, 16) <= env_start < int(end, 16):
                return env_end <= int(end, 16) and line.rstrip().endswith(b" [stack]")
    return False
