"""The losses of machines: a cloud takes spot machines, and ends those of a capacity block."""

from __future__ import annotations

from slurm_elastic.simulate.events import ARRIVE, BOOT, MOVE, POOLS, RunEvents
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.runs import SimulatedRun
from slurm_elastic.simulate.shared_machines import SharedMachines


class RunState(RunEvents):
    """The state of a run, and every change to it."""

    def _handle_warning(self, payload: int, now: int) -> None:
        """Handle a cloud's warning: plan the moves of the jobs that can be saved before the
        loss.
        """
        pool, offer = payload % POOLS, payload // POOLS
        machines = self.pools[pool]
        loss, market = machines.falls[offer], machines.sold[offer].market
        # Out of date: the loss and its warning were planned for another time after this event.
        if market is None or loss < 0 or max(loss - market.notice, 0) > now:
            return
        surplus, batch = machines.surplus_of(offer, loss), len(machines.batch_start)
        if surplus > 0:
            self.purchases.taken(pool, offer, now)
        while surplus > 0 and batch:
            batch -= 1
            if machines.batch_offer[batch] != offer or not machines.batch_live[batch]:
                continue
            surplus -= machines.idle_of(batch)
            for job in self.runs.jobs_on(pool, batch) if surplus > 0 else ():
                when = self.runs.moves(job, loss)
                if when is not None and when < loss:
                    self.moving[job] = (self.runs.now[job], batch, loss)
                    self._push(max(when, now), MOVE, job)
                surplus -= sum(
                    [
                        count
                        for held_batch, count in self.runs.now[job].pieces
                        if held_batch == batch
                    ]
                )

    def _move_saved_job(self, job: int, now: int) -> None:
        """Interrupt a saved job, and end its machines that the cloud would take."""
        run, batch, loss = self.moving.pop(job, (None, 0, 0))
        # Out of date: the job has ended, or was interrupted and restarted.
        if run is None or self.runs.now.get(job) is not run:
            return
        self._interrupt(job, run.pool, batch, run.need, now, loss)
        self.queue.stale = True
        self._plan_look(now)

    def _take_spot_machines(self, payload: int, now: int) -> None:
        """Take spot machines, the youngest first, or all machines of a block at its end. Their jobs
        go back into the queue.
        """
        pool, offer = payload % POOLS, payload // POOLS
        machines = self.pools[pool]
        # Out of date: the loss was planned for another time after this event.
        if machines.falls[offer] != now:
            return
        machines.falls[offer] = -1
        surplus = machines.surplus_of(offer, now)
        batch = len(machines.batch_start)
        is_spot = offer in machines.spots
        if surplus > 0 and is_spot:
            self.purchases.taken(pool, offer, now)
        while surplus > 0 and batch:
            batch -= 1
            if machines.batch_offer[batch] == offer and machines.batch_live[batch]:
                lost = self._take_machines(
                    pool, batch, min(surplus, machines.batch_live[batch]), now
                )
                machines.reclaimed += lost if is_spot else 0
                surplus -= lost
        self.queue.full = self.asked = True
        self._plan_next_loss(pool, now)

    def _take_machines(self, pool: int, batch: int, count: int, now: int) -> int:
        """Take machines of a batch: idle, then booting, then busy machines. Returns how many."""
        machines = self.pools[pool]
        lost = machines.lose_idle(batch, count, now)
        if lost < count and batch in machines.coming:
            lost += machines.lose_coming(batch, count - lost, now)
        for job in self.runs.jobs_on(pool, batch) if lost < count else ():
            if job not in self.runs.now:
                continue  # interrupted with another job on the same machine
            lost += self._interrupt(job, pool, batch, count - lost, now)
            if lost >= count:
                break
        return lost

    def _interrupt(
        self, job: int, pool: int, batch: int, limit: int, now: int, loss: int | None = None
    ) -> int:
        """Interrupt a job: up to ``limit`` of its machines of ``batch`` end, the others become
        idle. Returns how many ended. ``loss``: None if the cloud takes them now; else the time at
        which it would have taken them, and we end them before.
        """
        machines = self.pools[pool]
        run = self.runs.interrupt(job, now, loss)
        if machines.shared is not None and job in machines.shared.of:
            run = self._interrupt_sharers(machines, machines.shared, run, now, loss)
        else:
            machines.expected.drop(run.expected)
        # Before the run is ready, only the machines that were idle at its start are up. The others
        # still boot.
        lost, up = 0, run.need if run.ready < now else run.idle
        for held, count in run.pieces:
            if up <= 0:
                ended = min(count, limit - lost) if held == batch else 0
                lost += self._stop_boot(run, held, count, ended, now)
                continue
            up -= count
            machines.busy -= count
            machines.busy_area += count * now
            ended = min(count, limit - lost) if held == batch else 0
            if ended:
                machines.end(held, ended, now, reclaimed=loss is None)
                lost += ended
            if count > ended:
                self._release_or_idle(machines, pool, held, count - ended, now)
        self._requeue(job, now)
        return lost

    def _requeue(self, job: int, now: int) -> None:
        """Plan the return of an interrupted job, which counts as new for growth."""
        self.grower.covered.discard(job)
        if self.guard is not None:
            self.guard.interrupted(job, now)
        self._push(now + self.scenario.requeue_delay, ARRIVE, job)

    def _interrupt_sharers(
        self,
        machines: PoolMachines,
        shared: SharedMachines,
        run: SimulatedRun,
        now: int,
        loss: int | None,
    ) -> SimulatedRun:
        """Interrupt the other jobs on a shared machine. Returns the run as if it had been alone."""
        host = shared.of[run.job]
        for job in sorted(set(host.jobs) - {run.job}):
            self._leave_shared(machines, shared, self.runs.interrupt(job, now, loss), now)
            self._requeue(job, now)
        self._leave_shared(machines, shared, run, now)
        return run._replace(ready=host.ready, idle=host.idle)

    def _stop_boot(self, run: SimulatedRun, batch: int, count: int, limit: int, now: int) -> int:
        """Detach booting machines from an interrupted job. Up to ``limit`` are lost; the others
        continue to boot for any job, or are already up because they only waited for the job's last
        machine. Returns how many are lost.
        """
        machines = run.machines
        machines.busy_area += count * run.ready
        if self.counts_boots:
            machines.booked.discard(batch)
        else:
            machines.busy -= count
            machines.booting += count
        lost = machines.lose_booting(batch, limit, now)
        if lost < count:
            ready = max(machines.batch_ready[batch], now)
            machines.expect_boot(batch, count - lost, ready)
            self._push(ready, BOOT, batch * POOLS + run.pool)
        return lost
