"""A world that lies: what clouds, Slurm, disks and clocks say is not so, or they cannot be asked at all;
persons start machines; identities come again; and a service dies between any effect and its record.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from slurm_elastic.base.errors import (
    AuthError,
    ProviderError,
    SlurmElasticError,
    SlurmError,
    TransientError,
)
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.chaos.drawn_site import is_drawn
from tests.chaos.fakes import CHANGES, CLOUD_CHANGES, COMMANDS, ONLY_LIES
from tests.controller.world import Killed

if TYPE_CHECKING:
    from tests.chaos.fakes import Cloud
    from tests.chaos.stage import Stage

READINGS = tuple(name for name in (*COMMANDS, *ONLY_LIES) if name not in CHANGES)
CLOUD_READINGS = ("list", "offers", "notices", "recipe")
PAGE = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
RECORD = "record"
"""The effect of a line in the journal."""
EFFECTS = (*sorted(CLOUD_CHANGES), *sorted(CHANGES), RECORD)
OFTEN = {
    "elasticd": ("launch", "terminate", "stop", "start", "update_nodes", "set_addresses", RECORD),
    "ckptman": ("update_nodes", "requeue", "start_now", "set_requeue", RECORD),
}
"""The effects of each service that a short run has at all."""


def lying(seed: int) -> bool:
    """Whether the world of that seed lies: one in five does, and half of those of drawn sites."""
    return random.Random(f"{seed} lies").random() < (0.5 if is_drawn(seed) else 0.2)


class Strike(NamedTuple):
    """The service is to die at an effect of this kind, before it or ``answered``: not before so many
    others of the kind.
    """

    effect: str
    answered: bool
    later: int


class LieWeather:
    """``later`` has something done in so many seconds, ``anew`` has the numbers of jobs begin anew."""

    def __init__(
        self,
        stage: Stage,
        rng: random.Random,
        later: Callable[[float, Callable[[], None]], None],
        anew: Callable[[], None],
    ) -> None:
        self._stage, self._rng, self._later, self._anew = stage, rng, later, anew
        few = (4, 9) if is_drawn(stage.seed) else (2, 6)
        self.families = sorted(rng.sample(tuple(FAMILIES), rng.randint(*few)))
        self.often = rng.choice((0.06, 0.12, 0.25))
        self._strikes: dict[str, Strike] = {}
        self._deaf: dict[str, Callable[[str], SlurmElasticError]] = {}
        self._stepping = 0
        self._numbers = 0

    def blow(self) -> None:
        if self._rng.random() < self.often:
            FAMILIES[self._rng.choice(self.families)](self)

    def heal(self) -> None:
        self._strikes.clear()
        self._deaf.clear()
        self._stepping = 0
        self._stage.unheard.clear()
        self._stage.saver.ahead = 0.0
        self._stage.disk.goes(None)
        for cloud in self._clouds():
            cloud.unkept.clear()
            cloud.lacked.clear()
            cloud.repeats, cloud.ahead = 0, 0.0
            cloud.account.repeats_addresses = False

    def _clouds(self) -> list[Cloud]:
        return [self._stage.clouds[name] for name in sorted(self._stage.clouds)]

    def _cloud(self) -> Cloud:
        return self._rng.choice(self._clouds())

    def _struck(self, kind: str) -> None:
        self._stage.struck[f"lies: {kind}"] += 1
        self._stage.note(f"lie {kind}")

    # what the fakes ask

    def called(self, cloud: Cloud, call: str, *, answered: bool) -> None:
        """A call of a cloud begins, or has had its effect."""
        self._step()
        if call in CLOUD_CHANGES:
            self.at(call, answered=answered)
        elif not answered:
            self._ask(f"{cloud.name} {call}", cloud.name)

    def commanded(self, name: str, *, answered: bool) -> None:
        """A command of Slurm's begins, or has had its effect."""
        self._step()
        if name in CHANGES:
            self.at(name, answered=answered)
        elif not answered:
            self._ask(f"slurm {name}", name)

    def at(self, effect: str, *, answered: bool) -> None:
        """A service is at an effect; it may die there."""
        owner = self._stage.sched.current.owner
        strike = self._strikes.get(owner)
        if strike is None or (strike.effect, strike.answered) != (effect, answered):
            return
        if strike.later:
            self._strikes[owner] = strike._replace(later=strike.later - 1)
            return
        del self._strikes[owner]
        self._struck(f"killed {'after' if answered else 'before'} {effect}")
        self._stage.note(f"{owner} dies at {effect}")
        self._stage.sched.kill(owner)
        raise Killed

    def _ask(self, reading: str, name: str) -> None:
        error = self._deaf.get(reading)
        if error is not None:
            self._struck(f"could not look: {reading.rpartition(' ')[2]}")
            raise error(name)

    def _step(self) -> None:
        """The head's clock steps while a request is under way."""
        if self._stepping and self._stage.sched.current.owner != "world":
            self._stepping -= 1
            self._stage.skew += self._rng.choice((-30.0, -2.0, 2.0, 30.0, 600.0))
            self._stage.skews.append(self._stage.skew)
            self._struck("the clock steps in a request")

    # the families

    def deaf(self) -> None:
        """One reading alone fails for a while, in one way."""
        rng = self._rng
        if rng.random() < 0.5:
            reading = f"slurm {rng.choice(READINGS if rng.random() < 0.5 else ('nodes', 'jobs'))}"
            error = rng.choice((_timed_out, _refused, _half))
        else:
            reading = f"{self._cloud().name} {rng.choice(CLOUD_READINGS)}"
            error = rng.choice((_cloud_timed_out, _error_page, _no_rights))
        self._deaf[reading] = partial(self._slowly, error)
        self._later(rng.choice((20.0, 90.0, 300.0)), lambda: self._deaf.pop(reading, None))

    def _slowly(self, error: Callable[[str], SlurmElasticError], name: str) -> SlurmElasticError:
        """The time-outs take their time."""
        if error in (_timed_out, _cloud_timed_out):
            self._stage.sched.sleep(self._rng.choice((5.0, 30.0)))
        return error(name)

    def disk(self) -> None:
        """A directory of the head cannot be read or written, and is back later."""
        stage, rng = self._stage, self._rng
        if stage.pair is not None:
            return
        part = rng.choice(("", "requests", "notices", "journal"))
        error = rng.choice((errno.ESTALE, errno.EIO, errno.ETIMEDOUT))
        stage.disk.goes(stage.disk.root / part, error)
        self._later(rng.choice((5.0, 40.0, 120.0)), lambda: stage.disk.goes(None))
        self._struck(f"disk: {part or 'all'}: {errno.errorcode[error]}")

    def broken_words(self) -> None:
        cloud, call = self._cloud(), self._rng.choice(("terminate", "stop"))
        cloud.unkept[call] += self._rng.choice((1, 1, 3))
        self._later(300.0, partial(cloud.unkept.pop, call, None))

    def persons(self) -> None:
        """A person launches one more like a machine of ours, or ends one."""
        stage, rng = self._stage, self._rng
        running = [one for one in stage.running() if one.id not in stage.books.by_persons]
        if not running:
            return
        one = rng.choice(running)
        cloud = stage.clouds[one.cloud]
        if rng.random() < 0.5:
            cloud.take(one.id)
            self._struck("a person ends a machine")
            return
        self._numbers += 1
        new = cloud.account.launch_by_hand(one, self._numbers)
        stage.books.by_persons.add(new.id)
        stage.note(f"{new.id} launched by hand for {new.node}")
        self._struck("a person launches a machine")

    def anew(self) -> None:
        """slurmctld has lost its StateSaveLocation: its jobs are gone, and numbers begin anew."""
        stage = self._stage
        if stage.slurm.trouble:
            return
        stage.slurm.trouble = "stopped"
        self._later(self._rng.choice((5.0, 60.0)), lambda: setattr(stage.slurm, "trouble", ""))
        for job in stage.slurm.begin_anew():
            stage.books.forget_job(job)
        stage.forget_runs()
        self._anew()
        self._struck("slurmctld begins anew")

    def addresses(self) -> None:
        account = self._cloud().account
        account.repeats_addresses = True
        self._later(300.0, lambda: setattr(account, "repeats_addresses", False))
        self._struck("addresses come again")

    def pages(self) -> None:
        """Lists repeat a page, or lack the same machine several times."""
        cloud, rng = self._cloud(), self._rng
        alive = sorted(cloud.account.alive())
        if rng.random() < 0.5 or not alive:
            cloud.repeats += rng.choice((1, 4))
        else:
            cloud.lacked[rng.choice(alive)] += rng.choice((1, 2, 6))

    def clocks(self) -> None:
        """The clock of a cloud, or of machines, is ahead or behind."""
        stage, rng = self._stage, self._rng
        ahead = rng.choice((-400.0, -40.0, 40.0, 400.0, 7200.0))
        if rng.random() < 0.5:
            stage.saver.ahead = ahead
            self._struck("the clocks of machines are wrong")
            return
        self._cloud().ahead = ahead
        stage.skews.append(ahead)
        self._struck("the clock of a cloud is wrong")

    def steps(self) -> None:
        self._stepping += self._rng.choice((1, 2))

    def partitions(self) -> None:
        """slurmctld does not hear machines that live; they are back when it has given them up, or not
        yet.
        """
        stage, rng = self._stage, self._rng
        running = [one.id for one in stage.running()]
        if not running:
            return
        cut = rng.sample(running, rng.randint(1, len(running)))
        stage.unheard.update(cut)
        stage.books.ever_unheard.update(cut)
        back = partial(stage.unheard.difference_update, cut)
        self._later(rng.choice((15.0, 45.0, 120.0, 400.0)), back)
        self._struck("a partition")

    def kills(self) -> None:
        """At an effect, before it or after it."""
        stage, rng = self._stage, self._rng
        program = rng.choice(("elasticd", "elasticd", "ckptman"))
        effect = rng.choice(OFTEN[program] if rng.random() < 0.8 else EFFECTS)
        later = rng.choice((0, 0, 0, 1)) if effect != RECORD else rng.randint(0, 30)
        answered = rng.random() < 0.5
        self._strikes[stage.acting(program)] = Strike(effect, answered, later)

    def reclaims(self) -> None:
        """Machines are reclaimed with a notice, as what else is wrong shows in what comes of it."""
        stage = self._stage
        up = [one for one in stage.running() if phase(stage.slurm.node(one.node)) is Phase.UP]
        if up:
            one = self._rng.choice(up)
            cloud = stage.clouds[one.cloud]
            cloud.interrupt(one.id, stage.now() + 120.0)
            gone = cloud.account
            self._later(120.0, lambda: cloud.take(one.id) if one.id in gone.alive() else None)
            self._struck("machine: reclaimed with notice")


def _timed_out(name: str) -> SlurmElasticError:
    return SlurmError((name,), None, "no answer in 30 s")


def _refused(name: str) -> SlurmElasticError:
    return SlurmError((name,), 1, "slurm_load_jobs error: Unable to contact slurm controller")


def _half(name: str) -> SlurmElasticError:
    return SlurmError((name,), 0, 'its answer cannot be read: {"nodes": [{"name": "pu')


def _cloud_timed_out(name: str) -> SlurmElasticError:
    return TransientError(name, "TimedOut", "the cloud did not answer in time")


def _error_page(name: str) -> SlurmElasticError:
    return ProviderError(name, "502", PAGE)


def _no_rights(name: str) -> SlurmElasticError:
    return AuthError(name, "ExpiredToken", "the token is of yesterday")


FAMILIES: dict[str, Callable[[LieWeather], None]] = {
    "could not look": LieWeather.deaf,
    "directories away": LieWeather.disk,
    "words not kept": LieWeather.broken_words,
    "persons": LieWeather.persons,
    "numbers begin anew": LieWeather.anew,
    "addresses come again": LieWeather.addresses,
    "pages": LieWeather.pages,
    "clocks elsewhere": LieWeather.clocks,
    "clock steps": LieWeather.steps,
    "partitions": LieWeather.partitions,
    "kills at effects": LieWeather.kills,
    "reclaims of liars": LieWeather.reclaims,
}
