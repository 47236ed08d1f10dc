"""Copies of jobs' files (``data: copy``): whether they can be made, and which are overdue."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.config.copying import Data
from slurm_elastic.model.finding import Finding
from slurm_elastic.watch.door.records import opened

SUBJECT = "copies of jobs' files"
_TIMEOUT_S = 5.0


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Check the programs, the copier and the copies that are on their way back. Nothing if no cloud
    has ``data: copy``.
    """
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
