"""Services that run as root and answer requests of SlurmUser at a unix socket."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes.signals import on_end
from slurm_elastic.config import Config
from slurm_elastic.machine.local.listening import RootServer

log = logging.getLogger(__name__)


def uid_of(config: Config) -> int:
    """The uid of SlurmUser. ConfigError if this host has no such user."""
    try:
        return account(config.slurm.user).pw_uid
    except KeyError:
        raise ConfigError(f"slurm.user: there is no user {config.slurm.user!r}") from None


def serve(answer: Callable[[bytes], bytes], path: Path, uids: set[int]) -> None:
    """Answer these users at the socket until SIGTERM. SlurmElasticError if the server failed."""
    server = RootServer(path, uids, answer)
    on_end(server.end)
    server.start()
    log.info("serving socket=%s", path)
    server.wait()
    log.info("stopping")
    if server.failed:
        raise SlurmElasticError(f"{path} can no longer be served: see above")
