"""A second simulator, for tests: the documented rules in their plainest form, one event after the
other, everything looked at anew each time, without anything of the simulator's engine.

Rules that the documentation leaves open, as they are taken here (``independent_queue`` has those of the
queue, ``independent_site`` those of machines and purchases):

- the queue is looked at whenever something happens: a job comes or ends, machines become ready, are
  let go or taken, a hold ends; and once more in that second where machines are released or launched;
- a job of no length that starts now also ends now, before growth and release are looked at;
- an interrupted job's other machines are idle, or boot on for whoever comes first; it starts no
  earlier than its requeue delay later, and waits in its place by submission. All jobs of a machine that is taken are interrupted;
- ``on_demand`` growth starts machines in the order of the first waiting job, or as the last time if that is
  hardly dearer. It looks at the next multiple of its period after something has happened while jobs
  wait, or when a hold ends or machines went while jobs wait. It counts by the machines of the first pool that
  grows in this order, less the idle and booting ones of all that no served job needs. The first jobs count as
  served that the machines of this look are enough for. If nothing runs or boots, the first job gets what it lacks;
- machines that are due while jobs wait go in the second in which none waits any more, at a look. If pools
  compete for a limit they go although jobs wait, oldest launches first, but for the idle machines of a job
  whose other machines boot or will: these are due again as if they had become idle now;
- standing machines are paid until the last job has ended and the last bought machine has gone.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from slurm_elastic.policies.growth.capacity import OnDemand
from slurm_elastic.policies.growth.release import AtOnce, Delayed, Idle
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.scenario import Scenario
from tests.simulate.independent_queue import Queue, Run
from tests.simulate.independent_site import PLENTY, Machine, changes

GIVEN_UP = 45 * 86400


@dataclass
class Found:
    """The result: each job's start and end (-1: none), leases with their numbers, dollars by pool."""

    starts: list[int]
    ends: list[int]
    leases: Counter[tuple[int, int | None, int, int, bool]]
    dollars: list[float]
    interruptions: int = 0


class Independent(Queue):
    """One simulation."""

    def __init__(self, jobs: Jobs, scenario: Scenario) -> None:
        super().__init__(jobs, scenario)
        self.to_come = [number for number in range(len(jobs)) if self.fits_ever(number)]
        self.back: list[tuple[int, int]] = []
        self.ends = [-1] * len(jobs)
        self.growth_look = -1
        self.growth_looks: set[int] = set()
        self.interruptions = 0

    def run(self) -> Found:
        """From the first submission to the last event."""
        if self.jobs:
            self.now = useful = self.jobs[0].submit
            self.site.stand(self.now)
            while (when := self.next_event()) is not None:
                before, self.now = self.now, when
                self.order_jobs(before)
                self.happen()
                if self.to_come or self.running or self.back:
                    useful = when
                if self.waiting and when - useful > GIVEN_UP:
                    break  # nothing will ever serve them
        site = self.site
        last = max([*self.ends, *(lease.end for lease in site.leases)], default=0)
        for machine in list(site.machines):
            site.end(machine, max(last, self.jobs[-1].submit))
        return Found(self.starts, self.ends, site.history(), site.bills(), self.interruptions)

    def order_jobs(self, before: int) -> None:
        """New jobs get their orders, and jobs that wait may get others."""
        if self.orders.matter:
            self.orders.look(self.waiting, before, self.now)
            for job in self.to_come:
                if self.jobs[job].submit <= self.now:
                    self.orders.arrive(job, self.now)

    # what happens when

    def next_event(self) -> int | None:
        """The second of the next event; None: nothing happens any more."""
        times = [run.end for run in self.running]
        times += [max(self.jobs[job].submit, self.now) for job in self.to_come]
        times += [when for when, _ in self.back]
        times += [m.ready for m in self.site.machines if not m.up]
        times += self.losses()
        if self.waiting or self.site.held_until:
            times += list(self.site.held_until.values())
        times += list(self.growth_looks)
        for pool in self.pools:
            if not self.waiting or self.site.yields[pool]:
                idle = self.site.idle(pool, self.now)
                times += [self.next_due(m) for m in idle if m.offer is not None]
        return min(times) if times else None

    def losses(self) -> list[int]:
        """The seconds at which a market has less room than there are machines of it now."""
        found = []
        for machine in self.site.machines:
            if machine.offer is None:
                continue
            market = self.site.sold[machine.pool][machine.offer].market
            for when in changes(market) if market is not None else ():
                if when > self.now and self.site.stock(machine.pool, machine.offer, when, []) < 0:
                    found.append(when)
                    break
        return found

    def happen(self) -> None:
        """All that happens in this second: ends, losses, arrivals, boots, starts, growth, release."""
        site, now = self.site, self.now
        something = self.end_runs()
        something |= self.lose_machines()
        something |= self.arrive()
        something |= self.become_ready()
        self.look()
        self.ask_for_growth(something)
        if any(run.end == now for run in self.running):
            return  # a job of no length: its end comes first
        released = self.release()
        due = now in self.growth_looks
        self.growth_looks.discard(now)
        held = any(until <= now for until in site.held_until.values())
        if held or due or (released and self.waiting):
            site.review(now, waited_for=bool(self.waiting))
            self.look()
            if not self.slurm:
                self.grow()
                self.look()
            if all(run.end > now for run in self.running):
                self.release()

    def become_ready(self) -> bool:
        """Machines have booted; whether any is for whoever comes first."""
        ready = [m for m in self.site.machines if not m.up and m.ready <= self.now]
        for machine in ready:
            machine.up = True
            if not machine.jobs:
                self.now_idle(machine)
        return any(not machine.jobs for machine in ready)

    def end_runs(self) -> bool:
        """Jobs that are done give their machines back."""
        over = [run for run in self.running if run.end == self.now]
        for run in sorted(over, key=lambda run: run.job):
            self.running.remove(run)
            self.ends[run.job] = self.now
            self.leave(run)
        return bool(over)

    def leave(self, run: Run) -> None:
        """The job is on its machines no more."""
        for machine in run.machines:
            machine.jobs.remove(run.job)
            if not machine.jobs:
                self.now_idle(machine)

    def now_idle(self, machine: Machine) -> None:
        """It has no work from now on; those of one launch that become idle together are alike."""
        machine.idle_since = max(self.now, machine.ready)
        self.opened += 1
        alike = [
            m.idle_number
            for m in self.site.idle(machine.pool, self.now)
            if m is not machine and (m.launch, m.idle_since) == (machine.launch, self.now)
        ]
        machine.idle_number = min(alike, default=self.opened)

    def arrive(self) -> bool:
        """Jobs are submitted, or come back after an interruption."""
        new = [job for job in self.to_come if self.jobs[job].submit <= self.now]
        back = [job for when, job in self.back if when <= self.now]
        self.to_come = [job for job in self.to_come if job not in new]
        self.back = [(when, job) for when, job in self.back if when > self.now]
        if self.orders.matter:
            for job in back:
                self.orders.arrive(job, self.now)
        self.waiting = sorted([*self.waiting, *new, *back])
        return bool(new or back)

    # losses

    def lose_machines(self) -> bool:
        """Each cloud takes back what it has no room for any more."""
        lost = False
        for pool in self.pools:
            for offer, sold in enumerate(self.site.sold[pool]):
                if sold.market is None:
                    continue
                there = [m for m in self.site.of(pool) if m.offer == offer]
                over = min(-self.site.stock(pool, offer, self.now, []), len(there))
                if over > 0:
                    lost = True
                    self.site.was_taken(pool, offer, self.now)
                    while over > 0:
                        over -= self.lose(pool, offer)
        return lost

    def lose(self, pool: int, offer: int) -> int:
        """The next machine that is taken."""
        there = [m for m in self.site.of(pool) if m.offer == offer]
        machine = min(there, key=self.taken_first)
        holders = [run for run in self.running if machine in run.machines]
        self.site.end(machine, self.now, taken=True)
        for run in holders:
            self.interrupt(run, machine)
        return 1

    def taken_first(self, machine: Machine) -> tuple[int, int, int, int]:
        """Smaller: sooner."""
        if not machine.jobs:
            return -machine.launch, 0 if machine.up else 1, machine.idle_since, 0
        last = max(run.number for run in self.running if machine in run.machines)
        return -machine.launch, 2, -last, 0

    def interrupt(self, run: Run, lost: Machine) -> None:
        """The job is to start anew."""
        self.interruptions += 1
        self.running.remove(run)
        self.leave(run)
        if self.now < run.start == self.starts[run.job]:
            self.starts[run.job] = -1  # it never began
        if self.now > run.start:
            kept = max(self.ride(run, self.now)[1] - run.restart, 0)
            self.saved[run.job] = self.saved.get(run.job, 0) + kept
        self.back.append((self.now + self.scenario.requeue_delay, run.job))

    # growth and release

    def ask_for_growth(self, something: bool) -> None:
        """The policy looks at the next multiple of its period after something has happened."""
        period = self.scenario.growth.period
        if self.slurm or period is None or not something or not self.waiting:
            return
        if self.growth_look < self.now:
            self.growth_look = -(-self.now // period) * period
            self.growth_looks.add(self.growth_look)

    def grow(self) -> None:
        """The jobs in turn get all the machines that they need in one pool, or none: those that idle
        or boot, and new ones for the rest.
        """
        assert isinstance(self.scenario.growth, OnDemand)
        if not any(self.room_now(pool) for pool in self.growing_pools()) or not self.waiting:
            return
        starts, dealt = self.deal(starts=True)
        for pool, count in starts.items():
            # A job whose machines start in turns keeps the machines that it gets.
            of_use = [now if now == new else 1 for at, _, new, now in dealt if at == pool and now]
            self.launch_ahead(pool, count, min(of_use, default=1))

    def growing_pools(self) -> list[int]:
        """The pools whose machines come and go."""
        pools = self.scenario.pools
        return [p for p in self.pools if pools[p].machines > pools[p].standing]

    def deal(self, *, starts: bool) -> tuple[dict[int, int], list[tuple[int, int, int, int]]]:
        """By pool the machines to start, and (pool, machines that idle or boot, new ones, new ones
        that start now) by job.
        """
        queue = self.waiting[: self.scenario.depth]
        growing = self.orders.growing(queue[0], self.growing_pools(), starts=starts)
        rooms = {pool: self.room_now(pool) for pool in growing}
        dealt = list[tuple[int, int, int, int]]()
        free = {
            pool: len(self.site.idle(pool, self.now)) + sum(not m.up for m in self.site.of(pool))
            for pool in growing
        }
        rooms_in_turns = {pool: max(self.site.room(pool), 0) for pool in growing}
        started = dict.fromkeys(growing, 0)
        shared: list[tuple[float, dict[int, float]]] = []
        if any(self.need(job, pool) > 1 for job in queue for pool in growing):
            buyable = {
                pool: self.site.buyable(pool, rooms_in_turns[pool], self.now, [])
                for pool in growing
            }
            shared = self.site.bounds(buyable)
            for pool in growing:
                rooms_in_turns[pool] = min(rooms_in_turns[pool], len(buyable[pool]))
                rooms[pool] = min(rooms[pool], rooms_in_turns[pool])
        for job in queue:
            lacks = {pool: self.need(job, pool) - free[pool] for pool in growing}
            served = [pool for pool in growing if lacks[pool] <= 0]
            if served:
                free[served[0]] -= self.need(job, served[0])
                dealt.append((served[0], self.need(job, served[0]), 0, 0))
                continue
            allowed = {
                pool: min(
                    [
                        math.floor(left / costs[pool] + 1e-9)
                        for left, costs in shared
                        if costs.get(pool)
                    ],
                    default=PLENTY,
                )
                for pool in growing
            }
            possible = [pool for pool in growing if lacks[pool] <= allowed[pool]]
            fitting = [pool for pool in possible if lacks[pool] <= rooms[pool]]
            fitting += [
                pool
                for pool in possible
                if lacks[pool] <= rooms_in_turns[pool] and self.need(job, pool) > 1
            ]
            for pool in fitting[:1]:
                at_once = min(lacks[pool], rooms[pool])
                started[pool] += at_once
                dealt.append((pool, free[pool], lacks[pool], at_once))
                rooms_in_turns[pool] -= lacks[pool]
                rooms[pool] = min(rooms[pool] - at_once, rooms_in_turns[pool])
                free[pool] = 0
                shared = [
                    (left - lacks[pool] * costs.get(pool, 0.0), costs) for left, costs in shared
                ]
        return started, dealt

    def kept(self, pool: int) -> int:
        """As many idle machines of a pool wait for other machines of a job."""
        if self.slurm or not self.waiting or pool not in self.growing_pools():
            return 0
        idle, found = len(self.site.idle(pool, self.now)), 0
        for at, free, lacks, _ in self.deal(starts=False)[1]:
            if at == pool:
                found += min(free, idle) if lacks or free > idle else 0
                idle -= min(free, idle)
        return found

    def room_now(self, pool: int) -> int:
        """As many machines as a growth policy may ask of it."""
        room, most = self.site.room(pool), self.scenario.pools[pool].max_booting
        if most is None:
            return max(room, 0)
        booting = sum(not m.up for m in self.site.of(pool))
        return max(min(room, most - booting), 0)

    def launch_ahead(self, pool: int, count: int, least: int) -> None:
        """Machines for whoever comes first."""
        if count > 0:
            bought = self.site.buy(pool, count, self.now, whole=False, least=least)
            self.site.launch(pool, bought, self.now)

    def release(self) -> bool:
        """Idle machines that are due go, while no job waits."""
        gone = False
        for pool in self.pools:
            if self.waiting and not self.site.yields[pool]:
                continue
            idle = self.site.idle(pool, self.now)
            due = [m for m in idle if m.offer is not None and self.next_due(m) <= self.now]
            may_go = len(idle) - (self.kept(pool) if due else 0)
            for machine in sorted(due, key=lambda m: (m.launch, m.idle_since)):
                if may_go > 0:
                    self.site.end(machine, self.now)
                    gone, may_go = True, may_go - 1
                else:
                    machine.kept_at = self.now
        return gone

    def next_due(self, machine: Machine) -> int:
        """The first look, from now on, at which an idle machine may go."""
        pool = self.scenario.pools[machine.pool]
        release, lease, grid = pool.release, pool.billing.lease, pool.check
        if isinstance(release, Delayed) and pool.public and lease > 1:
            grid = min(grid, max(release.before_end, 1))
        when = -(-max(self.now, machine.kept_at + 1) // grid) * grid
        if isinstance(release, Delayed) and pool.public and lease > 1:
            while lease - (when - machine.begun) % lease > release.before_end:
                when += grid
            return when
        assert isinstance(release, Idle | AtOnce | Delayed)
        wait = release.on_premises if isinstance(release, Delayed) else 0
        wait = release.seconds if isinstance(release, Idle) else wait
        return max(when, -(-(max(machine.idle_since, machine.kept_at) + wait) // grid) * grid)


def independent(jobs: Jobs, scenario: Scenario) -> Found:
    """The whole run."""
    return Independent(jobs, scenario).run()
