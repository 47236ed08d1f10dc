"""A service of two heads: it stands by until Slurm says that this head acts, serves, and stands by
again when the other one does (``ha.directory``, ``state.heads``).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base import asking, trust
from slurm_elastic.base.errors import ConfigError, PassingError
from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config, configfile
from slurm_elastic.machine.ckptroot import mounts
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.providers.base.fenced import fenced
from slurm_elastic.slurm.client import fenced as fenced_client
from slurm_elastic.slurm.client.acting import Controllers, controllers
from slurm_elastic.state import heads, presence
from slurm_elastic.state.heads import Epoch, Epochs, Fence
from slurm_elastic.state.heartbeat import STANDS_BY_MEANS, Mark, leave_mark
from slurm_elastic.state.presence import Presence

log = logging.getLogger("slurm_elastic.standby")

EVERY = 1.0
"""Seconds between two looks at who acts."""
_BEAT = 5.0
_WAIT = "nothing: Slurm decides which head acts"
CANNOT_ACT_MEANS = "this head cannot act"
"""Of a head that stands by and could not take over: a person has to do something."""


def head_of(config: Config, service: str, mark: str) -> Head | None:
    """None where there is one head. ConfigError where this host is none of Slurm's, has a memory of
    its own, or would not see at once that the other one acts; ``mark``: the name of the
    ``service``'s sign of life.
    """
    if config.ha.directory is None:
        heads.require_unshared(config.state)
        return None
    directory = Path(config.ha.directory)
    try:
        heads.link(config.state, directory)
        flaw = trust.flaw(directory, trust.roots())
    except OSError as error:
        raise PassingError(f"ha.directory: {directory} cannot be used: {error}") from error
    if flaw:
        # Its writer has launches made, orders followed and files written, all as SlurmUser.
        raise ConfigError(f"ha.directory: {flaw}")
    if "nocto" in mounts.nfs_options(str(directory.resolve()), mounts.mounts()):
        raise ConfigError(
            f"ha.directory: {directory} is mounted with nocto, by which a head may not see for a "
            "minute that the other one acts: mount it without"
        )
    host = os.uname().nodename
    digest = hashlib.sha256(configfile.dump(config).encode()).hexdigest()
    me = Presence(host=host, at=0.0, config=digest, version=version("slurm-elastic"))
    network = config.join.network
    key = Path(network.public_key) if network and network.tunnels else None
    tells = partial(_tell, directory, service, me, key)
    return Head(config.state, directory, controllers(config.slurm.conf), mark, tells)


def _tell(directory: Path, service: str, me: Presence, key: Path | None) -> None:
    """Leave a sign of life for the other head, where that can be. ``key``: the hub's, which
    makes it when it first runs.
    """
    with contextlib.suppress(OSError):
        presence.tell(directory, service, replace(me, at=time.time(), tunnel=_text_of(key)))


def _text_of(key: Path | None) -> str:
    """Nothing where it cannot be read: the sign of life matters more."""
    with contextlib.suppress(OSError):
        return key.read_text(errors="replace").strip() if key else ""
    return ""


class Head:
    """One of two heads, for one service."""

    def __init__(
        self, state: Path, directory: Path, slurm: Controllers, mark: str,
        tells: Callable[[], None],
    ) -> None:  # fmt: skip
        self._state, self._slurm, self._mark, self._tells = state, slurm, mark, tells
        self._epochs = Epochs(directory)
        self._fence: Fence | None = None
        self._directory = directory
        self._remedy, self._means = _WAIT, STANDS_BY_MEANS
        self._reports = ReportOnce[str]()
        self._since = time.time()
        self._beaten = float("-inf")
        # By the monotonic clock; None while it stands by.
        self._settles: float | None = None

    def begins(self, ended: threading.Event) -> bool:
        """Stand by until this head acts; False where the service is to end before."""
        while not ended.is_set():
            why = self._why_not()
            if not why:
                return True
            self._stand_by(why)
            ended.wait(EVERY)
        return False

    def _why_not(self) -> str:
        """Why this head does not act; "" from when it does, in an epoch of its own."""
        host = os.uname().nodename
        self._remedy, self._means = _WAIT, STANDS_BY_MEANS
        try:
            place = self._slurm.acting(time.time())
            last = self._epochs.newest()
            if why := self._older(last):
                return why
            if place != self._slurm.place:
                acts = "no slurmctld acts" if place is None else self._acts(place)
                return acts if last is None else f"{acts} (epoch {last.number} of {last.holder})"
            epoch = self._epochs.take(host)
        except OSError as error:
            self._remedy = f"see why it cannot be read and written by SlurmUser: {self._directory}"
            self._means = CANNOT_ACT_MEANS
            return f"who acts cannot be told, or taken down: {error}"
        heads.note_seen(self._state, epoch.number)
        if self._settles is None:
            # Also in an epoch of its own: Slurm may have been at the other head, whose services did
            # not run, and have forgotten something on either way.
            self._settles = time.monotonic() + self._slurm.takeover
        self._fence = Fence(epochs=self._epochs, epoch=epoch.number, host=host)
        asking.first(self.require)
        log.info("acting host=%s epoch=%d", host, epoch.number)
        self._reports.over("standing by")
        return ""

    def _older(self, last: Epoch | None) -> str:
        """Why the directory is not the one that both heads shared; "" if it may be. In an empty
        directory or an older copy a head would begin an epoch and forget machines and charges.
        """
        number, seen = 0 if last is None else last.number, heads.last_seen(self._state)
        if number >= seen:
            heads.note_seen(self._state, number)
            return ""
        path = self._state / heads.LAST_EPOCH
        self._means = CANNOT_ACT_MEANS
        self._remedy = (
            "mount the right directory; if this one shall count though it knows less, remove "
            f"{path} on both heads"
        )
        found = f"ends with epoch {number}" if number else "has no epoch"
        return (
            f"ha.directory: {self._directory} {found}, and this head has seen epoch {seen}: it is "
            "another directory, or an older copy"
        )

    def _acts(self, place: int) -> str:
        """The controller at that place in Slurm's heartbeat. The place may be any number, as
        slurm.conf may have changed since this service read it.
        """
        if place < len(self._slurm.hosts):
            return f"{self._slurm.hosts[place]} acts"
        return (
            f"SlurmctldHost line {place + 1} acts, and slurm.conf had {len(self._slurm.hosts)} "
            "when this service started"
        )

    def _stand_by(self, why: str) -> None:
        self._settles = None
        if self._reports.is_news("standing by", why):
            log.info("standing by: %s", why)
            self._since = time.time()
        clock = time.monotonic()
        if clock >= self._beaten + _BEAT:
            self._beaten = clock
            self._tells()
            with contextlib.suppress(OSError):
                now, pid = time.time(), os.getpid()
                leave_mark(
                    self._state,
                    Mark(now, pid, why, self._remedy, self._since, self._means),
                    self._mark,
                )

    @contextlib.contextmanager
    def watched(self, lost: Callable[[], object]) -> Iterator[None]:
        """Call ``lost`` once when this head acts no more."""
        over = threading.Event()
        # A service whose watch died would never notice that the other head acts.
        task = PeriodicTask("head", lambda: self._watch(task, lost), EVERY, first_in_s=EVERY)
        watch = PeriodicThread(task, over, died=lost)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, task: PeriodicTask, lost: Callable[[], object]) -> None:
        if time.monotonic() >= self._beaten + _BEAT:
            self._beaten = time.monotonic()
            self._tells()
        if cause := self._cause_of_loss():
            log.warning("this head no longer acts: %s", cause)
            task.end()
            lost()

    def _cause_of_loss(self) -> str:
        """Why this head no longer acts; "" if it still does."""
        try:
            self.require()
            place = self._slurm.acting(time.time())
        except OSError as error:
            return str(error)
        # None: slurmctld starts again, or hangs, and asks for nothing until then.
        return "" if place in (None, self._slurm.place) else self._acts(place)

    def require(self) -> None:
        """SupersededError, or another OSError, where this head may not act."""
        assert self._fence is not None  # noqa: S101 - ``begins`` came before
        self._fence.require()

    def fenced(self, providers: Mapping[str, Provider]) -> dict[str, Provider]:
        """These, which nobody calls but the head that acts."""
        return {name: fenced(one, self.require) for name, one in providers.items()}

    def fenced_slurm(self, slurm: Slurm) -> Slurm:
        """The same, which nobody changes but the head that acts."""
        return fenced_client.fenced(slurm, self.require)

    @property
    def unsettled(self) -> float:
        """Seconds in which Slurm may yet ask for what it forgot."""
        return 0.0 if self._settles is None else max(self._settles - time.monotonic(), 0.0)

    @property
    def epoch(self) -> int:
        """The number of the one in which this head acts."""
        return 0 if self._fence is None else self._fence.epoch
