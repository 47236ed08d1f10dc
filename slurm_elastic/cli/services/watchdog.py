"""``slurm-elastic-watchdog``: ends machines of powered-down nodes if slurm-elasticd is silent.

The watchdog has no ledger and buys nothing. It runs as SlurmUser.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.services.service import on_stop, parser_of, run_parsed
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.fresh import FreshConfig
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.policies.repair.unneeded import Bound
from slurm_elastic.providers import open_providers, reopened
from slurm_elastic.slurm.client.acting import controllers_for_service
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.heartbeat import DAEMON
from slurm_elastic.state.host import read_host
from slurm_elastic.state.presence import acting_files
from slurm_elastic.watch.watchdog import NAME, Watchdog, WatchedClouds

log = logging.getLogger("slurm_elastic.watch.watchdog")

AFTER_S = 1800.0
EVERY_S = 60.0


ABOUT = (
    "End machines whose nodes Slurm has powered down, once slurm-elasticd has been silent for "
    "long. The watchdog has no ledger and buys nothing. Run it as SlurmUser; systemd does."
)


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: wrong configuration; 75: temporary failure, retry."""
    args = parser().parse_args(argv)
    return run_parsed(NAME, args, None, partial(_serve, args))


def parser() -> argparse.ArgumentParser:
    command = parser_of(NAME, ABOUT)
    command.epilog = examples(f"{NAME} --dry-run")
    command.add_argument(
        "--after", type=float, default=AFTER_S, metavar="SECONDS",
        help="act if slurm-elasticd has been silent, and a node powered down, for this long "
        "(default: %(default)g)",
    )  # fmt: skip
    command.add_argument(
        "--every", type=float, default=EVERY_S, metavar="SECONDS",
        help="check at this interval (default: %(default)g)",
    )  # fmt: skip
    command.add_argument(
        "--dry-run", action="store_true", help="list the machines that would end, and end none"
    )
    return command


class _WatchedClouds:
    """The clouds of the configuration as its file has it now: a cloud that was added while the
    watchdog runs is watched, too.
    """

    def __init__(self, fresh: FreshConfig) -> None:
        self._fresh = fresh
        self._opened: Config | None = None
        self._clouds = WatchedClouds(providers={}, kept={}, later={})
        self._reports = ReportOnce[str]()

    def renewed(self) -> WatchedClouds | None:
        """The clouds, if the configuration has changed since the last call, or a cloud that could
        not be opened can be opened now. ConfigError if no cloud can be opened at the start.
        """
        config = self._fresh.get()
        if config is self._opened:
            return self._with_refused(config)
        try:
            providers = open_providers(config)
        except ConfigError as error:
            # A file that a setting names may be away only while a person replaces it. The watchdog
            # is the last resort, so it continues with the clouds of before and tries again.
            if self._opened is None:
                raise
            if self._reports.is_news(NAME, str(error)):
                log.error("the clouds before the change are watched: %s", error)  # noqa: TRY400
            return None
        self._reports.clear(NAME)
        self._opened = config
        self._clouds = WatchedClouds(
            providers=providers, kept=_max_age_of_stopped(config), later=_later_for_copies(config)
        )
        return self._clouds

    def _with_refused(self, config: Config) -> WatchedClouds | None:
        """The clouds, if a cloud that could not be opened can be opened now."""
        opened = reopened(config, self._clouds.providers)
        if not opened:
            return None
        self._clouds = replace(self._clouds, providers={**self._clouds.providers, **opened})
        return self._clouds


def _max_age_of_stopped(config: Config) -> dict[str, float]:
    """For the nodes of pools that keep stopped machines: how old these may get (s)."""
    pools = [pool for pool in domain_pools(config, expand) if pool.stopped]
    return {n: inf if p.max_age is None else p.max_age for p in pools for n in p.nodes}


def _later_for_copies(config: Config) -> dict[str, float]:
    """By cloud with ``data: copy``, how much longer (s) its machines stay, so that a daemon that
    starts again can still bring the files back.
    """
    clouds = [cloud.name for cloud in config.clouds if cloud.data is Data.COPY]
    return dict.fromkeys(clouds, config.copy.back_within)


def _heads_signs(config: Config) -> Sequence[Path]:
    """The files of signs of life of the heads that act. A head that only stands by, or that cannot
    act because it sees an older copy of the directory, ends no machine either.
    """
    directory = config.ha.directory
    return () if directory is None else acting_files(Path(directory), DAEMON)


def _serve(args: argparse.Namespace, config: Config) -> None:
    lowest = max(config.timings.daemon_timeout, config.timings.orphan_timeout)
    reason = (
        "timings.daemon_timeout and timings.orphan_timeout of the configuration, within which "
        "slurm-elasticd acts itself"
    )
    if (
        config.ha.directory
        and (takeover := controllers_for_service(config.slurm.conf).takeover) > lowest
    ):
        lowest = takeover
        reason = (
            f"2 x SlurmctldTimeout of {config.slurm.conf} + 60 s, within which Slurm asks again"
        )
    # ``not >=``, because NaN, which argparse accepts, is not ``<`` either.
    if not args.after >= lowest:
        raise ConfigError(f"--after: found {args.after:g}, expected {lowest:g} or more: {reason}")
    if not 1.0 <= args.every <= args.after:
        raise ConfigError(f"--every: found {args.every:g}, expected 1 to --after ({args.after:g})")
    stop = threading.Event()
    on_stop(stop.set)
    slurm = SlurmCli(config.slurm)
    fresh = FreshConfig(Path(args.config))
    clouds = _WatchedClouds(fresh)
    dog = Watchdog(
        slurm, {}, config.state, Bound(seconds=args.after), time.monotonic, renew=clouds.renewed,
        others=lambda: _heads_signs(fresh.get()),
        here=None if config.ha.directory else read_host, dry_run=args.dry_run,
    )  # fmt: skip
    log.info(
        "watching cluster=%s after=%gs every=%gs dry_run=%s",
        config.cluster.name, args.after, args.every, args.dry_run,
    )  # fmt: skip
    dog.run(stop, args.every)
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
