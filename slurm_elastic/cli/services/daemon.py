"""``slurm-elasticd``: the service that launches, suspends and repairs. Runs as SlurmUser."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, PassingError, SlurmElasticError
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.cli.services.service import on_stop, run_service
from slurm_elastic.cli.services.standby import Head, head_of
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.catalogue import from_state
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.features.growth.policy_chooser import PolicyChooser
from slurm_elastic.features.power.prolog import PrologServer
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.providers import open_providers, reopened
from slurm_elastic.providers.catalogues import CatalogueKeeper, tell_used
from slurm_elastic.slurm.client.chosen import open_slurm
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.heartbeat import DAEMON, MARK
from slurm_elastic.state.host import read_host
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.state.store.trouble import passes
from slurm_elastic.watch.door.answers import DoorAnswers
from slurm_elastic.watch.door.server import Door

log = logging.getLogger("slurm_elastic.daemon")


DOOR_RETRY_S = 10.0
"""Seconds between two tries to open the read door."""
CLOUD_RETRY_S = 60.0
"""Seconds between two tries to open the clouds that could not be opened."""
ABOUT = (
    "Start, end and repair the machines of the configuration, for slurmctld. Run it as "
    "SlurmUser; systemd does."
)


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit 2: wrong configuration; 75: temporary failure, retry."""
    return run_service("slurm-elasticd", ABOUT, "daemon.lock", _serve, argv, configfile.read)


def _serve(plain: Config) -> None:
    """Serve; restart inside this process whenever a catalogue changes types or prices, or another
    policy is chosen.

    ``plain``: the configuration as read, before catalogues are applied.
    """
    ended = threading.Event()
    has_served = False
    head = head_of(plain, DAEMON, MARK)
    if head is not None:
        on_stop(ended.set)
    while not ended.is_set():
        if head is not None and not head.begins(ended):
            return
        with contextlib.nullcontext() if head is None else head.retried():
            config = from_state(plain, time.time())
            _serve_as(plain, config, ended, head, has_served=has_served)
        has_served = True


def _serve_as(
    plain: Config, config: Config, ended: threading.Event, head: Head | None, *, has_served: bool
) -> None:
    """Serve until SIGTERM sets ``ended``, a catalogue changes, this ``head`` no longer acts, or a
    cloud that could not be opened can be opened.

    ``has_served``: this process has served before. It then continues although no cloud can be
    opened at this moment, because systemd does not start it again after a ConfigError.
    """
    stop = threading.Event()

    def end() -> None:
        ended.set()
        stop.set()

    on_stop(end)  # before the check, so that a signal between the two lines is not lost
    if ended.is_set():  # SIGTERM came while this head stood by
        return
    opened = open_slurm(config.slurm, stop)
    slurm: Slurm = opened
    providers = open_providers(config, may_refuse_all=has_served)
    # The stack closes in reverse order: the ledger after all parts that write to it.
    with contextlib.ExitStack() as closing:
        closing.callback(log.info, "stopped")
        _retry_refused(config, providers, closing, stop)
        if head is not None:
            providers, slurm = head.fenced(providers), head.fenced_slurm(slurm)
            closing.enter_context(head.watched(stop.set))
        closing.callback(opened.close)
        ledger = Ledger.enduring(config.state / "ledger.db")
        closing.callback(ledger.close)
        spool, wake = _open(config.state, closing, shares=head is not None)
        site = replace(Site.of(config, slurm, ledger, providers, time.time), wait=stop.wait)
        if head is None:
            site = replace(site, host=read_host())
        if head is not None:
            site = replace(
                site, repairs_allowed_from=time.monotonic() + head.unsettled, epoch=head.epoch
            )
        waiter = PrologServer(config.state / "prolog.sock", slurm, stop)
        closing.callback(waiter.close)
        log.info(
            "serving cluster=%s pid=%d state=%s", config.cluster.name, os.getpid(), config.state
        )
        _start(waiter)
        if any(cloud.catalogued for cloud in plain.clouds):
            keeper = CatalogueKeeper(plain, config, stop.set)
            keeper.start()
            closing.callback(keeper.stop)
        if plain.policies.choose.among:
            chooser = PolicyChooser(plain, ledger.decisions.record, stop.set)
            chooser.start()
            closing.callback(chooser.stop)
        tell_used(config, ledger.decisions, time.time())
        door = _answer_users(config, closing, stop)
        Daemon(site, spool, wake, features=(*FEATURES, waiter.join)).run(stop)
        if waiter.failed:
            raise SlurmElasticError("waiting prologs can no longer be served: see above")
        if door.failed:
            raise SlurmElasticError("users can no longer be answered: see above")


def _retry_refused(
    config: Config,
    providers: Mapping[str, Provider],
    closing: contextlib.ExitStack,
    stop: threading.Event,
) -> None:
    """Set ``stop`` when a cloud that could not be opened can be opened: the restart opens it."""

    def try_again() -> None:
        if reopened(config, providers):
            task.end()
            stop.set()

    task = PeriodicTask("refused clouds", try_again, CLOUD_RETRY_S, first_in_s=CLOUD_RETRY_S)
    thread = PeriodicThread(task, stop)
    thread.start()
    closing.callback(thread.join, 10.0)
    closing.callback(stop.set)


def _start(waiter: PrologServer) -> None:
    """Serve waiting prologs. If that fails, only log it: prologs give up waiting by themselves."""
    try:
        waiter.start()
    except OSError as error:
        if not passes(error):
            raise
        log.error("waiting prologs are not served until a restart: %s", error)  # noqa: TRY400


def _answer_users(config: Config, closing: contextlib.ExitStack, stop: threading.Event) -> Door:
    """Open the read door. Machines start and end without it, so a failure is only logged, and the
    door is tried again.
    """
    answers = DoorAnswers(config, PromptCli(config.slurm), time.time)
    door = Door(config.read_socket, answers, answers.trusts, died=stop.set)
    closing.callback(door.close)
    try:
        door.start()
    except OSError as error:
        log.error(  # noqa: TRY400 - what is wrong is the place, not the code
            "users are not answered, `status` and `explain` are for root and SlurmUser: "
            "users.socket: %s cannot be made: %s; make its directory for SlurmUser "
            "(tried again each %.0f s)",
            config.read_socket, error.strerror or error, DOOR_RETRY_S,
        )  # fmt: skip
        _answer_users_later(config, door, closing, stop)
    return door


def _answer_users_later(
    config: Config, door: Door, closing: contextlib.ExitStack, stop: threading.Event
) -> None:
    """Open the door when its directory is there."""

    def try_again() -> None:
        with contextlib.suppress(OSError):
            door.start()
            log.info("users are answered socket=%s", config.read_socket)
            task.end()

    task = PeriodicTask("read door", try_again, DOOR_RETRY_S, first_in_s=DOOR_RETRY_S)
    thread = PeriodicThread(task, stop)
    thread.start()
    # Before the door is closed (the last callback comes first): it must not be opened after that.
    closing.callback(thread.join, 10.0)
    closing.callback(stop.set)


def _open(state: Path, closing: contextlib.ExitStack, *, shares: bool) -> tuple[Spool, WakeSocket]:
    """Open the spool of requests and the socket that wakes the daemon for them.

    Raises ConfigError if the state directory cannot be used, or PassingError if this head
    ``shares`` it with another head, because the directory may be unmounted for a moment. With a
    full or read-only disk we have no socket and poll for requests.
    """
    spool = Spool(state)
    try:
        spool.create()
        wake = WakeSocket(state / "wake.sock")
    except OSError as error:
        if not passes(error):
            error_type = PassingError if shares else ConfigError
            raise error_type(f"state_dir: {state} cannot be used: {error}") from error
        log.error("requests are only polled for, until a restart: %s", error)  # noqa: TRY400
        wake = WakeSocket(None)
    closing.callback(wake.close)
    return spool, wake


if __name__ == "__main__":
    sys.exit(main())
