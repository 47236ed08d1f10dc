"""In which order a job uses the pools, for the independent simulator. Nothing of the product's
ranking is used, only the values of a scenario.

Rules that the documentation leaves open, as they are taken here:

- jobs have orders where two public clouds, or two on the premises, sell machines; else all pools
  are used as they are listed. The site's own machines always come first, then one cloud after the
  other, the pools of each as they are listed; standing machines of a public cloud count as a cloud
  of their own that costs nothing more;
- a job's cost in a cloud is that of the first of its pools that can hold the job, or of the first
  that can sell, if the first one cannot: machines x price x (one boot, if paid, and the limit, in whole
  leases, a minimum at least), the
  machines from the offers as they would be bought, those that no limit leaves room for at the price
  of the last offer. On-premises before public, those that sell (or have an idle machine) before
  others, reserved before spot before on demand before spot that costs no less than on demand
  anywhere, then by cost, then as listed. A cloud that cannot sell counts as its best offer;
- a new job sees the machines, limits and cool-downs as they were before its second, at the prices of
  this second. So does each look at the waiting jobs, every 30 seconds. A job keeps its order there
  if at the first place that would change the clouds differ in cost alone, and by no more than 5 %;
- a job that comes back after an interruption is ordered anew, after the ends and losses of its second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.simulate.scenario import Clock
from tests.simulate.independent_site import HOUR, Site, boot_seconds, paid_seconds

LOOK, MOST, LESS = 30, 100, 0.05
SPOT_NOT_CHEAPER = 2.5


@dataclass
class Rank:
    """A cloud for one job. ``numbers``: smaller comes first, the last one is the cost."""

    cloud: str
    numbers: tuple[float, float, float, float]


class Orders:
    """``of``: by job, the clouds in its order."""

    def __init__(self, site: Site, need: Callable[[int, int], int], limit: list[int]) -> None:
        self.site, self.need, self.limit = site, need, limit
        assert site.scenario.ranking == DEFAULT_KEYS
        self.of: dict[int, list[str]] = {}
        self.seen: dict[int, list[Rank]] = {}
        self.growth: list[str] = []
        pools = list(enumerate(site.pools))
        self.own = [n for n, pool in pools if not pool.public and pool.machines == pool.standing]
        self.clouds: dict[str, list[int]] = {}
        for number, _ in pools:
            if number not in self.own:
                self.clouds.setdefault(self.cloud(number), []).append(number)
        growing = [n for n, pool in pools if pool.machines > pool.standing]
        public = {self.cloud(n) for n in growing if site.pools[n].public}
        near = {self.cloud(n) for n in growing if not site.pools[n].public}
        self.matter = max(len(public), len(near)) > 1

    def cloud(self, pool: int) -> str:
        """The pool's cloud."""
        model = self.site.pools[pool]
        always = model.machines == model.standing
        return f"always {pool}" if always else self.site.sold[pool][0].offer.cloud

    def pools(self, job: int) -> list[int]:
        """The pools in the job's order."""
        if not self.matter:
            return list(range(len(self.site.pools)))
        return self.own + [pool for cloud in self.of[job] for pool in self.clouds[cloud]]

    def arrive(self, job: int, now: int) -> None:
        """It is new."""
        self.seen[job] = self.ranked(job, now)
        self.of[job] = [rank.cloud for rank in self.seen[job]]

    def look(self, waiting: list[int], before: int, now: int) -> None:
        """All looks after one second, until another."""
        for second in range(before + 1, now + 1):
            changed = 0
            for job in waiting if second % LOOK == 0 and self.matter else ():
                if changed < MOST and self.better(self.of[job], self.ranked(job, second)):
                    self.arrive(job, second)
                    changed += 1

    def growing(self, job: int, pools: list[int], *, starts: bool = True) -> list[int]:
        """The pools in the order in which machines are started while this is the first job: as the
        last time, unless its own order is much better. ``starts``: whether any may start now.
        """
        if not self.matter:
            return pools
        same = set(self.growth) == set(self.of[job])
        order = self.growth
        if not same or self.better(self.growth, self.seen[job]):
            order = self.of[job]
        self.growth = order if starts else self.growth
        clouds = [pool for cloud in order for pool in self.clouds[cloud]]
        return sorted(pools, key=lambda p: clouds.index(p) if p in clouds else len(clouds))

    def better(self, present: list[str], best: list[Rank]) -> bool:
        """Whether an order is much better than the present one."""
        there = {rank.cloud: rank for rank in best}
        for cloud, new in zip(present, best, strict=True):
            old = there[cloud]
            if old is not new:
                if old.numbers[:3] != new.numbers[:3]:
                    return True
                return new.numbers[3] < old.numbers[3] * (1 - LESS)
        return False

    def ranked(self, job: int, now: int) -> list[Rank]:
        """The clouds that can hold the job, the best one first."""
        site, ranks = self.site, []
        fitting = {
            cloud: [p for p in pools if self.need(job, p) <= site.pools[p].machines]
            for cloud, pools in self.clouds.items()
        }
        everywhere = [p for pools in fitting.values() for p in pools]
        on_demand = min((self.on_demand(job, p, now) for p in everywhere), default=math.inf)
        for cloud, pools in fitting.items():
            if pools:
                pool = next((p for p in pools if self.sells(p, now)), pools[0])
                ranks.append(Rank(cloud, self.numbers(job, pool, on_demand, now)))
        return sorted(ranks, key=lambda rank: rank.numbers)

    def numbers(
        self, job: int, pool: int, on_demand: float, now: int
    ) -> tuple[float, float, float, float]:
        """What is compared."""
        if self.always(pool):
            return 1, 0, 0, 0
        lacks, cost = self.need(job, pool), 0.0
        offers = self.offers(pool, lacks, now)
        for place, (offer, room) in enumerate(offers):
            count = lacks if place == len(offers) - 1 else min(room, lacks)
            cost += count * self.site.price(pool, offer, now) * self.hours(job, pool)
            lacks -= count
        first = self.site.sold[pool][offers[0][0]].offer
        market = [Market.RESERVED, Market.SPOT, Market.ON_DEMAND].index(first.market)
        dear = first.market is Market.SPOT and cost >= on_demand
        public = str(first.location) != "on-premises"
        return public, not self.sells(pool, now), SPOT_NOT_CHEAPER if dear else market, cost

    def always(self, pool: int) -> bool:
        """Whether all machines of a public pool are always paid."""
        return self.cloud(pool).startswith("always ")

    def sells(self, pool: int, now: int) -> bool:
        """Whether the pool could serve a job now."""
        site = self.site
        if self.always(pool) or site._ranked(pool, 1, now, []):
            return True
        return bool(site.idle(pool, now))

    def offers(self, pool: int, count: int, now: int) -> list[tuple[int, int]]:
        """(offer, room) as they would be bought; the best one if there is no room anywhere."""
        site, used, found = self.site, list[int](), list[tuple[int, int]]()
        asked = set[int]()
        while len(used) < count:
            ranked = [
                r for r in site._ranked(pool, count - len(used), now, used) if r[0] not in asked
            ]
            if not ranked:
                break
            offer, room = ranked[0]
            found.append((offer, room))
            asked.add(offer)
            used += [offer] * room
        return found or [(self.best_of_all(pool, now), 0)]

    def best_of_all(self, pool: int, now: int) -> int:
        """The offer that comes first without limits and cool-downs."""
        rows = []
        for number, sold in enumerate(self.site.sold[pool]):
            offer, price = sold.offer, self.site.price(pool, number, now)
            dearest = offer.on_demand_price
            if offer.market is Market.SPOT and dearest is not None and price >= dearest:
                continue
            market = [Market.RESERVED, Market.SPOT, Market.ON_DEMAND].index(offer.market)
            rows.append((str(offer.location) != "on-premises", market, price, offer.key, number))
        return min(rows)[-1]

    def on_demand(self, job: int, pool: int, now: int) -> float:
        """What the job costs on demand in a public cloud."""
        if self.always(pool):
            return math.inf
        site = self.site
        prices = [
            site.price(pool, offer, now)
            for offer, _ in site._ranked(pool, 1, now, [])
            if site.sold[pool][offer].offer.market is Market.ON_DEMAND
            and str(site.sold[pool][offer].offer.location) != "on-premises"
        ]
        if not prices:
            return math.inf
        return self.hours(job, pool) * min(prices) * self.need(job, pool)

    def hours(self, job: int, pool: int) -> float:
        """For which each of the job's machines is paid."""
        model = self.site.pools[pool]
        boot = boot_seconds(model.boot, 1) if model.clock is Clock.REQUEST else 0
        return paid_seconds(model, boot + self.limit[job], taken=False) / HOUR
