"""Services that run as root and do what SlurmUser asks of them at a unix socket: whom they answer,
and until when.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.signals import on_end
from slurm_elastic.config import Config
from slurm_elastic.machine.local.listening import Server

log = logging.getLogger(__name__)


def uid_of(config: Config) -> int:
    """SlurmUser's; ConfigError where there is no such user."""
    try:
        return account(config.slurm.user).pw_uid
    except KeyError:
        raise ConfigError(f"slurm.user: there is no user {config.slurm.user!r}") from None


def serve(answer: Callable[[bytes], bytes], path: Path, uids: set[int]) -> None:
    """Answer these users at the socket until SIGTERM."""
    server = Server(path, uids, answer)

    def stop() -> None:
        log.info("stopping")
        # shutdown() waits for serve_forever(), which runs in this very thread.
        threading.Thread(target=server.shutdown).start()

    on_end(stop)
    log.info("serving socket=%s", path)
    with server:
        server.serve_forever(poll_interval=0.2)
    path.unlink(missing_ok=True)
