"""A third program, for sites whose clouds are never full: each job starts at once, so there is no
queue. It says what a history costs with several clouds. Nothing of the product's ranking and of its
simulator's engine is used; prices are read from the offers of a scenario.

The rules, as they are taken here:

- a job goes to the site's own nodes if enough are idle. Else it goes to the cloud where it costs
  least by the best offer of each: spot below the on-demand price before on demand; of spot that
  costs no less than on demand anywhere, on demand first; of equal clouds the first one listed;
- it takes idle machines of that cloud, the last idle one first, and buys the others. They boot for
  two minutes, and are released after ten idle minutes;
- spot machines are lost when their price exceeds the on-demand price; their offer is not used for
  three minutes then. Their jobs start over at once, wherever they cost least at that moment;
- each hour of a machine costs what it costs at the beginning of that hour, by the second, a minute
  at least.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush

from slurm_elastic.model.cluster import Market
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario, Sold

HOUR, BOOT, IDLE, COOL, LEAST = 3600, 120, 600, 180, 60
END, LOSS, BACK, ARRIVE, RELEASE = range(5)
"""In one second, this is the order of events."""


class Price:
    """The price of an offer over time."""

    def __init__(self, sold: Sold) -> None:
        market = sold.market
        self.times = [0] if market is None else list(market.curve.times)
        self.prices = [sold.offer.price] if market is None else list(market.curve.prices)

    def at(self, when: int) -> float:
        """Dollars an hour."""
        return self.prices[max(bisect_right(self.times, when) - 1, 0)]


@dataclass(eq=False)
class Machine:
    """A machine. ``number``: of its launch; ``idle_since`` -1: it boots or has a job."""

    offer: Offered
    number: int
    begun: int
    ready: int
    idle_since: int = -1


@dataclass(eq=False)
class Offered:
    """An offer. ``cooling``: not used before that second."""

    name: str
    spot: bool
    price: Price
    ceiling: float
    machines: dict[Machine, None] = field(default_factory=dict)
    cooling: int = -1

    def is_sold(self, now: int) -> bool:
        """Whether it may be bought."""
        return not self.spot or (now >= self.cooling and self.price.at(now) < self.ceiling)


@dataclass(eq=False)
class Cloud:
    """A cloud: what it sells, the processors of its machines, and the idle machines."""

    offers: list[Offered]
    cpus: int
    idle: dict[Machine, None] = field(default_factory=dict)

    def best(self, now: int) -> Offered:
        """The offer to buy from."""
        sold = [offer for offer in self.offers if offer.is_sold(now)]
        return min(sold, key=lambda o: (not o.spot, o.price.at(now), o.name))

    def on_demand(self, now: int) -> float:
        """The lowest price on demand."""
        return min(offer.price.at(now) for offer in self.offers if not offer.spot)


@dataclass(eq=False)
class Run:
    """A job on its machines (None: on so many own nodes)."""

    job: int
    machines: list[Machine]
    own: int
    end: int


def clouds_of(scenario: Scenario) -> tuple[int, int, list[Cloud]]:
    """The number of own nodes, their processors, and the clouds."""
    own = next(pool for pool in scenario.pools if not pool.public)
    return own.machines, own.procs, [_cloud(pool) for pool in scenario.pools if pool.public]


def _cloud(pool: PoolModel) -> Cloud:
    offers = []
    for sold in pool.sold:
        offer = sold.offer
        ceiling = offer.on_demand_price or 0.0
        offers.append(Offered(offer.key, offer.market is Market.SPOT, Price(sold), ceiling))
    return Cloud(offers, pool.procs)


class Replay:
    """One run of a history."""

    def __init__(self, jobs: Jobs, scenario: Scenario) -> None:
        self.jobs = jobs
        self.own, self.own_cpus, self.clouds = clouds_of(scenario)
        self.events: list[tuple[int, int, int, object]] = []
        self.leases: list[tuple[Machine, int]] = []
        self.order = self.launches = 0
        self.runs: dict[Machine, Run] = {}

    def push(self, when: int, kind: int, what: object) -> None:
        self.order += 1
        heappush(self.events, (when, kind, self.order, what))

    def cost(self) -> float:
        """The bill of all clouds."""
        for job, submit in enumerate(self.jobs.submit):
            self.push(submit, ARRIVE, job)
        for cloud in self.clouds:
            for offer in cloud.offers:
                for when, price in zip(offer.price.times, offer.price.prices, strict=True):
                    if offer.spot and price > offer.ceiling:
                        self.push(when, LOSS, (cloud, offer))
        while self.events:
            now, kind, _, what = heappop(self.events)
            if kind == END:
                assert isinstance(what, Run)
                self.end(what, now)
            elif kind == LOSS:
                assert isinstance(what, tuple)
                cloud, offer = what
                self.lose(cloud, offer, now)
            elif kind == RELEASE:
                assert isinstance(what, tuple)
                cloud, machine, since = what
                self.release(cloud, machine, since, now)
            else:
                assert isinstance(what, int)
                self.start(what, now)
        return sum(self.bill(machine, end) for machine, end in self.leases)

    def start(self, job: int, now: int) -> None:
        """Start a job where it costs least."""
        procs, run = self.jobs.procs[job], self.jobs.run[job]
        need = -(-procs // self.own_cpus)
        if need <= self.own:
            self.own -= need
            self.push(now + run, END, Run(job, [], need, now + run))
            return
        cloud = min(self.clouds, key=lambda cloud: self.numbers(job, cloud, now))
        need, ready = -(-procs // cloud.cpus), now
        machines = sorted(cloud.idle, key=lambda m: (-m.idle_since, -m.number))[:need]
        for machine in machines:
            del cloud.idle[machine]
            machine.idle_since = -1
        if len(machines) < need:
            offer, ready = cloud.best(now), now + BOOT
            self.launches += 1
            new = [Machine(offer, self.launches, now, ready) for _ in range(need - len(machines))]
            offer.machines |= dict.fromkeys(new)
            machines += new
        begun = Run(job, machines, 0, ready + run)
        for machine in machines:
            self.runs[machine] = begun
        self.push(begun.end, END, begun)

    def numbers(self, job: int, cloud: Cloud, now: int) -> tuple[int, float]:
        """What is compared: spot or not, and the cost."""
        best = cloud.best(now)
        seconds = BOOT + self.jobs.limit[job]

        def cost(of: Cloud, price: float) -> float:
            return -(-self.jobs.procs[job] // of.cpus) * price * (seconds / HOUR)

        mine = cost(cloud, best.price.at(now))
        anywhere = min(cost(other, other.on_demand(now)) for other in self.clouds)
        if not best.spot:
            return 1, mine
        return (0 if mine < anywhere else 2), mine

    def end(self, run: Run, now: int) -> None:
        """The job is done, unless it was interrupted."""
        self.own += run.own
        for machine in run.machines:
            if self.runs.get(machine) is run:
                del self.runs[machine]
                self.now_idle(machine, now)

    def now_idle(self, machine: Machine, now: int) -> None:
        cloud = next(cloud for cloud in self.clouds if machine.offer in cloud.offers)
        machine.idle_since = now
        cloud.idle[machine] = None
        self.push(now + IDLE, RELEASE, (cloud, machine, now))

    def release(self, cloud: Cloud, machine: Machine, since: int, now: int) -> None:
        """The machine goes if it has been idle since then."""
        if machine.idle_since == since and machine in cloud.idle:
            del cloud.idle[machine]
            self.gone(machine, now)

    def gone(self, machine: Machine, now: int) -> None:
        del machine.offer.machines[machine]
        self.leases.append((machine, now))

    def lose(self, cloud: Cloud, offer: Offered, now: int) -> None:
        """All machines of the offer are lost."""
        if offer.machines:
            offer.cooling = now + COOL
        stopped: dict[int, Run] = {}
        for machine in list(offer.machines):
            self.gone(machine, now)
            cloud.idle.pop(machine, None)
            run = self.runs.get(machine)
            if run is not None:
                stopped[run.job] = run
        for job, run in sorted(stopped.items()):
            self.push(now, BACK, job)
            for machine in run.machines:
                del self.runs[machine]
                if machine.offer is not offer:
                    self.now_idle(machine, max(now, machine.ready))

    def bill(self, machine: Machine, end: int) -> float:
        """Dollars of a lease."""
        total, at, left = 0.0, machine.begun, max(end - machine.begun, LEAST)
        while left > 0:
            part = min(left, HOUR)
            total += machine.offer.price.at(at) * part / HOUR
            at, left = at + part, left - part
        return total


def cost(jobs: Jobs, scenario: Scenario) -> float:
    """What the history costs in clouds."""
    return Replay(jobs, scenario).cost()
