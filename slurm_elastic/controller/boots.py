"""Who has registered and who never did: the pools' breakers (``policies.exclusions``)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from slurm_elastic.audit_trail import job_subject, pool_subject
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import hold, may_force, power_down_and_requeue, quarantine_pool
from slurm_elastic.controller.join_secret import name_of
from slurm_elastic.controller.launch import grown
from slurm_elastic.controller.periodic import PeriodicTask
from slurm_elastic.controller.snapshot import see, terms_of
from slurm_elastic.controller.suspend import terminate
from slurm_elastic.errors import SlurmError
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Launch, LedgerState, Machine
from slurm_elastic.model import BREAKER, COOL_DOWN, Exclusion, Instance, Pool
from slurm_elastic.model_ledger import OUT_OF_SERVICE, generation_order, generation_time
from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.policies.actions import Register, ReopenPool
from slurm_elastic.policies.boots import (
    TimedOut,
    booting,
    given_up_after,
    longest_wait,
    timed_out,
    under_way,
)
from slurm_elastic.policies.cluster import Rule, decide, decided_at
from slurm_elastic.policies.exclusions import (
    NEVER_REGISTERED,
    TAKEN_OUT,
    Boot,
    after_failures,
    paused,
    rest_key,
    to_rest,
)
from slurm_elastic.spool import Request, Spool, received_at

log = logging.getLogger(__name__)


CODE = "BootFailed"
"""The code of cool-downs after a machine that has not registered."""
KEY_REFUSED, KEY_FAILED = "key-refused", "key-failed"
"""Decisions on a machine that got no munge key; the reason begins with its id (``munge_keys``)."""
GATE = "slurm-elastic:gate:"
"""How the comment on a node begins whose machine failed ``join.check``; its launch follows."""
LOOKED_AT = 16
"""How many of a pool's failed machines are asked for a cause: what ails one mostly ails all."""


def record_registrations(site: Site, cloud: str) -> None:
    """Take in which booting machines' nodes are up; one that is proves that its pool works."""
    booting = [m for m in site.ledger.machines() if m.instance.cloud == cloud and m.boots]
    if not booting:
        return
    nodes = site.slurm.nodes(list(dict.fromkeys(m.instance.node for m in booting)))
    found = decide(see(site, terms_of(site, cloud), nodes), (Rule.REGISTRATIONS,))
    register(site, cloud, [a for a in found if isinstance(a, Register)])
    reopen_pools(site, [a for a in found if isinstance(a, ReopenPool)])


def register(site: Site, cloud: str, some: Sequence[Register]) -> None:
    """Write down that the nodes of these machines came up."""
    if some:
        site.ledger.registered(cloud, [a.machine for a in some], site.now())


def reopen_pools(site: Site, some: Sequence[ReopenPool]) -> None:
    """The pools' cool-downs and pauses for failed machines are over."""
    for one in some:
        breaker = next((b for b in site.ledger.breakers() if b.scope == one.pool), None)
        site.ledger.readmit(BREAKER, one.pool)
        pool = site.pools.get(one.pool)
        rested = pool is not None and site.ledger.readmit(COOL_DOWN, rest_key(pool))
        paused = breaker is not None and bool(breaker.until)
        if paused:
            log.warning("breaker closed pool=%s nodes=%s", one.pool, compress(one.nodes))
            subjects = [*one.nodes, pool_subject(one.pool)]
            site.record("boots", "breaker-closed", subjects, one.reason)
        if rested or paused:
            site.ledger.review_holds(one.pool, site.now())


def unregistered_instances(site: Site, cloud: str, request: Request) -> list[Machine]:
    """The machines that ``request`` (of ResumeFailProgram) says have not come up in time; not those
    that the cloud does not list: they may have been taken while they booted.
    """
    failed = set(request.nodes)
    return [
        m
        for m in site.ledger.machines()
        if m.instance.cloud == cloud
        and m.instance.node in failed
        and m.boots
        and not m.misses
        and generation_order(m.instance.generation) <= request.received
    ]


def record_boot_failures(
    site: Site,
    machines: Sequence[Machine],
    correlation: str,
    jobs: Iterable[int] = (),
    mates: Iterable[str] = (),
    taken_out: str = "",
) -> None:
    """Count them against their pools, and keep Slurm from what is not to be tried at once again.
    ``taken_out``: why Slurm took them out of service; else they did not register in time.

    After one the pool, or its offer, rests for a short while, so that ``jobs`` go elsewhere first;
    a pool that has too many in a row is paused. ``mates`` are further nodes of these jobs, which
    are given back, too.
    """
    about = [job_subject(job) for job in jobs]
    mates = tuple(mates)
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.pool in site.pools:
            by_pool.setdefault(machine.pool, []).append(machine)
    # All are counted before Slurm, which may not answer, is asked for anything.
    whys = {
        name: _count(site, site.pools[name], failed, correlation, about, taken_out)
        for name, failed in by_pool.items()
    }
    for name, why in whys.items():
        pool = site.pools[name]
        nodes = _nodes_of(by_pool[name])
        spare = 0 if _rests(site, pool) else len(pool.nodes)
        of_pool = (n for n in mates if site.pool_of[n] is pool and n not in nodes)
        quarantine_pool(site, pool, [*nodes, *of_pool], site.slurm.nodes(pool.nodes), why, spare)


def _nodes_of(machines: Sequence[Machine]) -> list[str]:
    return list(dict.fromkeys(m.instance.node for m in machines))


def _count(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    correlation: str,
    about: Sequence[str],
    taken_out: str,
) -> str:
    """The breaker and the rest of one pool; why its nodes are kept from Slurm."""
    subjects = [*_nodes_of(failed), pool_subject(pool.name), *about]
    known = {b.scope: b for b in site.ledger.breakers()}
    before, now = known.get(pool.name, Exclusion(kind=BREAKER, scope=pool.name)), site.now()
    timings = site.config.timings
    after = after_failures(
        before,
        len(failed),
        now,
        limit=timings.boot_failures,
        cool_down=timings.boot_cooldown,
        words=f"{TAKEN_OUT}{taken_out}" if taken_out else NEVER_REGISTERED,
    )
    site.ledger.exclude(after)
    row = f"{after.count} in a row in pool {pool.name}"
    how = f"{OUT_OF_SERVICE}{taken_out}" if taken_out else "booted but not registered in time"
    why = f"{how}; {row}{_cause(site, failed)}"
    log.warning(
        "boot failed pool=%s nodes=%s", pool.name, compress(m.instance.node for m in failed)
    )
    site.record(correlation, "boot-failed", subjects, why)
    if (rest := _rest(site, pool, failed, taken_out)) is not None:
        site.record(correlation, "rests", subjects, rest)
        why = rest
    if paused(after, now) is None:
        return why
    why = f"pool {pool.name} is paused: {after.cause}"
    if after.until != before.until:
        log.error(
            "pool paused pool=%s seconds=%.0f reason=%s; after that one machine is tried, "
            "or `slurm-elastic clear %s` ends it",
            pool.name, after.until - now, after.cause, pool.name,
        )  # fmt: skip
        site.record(correlation, "breaker-open", subjects, why)
    return why


def _rest(site: Site, pool: Pool, failed: Sequence[Machine], taken_out: str) -> str | None:
    """Cool down what is to be left alone for a while, and say what; None where nothing is."""
    since = min(_boot(m).launched for m in failed)
    ids = {m.instance.id for m in failed}
    others = [
        m
        for m in site.ledger.machines(ended_since=since)
        if m.pool == pool.name and m.instance.id not in ids
    ]
    keys = to_rest([_boot(m) for m in failed], [_boot(m) for m in others], rest_key(pool))
    now, told = site.now(), []
    standing = {c.scope: c for c in site.ledger.cool_downs(now)}
    nodes = compress(m.instance.node for m in failed)
    reason = f"the machine of {nodes} did not register{_cause(site, failed)}"
    if taken_out:
        reason = f"Slurm took {nodes} out of service: {taken_out}"
    for key in keys:
        if key in standing:  # these were on their way already: it counts once
            cooling = standing[key]
        else:
            cooling = grown(site, key, site.config.timings.capacity_cooldown, CODE, reason)
            site.ledger.exclude(cooling)
        what = f"pool {pool.name}" if key == rest_key(pool) else key
        told.append(f"{what} rests for {cooling.until - now:.0f} s: {cooling.cause}")
    return "; ".join(told) or None


def _cause(site: Site, failed: Sequence[Machine]) -> str:
    """The cause as far as it is known, as the end of a sentence: the first of them that got no
    secret.
    """
    for one in (m.instance for m in failed[:LOOKED_AT]):
        for made in reversed(site.ledger.decisions(one.node)):
            ours, _, why = made.reason.partition(": ")
            if made.kind in (KEY_REFUSED, KEY_FAILED) and ours == one.id:
                return f"; {name_of(site.config.join.ssh)} not brought: {why}"
    return _gate(site, failed)


def _gate(site: Site, failed: Sequence[Machine]) -> str:
    """The words of the site's check that kept a machine out, as its agent left them on the node."""
    machines = {m.instance.node: m for m in failed[:LOOKED_AT]}
    with contextlib.suppress(SlurmError):
        for name, node in site.slurm.nodes(list(machines)).items():
            generation, colon, words = node.comment.removeprefix(GATE).partition(":")
            is_gate = node.comment.startswith(GATE) and colon
            if is_gate and _has_word(machines[name], generation):
                return f"; its check failed: {words}"
    return ""


def _has_word(machine: Machine, generation: str) -> bool:
    """Whether its agent goes by that launch. One that was stopped since has the user data of its
    first.
    """
    first = machine.born is not None and generation_time(generation) == machine.born
    return first or generation == machine.instance.generation


def _boot(machine: Machine) -> Boot:
    one = machine.instance
    return Boot(offer=one.offer_key, launched=decided_at(one), registered=machine.registered)


def _rests(site: Site, pool: Pool) -> bool:
    """Whether nothing is bought for the pool now, because its machines did not register."""
    now = site.now()
    breaker = next((b for b in site.ledger.breakers() if b.scope == pool.name), None)
    key = rest_key(pool)
    return paused(breaker, now) is not None or any(
        c.scope == key for c in site.ledger.cool_downs(now)
    )


# Nodes that do not register are given up a little before slurmctld would do it.
#
# At ResumeTimeout slurmctld fails the node's jobs: those that must not be requeued end as
# NODE_FAIL, the others wait for 121 s. Given back before (``refuse.give_back``), all of them go on
# elsewhere. That has its own thread, as it must not wait for a slow cloud; the machines are ended
# by their cloud's worker. One that registers late finds its node powered down, and its end decided.


PERIOD = 1.0
"""Seconds between two looks at the ledger; Slurm is only asked when a node is overdue."""
SURELY_OVER = 60.0
"""Seconds after ResumeTimeout by which slurmctld has given up a node for certain."""
Asked = Callable[[], float]
"""When Slurm asked for a launch (Unix time)."""
CORRELATION = "boots"
NOT_REGISTERED = "it did not register in time"
NOT_WHOLE = "its job could not be had whole"


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
        self.looks = PeriodicTask(
            site, worker, self._look, "giving up nodes", period=PERIOD, idle=self._is_idle
        )
        self._counted: set[str] = set()
        self._began: dict[str, float] = {}

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether nothing boots, and nothing did at the last look."""
        some = under_way(state.machines, state.launches, self._clouds, self._site.pool_of)
        return not (some or self._began)

    def _look(self) -> None:
        seen: dict[str, float] = {}
        late = self._late(seen)
        self._began = seen
        self._counted &= {m.instance.id for some in late for m in some.machines}
        if not any(some.nodes for some in late):
            return
        # The ledger once more after the spool: what is no longer in that is done in this.
        requests = list(self._spool.pending())
        for some in self._late(dict(seen)):
            still = _not_asked_again(self._site, some, requests)
            if still.nodes:
                self._give_up(still)

    def _late(self, seen: dict[str, float]) -> list[TimedOut]:
        site, state = self._site, self._site.ledger.state()
        found = []
        boots = under_way(state.machines, state.launches, self._clouds, site.pool_of)
        for cloud, some in boots.items():
            asked = {m.instance.generation: partial(_asked, site, m.instance) for m in some.boots}
            asked |= {row.generation: partial(_asked_of, site, row) for row in some.opened}
            waited = {one: self._waited(seen, one, when) for one, when in asked.items()}
            late = {one for one, seconds in waited.items() if self._due(cloud, seconds)}
            if late:
                found.append(timed_out(cloud, some, late, state.machines, site.pool_of))
        return found

    def _due(self, cloud: str, waited: float) -> bool:
        """Before a cloud's first round its machines may have come up while nobody looked. That is
        soon over, and waited for as long as there is time. Where ResumeTimeout is over as well,
        slurmctld has given up that boot, and the node is asked for anew: there is no hurry.
        """
        timeout = _resume_timeout(self._site, cloud)
        longest = given_up_after(timeout)
        if self._had_round(cloud):
            return waited >= longest
        return (longest + timeout) / 2 <= waited < timeout + SURELY_OVER

    def _waited(self, seen: dict[str, float], generation: str, asked: Asked) -> float:
        """Seconds since Slurm asked for a launch: by the clock as it was when a look first came
        upon it, and by the monotonic one after that, as the clock may be set meanwhile.
        """
        clock = self._site.monotonic()
        began = seen.get(generation, self._began.get(generation))
        if began is None:
            began = clock - max(self._site.now() - asked(), 0.0)
        seen[generation] = began
        return clock - began

    def _give_up(self, late: TimedOut) -> None:
        """The nodes that Slurm still waits for."""
        site = self._site
        view = site.slurm.nodes(late.nodes)
        late = late.among(n for n in late.nodes if n in view and may_force(view[n]))
        if not late.nodes:
            return
        jobs = [j for j in site.slurm.jobs() if not set(late.nodes).isdisjoint(j.nodes)]
        mates = _job_peers(site, jobs, late.nodes)
        self._note(late, jobs, mates)
        nodes = (*late.nodes, *mates)
        given = power_down_and_requeue(
            site, nodes, site.slurm.nodes(nodes), _why(site, late), CORRELATION
        )
        self._end(late, given)

    def _note(self, late: TimedOut, jobs: Sequence[SlurmJob], mates: Sequence[str]) -> None:
        """Each machine once, also where Slurm has to be asked again."""
        site = self._site
        # One that the cloud does not list may have been taken while it booted.
        failed = [m for m in late.machines if not m.misses and m.instance.id not in self._counted]
        self._counted.update(m.instance.id for m in failed)
        record_boot_failures(site, failed, CORRELATION, [j.id for j in jobs], mates)
        for node in late.doubtful:
            why = "its launch has no answer, and its time to boot is over"
            hold(site, site.pool_of[node], [node], why)

    def _end(self, late: TimedOut, given: set[str]) -> None:
        """The intent at once: nothing takes these for machines that boot any more."""
        site = self._site
        overdue = {m.instance.id for m in late.machines}
        boots = booting(site.ledger.machines(), late.cloud, site.pool_of)
        doomed = [m for m in boots if m.instance.node in given]
        for why, some in (
            (NOT_REGISTERED, [m for m in doomed if m.instance.id in overdue]),
            (NOT_WHOLE, [m for m in doomed if m.instance.id not in overdue]),
        ):
            site.ledger.suspending(late.cloud, [m.instance.id for m in some], why, site.now())
            self._clouds[late.cloud].submit(terminate, site, late.cloud, some, why, CORRELATION)


def _not_asked_again(site: Site, late: TimedOut, requests: Sequence[Request]) -> TimedOut:
    """Without nodes that Slurm has asked something else for since their launch, which their cloud's
    worker has not come to: as when the daemon was away, and the node up and powered down meanwhile.
    """
    opened = site.ledger.open_launches()
    decided = {n: generation_order(row.generation) for row in opened for n in row.nodes}
    causes = {row.request for row in opened}
    for m in late.machines:
        row = site.ledger.launch(m.instance.generation)
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


def _asked(site: Site, one: Instance) -> float:
    """When Slurm asked for the machine's node, as far as it is known."""
    row = site.ledger.launch(one.generation)
    if row is None:
        return generation_time(one.generation) or one.launched
    return _asked_of(site, row)


def _asked_of(site: Site, row: Launch) -> float:
    """The time of a launch: its request's; the launch waited for its turn at most so long."""
    asked = received_at(row.request)
    if asked is None:
        return row.created
    earliest = row.created - longest_wait(_resume_timeout(site, row.cloud))
    return min(max(asked, earliest), row.created)


def _job_peers(site: Site, jobs: Iterable[SlurmJob], late: Sequence[str]) -> tuple[str, ...]:
    """The other nodes of these jobs that are still to come up: a job is had whole."""
    others = dict.fromkeys(n for j in jobs for n in j.nodes if n not in late)
    ours = [n for n in others if n in site.pool_of and not site.pool_of[n].partial_jobs]
    view = site.slurm.nodes(ours) if ours else {}
    return tuple(n for n in ours if n in view and may_force(view[n]))


def _why(site: Site, late: TimedOut) -> str:
    longest = _resume_timeout(site, late.cloud)
    return (
        f"{compress(late.nodes)} did not register within {given_up_after(longest):.0f} s "
        f"(ResumeTimeout is {longest:.0f} s)"
    )


def expect_requeued(site: Site, machines: Sequence[Machine]) -> list[int]:
    """The jobs that slurmctld itself has requeued, at ResumeTimeout, because these machines did not
    register: they need not wait out their hold either.
    """
    rows = [site.ledger.launch(g) for g in {m.instance.generation for m in machines}]
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
