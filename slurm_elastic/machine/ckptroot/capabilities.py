"""The rights that CRIU runs with, as options of setpriv(1): no more than it needs
(capabilities(7)).

CAP_CHECKPOINT_RESTORE lets it choose process numbers and memory maps.
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
    """Makes CRIU the job's user for good, with no rights on files but his, for a restore.

    It keeps the rights that a restore takes: process numbers and memory maps, smaller bounding sets
    (setpcap), limits above the present ones (sys_resource), a namespace for System V IPC
    (sys_admin) and TCP connections (net_admin). That user's other processes cannot look into such a
    process (ptrace(2), "Ptrace access mode checking"), and it cannot become anybody else.
    """
    more = ({_SYS_ADMIN} if has_sysv else set()) | ({_NET_ADMIN} if has_streams else set())
    return _as_user(user, groups, {_SETPCAP, _SYS_RESOURCE, restores(), *more})


def own_dumper(user: User, has_sysv: bool) -> list[str]:
    """Like ``restorer``, for a save as the user: CRIU also reads the states of sockets (net_admin),
    and enters and reads the job's System V IPC.
    """
    sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
    wanted = {_NET_ADMIN, _SYS_PTRACE, _SYS_RESOURCE, restores(), *sysv}
    return _as_user(user, user.groups, wanted)


def dumper(user: User, has_sysv: bool) -> list[str]:
    """Keeps CRIU, which runs as root, from doing more than a save takes: reading what the job's
    processes hold.
    """
    words = list[str]()
    # Without it, prlimit(2) goes by the real user.
    if not _has(_SYS_RESOURCE):
        words += ["--ruid", str(user.uid), "--rgid", str(user.gid), "--keep-groups"]
    if _has(_SETPCAP):
        wanted = {_DAC_OVERRIDE, _DAC_READ_SEARCH, _KILL, _NET_ADMIN, _SYS_PTRACE, _SYS_RESOURCE}
        sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
        words += ["--bounding-set", _listed(wanted | sysv | {restores()})]
    return ["/usr/bin/setpriv", *words] if words else []


def restores() -> int:
    """The capability by which a user may restore process numbers and memory maps."""
    # Root lacks it in containers and before Linux 5.9. CAP_SYS_ADMIN, which it was split off from,
    # does.
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
    """Those of the wanted ones that root has, as setpriv(1) takes them."""
    return ",".join(["-all", *(f"+cap_{number}" for number in sorted(wanted) if _has(number))])


def _has(number: int) -> bool:
    return bool(int(status_of(os.getpid()).get("CapEff", "0"), 16) >> number & 1)
