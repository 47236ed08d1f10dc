"""Gives up nodes that do not register, shortly before slurmctld does.

At ResumeTimeout slurmctld fails the jobs of the node: jobs with ``--no-requeue`` end as NODE_FAIL,
the others wait for 121 s. We give the node back shortly before that (``giving_back``), so that all
its jobs continue elsewhere. A machine that registers later finds its node powered down and will be
ended. This runs in its own thread, because a slow cloud must not delay it past ResumeTimeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.processes.background import submit
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.giving_back import may_force, power_down_and_requeue
from slurm_elastic.controller.holds import hold
from slurm_elastic.controller.launching.boot_consoles import read_consoles, record_consoles
from slurm_elastic.controller.launching.boots import record_boot_failures
from slurm_elastic.controller.periodic import SiteTask, name_repair, run_guarded
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

PERIOD_S = 1.0
"""Seconds between two passes over the ledger."""
SURELY_OVER_S = 60.0
"""Seconds after ResumeTimeout after which slurmctld has certainly given the node up itself."""
LAST_MARGIN_SHARE = 0.3
"""The share of the margin before ResumeTimeout left when a boot is given back although slurmctld
was away during it: 3 s to 9 s, enough for six commands.
"""
AFTER_RETURN_S = 3.0
"""Seconds that machines get to register after slurmctld was away, if ResumeTimeout is nearly over.
slurmd retries its registration each second.
"""
AskedAt = Callable[[], float]
"""Returns when Slurm asked for a launch (Unix time)."""
CORRELATION = "boots"


class BootTimeouts:
    """Finds the boots that take too long. ``task``: the periodic task of the daemon. ``clouds``:
    the workers of the clouds. ``had_round(cloud)``: whether its first round of repair is over.
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
        self.task = SiteTask(
            site, worker, self._look, "giving up nodes", period=PERIOD_S, idle=self._is_idle
        )
        self._counted: set[str] = set()
        self._began: dict[str, float] = {}

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether nothing boots now and nothing booted at the last pass."""
        boots = under_way(state.machines, state.launches, self._clouds, self._site.pool_of)
        return not (boots or self._began)

    def _look(self) -> None:
        """Give up the boots that take too long. Slurm is called only while something boots."""
        site, began = self._site, dict[str, float]()
        late = self._late(began)
        self._began = began
        if began:
            absence = site.slurm_absence
            absence.ask(site.slurm.slurmctld_started, site.monotonic, site.now)
            if absence.is_away:
                return
        # Forget machines that are no longer late, or the set would grow for ever.
        self._counted &= {m.instance.id for late_cloud in late for m in late_cloud.machines}
        if not any(late_cloud.nodes for late_cloud in late):
            return
        # The spool first, then the ledger: a request leaves the spool only after its effect is in
        # the ledger, so in this order we see each request at least once.
        requests, still_late = self._spool.pending_before(lambda: self._late(dict(began)))
        for late_cloud in still_late:
            unanswered = leave_out_asked_again(site, late_cloud, requests)
            if unanswered.nodes:
                self._give_up(unanswered)

    def _late(self, began_now: dict[str, float]) -> list[TimedOut]:
        """Return the boots that must be given up, by cloud. Adds to ``began_now``, by generation,
        when Slurm asked for each launch that still boots (monotonic s).
        """
        site, state = self._site, self._site.ledger.state()
        timed_out_boots = []
        boots = under_way(state.machines, state.launches, self._clouds, site.pool_of)
        for cloud, cloud_boots in boots.items():
            asked = {
                m.instance.generation: partial(find_asked_at, site, m.instance)
                for m in cloud_boots.boots
            }
            asked |= {
                row.generation: partial(_asked_at_of_launch, site, row)
                for row in cloud_boots.opened
            }
            began = {
                generation: self._began_at(began_now, generation, asked_at)
                for generation, asked_at in asked.items()
            }
            late = {
                generation for generation, began_at in began.items() if self._due(cloud, began_at)
            }
            if late:
                timed_out_boots.append(
                    timed_out(cloud, cloud_boots, late, state.machines, site.pool_of)
                )
        return timed_out_boots

    def _due(self, cloud: str, began: float) -> bool:
        """Whether a boot that Slurm asked for at ``began`` (monotonic s) must be given up."""
        clock, absence = self._site.monotonic(), self._site.slurm_absence
        timeout, waited = _resume_timeout(self._site, cloud), clock - began
        longest = given_up_after(timeout)
        if not self._had_round(cloud):
            # After a start of the daemon the machines may have come up already; the first round
            # records that, so wait for it as long as there is time. Some time after ResumeTimeout
            # slurmctld has given the boot up itself, and nothing is left to do before the round.
            return (longest + timeout) / 2 <= waited < timeout + SURELY_OVER_S
        if waited - absence.seconds_since(began, clock) >= longest:
            return True
        # slurmctld counts its ResumeTimeout also while it is away, and then fails --no-requeue
        # jobs. A boot must be given back before that, however long slurmctld was away.
        latest = timeout - LAST_MARGIN_SHARE * (timeout - longest)
        return waited >= latest and absence.answers_for(clock) >= AFTER_RETURN_S

    def _began_at(self, began_now: dict[str, float], generation: str, asked: AskedAt) -> float:
        """Return when Slurm asked for a launch (monotonic s)."""
        began = began_now.get(generation, self._began.get(generation))
        if began is None:
            # Convert from Unix time only once and remember the result: somebody may set the clock.
            began = self._site.monotonic() - max(self._site.now() - asked(), 0.0)
        began_now[generation] = began
        return began

    def _give_up(self, late: TimedOut) -> None:
        """Give back the nodes that Slurm still waits for, with the other nodes of their jobs."""
        site = self._site
        view = site.slurm.nodes(late.nodes)
        late = late.among(n for n in late.nodes if n in view and may_force(view[n]))
        if not late.nodes:
            return
        jobs = [j for j in site.slurm.jobs() if not set(late.nodes).isdisjoint(j.nodes)]
        mates = find_job_peers(site, jobs, late.nodes)
        self._note(late, jobs, mates)
        nodes = (*late.nodes, *mates)
        powered_down = power_down_and_requeue(
            site, nodes, site.slurm.nodes(nodes), _explain_timeout(site, late), CORRELATION
        )
        self._end(late, powered_down)

    def _note(self, late: TimedOut, jobs: Sequence[SlurmJob], mates: Sequence[str]) -> None:
        """Count what has failed, and hold the nodes whose launch has no answer."""
        site = self._site
        # A machine that the cloud no longer lists may have been reclaimed during its boot, which
        # is no failure of the pool.
        listed = [
            m for m in late.machines if not m.missed_listings and m.instance.id not in self._counted
        ]
        failed = select_blamed(site, listed)
        # Count each machine once, even if Slurm fails below and the next pass repeats this.
        self._counted.update(m.instance.id for m in listed)
        record_boot_failures(site, failed, CORRELATION, [j.id for j in jobs], mates)
        for node in late.doubtful:
            hold(site, site.pool_of[node], [node], LaunchUnanswered())

    def _end(self, late: TimedOut, powered_down: set[str]) -> None:
        """Decide the end of the machines whose nodes were given back, and submit it to the worker
        of their cloud.
        """
        site = self._site
        overdue = {m.instance.id for m in late.machines}
        boots = booting(site.ledger.machines.live(), late.cloud, site.pool_of)
        doomed = [m for m in boots if m.instance.node in powered_down]
        for cause, machines in (
            (NeverRegistered(), [m for m in doomed if m.instance.id in overdue]),
            (JobNotWhole(), [m for m in doomed if m.instance.id not in overdue]),
        ):
            # Write the intent now, before the worker runs: until then a round would take these
            # machines for booting ones and could record their registration.
            site.ledger.machines.record_ending(
                late.cloud, [m.instance.id for m in machines], cause, site.now()
            )
            # The cloud's worker makes the call, because this thread must not wait for a slow cloud.
            # The next round repeats the call if the ledger fails or another head acts.
            end = partial(_end_failed, site, late.cloud, machines, cause)
            # A failure counts as a fault of the repair, because the next good round ends these
            # machines. A success here says nothing about the repair.
            task = partial(run_guarded, site, end, name_repair(late.cloud), shows_recovery=False)
            submit(self._clouds[late.cloud], f"end of machines of {late.cloud}", task)


def _end_failed(
    site: Site, cloud: str, machines: Sequence[Machine], cause: NeverRegistered | JobNotWhole
) -> None:
    """End machines that did not register. Their consoles are read first, as they are lost then."""
    if isinstance(cause, NeverRegistered):
        record_consoles(site, read_consoles(site, cloud, machines), machines, CORRELATION)
    terminate(site, cloud, machines, cause, CORRELATION)


def leave_out_asked_again(site: Site, late: TimedOut, requests: Sequence[Request]) -> TimedOut:
    """Leave out nodes for which a newer request waits in the spool; the cloud's worker will decide
    about them. Example: while the daemon was down, the node came up and was powered down again.
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


def find_asked_at(site: Site, instance: Instance) -> float:
    """Return when Slurm asked for the machine's node (Unix time), as far as it is known."""
    row = site.ledger.launches.get(instance.generation)
    if row is None:
        return generation_time(instance.generation) or instance.launched
    asked = _asked_at_of_launch(site, row)
    # A head died during the launch, and the next head repeated it later than ResumeTimeout. By then
    # Slurm had given the node up. If the node powers up now, Slurm has requested it once more.
    late = instance.launched > asked + _resume_timeout(site, row.cloud)
    return instance.launched if late else asked


def _asked_at_of_launch(site: Site, row: Launch) -> float:
    """Return the time of a launch's request (Unix time), but not before the longest time that a
    launch may have waited for its turn.
    """
    asked = received_at(row.request)
    if asked is None:
        return row.created
    earliest = row.created - longest_wait(_resume_timeout(site, row.cloud))
    return min(max(asked, earliest), row.created)


def find_job_peers(site: Site, jobs: Iterable[SlurmJob], late: Sequence[str]) -> tuple[str, ...]:
    """Return the other nodes of these jobs that still boot. They are given back, too, because a
    job needs all its nodes, except in pools that serve nodes one by one (``partial_jobs``).
    """
    peers = dict.fromkeys(n for j in jobs for n in j.nodes if n not in late)
    own_nodes = [n for n in peers if n in site.pool_of and not site.pool_of[n].partial_jobs]
    view = site.slurm.nodes(own_nodes) if own_nodes else {}
    return tuple(n for n in own_nodes if n in view and may_force(view[n]))


def select_blamed(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """Return the machines that had their full time to register. A machine that lost a part of it,
    because slurmctld was away, does not count against its pool.
    """
    clock = site.monotonic()
    to_blame = []
    for machine in machines:
        waited = max(site.now() - find_asked_at(site, machine.instance), 0.0)
        away = site.slurm_absence.seconds_since(clock - waited, clock)
        cloud = machine.instance.cloud
        longest = given_up_after(_resume_timeout(site, cloud)) if cloud in site.clouds else 0.0
        if not away or waited - away >= longest:
            to_blame.append(machine)
    return to_blame


def _explain_timeout(site: Site, late: TimedOut) -> BootTimeOver:
    timeout = _resume_timeout(site, late.cloud)
    was_away = bool(late.machines) and not select_blamed(site, late.machines)
    return BootTimeOver(
        nodes=compress(late.nodes),
        after_s=given_up_after(timeout),
        timeout_s=timeout,
        slurm_was_away=was_away,
    )


def expect_requeued(site: Site, machines: Sequence[Machine]) -> list[int]:
    """Expect the jobs that slurmctld itself has requeued at ResumeTimeout because these machines
    did not register, so that their hold of 121 s is lifted, too. Returns their numbers.
    """
    rows = [site.ledger.launches.get(g) for g in {m.instance.generation for m in machines}]
    job_ids = {job for row in rows if row is not None for job in row.jobs}
    if not job_ids:
        return []
    now = site.now()
    jobs = [
        job
        for job in site.slurm.jobs()
        if job.id in job_ids
        and job.restarts
        and job.states & {"PENDING", "COMPLETING"}
        and (job.begin > now or "COMPLETING" in job.states)
    ]
    lost_nodes = [m.instance.node for m in machines]
    for job in jobs:
        site.requeues.expect(job, site.monotonic(), lost_nodes)
    return [job.id for job in jobs]
