"""The queue of the independent simulator: first come, first served with EASY backfill, each look from
scratch.

Rules that the documentation leaves open, as they are taken here:

- the first job's reservation is in the pool where it is expected to fit first (of equals the first
  one in its order), at the earliest second at which it fits if each running job ends at its limit, and those
  beyond it now; under ``slurm`` growth what may be launched counts as free, at once. Another job may
  start there only if the first one would still fit at that second;
- a machine that several jobs share is expected to be free when the last of those on it is. Where the
  first job is kept room beside others, it is on the machine that has it first, of equals on the one in
  use for longest; others may then use any other machine, also one that is free sooner;
- a job that shares goes to the machine that has been in use for longest of those with room where
  it does not delay the first job; else to one of its own in the same pool, else to the next pool;
- a job that needs machines launched is expected to end its limit after the last of them would be
  ready; it keeps those that are up already while it waits for the others;
- a purchase that fails holds machines which the first job may have been kept: all are looked at again;
- a look ends after ``depth`` jobs that cannot start, the first one counted;
- a save is asked for on a grid from the run's start on, within the margin before the end of each paid
  lease (of ``every`` seconds where that is too short) of the machine launched first, once in each; the
  job stands still meanwhile, and one that is cut off by the loss keeps nothing. Only runs on machines of
  a market are saved. A job that starts from a save takes the restart's seconds first.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_elastic.policies.checkpoint.checkpoint import Hour, Never
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import Scenario
from tests.simulate.independent_order import Orders
from tests.simulate.independent_site import Machine, Site


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


class Queue:
    """The jobs that wait and run, and who may start."""

    def __init__(self, jobs: Jobs, scenario: Scenario) -> None:
        self.jobs: list[Job] = [jobs[number] for number in range(len(jobs))]
        self.scenario, self.site = scenario, Site(scenario)
        self.pools = range(len(scenario.pools))
        self.orders = Orders(self.site, self.need, [job.limit for job in self.jobs])
        self.slurm = isinstance(scenario.growth, Slurm)
        self.waiting: list[int] = []
        self.running: list[Run] = []
        self.starts = [-1] * len(jobs)
        self.saved: dict[int, int] = {}
        self.runs = self.opened = 0
        self.refused = False
        self.now = 0

    def need(self, job: int, pool: int) -> int:
        """The machines that a job needs of a pool; more than there are where none would do."""
        one, model = self.jobs[job], self.scenario.pools[pool]
        needs = [-(-one.procs // model.procs), one.nodes]
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
        """Start what may start: the first jobs in order, then others that delay none. A purchase that
        failed may change what the first one waits for: then once more.
        """
        self.refused = False
        self.look_once()
        if self.refused:
            self.look()

    def look_once(self) -> None:
        """At each job in turn."""
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
        for pool in self.orders.pools(job):
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
        for pool in self.orders.pools(job):
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
            ready = max(at for _, at, _ in self.site.boot_waves(pool, lacks, self.now, book=False))
        if self.would_delay(reserved, job, ready + self.jobs[job].limit, None, need):
            return False
        machines = idle[:need]
        if lacks:
            bought = self.site.buy(pool, lacks, self.now, whole=True)
            if not bought:
                self.refused = True
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
