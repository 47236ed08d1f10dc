"""The faults of a run, drawn from its seed: a few families of them, in any composition."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.faults import POINTS
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.chaos.drawn_jobs import NUMBERS, change_job, draw_job
from tests.chaos.head_weather import HeadWeather
from tests.chaos.lie_weather import LieWeather, lying
from tests.chaos.order_weather import OrderWeather, ordered
from tests.chaos.sites import CKPTMAN, DAEMON, DRAWN

if TYPE_CHECKING:
    from tests.chaos.fakes import Cloud
    from tests.chaos.stage import Stage

ERRORS: tuple[type[ProviderError], ...] = (CapacityError, QuotaError, AuthError, TransientError)
LONG, SHORT = (20.0, 90.0, 300.0), (20.0, 60.0, 120.0)
"""Seconds that jobs need; shorter ones, so that nodes are idle more often."""
CALLS = ("launch", "offers", "instances", "terminate", "notices")
STOPS = ("stop", "start", "recipe")
"""Calls about machines that are stopped instead of ended."""
JUMPS = {"forth": (40.0, 400.0, 7200.0), "back": (-40.0, -400.0)}
CKPT_POINTS = tuple(p for p in POINTS if p.startswith(("migration.", "notice.", "suspended.")))
OTHER_POINTS = tuple(p for p in POINTS if p not in CKPT_POINTS)


class Weather:
    """``families`` are those that this run draws from; ``due`` is what ends or comes later."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._rng = stage, stage.rng
        if stage.kind == DRAWN:
            self._rng = random.Random(f"{stage.seed} weather")
        self._faults = 0
        self._keeps = stage.keeps
        self._draw_families()
        self._usual = list(self.families)
        self.often = self._rng.choice((0.05, 0.12, 0.25))
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._job = 0
        self._coming: set[str] = set()
        self._clouds = sorted(set(stage.nodes.values()))
        self._heads = None
        if stage.pair is not None:
            self._heads = HeadWeather(stage.pair, self._rng, self._later, self._burst)
            self.families += self._heads.families
        self._invite()
        if self._rng.random() < 0.3:  # a new ledger, and no cloud can be read
            self._unreadable()
            self._later(self._rng.uniform(5.0, 40.0), self._burst)
        if stage.kind == "one cap":  # clouds race for what is left of it
            for begin in (5.0, 200.0, 400.0):
                self._later(begin + self._rng.uniform(0.0, 100.0), self._burst)

    def _draw_families(self) -> None:
        # A drawn site meets more kinds of faults, so that pairs of a key and a fault meet soon.
        few, many = ((5, 12), (2, 5)) if self._stage.kind == DRAWN else ((1, 6), (1, 3))
        self.families = sorted(self._rng.sample(tuple(FAMILIES), self._rng.randint(*few)))
        if self._keeps:
            self.families += sorted(self._rng.sample(tuple(STOPPED), self._rng.randint(*many)))

    def _invite(self) -> None:
        """Those who strike beside it."""
        stage = self._stage
        if lying(stage.seed):
            # Of a chance of its own: what else befalls the site is what it was, as far as it can be.
            chance = random.Random(f"{stage.seed} lie weather")
            stage.lies = LieWeather(stage, chance, self._later, self._count_anew)
            self.families += stage.lies.families
        if ordered(stage.seed):
            chance = random.Random(f"{stage.seed} order weather")
            stage.orders = OrderWeather(stage, chance, self._later)
            self.families += stage.orders.families

    def blow(self) -> None:
        """One step: what users do, what is due, and perhaps another fault."""
        stage, rng = self._stage, self._rng
        self._do_what_is_due()
        self._users_act()
        if rng.random() < self.often:
            self._strike((FAMILIES | STOPPED)[rng.choice(self._usual)])
        if self._heads is not None:
            self._heads.blow()
        for more in (stage.lies, stage.orders):
            if more is not None:
                more.blow()
        for owner in stage.owners:
            self._have_started(owner)

    def _do_what_is_due(self) -> None:
        for when, act in list(self._due):
            if when <= self._stage.sched.now:
                self._due.remove((when, act))
                act()

    def _have_started(self, owner: str) -> None:
        """systemd starts a service that has died, after a while."""
        stage = self._stage
        if owner in self._coming or not stage.may_start(owner) or stage.sched.lives(owner):
            return
        self._coming.add(owner)
        self._later(self._rng.choice((2.0, 8.0, 40.0, 200.0)), partial(self._start, owner))

    def _users_act(self) -> None:
        stage, rng = self._stage, self._rng
        one, many = (0.1, 0.006) if self._keeps else (0.06, 0.02)
        away = stage.pair is not None and stage.sched.now < stage.pair.lull
        if rng.random() < one and not away:
            self._submit(rng.choice(self._clouds))
        if rng.random() < many and not away:
            self._burst()
        if stage.kind == DRAWN and rng.random() < 0.1:
            self._strike(Weather._change_job)

    def _strike(self, family: Callable[[Weather], None]) -> None:
        self._faults += 1
        kept = self._stage.kept_parts.faults
        if kept is None or self._faults in kept:
            with self._chance_of(f"fault {self._faults}"):
                family(self)

    @contextlib.contextmanager
    def _chance_of(self, part: str) -> Iterator[random.Random]:
        """The chance that decides that part of a run. At a drawn site it is the part's own, so that
        one part may be left out and the others come as before.
        """
        usual = self._rng
        if self._stage.kind == DRAWN:
            self._rng = random.Random(f"{self._stage.seed} {part}")
        yield self._rng
        self._rng = usual

    def _runs(self, owner: str) -> bool:
        return self._stage.sched.lives(owner) and self._stage.may_start(owner)

    def _start(self, owner: str) -> None:
        self._coming.discard(owner)
        self._stage.start(owner)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((self._stage.sched.now + seconds, act))

    def _struck(self, kind: str) -> None:
        self._stage.struck[kind] += 1
        self._stage.note(f"fault {kind}")

    def _submit(self, cloud: str) -> None:
        stage = self._stage
        self._job += 1
        if stage.kind == DRAWN:
            self._submit_drawn(cloud)
            return
        among = tuple(n for n, of in stage.nodes.items() if of == cloud)
        rng = self._rng
        stage.submit(
            self._job, among, rng.choice((1, 1, 2)), rng.choice(SHORT if self._keeps else LONG),
            requeue=rng.random() < 0.8,
        )  # fmt: skip

    def _count_anew(self) -> None:
        self._job = 0

    def _submit_drawn(self, cloud: str) -> None:
        stage, kept = self._stage, self._stage.kept_parts.jobs
        if (kept is not None and self._job not in kept) or stage.slurm.trouble:
            return
        number = self._job * NUMBERS
        with self._chance_of(f"job {self._job}") as rng:
            job = draw_job(rng, stage, number, cloud)
        if job is not None:
            stage.submit(number, job.among, job.count, job.length, **job.fields)

    def _change_job(self) -> None:
        if change := change_job(self._rng, self._stage):
            self._struck(f"job: {change}")

    def come_back(self) -> None:
        """Whoever had a machine that is stopped by now wants it again; any of its cloud's where
        policies choose, which cannot see that a job waits for a certain one.
        """
        stage = self._stage
        for one in stage.stopped():
            self._job += 1
            all_of = tuple(n for n, of in stage.nodes.items() if of == one.cloud)
            among = all_of if stage.kind == "policies" else (one.node,)
            number = self._job * NUMBERS if stage.kind == DRAWN else self._job
            stage.submit(number, among, 1, 60.0, requeue=True)

    def _burst(self) -> None:
        """Users of all clouds come at once."""
        for cloud in self._clouds * 2:
            self._submit(cloud)

    def _unreadable(self) -> None:
        for cloud in self._clouds:
            times = self._rng.choice((2, 6))
            self._stage.clouds[cloud].fail_next(AuthError, times, "instances")
        self._struck("cloud: AuthError")

    # the families

    def _cloud(self) -> Cloud:
        return self._stage.clouds[self._rng.choice(sorted(self._stage.clouds))]

    def errors(self) -> None:
        calls = CALLS + STOPS if self._keeps else CALLS
        error, call = self._rng.choice(ERRORS), self._rng.choice(calls)
        self._cloud().fail_next(error, self._rng.choice((1, 3, 12)), call)
        self._struck(f"cloud: {error.__name__}")

    def lost_answers(self) -> None:
        cloud = self._cloud()
        cloud.lose_answer_next(self._rng.choice((1, 4, 30)))
        self._later(90.0, lambda: setattr(cloud, "_answers_to_lose", 0))
        self._struck("cloud: answer lost")

    def hidden(self) -> None:
        self._cloud().visible_after = self._rng.choice((0.0, 20.0, 100.0, 250.0))
        self._struck("cloud: fresh machines hidden")

    def slow(self) -> None:
        cloud = self._cloud()
        cloud.slow = self._rng.choice((5.0, 25.0))
        self._later(self._rng.choice((30.0, 120.0)), lambda: setattr(cloud, "slow", 0.0))
        self._struck("cloud: slow")

    def lies(self) -> None:
        cloud = self._cloud()
        cloud.lies += [self._rng.choice((1.0, 0.5))] * self._rng.choice((1, 2, 5))
        self._struck("cloud: lists that lie")

    def capacity(self) -> None:
        self._cloud().limit("*", self._rng.choice((0, 1, 2, None)))
        self._struck("cloud: capacity")

    def disk(self) -> None:
        rng, stage = self._rng, self._stage
        kind = rng.choice(("full", "read-only", "error"))
        stage.disk.fail(kind, rng.choice((0, 1, 3, 10)))
        seconds = rng.choice((0.0, 15.0, 90.0, 300.0)) if kind != "error" else 0.0
        self._later(seconds, lambda: stage.disk.fail(""))
        self._struck(f"disk: {kind}")

    def locked(self) -> None:
        stage, me = self._stage, object()
        path = str(stage.config.state / "ledger.db")
        if path in stage.files.writers:
            return
        stage.files.writers[path] = me
        self._later(self._rng.choice((5.0, 60.0)), lambda: stage.files.give(path, me))
        self._struck("disk: ledger locked")

    def damage(self) -> None:
        stage, rng = self._stage, self._rng
        path = stage.config.state / "ledger.db"
        kind = rng.choice(("damaged", "removed"))
        if stage.disk.trouble or stage.disk.is_away or not path.exists():
            return
        stage.files.forget(str(path))
        if kind == "removed":
            for one in path.parent.glob("ledger.db*"):
                one.unlink()
        else:
            with open(path, "r+b") as file:
                file.seek(rng.choice((0, 4096, 20480)))
                file.write(b"\xa5" * 4096)
                os.fsync(file.fileno())
        self._struck(f"disk: ledger {kind}")
        if rng.random() < 0.5:
            self._unreadable()
            self._burst()
        if self._runs(stage.acting(DAEMON)) and rng.random() < 0.4:
            stage.kill(stage.acting(DAEMON))
            self._struck("killed at any moment")
            self._again()

    def clock(self) -> None:
        stage, rng = self._stage, self._rng
        way = rng.choice(sorted(JUMPS))
        stage.skew += rng.choice(JUMPS[way])
        stage.skews.append(stage.skew)
        self._struck(f"clock: jumps {way}")

    def kills(self) -> None:
        stage, rng = self._stage, self._rng
        owner = rng.choice((DAEMON, DAEMON, CKPTMAN))
        if rng.random() < 0.6:
            ours = CKPT_POINTS if owner == CKPTMAN else OTHER_POINTS
            often = [p for p in ours if p.startswith(("stop.", "start."))]
            point = rng.choice((*ours, *(often * 3 if self._keeps else ())))
            stage.die_at(stage.acting(owner), point)
            return
        if self._runs(stage.acting(owner)):
            stage.kill(stage.acting(owner))
            self._struck("killed at any moment")

    def power(self) -> None:
        stage, slurm = self._stage, self._stage.slurm
        if self._heads is not None:  # what the directory's server keeps is no head's to lose
            self._heads.dies()
            return
        slurm.trouble = "stopped"
        stage.power_cut()
        self._later(self._rng.choice((5.0, 40.0)), lambda: setattr(slurm, "trouble", ""))
        stage.note("power cut")

    def slurmctld(self) -> None:
        slurm, rng = self._stage.slurm, self._rng
        if rng.random() < 0.3:
            slurm.lost_answers += rng.choice((1, 3))
            return
        slurm.trouble = rng.choice(("stopped", "hung", "errors"))
        self._later(rng.choice((10.0, 60.0, 200.0)), lambda: setattr(slurm, "trouble", ""))
        self._stage.note(f"slurmctld {slurm.trouble}")

    def registrations(self) -> None:
        stage = self._stage
        booting = [
            i.id for i in stage.running() if phase(stage.slurm.node(i.node)) is Phase.POWERING_UP
        ]
        if booting:
            stage.unlucky.add(self._rng.choice(booting))
            self._struck("machine: never registers")

    def deaths(self) -> None:
        alive = self._stage.alive()
        if alive:
            victim = self._rng.choice(alive)
            self._stage.clouds[victim.cloud].take(victim.id)
            self._struck("machine: dies")

    def reclaims(self) -> None:
        stage = self._stage
        alive = stage.running()
        if not alive:
            return
        victim = self._rng.choice(alive)
        cloud = stage.clouds[victim.cloud]
        cloud.interrupt(victim.id, stage.now() + 120.0)
        self._later(
            120.0, lambda: cloud.take(victim.id) if victim.id in cloud.account.alive() else None
        )
        self._struck("machine: reclaimed with notice")

    def saves(self) -> None:
        """Saves come out spoilt, or an older one is spoilt where it lies; machines are reclaimed."""
        saver, rng = self._stage.saver, self._rng
        kept = [image for images in saver._images.values() for image in images]
        if kept and rng.random() < 0.3:
            saver.spoil(rng.choice(kept), since=self._stage.sched.now)
        else:
            saver.spoils += rng.choice((1, 1, 2, 6))
        self.reclaims()

    def requests(self) -> None:
        stage, rng = self._stage, self._rng
        if rng.random() < 0.5:  # of those to come, so that no daemon has read it before
            stage.losing[rng.choice(("resume", "suspend"))] += rng.choice((1, 2, 4))
            return
        self._again()

    def _again(self) -> None:
        """slurmctld runs a program once more."""
        stage = self._stage
        if not stage.requests:
            return
        # Of each kind as often: a suspend that comes once more is the one that could end a machine.
        kind = self._rng.choice(sorted({request[0] for request in stage.requests}))
        kind, nodes, jobs = self._rng.choice([r for r in stage.requests if r[0] == kind][-6:])
        if kind != "resume":  # slurmctld runs none for a node that boots
            nodes = [n for n in nodes if phase(stage.slurm.node(n)) is not Phase.POWERING_UP]
        if nodes:
            stage.program(kind, nodes, jobs)
            self._struck("request twice")

    # those of stopped machines

    def settings(self) -> None:
        stage = self._stage
        stage.keep_stopped([self._rng.choice((0, 1, 2)) for _ in stage.config.pools])
        self._struck("settings: as many are kept stopped")

    def images(self) -> None:
        cloud = self._cloud()
        cloud.renew(f"image-{self._rng.choice((1, 2))}")
        self._struck("settings: another image")

    def losses(self) -> None:
        if stopped := self._stage.stopped():
            victim = self._rng.choice(stopped)
            self._stage.clouds[victim.cloud].take(victim.id)
            self._struck("stopped machine: is lost")

    def strangers(self) -> None:
        if stopped := self._stage.stopped():
            one = self._rng.choice(stopped)
            self._stage.clouds[one.cloud].switch_on(one.id)
            self._struck("stopped machine: started by somebody")

    def lags(self) -> None:
        cloud = self._cloud()
        cloud.lag = self._rng.choice((10.0, 40.0, 90.0))
        self._later(self._rng.choice((60.0, 300.0)), lambda: setattr(cloud, "lag", 0.0))
        self._struck("cloud: lists that lag")

    def refusals(self) -> None:
        """Stops and starts alone fail, or their answers are lost."""
        if self._rng.random() < 0.5:
            cloud = self._cloud()
            cloud.unanswered += self._rng.choice((1, 2, 30))
            self._later(self._rng.choice((90.0, 200.0)), lambda: setattr(cloud, "unanswered", 0))
            self._struck("cloud: answers of stops and starts lost")
            return
        error, call = self._rng.choice(ERRORS), self._rng.choice(STOPS)
        self._cloud().fail_next(error, self._rng.choice((1, 2, 12)), call)
        self._struck(f"cloud: {error.__name__} of {call}")

    def heal(self) -> None:
        """Nothing is wrong any more."""
        stage = self._stage
        for _, act in sorted(self._due, key=lambda due: due[0]):
            act()
        self._due.clear()
        stage._armed.clear()
        stage.disk.fail("")
        stage.slurm.trouble, stage.slurm.lost_answers = "", 0
        stage.slurm.let_go()
        for cloud in stage.clouds.values():
            cloud.heal()
            cloud.limit("*", None)
            cloud.lies.clear()
            cloud.slow = cloud.visible_after = cloud.lag = 0.0
            cloud.unanswered = 0
        stage.unlucky.clear()
        stage.saver.spoils = 0
        if stage.pair is not None:
            stage.pair.heal()
        if stage.lies is not None:
            stage.lies.heal()
        for owner in stage.owners:
            stage.start(owner)


FAMILIES: dict[str, Callable[[Weather], None]] = {
    "cloud's errors": Weather.errors,
    "lost answers": Weather.lost_answers,
    "hidden machines": Weather.hidden,
    "slow calls": Weather.slow,
    "lies": Weather.lies,
    "capacity": Weather.capacity,
    "disk": Weather.disk,
    "locks": Weather.locked,
    "damage": Weather.damage,
    "clock": Weather.clock,
    "kills": Weather.kills,
    "power cuts": Weather.power,
    "slurmctld": Weather.slurmctld,
    "registrations": Weather.registrations,
    "deaths": Weather.deaths,
    "reclaims": Weather.reclaims,
    "saves": Weather.saves,
    "requests": Weather.requests,
}
STOPPED: dict[str, Callable[[Weather], None]] = {
    "settings": Weather.settings,
    "images": Weather.images,
    "losses of stopped machines": Weather.losses,
    "strangers": Weather.strangers,
    "lists that lag": Weather.lags,
    "refused stops and starts": Weather.refusals,
}
"""The families of sites that keep stopped machines, beside the others."""
