"""Two heads of one site: hosts with a state directory each, one directory that both see, and a
slurmctld on each, of which one acts. All files are real, and so is all of ours that reads them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slurm_elastic.base.processes import asking
from slurm_elastic.cli.services import standby
from slurm_elastic.cli.services.standby import Head
from slurm_elastic.config import Config, HaSettings, SlurmSettings
from slurm_elastic.state import heads
from slurm_elastic.state.heartbeat import CKPTMAN as SERVICE
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, MARK
from slurm_elastic.state.heartbeat import DAEMON as ELASTICD
from tests.chaos.head_books import HOSTS, Acts, EpochBooks, host_of

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

QUIET = 30.0
"""Seconds after a takeover in which slurmctld allocates nothing (measured on 22.05)."""
UNSAVED = (4.0, 12.0)
"""Seconds before its slurmctld dies in which a job was saved nowhere: measured on 22.05 are one of 3 s
that was gone, and one of 15 s that was not.
"""
LULL = 150.0
"""Seconds in which users who have taken their jobs back stay away."""
DIED = "died"
STILL = "stands still"


def owner_on(program: str, host: str) -> str:
    """The service of that host."""
    return program if host == HOSTS[0] else f"{program}@{host}"


class Pair:
    """``acting`` is the host whose slurmctld acts, ``up`` those whose slurmctld would."""

    def __init__(self, stage: Stage, place: Path, rng: random.Random) -> None:
        self.stage, self._place = stage, place
        self.timeout = rng.choice((40.0, 60.0, 90.0))
        # Short ones, too: what a takeover leaves is not to depend on it.
        self._grace = rng.choice((20.0, 60.0, 120.0))
        self._library = ctypes.CDLL(None)
        self._spool = place / "slurmctld"
        self.shared = self._spool / "slurm-elastic"
        self.shared.mkdir(parents=True)
        self._states = {host: place / f"{host}-0" / "state" for host in HOSTS}
        for state in self._states.values():
            state.mkdir(parents=True)
        self._disks = 0
        self.away = ""
        self.acting = HOSTS[0]
        self.up = set(HOSTS)
        self.still: set[str] = set()
        self.fates: dict[str, str] = {}
        self.lull = float("-inf")
        self._beaten = self._lived = float("-inf")
        self.books = EpochBooks(self)
        self._conf = place / "slurm.conf"
        lines = [*(f"SlurmctldHost={host}" for host in HOSTS), f"StateSaveLocation={self._spool}"]
        self._conf.write_text("\n".join([*lines, f"SlurmctldTimeout={self.timeout:.0f}", ""]))
        self._uname, self._take = os.uname, heads.Epochs.take
        os.uname = self._here  # type: ignore[assignment]
        heads.Epochs.take = lambda epochs, host: self._taking(epochs, host)  # type: ignore[method-assign]
        standby.CHECK_EVERY_S = rng.choice((1.0, 5.0))
        standby._BEAT_EVERY_S = 30.0
        self._beat()

    def close(self) -> None:
        self.goes("")
        asking.set_gate(None)
        os.uname, heads.Epochs.take = self._uname, self._take  # type: ignore[assignment,method-assign]

    # who a thread is of

    def _here(self) -> os.uname_result:
        owner, real = self.stage.sched.current.owner, self._uname()
        host = self.acting if owner == "world" else host_of(owner)
        return os.uname_result((real.sysname, host, *real[2:]))

    def state(self, host: str) -> Path:
        return self._states[host]

    def config(self, plain: Config, host: str) -> Config:
        return replace(
            plain, state_dir=str(self._states[host]), ha=HaSettings(directory=str(self.shared)),
            slurm=SlurmSettings(conf=str(self._conf)),
            timings=replace(plain.timings, orphan_timeout=self._grace),
        )  # fmt: skip

    def head(self, owner: str, config: Config) -> Head:
        """As a service's ``main`` makes it, with a count of what its fence kept from clouds."""
        daemon = owner.startswith("elasticd")
        names = (ELASTICD, MARK) if daemon else (SERVICE, CKPTMAN_MARK)
        head = standby.head_of(config, *names)
        assert head is not None
        real = head.require

        def require() -> None:
            try:
                real()
            except heads.SupersededError:
                self.stage.struck["heads: held by the fence"] += 1
                raise

        head.require = require  # type: ignore[method-assign]
        return head

    def _taking(self, epochs: heads.Epochs, host: str) -> heads.Epoch:
        before = self.books.newest()
        found: heads.Epoch = self._take(epochs, host)
        if before is None or found.number != before.number:
            self.books.begins(before, Acts(found.number, host))
        return found

    # slurmctld

    def live(self) -> None:
        """What the slurmctld of both hosts do: the acting one says so, the other one takes over where
        it does not for long enough.
        """
        slurm, now = self.stage.slurm, self.stage.sched.now
        if self.acting in self.up and slurm.trouble != "stopped":
            self._lived = now
            if now - self._beaten >= self.timeout / 4:
                self._beat()
            return
        other = next(host for host in HOSTS if host != self.acting)
        if other in self.up and now - self._beaten >= self.timeout:
            self.take_over(other, forgets=True)
            self._lived = now

    def _beat(self) -> None:
        """Slurm's own form: see ``slurm.client.acting``."""
        content = struct.pack(">QQ", int(self.stage.now()), HOSTS.index(self.acting))
        try:
            draft = self._spool / "heartbeat.new"
            draft.write_bytes(content)
            draft.rename(self._spool / "heartbeat")
        except OSError:
            return  # a disk that is full is full for Slurm, too
        self._beaten = self.stage.sched.now

    def take_over(self, host: str, *, forgets: bool) -> None:
        """``forgets``: without a word of the one that acted, as of its last save."""
        stage = self.stage
        stage.struck[f"heads: takeover{'' if forgets else ' with a word of the other one'}"] += 1
        stage.note(f"slurmctld of {host} takes over")
        self.acting = host
        stage.slurm.trouble = ""
        if forgets:
            since = self._lived - stage.rng.uniform(15.0, 20.0)
            stage.slurm.forget(since, self._lived - stage.rng.uniform(*UNSAVED))
            if stage.rng.random() < 0.4:
                stage.slurm.cancel_waiting()
                self.lull = stage.sched.now + LULL
            stage.slurm.quiet = stage.sched.now + QUIET
        self._beat()

    # hosts

    def owners_of(self, host: str) -> Sequence[str]:
        return [owner_on(program, host) for program in ("elasticd", "ckptman")]

    def dies(self, host: str) -> None:
        """The host loses its power. Its disk may be another one when it is back."""
        stage = self.stage
        stage.struck["heads: one dies"] += 1
        stage.note(f"host {host} dies")
        self._slurmctld_gone(host)
        self.still.discard(host)
        for owner in self.owners_of(host):
            stage.sched.go_on(owner)
            stage.sched.kill(owner)
            stage.disarm(owner)

    def stands_still(self, host: str) -> None:
        """All programs of the host, as a machine's that is moved to another place."""
        self.stage.struck["heads: one stands still"] += 1
        self.stage.note(f"host {host} stands still")
        self._slurmctld_gone(host)
        self.still.add(host)
        for owner in self.owners_of(host):
            self.stage.sched.stop(owner)

    def _slurmctld_gone(self, host: str) -> None:
        self.up.discard(host)
        if host == self.acting:
            self._lived = self.stage.sched.now
            self.stage.slurm.trouble = "stopped"

    def strikes(self, owner: str) -> bool:
        """At a fault point of that service; whether it dies there."""
        fate = self.fates.pop(owner)
        (self.dies if fate == DIED else self.stands_still)(host_of(owner))
        self.stage.struck["heads: struck at a fault point"] += 1
        return fate == DIED

    def back(self, host: str) -> None:
        """The host runs again: with the programs of before where it stood still, else it begins."""
        stage = self.stage
        if host in self.still:
            self.still.discard(host)
            others = self.acting != host
            stage.struck[f"heads: wakes{' while the other one acts' if others else ''}"] += 1
            stage.note(f"host {host} goes on")
            for owner in self.owners_of(host):
                stage.sched.go_on(owner)
        elif host not in self.up and stage.rng.random() < 0.5:
            self._disks += 1
            self._states[host] = self._place / f"{host}-{self._disks}" / "state"
            self._states[host].mkdir(parents=True)
            if host == self.acting:
                stage.config = replace(stage.config, state_dir=str(self._states[host]))
        self.up.add(host)
        if host == self.acting and stage.slurm.trouble == "stopped":
            stage.slurm.trouble = ""
            self._beat()

    # the directory

    def goes(self, error: str, *, whole: bool = False) -> None:
        """Away, with that error; "" brings it back. ``whole``: with Slurm's own files."""
        self.away = error
        path = self._spool if whole else self.shared
        self._library.directory_goes(str(path).encode(), getattr(errno, error) if error else 0)

    def heal(self) -> None:
        self.goes("")
        self.fates.clear()
        for host in HOSTS:
            self.back(host)
        if self.acting != HOSTS[0]:
            self.take_over(HOSTS[0], forgets=False)
        standby.CHECK_EVERY_S = 20.0
