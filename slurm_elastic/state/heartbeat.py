"""Signs of life: who beats in the ledger, and the mark that each service leaves beside it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from slurm_elastic.base.local_time import minute
from slurm_elastic.model.journal_owner import Host

DAEMON = "slurm-elasticd"
"""The name that slurm-elasticd beats under."""
CKPTMAN = "slurm-elastic-ckptman"
"""The name that slurm-elastic-ckptman beats under."""
MARK = "daemon.beat"
CKPTMAN_MARK = "ckptman.beat"
END_ONLY_MEANS = "no machine starts, and unneeded machines still end"
OTHER_HEAD_MEANS = "no machine starts or ends"
"""The effect of a finding that another head works for this cluster, too."""
STANDS_BY_MEANS = "this head stands by"
CANNOT_ACT_MEANS = "this head cannot act"
"""The state of a head that stands by and could not take over: a person must help."""
MAX_CARDS = 32
"""Cards that the mark names. A host may have hundreds (SR-IOV), and one common card is enough."""
_SIZE = 4096
"""Bytes of the mark, however little it contains."""


class ServiceTrouble(Struct, frozen=True, kw_only=True):
    """Why a running service does only a part of its work, ``since`` when (Unix time), the
    ``effect`` of that, and the ``remedy``. ``is_disk_full``: the disk is the cause, which other
    checks may report as well.
    """

    problem: str
    since: float
    effect: str
    remedy: str
    is_disk_full: bool = False

    @property
    def is_other_head(self) -> bool:
        """Whether the trouble is another head that works for this cluster, and not a disk."""
        return self.effect == OTHER_HEAD_MEANS

    @property
    def finding(self) -> str:
        """The trouble for people, without the remedy."""
        return f"{self.problem}; since {minute(self.since)} {self.effect}"

    def __str__(self) -> str:
        return f"{self.finding}; do: {self.remedy}"


@dataclass(frozen=True)
class Mark:
    """A service's last sign of life outside the ledger, ``at`` a Unix time. ``why``: the reason why
    the service does only a part of its work, "" if it does all of it. With a reason, ``since``,
    ``means`` and ``remedy`` are as in ``ServiceTrouble``. ``host``: where the service works with
    its journal. A copy of the host has a copy of the mark, and differs from the ``host``. None if
    the service has not proven whose journal it is, and in the mark of an earlier release.
    """

    at: float
    pid: int
    why: str = ""
    remedy: str = ""
    since: float = 0.0
    means: str = END_ONLY_MEANS
    is_disk_full: bool = False
    host: Host | None = None

    @property
    def beat(self) -> tuple[float, int]:
        """The time and the pid, as the ledger has heartbeats."""
        return self.at, self.pid

    @property
    def stands_by(self) -> bool:
        """Whether the service is idle only because the other head acts."""
        return bool(self.why) and self.means == STANDS_BY_MEANS

    @property
    def acts(self) -> bool:
        """Whether the service does its work on this head, or a part of it."""
        return not self.why or self.means not in {STANDS_BY_MEANS, CANNOT_ACT_MEANS}

    @property
    def is_other_head(self) -> bool:
        """Whether the service has found another head that works for this cluster."""
        return bool(self.why) and self.means == OTHER_HEAD_MEANS

    @property
    def trouble(self) -> ServiceTrouble | None:
        """Why the service does only a part of its work; None if it does all."""
        if not self.why:
            return None
        return ServiceTrouble(
            problem=self.why,
            since=self.since,
            effect=self.means,
            remedy=self.remedy,
            is_disk_full=self.is_disk_full,
        )


def alive(beat: tuple[float, int] | None, found: bool | None, now: float, stale: float) -> bool:
    """Whether a service serves: its ``beat`` (Unix time, pid) is at most ``stale`` seconds old, and
    its process is not known to be gone (``found``; None: not looked).
    """
    # max(): a beat from the future, after the clock was set back, counts as fresh.
    return beat is not None and max(now - beat[0], 0.0) <= stale and found is not False


def process_exists(pid: int) -> bool:
    """Whether a process with this pid runs on this host, of any user."""
    try:
        # Signal 0 is not sent; only the process and our right are checked (kill(2)).
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # It is there, and another user's.
        pass
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and only waits until its parent asks for its exit code. In a
    container whose first process never asks, such a process stays as long as the container.
    """
    with contextlib.suppress(OSError):  # no /proc, or the process is gone now
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name before the state is in parentheses, and may have some itself.
        return stat.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    return False


def leave_mark(state: Path, mark: Mark, name: str = MARK) -> None:
    """Overwrite the service's mark; OSError passes through."""
    host = {"host": _host_fields(mark.host)}
    text = json.dumps(mark.__dict__ | host).encode()
    # Not truncated: written over in place, the mark needs no room on a full disk.
    descriptor = os.open(
        state / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        # Always the same length, so no bytes of an older and longer mark stay behind it.
        os.pwrite(descriptor, text[:_SIZE].ljust(_SIZE), 0)
    finally:
        os.close(descriptor)


def read_mark(state: Path, name: str = MARK) -> Mark | None:
    """The service's mark; None if there is none, or it cannot be read."""
    # The file may be of another release, with other fields.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        with open(state / name, "rb") as file:
            fields = json.loads(file.read(_SIZE))
        texts = {name: str(fields[name]) for name in ("why", "remedy", "means")}
        return Mark(
            at=float(fields["at"]), pid=int(fields["pid"]), since=float(fields["since"]), **texts,
            is_disk_full=bool(fields.get("is_disk_full")), host=_host_from(fields.get("host")),
        )  # fmt: skip
    return None


def _host_fields(host: Host | None) -> dict[str, object] | None:
    if host is None:
        return None
    return {"name": host.name, "machine": host.machine, "cards": host.cards[:MAX_CARDS]}


def _host_from(fields: Mapping[str, Any] | None) -> Host | None:
    if fields is None:
        return None
    cards = tuple(str(card) for card in fields["cards"])
    return Host(name=str(fields["name"]), machine=str(fields["machine"]), cards=cards)


def trouble_of(state: Path, mark: Mark | None, now: float, stale: float) -> ServiceTrouble | None:
    """Why a living service does only a part of its work, and what to do; None if no reason is
    known.
    """
    if mark is None or not process_exists(mark.pid):
        return None
    if alive(mark.beat, True, now, stale):
        return mark.trouble
    # On a read-only disk a running service cannot write its mark.
    with contextlib.suppress(OSError):
        if os.statvfs(state).f_flag & os.ST_RDONLY:
            reason = f"the disk of {state} may only be read"
            return ServiceTrouble(
                problem=reason, since=mark.at, effect=mark.means, remedy="mount it writable again"
            )
    return None


def trouble_text(state: Path, mark: Mark | None, now: float, stale: float) -> str:
    """The trouble of ``trouble_of`` as text for people; "" if no reason is known."""
    trouble = trouble_of(state, mark, now, stale)
    return str(trouble) if trouble else ""


def latest(*beats: tuple[float, int] | None) -> tuple[float, int] | None:
    """The newest sign of life of a service. It may leave signs in several places, because not all
    of them can always be written.
    """
    return max((beat for beat in beats if beat is not None), default=None)
