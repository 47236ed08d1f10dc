"""Services that run with the configuration as it was before a change of the file, or that will
refuse the file at their next start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.base import service_remedies, trust
from slurm_elastic.base.account import trusted
from slurm_elastic.base.local_time import minute
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import UUID_FILE
from slurm_elastic.model.finding import Finding
from slurm_elastic.state.heartbeat import CKPTMAN, CKPTMAN_MARK, DAEMON, MARK, Mark, read_mark

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
        for service, name in _MARKS.items()
        if (mark := read_mark(config.state, name))
        and (started_at := _started_at(mark)) is not None
        and started_at < changed_at - _TOLERANCE_S
    ]
    if outdated:
        verb = "was" if len(outdated) == 1 else "were"
        yield Finding.note(
            "configuration",
            f"{' and '.join(outdated)} {verb} started before {file} was changed"
            f" ({minute(changed_at)}), and the change has no effect before a restart",
            advice=service_remedies.restart(*outdated),
        )


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
