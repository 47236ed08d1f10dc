"""A service with two heads (``ha.directory``, ``state.heads``).

It stands by until Slurm says that this head acts. Then it serves, until the other head acts.
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
from typing import Protocol

from msgspec.structs import replace

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, PassingError
from slurm_elastic.base.processes import asking
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config, configfile
from slurm_elastic.machine.ckptroot import mounts
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.providers.base.fenced import fenced
from slurm_elastic.slurm.client import fenced as fenced_client
from slurm_elastic.slurm.client.acting import Controllers, controllers_for_service
from slurm_elastic.state import heads, presence
from slurm_elastic.state.heads import Epoch, Epochs, Fence
from slurm_elastic.state.heartbeat import CANNOT_ACT_MEANS, STANDS_BY_MEANS, Mark, leave_mark
from slurm_elastic.state.presence import Presence

log = logging.getLogger("slurm_elastic.standby")

CHECK_EVERY_S = 1.0
"""Interval at which we read which head acts."""
_BEAT_EVERY_S = 5.0
_NO_REMEDY_NEEDED = "nothing: Slurm decides which head acts"


def head_of(config: Config, service: str, mark: str) -> Head | None:
    """Open this head, or return None without ``ha.directory``.

    ``mark``: name of the file of the ``service``'s sign of life. Raises PassingError if the shared
    directory is unavailable, and ConfigError if this host is no slurmctld host, has a state of its
    own, shares a directory that others may write, or would see too late that the other head acts.
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
        # A user who can write there can make launches, give orders and write files as SlurmUser.
        raise ConfigError(f"ha.directory: {flaw}")
    if "nocto" in mounts.nfs_options(str(directory.resolve()), mounts.mounts()):
        raise ConfigError(
            f"ha.directory: {directory} is mounted with nocto, so a head may notice up to a minute "
            "late that the other one acts: mount it without nocto"
        )
    host = os.uname().nodename
    digest = hashlib.sha256(configfile.dump(config).encode()).hexdigest()
    me = Presence(host=host, at=0.0, config=digest, version=version("slurm-elastic"))
    network, ssh = config.join.network, config.join.ssh
    key = Path(network.public_key) if network and network.tunnels else None
    secret = Path(ssh.secret) if ssh else None
    leave_presence = partial(_leave_presence, directory, service, me, key, secret)
    return Head(
        config.state, directory, controllers_for_service(config.slurm.conf), mark, leave_presence
    )


def _leave_presence(
    directory: Path,
    service: str,
    me: Presence,
    key: Path | None,
    secret: Path | None,
    *,
    acts: bool,
) -> None:
    """Leave a sign of life for the other head; errors are ignored, because the next one follows.

    ``key``: the file of the hub's public key. It is missing until the hub has run once. ``secret``:
    the file of Slurm's secret for machines. Both are read each time, because a person may change
    them while we run.
    """
    text = _content_of(key).decode(errors="replace").strip()
    now = replace(me, at=time.time(), tunnel=text, secret=_digest_of(secret), acts=acts)
    with contextlib.suppress(OSError):
        presence.write_presence(directory, service, now)


def _content_of(path: Path | None) -> bytes:
    """The file's content; empty if it cannot be read, because the sign of life matters more."""
    with contextlib.suppress(OSError):
        return path.read_bytes() if path else b""
    return b""


def _digest_of(secret: Path | None) -> str:
    """A digest by which two heads can compare the secret, and which does not reveal it."""
    content = _content_of(secret)
    return hashlib.sha256(b"slurm-elastic presence:" + content).hexdigest() if content else ""


class LeavePresence(Protocol):
    """Leaves a sign of life for the other head."""

    def __call__(self, *, acts: bool) -> None: ...


class Head:
    """One head of a pair, for one service."""

    def __init__(
        self, state: Path, directory: Path, slurm: Controllers, mark: str,
        leave_presence: LeavePresence,
    ) -> None:  # fmt: skip
        self._state, self._slurm, self._mark, self._leave_presence = (
            state,
            slurm,
            mark,
            leave_presence,
        )
        self._epochs = Epochs(directory)
        self._fence: Fence | None = None
        self._directory = directory
        self._remedy, self._means = _NO_REMEDY_NEEDED, STANDS_BY_MEANS
        self._reports = ReportOnce[str]()
        self._since = time.time()
        self._beaten = float("-inf")
        # Monotonic time until which Slurm may still send orders of before; None on stand-by.
        self._settles: float | None = None

    def begins(self, ended: threading.Event) -> bool:
        """Stand by until this head acts; False if the service must end before that."""
        while not ended.is_set():
            reason = self._reason_not_to_act()
            if not reason:
                return True
            self._stand_by(reason)
            ended.wait(CHECK_EVERY_S)
        return False

    def _reason_not_to_act(self) -> str:
        """Why this head does not act. If Slurm lets it act, begin an epoch of this head's own, and
        return "".
        """
        host = os.uname().nodename
        self._remedy, self._means = _NO_REMEDY_NEEDED, STANDS_BY_MEANS
        try:
            place = self._slurm.acting(time.time())
            newest_epoch = self._epochs.newest()
            if reason := self._stale_directory_reason(newest_epoch):
                return reason
            if place != self._slurm.place:
                acts = "no slurmctld acts" if place is None else self._acts(place)
                return (
                    acts
                    if newest_epoch is None
                    else f"{acts} (epoch {newest_epoch.number} of {newest_epoch.holder})"
                )
            epoch = self._epochs.take(host)
        except OSError as error:
            self._remedy = f"see why it cannot be read and written by SlurmUser: {self._directory}"
            self._means = CANNOT_ACT_MEANS
            return f"cannot read or record which head acts: {error}"
        # On the local disk: an older copy of the shared directory is then recognised as such.
        heads.note_seen(self._state, epoch.number)
        if self._settles is None or epoch.number != self.epoch:
            # Wait also if the last epoch was our own: slurmctld may have run on the other head,
            # whose services did not run, and may have lost orders on either change. Wait anew in
            # each epoch: this process may have stood still, and not stood by, in the one between.
            self._settles = time.monotonic() + self._slurm.takeover
        self._fence = Fence(epochs=self._epochs, epoch=epoch.number, host=host)
        # From now on each exchange with a cloud or machine first checks that this head still acts.
        asking.set_gate(self.require)
        log.info("acting host=%s epoch=%d", host, epoch.number)
        self._reports.clear("standing by")
        return ""

    def _stale_directory_reason(self, newest_epoch: Epoch | None) -> str:
        """Why this is not the directory that both heads shared; "" if nothing says so.

        In an empty directory or an older copy a head would start an epoch and forget machines and
        charges.
        """
        number, seen_number = (
            0 if newest_epoch is None else newest_epoch.number,
            heads.last_seen(self._state),
        )
        if number >= seen_number:
            heads.note_seen(self._state, number)
            return ""
        path = self._state / heads.LAST_EPOCH
        self._means = CANNOT_ACT_MEANS
        self._remedy = (
            "mount the right directory; to use this one although it knows less, remove "
            f"{path} on both heads"
        )
        extent = f"ends with epoch {number}" if number else "has no epoch"
        return (
            f"ha.directory: {self._directory} {extent}, and this head has seen epoch {seen_number}:"
            " it is another directory, or an older copy"
        )

    def _acts(self, place: int) -> str:
        """The sentence that names the acting controller, by its place in Slurm's heartbeat.

        The place may be any number: slurm.conf may have changed since this service read it.
        """
        if place < len(self._slurm.hosts):
            return f"{self._slurm.hosts[place]} acts"
        return (
            f"SlurmctldHost line {place + 1} acts, but slurm.conf had {len(self._slurm.hosts)} "
            "when this service started"
        )

    def _stand_by(self, reason: str) -> None:
        self._settles = None
        if self._reports.is_news("standing by", reason):
            log.info("standing by: %s", reason)
            self._since = time.time()
        clock = time.monotonic()
        if clock >= self._beaten + _BEAT_EVERY_S:
            self._beaten = clock
            self._leave_presence(acts=False)
            with contextlib.suppress(OSError):
                now, pid = time.time(), os.getpid()
                leave_mark(
                    self._state,
                    Mark(now, pid, reason, self._remedy, self._since, self._means),
                    self._mark,
                )

    @contextlib.contextmanager
    def watched(self, lost: Callable[[], object]) -> Iterator[None]:
        """Call ``lost`` once when this head no longer acts."""
        over = threading.Event()
        # died=lost: a service whose watch died would never notice that the other head acts.
        task = PeriodicTask(
            "head", lambda: self._watch(task, lost), CHECK_EVERY_S, first_in_s=CHECK_EVERY_S
        )
        watch = PeriodicThread(task, over, died=lost)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, task: PeriodicTask, lost: Callable[[], object]) -> None:
        if time.monotonic() >= self._beaten + _BEAT_EVERY_S:
            self._beaten = time.monotonic()
            self._leave_presence(acts=True)
        if cause := self._cause_of_loss():
            log.warning("this head no longer acts: %s", cause)
            # Before ``lost``, so that the next check cannot call it again.
            task.end()
            lost()

    def _cause_of_loss(self) -> str:
        """Why this head no longer acts; "" if it still does."""
        try:
            self.require()
            place = self._slurm.acting(time.time())
        except OSError as error:
            return str(error)
        # None: slurmctld is restarting or hangs. It sends no orders, so this head may stay.
        return "" if place in (None, self._slurm.place) else self._acts(place)

    @contextlib.contextmanager
    def retried(self) -> Iterator[None]:
        """Let the service start again after a ConfigError of the body, in which this head acts.

        A head that stands by opens neither the journal nor a cloud. It meets an error of theirs at
        the takeover, and after a ConfigError systemd would leave the cluster without a head.
        """
        try:
            yield
        except ConfigError as error:
            raise PassingError(f"this head acts, and cannot serve yet: {error}") from error

    def require(self) -> None:
        """Raise SupersededError, or another OSError, if this head may not act."""
        assert self._fence is not None  # noqa: S101 - ``begins`` runs first
        self._fence.require()

    def fenced(self, providers: Mapping[str, Provider]) -> dict[str, Provider]:
        """The same providers; each call first checks that this head still acts."""
        return {name: fenced(provider, self.require) for name, provider in providers.items()}

    def fenced_slurm(self, slurm: Slurm) -> Slurm:
        """The same client; each change first checks that this head still acts."""
        return fenced_client.fenced(slurm, self.require)

    @property
    def unsettled(self) -> float:
        """Seconds during which Slurm may still repeat orders that it lost when it changed heads."""
        return 0.0 if self._settles is None else max(self._settles - time.monotonic(), 0.0)

    @property
    def epoch(self) -> int:
        """The number of the epoch in which this head acts; 0 if it does not act."""
        return 0 if self._fence is None else self._fence.epoch
