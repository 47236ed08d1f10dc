"""Nodes that do not register are given up a little before slurmctld would do it.

At ResumeTimeout slurmctld fails the jobs of the node: those that must not be requeued end as
NODE_FAIL, the others wait for 121 s. Given back before (``giving_back``), all of them go on
elsewhere, in a thread of its own. One that registers late finds its node powered down, and its end
decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from slurm_elastic.base.background import submit
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.boots import record_boot_failures
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.giving_back import may_force, power_down_and_requeue
from slurm_elastic.controller.holds import hold
from slurm_elastic.controller.periodic import SiteTask, run_guarded
from slurm_elastic.model.causes.machine_ends import JobNotWhole, NeverRegistered
from slurm_elastic.model.causes.pool_failures import BootTimeOver, LaunchUnanswered
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import generation_order, generation_time
from slurm_elastic.model.slurm import Request, SlurmJob
from slurm_elastic.policies.launch.boots import (
    TimedOut,
    booting,
    given_up_after,
    longest_wait,
    timed_out,
    under_way,
)
from slurm_elastic.state.ledger import Launch, LedgerState, Machine
from slurm_elastic.state.spool import Spool, received_at

PERIOD = 1.0
"""Seconds between two looks at the ledger; Slurm is only asked when a node is overdue."""
SURELY_OVER = 60.0
"""Seconds after ResumeTimeout by which slurmctld has given up a node for certain."""
LAST_SHARE = 0.3
"""The part of the margin before ResumeTimeout at which a boot is given back if slurmctld was away
during it: 3 s to 9 s before ResumeTimeout, enough for six commands.
"""
AFTER_RETURN_S = 3.0
"""Seconds that machines have to register after slurmctld was away, if ResumeTimeout is about over:
their slurmd's ask again each second.
"""
Asked = Callable[[], float]
"""When Slurm asked for a launch (Unix time)."""
CORRELATION = "boots"


class BootTimeouts:
    """``looks`` is the daemon's task; ``clouds`` are the clouds' workers, and ``had_round`` says of
    a cloud whether its first round of repair is over.
    """

    def __init__(
        self,
        site: Site,
        worker: Executor,
        clouds: Mapping[str, Executor],
        spool: Spool,
        had_round: Callable[[str], bool],
    ) -> None:
        self._site = site
        self._clouds = clouds
        self._spool = spool
        self._had_round = had_round
        self.looks = SiteTask(
            site, worker, self._look, "giving up nodes", period=PERIOD, idle=self._is_idle
        )
        self._counted: set[str] = set()
        self._began: dict[str, float] = {}

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether nothing boots, and nothing did at the last look."""
        some = under_way(state.machines, state.launches, self._clouds, self._site.pool_of)
        return not (some or self._began)

    def _look(self) -> None:
        site, seen = self._site, dict[str, float]()
        late = self._late(seen)
        self._began = seen
        if seen:
            absence = site.slurm_absence
            absence.ask(site.slurm.slurmctld_started, site.monotonic, site.now)
            if absence.is_away:
                return
        self._counted &= {m.instance.id for some in late for m in some.machines}
        if not any(some.nodes for some in late):
            return
        requests, still_late = self._spool.pending_before(lambda: self._late(dict(seen)))
        for some in still_late:
            still = not_asked_again(site, some, requests)
            if still.nodes:
                self._give_up(still)

    def _late(self, seen: dict[str, float]) -> list[TimedOut]:
        site, state = self._site, self._site.ledger.state()
        found = []
        boots = under_way(state.machines, state.launches, self._clouds, site.pool_of)
        for cloud, some in boots.items():
            asked = {
                m.instance.generation: partial(when_asked, site, m.instance) for m in some.boots
            }
            asked |= {row.generation: partial(_asked_of, site, row) for row in some.opened}
            began = {one: self._began_at(seen, one, when) for one, when in asked.items()}
            late = {one for one, begin in began.items() if self._due(cloud, begin)}
            if late:
                found.append(timed_out(cloud, some, late, state.machines, site.pool_of))
        return found

    def _due(self, cloud: str, began: float) -> bool:
        """Whether a boot that was asked for then (monotonic s) is given up. A cloud's first round
        is waited for as long as there is time; after ResumeTimeout Slurm asks for the node again.
        """
        clock, absence = self._site.monotonic(), self._site.slurm_absence
        timeout, waited = _resume_timeout(self._site, cloud), clock - began
        longest = given_up_after(timeout)
        if not self._had_round(cloud):
            # Its machines may have come up before our first look, which is soon over. If slurmctld
            # has given up the boot itself, there is no hurry.
            return (longest + timeout) / 2 <= waited < timeout + SURELY_OVER
        if waited - absence.seconds_since(began, clock) >= longest:
            return True
        # slurmctld's own ResumeTimeout went on while it was away, and ends jobs of --no-requeue.
        latest = timeout - LAST_SHARE * (timeout - longest)
        return waited >= latest and absence.answers_for(clock) >= AFTER_RETURN_S

    def _began_at(self, seen: dict[str, float], generation: str, asked: Asked) -> float:
        """When Slurm asked for a launch (monotonic s)."""
        began = seen.get(generation, self._began.get(generation))
        if began is None:
            # Once by the clock, and by the monotonic one from then on, as the clock may be set.
            began = self._site.monotonic() - max(self._site.now() - asked(), 0.0)
        seen[generation] = began
        return began

    def _give_up(self, late: TimedOut) -> None:
        """The nodes that Slurm still waits for."""
        site = self._site
        view = site.slurm.nodes(late.nodes)
        late = late.among(n for n in late.nodes if n in view and may_force(view[n]))
        if not late.nodes:
            return
        jobs = [j for j in site.slurm.jobs() if not set(late.nodes).isdisjoint(j.nodes)]
        mates = job_peers(site, jobs, late.nodes)
        self._note(late, jobs, mates)
        nodes = (*late.nodes, *mates)
        given = power_down_and_requeue(
            site, nodes, site.slurm.nodes(nodes), _why(site, late), CORRELATION
        )
        self._end(late, given)

    def _note(self, late: TimedOut, jobs: Sequence[SlurmJob], mates: Sequence[str]) -> None:
        """Count what has failed, and hold the nodes whose launch has no answer."""
        site = self._site
        # One that the cloud does not list may have been taken while it booted.
        listed = [m for m in late.machines if not m.misses and m.instance.id not in self._counted]
        failed = blamed(site, listed)
        # Each machine counts once, also where Slurm has to be asked again.
        self._counted.update(m.instance.id for m in listed)
        record_boot_failures(site, failed, CORRELATION, [j.id for j in jobs], mates)
        for node in late.doubtful:
            hold(site, site.pool_of[node], [node], LaunchUnanswered())

    def _end(self, late: TimedOut, given: set[str]) -> None:
        """Decide the end of the machines whose nodes were given back, and have it carried out."""
        site = self._site
        overdue = {m.instance.id for m in late.machines}
        boots = booting(site.ledger.machines.live(), late.cloud, site.pool_of)
        doomed = [m for m in boots if m.instance.node in given]
        for cause, some in (
            (NeverRegistered(), [m for m in doomed if m.instance.id in overdue]),
            (JobNotWhole(), [m for m in doomed if m.instance.id not in overdue]),
        ):
            # The intent at once: nothing takes these for machines that boot any more.
            site.ledger.machines.suspending(
                late.cloud, [m.instance.id for m in some], cause, site.now()
            )
            # By their cloud's worker, as this thread must not wait for a slow cloud. The next round
            # repeats the call if the ledger cannot be used, or another head acts.
            end = partial(terminate, site, late.cloud, some, cause, CORRELATION)
            what = f"end of machines of {late.cloud}"
            submit(self._clouds[late.cloud], what, run_guarded, site, end, what)


def not_asked_again(site: Site, late: TimedOut, requests: Sequence[Request]) -> TimedOut:
    """Without nodes that Slurm has asked something else for since their launch, which their cloud's
    worker has not come to: as when the daemon was away, and the node up and powered down meanwhile.
    """
    opened = site.ledger.launches.open()
    decided = {n: generation_order(row.generation) for row in opened for n in row.nodes}
    causes = {row.request for row in opened}
    for m in late.machines:
        row = site.ledger.launches.get(m.instance.generation)
        decided[m.instance.node] = generation_order(m.instance.generation) or m.instance.launched
        causes |= {row.request} if row is not None else set()
    again = {
        n
        for request in requests
        for n in request.nodes
        if request.id not in causes and request.received > decided.get(n, request.received)
    }
    return late.among(n for n in late.nodes if n not in again)


def _resume_timeout(site: Site, cloud: str) -> float:
    return site.config.resume_timeout(site.clouds[cloud])


def when_asked(site: Site, one: Instance) -> float:
    """When Slurm asked for the machine's node, as far as it is known."""
    row = site.ledger.launches.get(one.generation)
    if row is None:
        return generation_time(one.generation) or one.launched
    asked = _asked_of(site, row)
    # A head died in its launch, and the next one made it again: Slurm has given the node up
    # meanwhile, and where it powers up, has asked for it anew.
    late = one.launched > asked + _resume_timeout(site, row.cloud)
    return one.launched if late else asked


def _asked_of(site: Site, row: Launch) -> float:
    """The time of a launch: its request's; the launch waited for its turn at most so long."""
    asked = received_at(row.request)
    if asked is None:
        return row.created
    earliest = row.created - longest_wait(_resume_timeout(site, row.cloud))
    return min(max(asked, earliest), row.created)


def job_peers(site: Site, jobs: Iterable[SlurmJob], late: Sequence[str]) -> tuple[str, ...]:
    """The other nodes of these jobs that are still to come up: a job is had whole."""
    others = dict.fromkeys(n for j in jobs for n in j.nodes if n not in late)
    ours = [n for n in others if n in site.pool_of and not site.pool_of[n].partial_jobs]
    view = site.slurm.nodes(ours) if ours else {}
    return tuple(n for n in ours if n in view and may_force(view[n]))


def blamed(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """The machines that had their whole time to register. The others lack the time in which
    slurmctld was away, and count against no pool.
    """
    clock = site.monotonic()
    found = []
    for machine in machines:
        waited = max(site.now() - when_asked(site, machine.instance), 0.0)
        away = site.slurm_absence.seconds_since(clock - waited, clock)
        cloud = machine.instance.cloud
        longest = given_up_after(_resume_timeout(site, cloud)) if cloud in site.clouds else 0.0
        if not away or waited - away >= longest:
            found.append(machine)
    return found


def _why(site: Site, late: TimedOut) -> BootTimeOver:
    timeout = _resume_timeout(site, late.cloud)
    was_away = bool(late.machines) and not blamed(site, late.machines)
    return BootTimeOver(
        nodes=compress(late.nodes),
        after_s=given_up_after(timeout),
        timeout_s=timeout,
        slurm_was_away=was_away,
    )


def expect_requeued(site: Site, machines: Sequence[Machine]) -> list[int]:
    """The jobs that slurmctld itself has requeued, at ResumeTimeout, because these machines did not
    register: they need not wait out their hold either.
    """
    rows = [site.ledger.launches.get(g) for g in {m.instance.generation for m in machines}]
    wanted = {job for row in rows if row is not None for job in row.jobs}
    if not wanted:
        return []
    now = site.now()
    jobs = [
        job
        for job in site.slurm.jobs()
        if job.id in wanted
        and job.restarts
        and job.states & {"PENDING", "COMPLETING"}
        and (job.begin > now or "COMPLETING" in job.states)
    ]
    gone = [m.instance.node for m in machines]
    for job in jobs:
        site.requeues.expect(job, site.monotonic(), gone)
    return [job.id for job in jobs]
