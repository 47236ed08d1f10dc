"""Services that run with the configuration as it was before a change of the file, or that will
refuse the file at their next start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.base import trust
from slurm_elastic.base.account import trusted
from slurm_elastic.base.local_time import minute
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import UUID_FILE
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.local.settings import LOCAL_AGENT, LocalCloud
from slurm_elastic.state.heartbeat import CKPTMAN, CKPTMAN_MARK, DAEMON, MARK, Mark, read_mark

HUB, COPIER = "slurm-elastic-hub", "slurm-elastic-copier"
_MARKS = {DAEMON: MARK, CKPTMAN: CKPTMAN_MARK}
_TOLERANCE_S = 2.0  # the kernel counts the start of a process in whole ticks


def examine(config: Config, file: Path) -> Iterator[Finding]:
    """Report the running services that started before ``file`` was changed: they read it once."""
    try:
        changed_at = file.stat().st_mtime
    except OSError:
        return  # whoever loads the file reports that
    outdated = [
        service
        for service, started_at in _starts(config)
        if started_at is not None and started_at < changed_at - _TOLERANCE_S
    ]
    if outdated:
        verb = "was" if len(outdated) == 1 else "were"
        yield Finding.note(
            "configuration",
            f"{' and '.join(outdated)} {verb} started before {file} was changed"
            f" ({minute(changed_at)}), and the change has no effect before a restart",
            advice=service_remedies.restart(*outdated),
        )


def _starts(config: Config) -> Iterator[tuple[str, float | None]]:
    """Yield the services that read the file only once, with their starts (Unix time); None: does
    not run here. The page reads the file again by itself, and the watchdog the clouds and pools.
    """
    for service, name in _MARKS.items():
        mark = read_mark(config.state, name)
        yield service, _started_at(mark) if mark else None
    if config.join.network is not None:
        yield HUB, _listens_since(config.join.network.socket)
    yield COPIER, _listens_since(config.copy.socket)
    for socket in sorted({c.socket for c in config.clouds if isinstance(c, LocalCloud)}):
        yield LOCAL_AGENT, _listens_since(socket)


def _listens_since(socket: str) -> float | None:
    """When the service at this unix socket started (Unix time): it makes its socket then. None if
    nothing listens there, whatever a service that was killed has left behind.
    """
    try:
        # proc_net(5): flag 00010000 is a socket that listens; the path is the last column.
        rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
        if not any(row[-1] == socket and row[3] == "00010000" for row in rows):
            return None
        return os.stat(socket).st_ctime
    except OSError:
        return None


def refused(config: Config, file: Path) -> Iterator[Finding]:
    """Report files that the services refuse. Root by sudo(8) accepts files of its caller, so the
    commands show nothing of it.
    """
    owners = {0, *trusted(config.slurm.user), os.geteuid()}
    for path in (file, file.parent / UUID_FILE):
        try:
            flaw = trust.flaw(path, owners)
        except OSError:
            continue  # whoever loads the file reports that
        if flaw:
            finding_text, _, advice = flaw.partition("; ")
            yield Finding.wrong(
                "configuration", finding_text,
                expected="a file that only root and SlurmUser can write: with another one no "
                "service starts", advice=advice,
            )  # fmt: skip


def _started_at(mark: Mark) -> float | None:
    """The start (Unix time) of the process that left the mark; None if it does not run here."""
    try:
        fields = Path(f"/proc/{mark.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    started_at = time.time() - age
    # A process that started later has the pid of the one that left the mark, or it is another
    # host's mark.
    return started_at if started_at <= mark.at + _TOLERANCE_S else None
