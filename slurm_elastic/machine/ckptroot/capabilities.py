"""The capabilities that CRIU runs with, as options of setpriv(1): only those it needs
(capabilities(7)).

CAP_CHECKPOINT_RESTORE lets it choose process numbers and memory maps.
"""

from __future__ import annotations

import os

from .proc import status_of
from .rights import RightsUser

_DAC_OVERRIDE, _DAC_READ_SEARCH, _KILL, _SETPCAP, _NET_ADMIN, _IPC_OWNER = 1, 2, 5, 8, 12, 15
_SYS_PTRACE, _SYS_ADMIN, _SYS_RESOURCE, _CHECKPOINT_RESTORE = 19, 21, 24, 40


def restorer(
    user: RightsUser, groups: tuple[int, ...], has_sysv: bool = False, has_streams: bool = False
) -> list[str]:
    """Return the options for a restore: CRIU becomes the job's user for good, with the user's
    rights on files.

    It keeps the capabilities that a restore needs: process numbers and memory maps, smaller
    bounding sets (setpcap), limits above the present ones (sys_resource), a namespace for System V
    IPC (sys_admin) and TCP connections (net_admin). The user's other processes cannot trace such a
    process (ptrace(2), "Ptrace access mode checking"), and it cannot become another user.
    """
    extra = ({_SYS_ADMIN} if has_sysv else set()) | ({_NET_ADMIN} if has_streams else set())
    return _as_user(user, groups, {_SETPCAP, _SYS_RESOURCE, restores(), *extra})


def own_dumper(user: RightsUser, has_sysv: bool) -> list[str]:
    """Return the options for a save as the user.

    CRIU runs as in ``restorer``. It also reads the states of sockets (net_admin), and enters and
    reads the job's System V IPC.
    """
    sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
    capabilities = {_NET_ADMIN, _SYS_PTRACE, _SYS_RESOURCE, restores(), *sysv}
    return _as_user(user, user.groups, capabilities)


def dumper(user: RightsUser, has_sysv: bool) -> list[str]:
    """Return the options for a save as root: CRIU keeps only the capabilities that read the job's
    processes.
    """
    options = list[str]()
    # prlimit(2) compares the real user ids if CAP_SYS_RESOURCE is missing.
    if not _has(_SYS_RESOURCE):
        options += ["--ruid", str(user.uid), "--rgid", str(user.gid), "--keep-groups"]
    if _has(_SETPCAP):
        capabilities = {
            _DAC_OVERRIDE,
            _DAC_READ_SEARCH,
            _KILL,
            _NET_ADMIN,
            _SYS_PTRACE,
            _SYS_RESOURCE,
        }
        sysv = {_SYS_ADMIN, _IPC_OWNER} if has_sysv else set()
        options += ["--bounding-set", _listed(capabilities | sysv | {restores()})]
    return ["/usr/bin/setpriv", *options] if options else []


def restores() -> int:
    """Return the capability by which a user may restore process numbers and memory maps."""
    # In containers and before Linux 5.9 root lacks it. CAP_SYS_ADMIN, from which it was split off,
    # allows the same.
    return _CHECKPOINT_RESTORE if is_whole() else _SYS_ADMIN


def is_whole() -> bool:
    """Whether root has CAP_CHECKPOINT_RESTORE itself."""
    return _has(_CHECKPOINT_RESTORE)


def _as_user(user: RightsUser, groups: tuple[int, ...], numbers: set[int]) -> list[str]:
    caps = _listed(numbers)
    group_options = ("--groups", ",".join(map(str, groups))) if groups else ("--clear-groups",)
    return [
        "/usr/bin/setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), *group_options,
        "--inh-caps", caps, "--ambient-caps", caps,
    ]  # fmt: skip


def _listed(numbers: set[int]) -> str:
    """Return the ``numbers`` that root itself has, as setpriv(1) expects them."""
    return ",".join(["-all", *(f"+cap_{number}" for number in sorted(numbers) if _has(number))])


def _has(number: int) -> bool:
    return bool(int(status_of(os.getpid()).get("CapEff", "0"), 16) >> number & 1)
