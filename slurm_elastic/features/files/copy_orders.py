"""The order and the result of a copy, as ``copying`` gives them to ``copy_runner`` and back."""

from __future__ import annotations

import pwd
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from slurm_elastic.machine.jobfiles.copier import CopierRefusalError, groups_of
from slurm_elastic.model.cluster import Instance


class CopyResult(Struct, frozen=True, kw_only=True):
    """``reason``: why it failed, "" if it did not. ``final``: another try would fail, too.
    ``busy``: it only waited for another copy of the directory.
    ``bases``: by output file, where the output of this run begins. ``joined``: the output files
    that other runs on the machine write, too. ``late``: outputs that only the last copy can bring.
    ``notes``: files that were left out.
    """

    reason: str = ""
    final: bool = False
    busy: bool = False
    files: int = 0
    bytes: int = 0
    bases: Mapping[str, int] = {}
    joined: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CopyRun(Protocol):
    """Runs one copy."""

    def __call__(
        self, instance: Instance, order: Mapping[str, Any], until: float, cancelled: threading.Event
    ) -> CopyResult:
        """Copy as ordered until ``until`` (monotonic s), or until ``cancelled`` is set."""


def order_of(uid: int) -> dict[str, Any]:
    """The user's part of an order. CopierRefusalError for root, or if there is no such user."""
    if uid <= 0:
        raise CopierRefusalError(f"the files of uid {uid} are not copied")
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise CopierRefusalError(f"the head has no user with uid {uid}") from None
    return {"uid": uid, "gid": account.pw_gid, "groups": groups_of(account)}
