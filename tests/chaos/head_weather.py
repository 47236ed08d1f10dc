"""What befalls two heads, beside the weather of all sites."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tests.chaos.pair import DIED, HOSTS, STILL, Pair, owner_on


class HeadWeather:
    """What befalls two heads. ``later`` has something done in so many seconds, ``burst`` has users come."""

    def __init__(
        self,
        pair: Pair,
        rng: random.Random,
        later: Callable[[float, Callable[[], None]], None],
        burst: Callable[[], None],
    ) -> None:
        self._pair, self._rng, self._later, self._burst = pair, rng, later, burst
        self.families = sorted(rng.sample(tuple(FAMILIES), rng.randint(1, 3)))
        self.often = rng.choice((0.02, 0.05))
        self._coming: set[str] = set()

    def blow(self) -> None:
        self._come_back()
        if self._rng.random() < self.often:
            FAMILIES[self._rng.choice(self.families)](self)

    def _strike(self, fate: str) -> None:
        """The host that acts, in a step of one of its services or at any moment."""
        from tests.chaos.weather import CKPT_POINTS, OTHER_POINTS

        pair, rng = self._pair, self._rng
        host = pair.acting
        if host not in pair.up:
            return
        if rng.random() < 0.6:
            daemon = rng.random() < 0.7
            owner = owner_on("elasticd" if daemon else "ckptman", host)
            pair.fates[owner] = fate
            points = OTHER_POINTS if daemon else CKPT_POINTS
            often = [p for p in points if p.startswith(("launch.", "suspend.", "refuse.before"))]
            pair.stage.die_at(owner, rng.choice((*points, *(often * 3))))
        else:
            (pair.dies if fate == DIED else pair.stands_still)(host)

    def dies(self) -> None:
        self._strike(DIED)

    def bought(self) -> None:
        """The host dies just after machines were bought for what its slurmctld has not saved."""
        self._burst()
        acting = self._pair.acting
        self._later(self._rng.choice((5.0, 10.0, 15.0)), partial(self._dies_yet, acting))

    def _dies_yet(self, host: str) -> None:
        if host in self._pair.up and host == self._pair.acting:
            self._pair.dies(host)

    def stands_still(self) -> None:
        self._strike(STILL)

    def given(self) -> None:
        """Slurm gives control to the other one, while the services of both run on."""
        pair = self._pair
        other = next(host for host in HOSTS if host != pair.acting)
        if {pair.acting, other} <= pair.up:
            pair.take_over(other, forgets=self._rng.random() < 0.3)
            if self._rng.random() < 0.3:  # and back, while the first one may not know of it yet
                self._later(self._rng.choice((3.0, 8.0)), partial(self._give_back, pair.acting))

    def directory(self) -> None:
        pair, rng = self._pair, self._rng
        if pair.away:
            return
        pair.stage.struck["heads: the directory is away"] += 1
        pair.stage.note("the directory is away")
        pair.goes(rng.choice(("ESTALE", "EIO")), whole=rng.random() < 0.3)
        self._later(rng.choice((20.0, 90.0, 300.0)), lambda: pair.goes(""))

    def _come_back(self) -> None:
        """Hosts that are down, or stand still, are back after a while; the first one takes over then
        where nobody has told it not to.
        """
        pair, rng = self._pair, self._rng
        for host in HOSTS:
            if host in pair.up or host in self._coming:
                continue
            self._coming.add(host)
            least = 0.0 if rng.random() < 0.2 else pair.timeout
            self._later(least + rng.choice((5.0, 40.0, 150.0)), partial(self._back, host))

    def _back(self, host: str) -> None:
        self._coming.discard(host)
        pair = self._pair
        pair.back(host)
        if host == HOSTS[0] and pair.acting != host and self._rng.random() < 0.7:
            later = self._rng.choice((0.0, 10.0, 60.0))
            self._later(later, partial(self._give_back, pair.acting))

    def _give_back(self, acting: str) -> None:
        """If that one still acts by then."""
        pair = self._pair
        other = next(host for host in HOSTS if host != acting)
        if {acting, other} <= pair.up and pair.acting == acting:
            pair.take_over(other, forgets=False)


FAMILIES: dict[str, Callable[[HeadWeather], None]] = {
    "a head dies": HeadWeather.dies,
    "a head dies that has just bought": HeadWeather.bought,
    "a head stands still": HeadWeather.stands_still,
    "control is given": HeadWeather.given,
    "the directory is away": HeadWeather.directory,
}
