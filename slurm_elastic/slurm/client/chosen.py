"""Opens the Slurm client that the configuration asks for, or the one that works here."""

from __future__ import annotations

import logging
import threading

from slurm_elastic.config import SlurmClientKind, SlurmSettings
from slurm_elastic.slurm.client.cli import SlurmCli

log = logging.getLogger(__name__)


def open_slurm(settings: SlurmSettings, stop: threading.Event | None = None) -> SlurmCli:
    """The client of ``slurm.client``, until ``stop``. If pyslurm cannot be used, by commands.
    SlurmError if Slurm's version cannot be read.
    """
    if settings.client is SlurmClientKind.CLI:
        return SlurmCli(settings, stop)
    from slurm_elastic.slurm.client.pyslurm_client import PyslurmClient, unusable

    reason = unusable(settings, SlurmCli(settings).version())
    if not reason:
        return PyslurmClient(settings, stop)
    level = logging.WARNING if settings.client is SlurmClientKind.PYSLURM else logging.INFO
    log.log(level, "pyslurm is not used, Slurm's commands are reason=%s", reason)
    return SlurmCli(settings, stop)
