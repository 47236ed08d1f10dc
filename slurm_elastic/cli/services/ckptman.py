"""``slurm-elastic-ckptman``: saves jobs, and moves them off machines that will be taken away.

The service runs as SlurmUser.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, PassingError
from slurm_elastic.base.processes.periodic import PeriodicThread
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.readers import PeriodicReader, plans_reader, spot_prices
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.wake import SOCKET, SlurmEvents
from slurm_elastic.ckptman.wiring import open_pollers, open_prices, open_site
from slurm_elastic.cli.services.service import on_stop, run_service
from slurm_elastic.cli.services.standby import Head, head_of
from slurm_elastic.config import Config
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.heartbeat import CKPTMAN, CKPTMAN_MARK
from slurm_elastic.state.store.trouble import passes

log = logging.getLogger("slurm_elastic.ckptman")

JOIN_TIMEOUT_S = 5.0
"""At the end we wait so long for each thread. A thread that still reads a source loses nothing."""

ABOUT = (
    "Save jobs, and move them off machines that are taken away. Run it as SlurmUser; systemd does."
)


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: wrong configuration; 75: temporary failure, retry."""
    return run_service(CKPTMAN, ABOUT, "ckptman.lock", _serve, argv)


def _serve(config: Config) -> None:
    ended = threading.Event()
    head = head_of(config, CKPTMAN, CKPTMAN_MARK)
    if head is None:
        _serve_as(config, ended)
        return
    on_stop(ended.set)
    while head.begins(ended):
        with head.retried():
            _serve_as(config, ended, head)


def _serve_as(config: Config, ended: threading.Event, head: Head | None = None) -> None:
    """Serve until SIGTERM sets ``ended``, or until the other head becomes the acting ``head``.

    Raises PassingError if the state directory is unavailable and may come back (always with two
    heads), else ConfigError.
    """
    stop = threading.Event()
    with contextlib.ExitStack() as closing:
        closing.callback(log.info, "stopped")
        try:
            slurm: Slurm = SlurmCli(config.slurm, stop)
            if head is not None:
                slurm = head.fenced_slurm(slurm)
            site = open_site(config, slurm, closing, stop)
            if head is not None:
                site = replace(site, providers=head.fenced(site.providers))
            prices = open_prices(config)
            service = Service(site, KeyedExecutor(config.checkpoint.max_parallel), prices)
            threads: list[PeriodicThread] = list(open_pollers(site, service))
            wake = closing.enter_context(WakeSocket(config.state / SOCKET))
            threads.append(SlurmEvents(stop, wake.wait, service.wake_after_event))
        except OSError as error:
            # With two heads the directory is shared: it may be unmounted for a moment.
            error_type = PassingError if head is not None or passes(error) else ConfigError
            raise error_type(_unusable(config, error)) from error

        def end() -> None:
            ended.set()
            service.stop()

        on_stop(end)
        if ended.is_set():  # SIGTERM came while this head stood by
            return
        if head is not None:
            closing.enter_context(head.watched(service.stop))
        threads.append(plans_reader(site, service.plans))
        if prices is not None:
            read = partial(spot_prices, prices, service.reader.machines)
            every = config.checkpoint.prices.poll_interval
            threads.append(PeriodicReader(site, prices.name, every, read, prices.retry(every)))
        for thread in threads:
            thread.start()
        log.info(
            "serving cluster=%s pid=%d methods=%s",
            config.cluster.name, os.getpid(), ",".join(site.checkpointers),
        )  # fmt: skip
        service.run()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)


def _unusable(config: Config, error: OSError) -> str:
    """Name the unusable directory in the error, because images may lie outside of the state
    directory.
    """
    path = Path(str(error.filename)) if error.filename else config.state
    if path.is_relative_to(config.state):
        return f"state_dir: {config.state} cannot be used: {error}"
    return f"{path} cannot be used: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
