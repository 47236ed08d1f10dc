"""With which rights CRIU runs, in the words of setpriv(1): no more than it takes (capabilities(7)).

CAP_CHECKPOINT_RESTORE is for process numbers and memory maps; where root lacks it, as in containers
and before Linux 5.9, CAP_SYS_ADMIN, which had it in it.
"""

from __future__ import annotations

import os

from .proc import status_of
from .rights import User

_DAC_OVERRIDE, _DAC_READ_SEARCH, _KILL, _SETPCAP, _NET_ADMIN, _IPC_OWNER = 1, 2, 5, 8, 12, 15
_SYS_PTRACE, _SYS_ADMIN, _SYS_RESOURCE, _CHECKPOINT_RESTORE = 19, 21, 24, 40


def restorer(
    user: User, groups: tuple[int, ...], has_sysv: bool = False, has_streams: bool = False
) -> list[str]:
    """The words that make CRIU the job's user for good, with no right on files but his, to restore.

    It keeps the rights that this takes: process numbers and memory maps, smaller bounding sets
    (setpcap), limits above the present ones (sys_resource), a namespace for System V IPC
    (sys_admin), and connections of TCP (net_admin). Nobody of that user can look into such a
    process (ptrace(2), "Ptrace access mode checking"), and it can become nobody else.
    """
    more = ({_SYS_ADMIN} if has_sysv else set()) | ({_NET_ADMIN} if has_streams else set())
    return _as_user(user, groups, {_SETPCAP, _SYS_RESOURCE, restores(), *more})


def own_dumper(user: User, has_sysv: bool) -> list[str]:
    """As ``restorer``, to save: with the states of sockets (net_admin), and to enter a job's System
    V IPC and read it.
    """
    sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
    wanted = {_NET_ADMIN, _SYS_PTRACE, _SYS_RESOURCE, restores(), *sysv}
    return _as_user(user, user.groups, wanted)


def dumper(user: User, has_sysv: bool) -> list[str]:
    """The words that keep CRIU, as root, from more than a dump takes: it reads what the job's
    processes hold. prlimit(2) goes by the real user where root lacks CAP_SYS_RESOURCE.
    """
    words = list[str]()
    if not _has(_SYS_RESOURCE):
        words += ["--ruid", str(user.uid), "--rgid", str(user.gid), "--keep-groups"]
    if _has(_SETPCAP):
        wanted = {_DAC_OVERRIDE, _DAC_READ_SEARCH, _KILL, _NET_ADMIN, _SYS_PTRACE, _SYS_RESOURCE}
        sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
        words += ["--bounding-set", _listed(wanted | sysv | {restores()})]
    return ["/usr/bin/setpriv", *words] if words else []


def restores() -> int:
    """The capability that lets a user restore process numbers and memory maps."""
    return _CHECKPOINT_RESTORE if is_whole() else _SYS_ADMIN


def is_whole() -> bool:
    """Whether root has CAP_CHECKPOINT_RESTORE itself."""
    return _has(_CHECKPOINT_RESTORE)


def _as_user(user: User, groups: tuple[int, ...], wanted: set[int]) -> list[str]:
    capabilities = _listed(wanted)
    listed = ("--groups", ",".join(map(str, groups))) if groups else ("--clear-groups",)
    return [
        "/usr/bin/setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), *listed,
        "--inh-caps", capabilities, "--ambient-caps", capabilities,
    ]  # fmt: skip


def _listed(wanted: set[int]) -> str:
    """The wanted ones that root has, as setpriv(1) takes them."""
    return ",".join(["-all", *(f"+cap_{number}" for number in sorted(wanted) if _has(number))])


def _has(number: int) -> bool:
    return bool(int(status_of(os.getpid()).get("CapEff", "0"), 16) >> number & 1)
