"""``slurm-elasticd``: the service that launches, suspends and repairs. Runs as SlurmUser."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.cli.service import on_stop, run_service
from slurm_elastic.config import Config
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.controller.prolog import PrologServer
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger import Ledger
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.client import open_slurm
from slurm_elastic.spool import Spool

if TYPE_CHECKING:
    from slurm_elastic.controller.munge_keys import MungeKeys

log = logging.getLogger("slurm_elastic.daemon")


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: the configuration or the state directory is wrong."""
    return run_service("slurm-elasticd", __doc__, "daemon.lock", _serve, argv)


def _serve(config: Config) -> None:
    stop = threading.Event()
    on_stop(stop.set)
    slurm = open_slurm(config.slurm)
    providers = {c.name: open_provider(c, config.cluster, config) for c in config.clouds}
    with contextlib.ExitStack() as closing:
        closing.callback(log.info, "stopped")
        spool, ledger, wake = _open(config.state, closing)
        site = replace(Site.of(config, slurm, ledger, providers, time.time), wait=stop.wait)
        waiter = PrologServer(config.state / "prolog.sock", slurm)
        closing.callback(waiter.close)
        log.info(
            "serving cluster=%s pid=%d state=%s", config.cluster.name, os.getpid(), config.state
        )
        waiter.start(stop)
        Daemon(site, spool, wake, waiter.nudge, keys=_keys(site)).run(stop)
        if waiter.failed:
            raise SlurmElasticError("waiting prologs could not be served any more: see above")


def _keys(site: Site) -> MungeKeys | None:
    """Who brings the munge key to machines; None where it is part of their image."""
    ssh = site.config.join.ssh
    if ssh is None:
        return None
    try:
        from slurm_elastic.controller.munge_keys import MungeKeys
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"join.ssh: Python module {error.name!r} is missing; install slurm-elastic[ssh]"
        ) from error
    # Its threads tell each failed connection with a traceback; we tell it in a line.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    return MungeKeys(site, ssh)


def _open(state: Path, closing: contextlib.ExitStack) -> tuple[Spool, Ledger, WakeSocket]:
    """What the state directory holds; ConfigError where it cannot be used."""
    try:
        spool = Spool(state)
        spool.create()
        ledger = Ledger(state / "ledger.db")
        closing.callback(ledger.close)
        wake = WakeSocket(state / "wake.sock")
        closing.callback(wake.close)
    except OSError as error:
        raise ConfigError(f"state_dir: {state} cannot be used: {error}") from error
    except sqlite3.Error as error:
        raise ConfigError(
            f"state_dir: {state / 'ledger.db'} cannot be used: {error};"
            " without it machines are found again by their tags"
        ) from error
    return spool, ledger, wake


if __name__ == "__main__":
    sys.exit(main())
