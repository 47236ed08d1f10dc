"""A second simulator, for tests: the documented rules in their plainest form, one event after the
other, everything looked at anew each time, without anything of the simulator's engine.

Rules that the documentation leaves open, as they are taken here (``independent_site`` has those of
purchases):

- the queue is looked at whenever something happens: a job comes or ends, machines become ready, are
  let go or taken, a hold ends;
- the first job's reservation is in the pool where it is expected to fit first (of equals the first
  pool), at the earliest second at which it fits if each running job ends at its limit, and those
  beyond it now; under ``slurm`` growth what may be launched counts as free. Another job may start
  there only if the first one would still fit at that second;
- a machine that several jobs share is expected to be free when the last of those on it is. Where the
  first job is kept room beside others, it is on the machine that has it first, of equals on the one in
  use for longest; others may then use any other machine, also one that is free sooner;
- a job that shares goes to the machine that has been in use for longest of those with room where
  it does not delay the first job; else to one of its own in the same pool, else to the next pool;
- a job that needs machines launched is expected to end when the last of them would be ready, and
  its limit later;
- a job of no length that starts now also ends now, before growth and release are looked at;
- whoever waits for machines that boot keeps those that are up already;
- an interrupted job's other machines are idle, or boot on for whoever comes first; it starts no
  earlier than its requeue delay later, and waits in its place by submission;
- machines that are due while jobs wait go in the second in which none waits any more, at a look;
- standing machines are paid until the last job has ended and the last bought machine has gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_elastic.policies.capacity import OnDemand, Slurm
from slurm_elastic.policies.checkpoint import Hour, Never
from slurm_elastic.policies.release import AtOnce, Delayed, Idle
from slurm_elastic.simulate.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import Scenario
from tests.simulate.independent_site import Machine, Site

GIVEN_UP = 45 * 86400
FAR = 2**60


@dataclass(eq=False)
class Run:
    """A job on its machines: from ``start`` until ``end``, by its limit until ``expected``."""

    job: int
    pool: int
    machines: list[Machine]
    start: int
    work: int
    restart: int
    end: int
    expected: int
    number: int


@dataclass
class Reservation:
    """The first job's: in a pool, at a second; on this machine beside others, or on its own."""

    job: int
    pool: int
    when: int
    machine: Machine | None


@dataclass
class Found:
    """The result: each job's start and end (-1: none), leases with their numbers, dollars by pool."""

    starts: list[int]
    ends: list[int]
    leases: Counter[tuple[int, int | None, int, int, bool]]
    dollars: list[float]
    interruptions: int = 0


class Independent:
    """One simulation."""

    def __init__(self, jobs: Jobs, scenario: Scenario) -> None:
        self.jobs: list[Job] = [jobs[number] for number in range(len(jobs))]
        self.scenario, self.site = scenario, Site(scenario)
        self.pools = range(len(scenario.pools))
        self.slurm = isinstance(scenario.growth, Slurm)
        self.to_come = [n for n in range(len(jobs)) if self.fits_ever(n)]
        self.back: list[tuple[int, int]] = []
        self.waiting: list[int] = []
        self.running: list[Run] = []
        self.starts = [-1] * len(jobs)
        self.ends = [-1] * len(jobs)
        self.covered: set[int] = set()
        self.saved: dict[int, int] = {}
        self.growth_look = -1
        self.growth_looks: set[int] = set()
        self.runs = self.interruptions = self.opened = 0
        self.now = 0

    def run(self) -> Found:
        """From the first submission to the last event."""
        if self.jobs:
            self.now = useful = self.jobs[0].submit
            self.site.stand(self.now)
            while (when := self.next_event()) is not None:
                self.now = when
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
        """The seconds at which a market changes of which there are machines."""
        found = []
        for machine in self.site.machines:
            if machine.offer is not None:
                market = self.site.sold[machine.pool][machine.offer].market
                if market is not None and market.rooms(self.now)[1] < FAR:
                    found.append(market.rooms(self.now)[1])
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
            if self.slurm:
                self.look()
            else:
                self.grow()
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
        self.covered.discard(run.job)
        self.back.append((self.now + self.scenario.requeue_delay, run.job))

    def ride(self, run: Run, until: int | None) -> tuple[int, int]:
        """When the run is over, and how many seconds of it a checkpoint has kept. The policy is asked
        on its grid from the start on, and stands still for a checkpoint; it saves once in each lease
        in its margin before the end, on machines of a market alone.
        """
        how = self.scenario.checkpoints
        if isinstance(how.policy, Never) or not any(self.on_market(m) for m in run.machines):
            return run.start + run.work, 0
        assert isinstance(how.policy, Hour)
        margin = max(how.policy.margin, how.dump)
        lease = self.scenario.pools[run.pool].billing.lease
        paid = lease if lease > margin else int(how.policy.every)
        launched = min(machine.begun for machine in run.machines)
        now, done, saved, since = run.start, 0, 0, run.start
        while True:
            end = now + run.work - done
            look = run.start + ((now - run.start) // how.look + 1) * how.look
            if look >= end or (until is not None and look >= until):
                return end, saved
            done, now = done + look - now, look
            opens = launched + ((now - launched) // paid + 1) * paid - min(margin, paid)
            if now < opens or since >= opens:
                continue
            now = since = look + how.dump
            if until is not None and now > until:
                return now, saved
            saved = done

    def on_market(self, machine: Machine) -> bool:
        """Whether it was bought on a spot market."""
        if machine.offer is None:
            return False
        return self.site.sold[machine.pool][machine.offer].market is not None

    # the queue

    def need(self, job: int, pool: int) -> int:
        """The machines that a job needs of a pool; more than there are where none would do."""
        one, model = self.jobs[job], self.scenario.pools[pool]
        needs = [-(-one.procs // model.procs)]
        if model.memory:
            needs.append(-(-one.memory // model.memory))
        if one.gpus:
            needs.append(-(-one.gpus // model.gpus) if model.gpus else model.machines + 1)
        return max(needs)

    def fits_ever(self, job: int) -> bool:
        """Whether any pool could hold it."""
        return any(self.need(job, p) <= self.scenario.pools[p].machines for p in self.pools)

    def shares(self, job: int, pool: int) -> bool:
        """Whether it leaves some of a machine to others."""
        model = self.scenario.pools[pool]
        if not model.shared or self.need(job, pool) != 1:
            return False
        return self.part(job, pool) != (model.procs, model.memory, model.gpus)

    def part(self, job: int, pool: int) -> tuple[int, int, int]:
        """The cores, MiB and GPUs of a machine that it needs."""
        one, model = self.jobs[job], self.scenario.pools[pool]
        return one.procs, one.memory if model.memory else 0, one.gpus

    def has_room(self, machine: Machine, jobs: list[int], job: int) -> bool:
        """Whether the job fits on a machine beside these."""
        model = self.scenario.pools[machine.pool]
        if not all(self.shares(other, machine.pool) for other in jobs):
            return False
        parts = [self.part(other, machine.pool) for other in [*jobs, job]]
        whole = model.procs, model.memory, model.gpus
        return all(
            sum(used) <= there for used, there in zip(zip(*parts, strict=True), whole, strict=True)
        )

    def hosts(self, pool: int) -> list[Machine]:
        """Machines in use, the one in use for longest first."""
        return sorted([m for m in self.site.of(pool) if m.jobs], key=lambda m: m.in_use)

    def look(self) -> None:
        """Start what may start: the first jobs in order, then others that delay none."""
        while self.waiting and self.place(self.waiting[0], None):
            del self.waiting[0]
        if not self.waiting:
            return
        reserved = self.reserve(self.waiting[0])
        blocked = 1
        for job in self.waiting[1:]:
            if self.scenario.depth is not None and blocked >= self.scenario.depth:
                break
            if self.place(job, reserved):
                self.waiting.remove(job)
            else:
                blocked += 1

    def reserve(self, job: int) -> Reservation | None:
        """Where and when the job is expected to fit first."""
        best = None
        for pool in self.pools:
            found = self.earliest(job, pool)
            if found is not None and (best is None or found.when < best.when):
                best = found
        return best

    def earliest(self, job: int, pool: int) -> Reservation | None:
        """The earliest second at which it is expected to fit in the pool, and where."""
        times = {self.now}
        times |= {max(run.expected, self.now) for run in self.running}
        times |= {m.ready for m in self.site.of(pool) if not m.up}
        for when in sorted(times):
            for machine in self.hosts(pool) if self.shares(job, pool) else ():
                if self.has_room(machine, self.still_there(machine, when), job):
                    return Reservation(job, pool, when, machine)
            if self.free_at(pool, when) >= self.need(job, pool):
                return Reservation(job, pool, when, None)
        return None

    def still_there(self, machine: Machine, when: int) -> list[int]:
        """The jobs on a machine that are not expected to be over then."""
        return [job for job in machine.jobs if max(self.expected(job), self.now) > when]

    def free_at(self, pool: int, when: int) -> int:
        """How many machines are expected to be free then, or may be launched."""
        free = self.site.room(pool) if self.slurm else 0
        for machine in self.site.of(pool):
            if machine.jobs:
                free += not self.still_there(machine, when)
            else:
                free += machine.up or machine.ready <= when
        return free

    def would_delay(
        self, reserved: Reservation | None, job: int, end: int, beside: Machine | None, need: int
    ) -> bool:
        """Whether the first job would no longer fit when it is expected to if this one had a machine
        ``beside`` others, or so many of its own, until its ``end``.
        """
        if reserved is None or end <= reserved.when:
            return False
        if reserved.machine is not None:
            there = self.still_there(reserved.machine, reserved.when)
            room = self.has_room(reserved.machine, [*there, job], reserved.job)
            return beside is reserved.machine and not room
        free = self.free_at(reserved.pool, reserved.when)
        if beside is not None:
            need = int(not self.still_there(beside, reserved.when))
        return need > 0 and free - need < self.need(reserved.job, reserved.pool)

    def expected(self, job: int) -> int:
        """When a running job ends by its limit."""
        return next(run.expected for run in self.running if run.job == job)

    def place(self, job: int, reserved: Reservation | None) -> bool:
        """Start it in the first pool that can take it without delay for the reservation."""
        for pool in self.pools:
            mine = reserved if reserved is not None and reserved.pool == pool else None
            if self.shares(job, pool) and self.join(job, pool, mine):
                return True
            if self.start(job, pool, mine):
                return True
        return False

    def join(self, job: int, pool: int, reserved: Reservation | None) -> bool:
        """Start it beside others."""
        for machine in self.hosts(pool):
            if not self.has_room(machine, machine.jobs, job):
                continue
            start = max(self.now, machine.ready)
            if self.would_delay(reserved, job, start + self.jobs[job].limit, machine, 0):
                continue
            self.begin(job, pool, [machine], start)
            return True
        return False

    def start(self, job: int, pool: int, reserved: Reservation | None) -> bool:
        """Start it on machines of its own, idle ones first."""
        need, idle = self.need(job, pool), self.site.idle(pool, self.now)
        lacks = max(need - len(idle), 0)
        if lacks and (not self.slurm or lacks > self.site.room(pool)):
            return False
        ready = self.now
        if lacks:
            ready = max(at for _, at in self.site.boot_waves(pool, lacks, self.now, book=False))
        if self.would_delay(reserved, job, ready + self.jobs[job].limit, None, need):
            return False
        machines = idle[:need]
        if lacks:
            bought = self.site.buy(pool, lacks, self.now, whole=True)
            if not bought:
                return False
            machines = machines + self.site.launch(pool, bought, self.now)
        self.begin(job, pool, machines, max(self.now, *(m.ready for m in machines)))
        return True

    def begin(self, job: int, pool: int, machines: list[Machine], start: int) -> None:
        """It has these machines from now on, and runs when they are ready."""
        for machine in machines:
            if not machine.jobs:
                self.opened += 1
                machine.in_use = self.opened
            machine.jobs.append(job)
        self.runs += 1
        saved = self.saved.get(job, 0)
        restart = self.scenario.checkpoints.restart if saved else 0
        work = self.jobs[job].run - saved + restart
        expected = start + self.jobs[job].limit
        run = Run(job, pool, machines, start, work, restart, 0, expected, self.runs)
        run.end = self.ride(run, None)[0]
        self.running.append(run)
        if self.starts[job] < 0:
            self.starts[job] = start

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
        """A machine for each node that newly waiting jobs lack beyond those idle; for the first one
        also where nothing runs or boots.
        """
        assert isinstance(self.scenario.growth, OnDemand)
        growing = [
            p
            for p in self.pools
            if self.scenario.pools[p].machines > self.scenario.pools[p].standing
        ]
        rooms = {pool: self.room_now(pool) for pool in growing}
        if not any(rooms.values()) or not self.waiting:
            return
        queue = self.waiting[: self.scenario.depth]
        idle = {pool: len(self.site.idle(pool, self.now)) for pool in growing}
        boots = any(not m.up for m in self.site.machines)
        stands = not self.running and not boots
        needs = {job: self.need(job, growing[0]) for job in queue}
        count = sum(needs[job] for job in queue if job not in self.covered) - sum(idle.values())
        if count <= 0 and stands:
            count = needs[queue[0]] - sum(idle.values())
        self.covered |= set(queue)
        if count > 0:
            for pool in growing:
                self.launch_ahead(pool, min(count, rooms[pool]))
                count -= min(count, rooms[pool])
        elif stands:
            head = {pool: self.need(queue[0], pool) - idle[pool] for pool in growing}
            fitting = [pool for pool in growing if head[pool] <= rooms[pool]]
            if fitting and all(lacks > 0 for lacks in head.values()):
                self.launch_ahead(fitting[0], head[fitting[0]])

    def room_now(self, pool: int) -> int:
        """What a growth policy may ask of it."""
        room, most = self.site.room(pool), self.scenario.pools[pool].max_booting
        if most is None:
            return max(room, 0)
        booting = sum(not m.up for m in self.site.of(pool))
        return max(min(room, most - booting), 0)

    def launch_ahead(self, pool: int, count: int) -> None:
        """Machines for whoever comes first."""
        if count > 0:
            bought = self.site.buy(pool, count, self.now, whole=False)
            self.site.launch(pool, bought, self.now)

    def release(self) -> bool:
        """Idle machines that are due go, while no job waits."""
        gone = False
        for pool in self.pools:
            if self.waiting and not self.site.yields[pool]:
                continue
            for machine in self.site.idle(pool, self.now):
                if machine.offer is not None and self.next_due(machine) <= self.now:
                    self.site.end(machine, self.now)
                    gone = True
        return gone

    def next_due(self, machine: Machine) -> int:
        """The first look, from now on, at which an idle machine may go."""
        pool = self.scenario.pools[machine.pool]
        release, lease, grid = pool.release, pool.billing.lease, pool.grid
        when = -(-self.now // grid) * grid
        if isinstance(release, Delayed) and pool.public and lease > 1:
            while lease - (when - machine.begun) % lease > release.before_end:
                when += grid
            return when
        assert isinstance(release, Idle | AtOnce | Delayed)
        wait = release.on_premises if isinstance(release, Delayed) else 0
        wait = release.seconds if isinstance(release, Idle) else wait
        return max(when, -(-(machine.idle_since + wait) // grid) * grid)


def independent(jobs: Jobs, scenario: Scenario) -> Found:
    """The whole run."""
    return Independent(jobs, scenario).run()
