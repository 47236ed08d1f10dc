"""The common part of our services: options, log, configuration, lock file and SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_elastic.base.account import is_roots
from slurm_elastic.base.errors import ConfigError, PassingError, SlurmElasticError, SlurmError
from slurm_elastic.base.processes import heap
from slurm_elastic.base.processes.signals import accept_ends, on_end
from slurm_elastic.cli.arguments import add_config
from slurm_elastic.cli.helptext import Command, examples
from slurm_elastic.cli.streams import log_plainly, prepare, visible
from slurm_elastic.config import Config, configfile
from slurm_elastic.state import locks, statedir
from slurm_elastic.state.store.trouble import passes

log = logging.getLogger(__name__)


def run_service(
    name: str,
    about: str,
    lock: str,
    serve: Callable[[Config], None],
    argv: list[str] | None = None,
    load: Callable[[Path], Config] = configfile.load,
) -> int:
    """Run ``serve`` while holding the lock file ``lock`` in the state directory.

    Exit 2: the configuration is wrong, or the state directory does not fit it. Exit 75
    (EX_TEMPFAIL): a disk, a database or slurmctld fails, which passes by itself. Exit 1: another
    error, such as a lock that another process holds.
    """
    return run_parsed(name, parser_of(name, about).parse_args(argv), lock, serve, load)


def run_parsed(
    name: str,
    args: argparse.Namespace,
    lock: str | None,
    serve: Callable[[Config], None],
    load: Callable[[Path], Config] = configfile.load,
) -> int:
    """Do as ``run_service``, with parsed options. Without ``lock`` the state is only read."""
    accept_ends()
    prepare()
    heap.share_one()  # before the first thread: glibc gives each thread a heap that only grows
    log_plainly(args.log_level.upper())
    # At debug level botocore would log each call to AWS in many lines.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        # Before it is read: a user who can write the file could run programs with our rights.
        configfile.require_ours(args.config)
        config = load(args.config)
        _require(config)
        if lock is None:
            serve(config)
            return 0
        _require_owner(config, name)
        with statedir.private_umask():
            _close_to_others(config.state)
            with _locked(config, lock, name):
                serve(config)
    # Keep the order: these are subclasses of SlurmElasticError, which comes last.
    except ConfigError as error:
        print(visible(str(error)), file=sys.stderr)
        return 2
    except (PassingError, SlurmError, sqlite3.Error, OSError) as error:
        print(visible(_sentence(error)), file=sys.stderr)
        return os.EX_TEMPFAIL
    except SlurmElasticError as error:
        print(visible(str(error)), file=sys.stderr)
        return 1
    return 0


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, SlurmElasticError) else f"stopped by an error: {error}"


def on_stop(stop: Callable[[], object]) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT."""
    on_end(stop)


def parser_of(name: str, about: str) -> argparse.ArgumentParser:
    """The options of every service; ``about``: the description in its help."""
    parser = Command(prog=name, description=about, epilog=examples(f"{name} --log-level debug"))
    add_config(parser)
    levels = ("debug", "info", "warning", "error")
    parser.add_argument(
        "--log-level", choices=levels, default="info",
        help="log events from this level on, to standard error (default: %(default)s)",
    )  # fmt: skip
    return parser


def _require(config: Config) -> None:
    if config.cluster.uuid is None:
        raise ConfigError(
            "the cluster has no UUID yet, and without a UUID we cannot recognise our machines:"
            " run `slurm-elastic conf install` first"
        )


def _require_owner(config: Config, name: str) -> None:
    """ConfigError for root in another user's state directory.

    The user could place symbolic links there, and root would write through them.
    """
    state, user = config.state, config.slurm.user
    if os.geteuid() == 0 and state.exists() and not is_roots(state):
        raise ConfigError(
            f"state_dir: {name} runs as root, and others than root may write in {state}: start "
            f"{name} as {user}, as its unit does"
        )


def _close_to_others(state: Path) -> None:
    """Remove other users' rights to the state directory, such as those of a restored copy."""
    try:
        changed = statedir.close_to_others(state, os.geteuid())
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("state directory %s is not closed to other users: %s", state, error.strerror)
        return
    if changed:
        log.info("state directory %s closed to other users: %d modes changed", state, changed)


def _remedy(config: Config, error: OSError, name: str) -> str:
    """What to do, as the end of a sentence; "" if only the error itself says it."""
    state, is_there = config.state, os.path.isdir(config.state)
    if error.errno == errno.EROFS:
        # A unit's ProtectSystem=strict makes each directory that it does not name read-only.
        return f"; on a writable disk its unit lacks ReadWritePaths={state} (systemctl edit {name})"
    if is_there and error.errno in (errno.EACCES, errno.EPERM):
        return f"; give it back to SlurmUser: chown -R {config.slurm.user}: {state}"
    if is_there or passes(error):
        return ""
    return "; `slurm-elastic conf install` makes it for SlurmUser"


@contextlib.contextmanager
def _locked(config: Config, lock: str, name: str) -> Iterator[None]:
    """Hold the lock: one such service for each state directory.

    Raises PassingError or ConfigError if the file cannot be opened, SlurmElasticError if another
    process has the lock.
    """
    state = config.state
    try:
        descriptor = locks.take(state / lock)
    except locks.HeldError:
        raise SlurmElasticError(f"another {name} serves {state} already") from None
    except OSError as error:
        text = f"state_dir: {state} cannot be written by uid {os.getuid()}: {error.strerror}"
        text += _remedy(config, error, name)
        if passes(error):
            raise PassingError(text) from error
        raise ConfigError(text) from error
    try:
        yield
    finally:
        os.close(descriptor)
