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

from slurm_elastic.cli.service import on_stop, run_service
from slurm_elastic.config import Config
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger import Ledger
from slurm_elastic.lifecycle.daemon import Daemon
from slurm_elastic.lifecycle.prolog import PrologServer
from slurm_elastic.lifecycle.site import Site
from slurm_elastic.lifecycle.wake import WakeSocket
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.cli import SlurmCli
from slurm_elastic.spool import Spool

log = logging.getLogger("slurm_elastic.daemon")


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: the configuration or the state directory is wrong."""
    return run_service("slurm-elasticd", __doc__, "daemon.lock", _serve, argv)


def _serve(config: Config) -> None:
    stop = threading.Event()
    on_stop(stop.set)
    slurm = SlurmCli(config.slurm)
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
        Daemon(site, spool, wake, waiter.nudge).run(stop)
        if waiter.failed:
            raise SlurmElasticError("waiting prologs could not be served any more: see above")


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
