"""Asks the growth policy for the whole site, and divides what it wants among the pools in order."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.policies.growth.capacity import Demand, Growth, Slurm, Waiting, bounded
from slurm_elastic.policies.growth.guarded import grown_by
from slurm_elastic.policies.growth.release import Flagged
from slurm_elastic.policies.growth.scaling import (
    HeadRoom,
    counts_once,
    covers,
    excess,
    head_deficit,
    shortfall,
    spread,
)
from slurm_elastic.policies.money.bounds import UNBOUNDED, Bounds, Spent, stopped
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.spending import Purses

DAY = 86400
WINDOW_LOOK = 60
_KNOWN = 1000
_NOTHING = Spent()
_new = tuple.__new__  # `_new(Waiting, values)` is `Waiting(*values)` in half of the time


class _Known(dict[int, Waiting]):
    """What the policy learns about waiting jobs, kept as they are mostly the same as last time."""

    def __init__(self, jobs: Jobs, need: Sequence[int], start: int) -> None:
        self.jobs, self.need, self.start = jobs, need, start

    def __missing__(self, job: int) -> Waiting:
        submit = self.jobs.submit[job] + self.start
        self[job] = one = _new(Waiting, (self.need[job], self.jobs.limit[job], submit))
        return one


class Grower:
    """One policy over all pools that can grow; machines count as those of the first such pool.

    ``period``: seconds between two looks (None: whenever a job arrives or ends). ``watches``: it
    also looks while no job waits. ``covered``: waiting jobs for which a growth was decided.
    ``patience``: seconds after which a queue that nothing serves is given up.
    """

    patience = 45 * DAY

    def __init__(
        self,
        jobs: Jobs,
        scenario: Scenario,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        start: int = 0,
    ) -> None:
        self.jobs, self.policy, self.bounds = jobs, scenario.growth, scenario.bounds
        self.money = Bounds(per_day=self.bounds.per_day, per_month=self.bounds.per_month)
        self.times = Bounds(windows=self.bounds.windows)
        self.caps = Bounds(machines=self.bounds.machines, booting=self.bounds.booting)
        self.start, self.depth = start, scenario.depth
        self.growing = [
            (index, machines)
            for index, machines in enumerate(pools)
            if machines.pool.machines > machines.pool.standing
        ]
        self.needs = needs
        self.need = needs[self.growing[0][0]] if self.growing else needs[0]
        self.free_of_bounds = self.bounds == UNBOUNDED
        self.period = self.policy.period
        if isinstance(self.policy, Slurm) and not self.free_of_bounds:
            self.period = WINDOW_LOOK
        self.watches = bool(self.growing) and any(
            isinstance(machines.pool.release, Flagged) for _, machines in self.growing
        )
        self.covered: set[int] = set()
        self._grown = grown_by(self.policy)
        self._once = counts_once(self.policy)
        self._known = _Known(jobs, self.need, start)
        self._costs_nothing = self.money == UNBOUNDED
        self._is_capped = self.caps != UNBOUNDED
        self._purse = Purses({}, [machines for _, machines in self.growing], start)

    def wanted(
        self,
        queue: Sequence[int],
        head: int | None,
        running: int,
        now: int,
        *,
        own: bool = False,
    ) -> list[tuple[int, int]]:
        """(pool, machines) to launch now; with ``own``, for jobs that may have no public ones."""
        for _, machines in self.growing:
            room = machines.room_now()
            if room:
                break
        else:
            return []
        pools = self.growing if self.free_of_bounds or self._is_open(now) else []
        if own or (not self._costs_nothing and self._is_spent(now)):
            pools = [one for one in pools if not one[1].pool.public]
        queue = queue if self.depth is None else queue[: self.depth]
        demand = self.demand(queue, head, running, now)
        growth = self._grown(demand)
        if growth is not None and self._is_capped:
            growth = bounded(growth, demand, self.caps, _NOTHING)
        if growth is not None and not pools:
            # Of none, so that it does not count as a growth that covers these jobs.
            growth = Growth(0, "no machines, or only public ones, could be started")
        if self._once and covers(self.policy, growth):
            self.covered.update(queue)
        if growth is None:
            return self._for_head(queue, running, pools)
        if len(pools) == len(self.growing) == 1:
            count = min(growth.machines, room)
            return [(pools[0][0], count)] if count > 0 else []
        return spread(growth.machines, [(index, one.room_now()) for index, one in pools])

    def _for_head(
        self, queue: Sequence[int], running: int, pools: Sequence[tuple[int, PoolMachines]]
    ) -> list[tuple[int, int]]:
        """For the first job, if the policy believes that idle machines of many pools serve."""
        if running or not queue or any(machines.booting for _, machines in self.growing):
            return []
        if isinstance(self.policy, Slurm):
            return []
        may = {index for index, _ in pools}
        head = head_deficit(
            HeadRoom(
                index,
                self.needs[index][queue[0]],
                machines.idle,
                machines.room_now() if index in may else 0,
                machines.room(),
            )
            for index, machines in self.growing
        )
        return [] if head is None else [head]

    def may_launch(self, count: int, now: int, *, public: bool = True) -> bool:
        """Whether the bounds allow ``count`` machines for one job, all or none."""
        if self.free_of_bounds:
            return True
        if not self._is_open(now):
            return False
        if public and not self._costs_nothing and self._is_spent(now):
            return False
        demand = self.demand((), None, 0, now)
        return bounded(Growth(count, ""), demand, self.caps, Spent()).machines == count

    def warm(self, machines: PoolMachines, least: int, now: int) -> int:
        """How many machines a pool lacks of the ``least`` kept idle, if they may be started."""
        lack = shortfall(least, machines.idle, machines.booting, machines.room_now())
        if self.free_of_bounds or not lack:
            return lack
        may = self.may_launch(1, now, public=machines.pool.public)
        demand = self.demand((), None, 0, now)
        return bounded(Growth(lack, ""), demand, self.caps, _NOTHING).machines if may else 0

    def is_stopped(self, now: int) -> bool:
        """Whether the time of day or the money stops public machines, which passes by itself."""
        return not self._is_open(now) or (not self._costs_nothing and self._is_spent(now))

    def _is_open(self, now: int) -> bool:
        """Whether machines may be started at this time of the day."""
        return not self.times.windows or stopped(now + self.start, self.times, _NOTHING) is None

    def _is_spent(self, now: int) -> bool:
        """Whether there is no money left for public machines."""
        return stopped(now + self.start, self.money, self.spent(now)) is not None

    def flag(self, queue: Sequence[int], running: int, now: int) -> None:
        """Flag what is too much: idle machines go now, busy ones when their job ends."""
        if not self.watches:
            return
        count = excess(self.policy, self.demand(queue, None, running, now))
        for _, machines in reversed(self.growing):
            count -= machines.release_idle(min(count, machines.idle), now)
            drained = min(count, machines.busy - machines.promised - machines.draining)
            machines.draining += max(drained, 0)
            count -= max(drained, 0)

    def demand(self, queue: Sequence[int], head: int | None, running: int, now: int) -> Demand:
        """The facts that the policy may know."""
        known = self._known
        if len(known) > 2 * len(queue) + _KNOWN:
            known.clear()
        waiting = fresh = list(map(known.__getitem__, queue))
        if self._once:
            pairs = zip(queue, waiting, strict=True)
            fresh = [job for index, job in pairs if index not in self.covered]
        idle = busy = booting = 0
        for _, machines in self.growing:
            idle += machines.idle
            busy += machines.busy - machines.draining
            booting += machines.booting
        return Demand(
            now=now + self.start,
            queue=waiting,
            fresh=fresh,
            running=running,
            idle=idle,
            busy=busy,
            booting=booting,
            head_start=None if head is None else head + self.start,
        )

    def spent(self, now: int) -> Spent:
        """Dollars of this day and month (UTC), from machine-seconds at the on-demand price."""
        return _NOTHING if self._costs_nothing else self._purse.of_cluster(now)
