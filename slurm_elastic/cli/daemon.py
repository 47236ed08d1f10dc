"""``slurm-elasticd``: the service that launches, suspends and repairs. Runs as SlurmUser."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slurm_elastic import configfile
from slurm_elastic.config import Config
from slurm_elastic.ending import on_end
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger import Ledger
from slurm_elastic.lifecycle.daemon import Daemon
from slurm_elastic.lifecycle.prolog import PrologServer
from slurm_elastic.lifecycle.site import Site
from slurm_elastic.lifecycle.wake import WakeSocket
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.client import open_slurm
from slurm_elastic.spool import Spool

log = logging.getLogger("slurm_elastic.daemon")

DEFAULT_CONFIG = Path("/etc/slurm-elastic/slurm-elastic.yaml")
_HINT = "; `slurm-elastic conf install` makes it for SlurmUser"


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: the configuration or the state directory is wrong."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        config = configfile.load(args.config)
        _require(config)
        with _locked(config.state):
            _serve(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except SlurmElasticError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm-elasticd", description=__doc__)
    default = os.environ.get("SLURM_ELASTIC_CONFIG", str(DEFAULT_CONFIG))
    parser.add_argument("--config", type=Path, default=Path(default), metavar="FILE")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, default="info")
    return parser


def _require(config: Config) -> None:
    if config.cluster.uuid is None:
        raise ConfigError(
            "the cluster has no UUID yet, and without one no machine could be told to be ours:"
            " run `slurm-elastic conf install` first"
        )


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """One daemon a state directory; the lock goes with the process, however it ends."""
    try:
        lock = os.open(state / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"state_dir: {state} cannot be written by uid {os.getuid()}: {error.strerror}"
            + ("" if error.errno == errno.ENOSPC else _HINT)
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SlurmElasticError(f"another slurm-elasticd serves {state} already") from None
    try:
        yield
    finally:
        os.close(lock)


def _serve(config: Config) -> None:
    stop = threading.Event()
    # A daemon started below slurmctld would inherit its blocked signals, SIGTERM among them.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    on_end(stop.set)
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
