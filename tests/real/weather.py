"""The faults, jobs and orders of ``tests.chaos`` on a real site, in a tenth of their time."""

from __future__ import annotations

import random
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from slurm_elastic.watch.door.questions import Order
from tests.chaos import order_books
from tests.chaos.order_weather import OrderWeather
from tests.chaos.sites import CKPTMAN, DAEMON
from tests.chaos.weather import CKPT_POINTS, FAMILIES, OTHER_POINTS, STOPPED, Weather
from tests.real.stage import SPEED

if TYPE_CHECKING:
    from tests.real.stage import RealStage

LEFT_OUT = {
    "lies": "a list that lies often ends machines that serve: its own kind of runs",
    "disk": "the disk of the virtual run fails by a library",
    "locks": "likewise",
    "damage": "likewise",
    "clock": "the clock is that of the machine",
    "power cuts": "likewise",
    "saves": "the service's own saver is in its process",
    "requests": "slurmctld itself runs the programs",
    "settings": "slurm.conf knows pools",
}
"""Families that a real site does not have, with the reason."""
order_books.SEEN = 8.0
"""Seconds of the wall here."""


class RealWeather(Weather):
    """``blow`` once in half a second of the wall."""

    _stage: RealStage  # type: ignore[assignment]

    def _draw_families(self) -> None:
        here = {name for name in (*FAMILIES, *STOPPED) if name not in LEFT_OUT}
        usual = sorted(here & FAMILIES.keys())
        self.families = sorted(self._rng.sample(usual, self._rng.randint(1, 5)))
        if self._keeps:
            kept = sorted(here & STOPPED.keys())
            self.families += sorted(self._rng.sample(kept, self._rng.randint(1, 3)))

    def _invite(self) -> None:
        stage = self._stage
        chance = random.Random(f"{stage.seed} real orders")
        if chance.random() < 0.5:
            stage.orders = RealOrders(stage, chance, self._later)  # type: ignore[arg-type]
            self.families += stage.orders.families

    def _strike(self, family: Callable[[Weather], None]) -> None:
        super()._strike(getattr(type(self), family.__name__))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        super()._later(seconds / SPEED, act)

    def _users_act(self) -> None:
        rng = self._rng
        if rng.random() < 0.25:
            self._submit(rng.choice(self._clouds))
        if rng.random() < 0.03:
            self._burst()
        if rng.random() < 0.15:
            self._strike(Weather._change_job)

    # families whose times or means are others here

    def hidden(self) -> None:
        self._cloud().visible_after = self._rng.choice((0.0, 2.0, 6.0))
        self._struck("cloud: fresh machines hidden")

    def kills(self) -> None:
        stage, rng = self._stage, self._rng
        owner = rng.choice((DAEMON, DAEMON, CKPTMAN))
        if rng.random() < 0.6:
            point = rng.choice(CKPT_POINTS if owner == CKPTMAN else OTHER_POINTS)
            stage.die_at(owner, point)
            self._struck("killed at a fault point")
        elif self._runs(owner):
            stage.kill(owner)
            self._struck("killed at any moment")

    def slurmctld(self) -> None:
        stage, rng = self._stage, self._rng
        seconds = rng.choice((1.0, 4.0))
        if rng.random() < 0.5:
            self._struck("slurmctld hangs")
            threading.Thread(target=_hang, args=(stage, seconds)).start()
            return
        self._struck("slurmctld stopped")
        stage.site.slurmctld_stop()
        time.sleep(seconds)
        stage.site.slurmctld_start()

    def reclaims(self) -> None:
        stage = self._stage
        if not (alive := stage.running()):
            return
        victim = self._rng.choice(alive)
        cloud = stage.clouds[victim.cloud]
        cloud.interrupt(victim.id, stage.now() + 12.0)
        self._later(120.0, partial(self._take, victim.cloud, victim.id))
        self._struck("machine: reclaimed with notice")

    def _take(self, cloud: str, id_: str) -> None:
        if id_ in self._stage.accounts[cloud].alive():
            self._stage.clouds[cloud].take(id_)

    def heal(self) -> None:
        stage = self._stage
        for _, act in sorted(self._due, key=lambda due: due[0]):
            act()
        self._due.clear()
        stage._fault.clear()
        for cloud in stage.clouds.values():
            cloud.heal()
            cloud.limit("*", None)
            cloud.slow = cloud.visible_after = cloud.lag = 0.0
            cloud.unanswered = 0
        stage.unlucky.clear()


def _hang(stage: RealStage, seconds: float) -> None:
    with stage.slurmctld_hangs():
        time.sleep(seconds)


class RealOrders(OrderWeather):
    """Each order is the real command, typed by root."""

    _stage: RealStage  # type: ignore[assignment]

    def give(self, *words: str) -> None:
        self.answered(words)

    def _carry_out(self, words: Sequence[str], _ask: Order | None, _now: float) -> Sequence[str]:
        typed = ("ckpt", "now", *words[1:]) if words[0] == "save" else words
        self._stage.note(f"order {shlex.join(typed)}")
        return self._stage.command(*typed).splitlines()
