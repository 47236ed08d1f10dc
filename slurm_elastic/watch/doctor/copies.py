"""Copies of jobs' files (``data: copy``): whether they can be made, and which are overdue."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.finding import Finding
from slurm_elastic.watch.door.records import opened

SUBJECT = "copies of jobs' files"
_TIMEOUT_S = 5.0
_MAX_JOBS = 8  # named in one sentence


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Check the programs, the copier and the copies on their way back. Nothing if no cloud has
    ``data: copy`` and no files are on machines without a way back.
    """
    if text := without_way_back(config):
        yield Finding.wrong(
            SUBJECT, text, expected="join.ssh, by which the head brings files back",
            advice=f"set join.ssh again until these files are back ({page('data')})",
        )  # fmt: skip
    clouds = [cloud.name for cloud in config.clouds if cloud.data is Data.COPY]
    if not clouds:
        return
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        advice = "apt install openssh-client, or openssh-clients from your distribution"
        text = f"the head has no {' and no '.join(missing)}"
        yield Finding.wrong(
            SUBJECT, text, expected="OpenSSH, which carries the files", advice=advice
        )
    error = _copier_error(config.copy.socket)
    if error:
        yield Finding.wrong(
            SUBJECT, f"{config.copy.socket}: {error}: no job starts in {', '.join(clouds)}",
            expected="slurm-elastic-copier answers there",
            advice=f"systemctl enable --now slurm-elastic-copier ({page('data')})",
        )  # fmt: skip
    elif not missing:
        yield Finding.ok(SUBJECT, f"slurm-elastic-copier listens at {config.copy.socket}")
    yield from _owing(config, now)


def without_way_back(config: Config) -> str:
    """A sentence about jobs' files on machines that the head can no longer reach, because
    ``join.ssh`` has been removed; or "". Also "" if this user may not read the ledger.
    """
    if config.join.ssh is not None:
        return ""
    try:
        with opened(config) as ledger:
            copies = ledger.copies.open()
    except (OSError, SlurmElasticError):
        return ""
    if not copies:
        return ""
    jobs = sorted({copy.job for copy in copies})
    listed = ", ".join(map(str, jobs[:_MAX_JOBS])) + (", ..." if len(jobs) > _MAX_JOBS else "")
    whose = f"{'job' if len(jobs) == 1 else 'jobs'} {listed}"
    return (
        f"join.ssh is missing, and files of {whose} are on {compress({c.node for c in copies})}: "
        "they are lost when these machines end"
    )


def _copier_error(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_TIMEOUT_S)
        try:
            link.connect(path)
        except PermissionError:
            return ""  # its socket is for root and SlurmUser
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _owing(config: Config, now: float) -> Iterator[Finding]:
    try:
        with opened(config) as ledger:
            owing = ledger.copies.owing()
    except (OSError, SlurmElasticError):
        return
    for copy in owing:
        if now - copy.since > config.copy.back_within / 2:
            yield Finding.note(
                SUBJECT,
                f"job {copy.job}: its files have been on {copy.node} since its end at"
                f" {moment(copy.since)}",
                expected=f"back in {copy.directory}",
                advice=f"slurm-elastic explain {copy.job}",
            )
