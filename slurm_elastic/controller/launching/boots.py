"""Counts the machines that register and the machines that never do, and pauses pools whose machines
fail (``policies.launch.exclusions``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config.sections.joining import MUNGE_KEY
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.giving_back import quarantine_pool
from slurm_elastic.controller.holds import find_end_of_hold, hold
from slurm_elastic.controller.launching.launch import grow_cool_down
from slurm_elastic.controller.snapshot import build_terms, take_snapshot
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import PoolPaused, ScopeCoolsDown, ScopesCoolDown
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import (
    BootDetail,
    BootsCounted,
    BootsFailed,
    CheckFailed,
    KeyNotBrought,
    MachineNotPrepared,
    MachinesFailed,
    SecretMissing,
)
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, Exclusion
from slurm_elastic.model.memory import decided_at, generation_time
from slurm_elastic.policies.actions import Register, ReopenPool
from slurm_elastic.policies.launch.boots import SOON_S, ended_by_others_soon
from slurm_elastic.policies.launch.exclusions import (
    Boot,
    after_failures,
    paused,
    pool_key,
    to_cool_down,
)
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import RoundRule
from slurm_elastic.state.audit_trail import job_subject, pool_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


BOOT_FAILED_CODE = "BootFailed"
"""The code of the cool-down after a machine did not register."""
KEY_REFUSED, KEY_FAILED = "key-refused", "key-failed"
"""The kinds of decisions about a machine that got no munge key (``munge_keys``)."""
GATE_PREFIX, PREPARE_PREFIX = "slurm-elastic:gate:", "slurm-elastic:prepare:"
"""The start of a node's comment after its machine failed ``join.check``, or could not be prepared
(``join.mounts``, ``join.wipe``). The generation of the machine's launch follows, then a colon and
the output of the check, or the error.
"""
MAX_ASKED_MACHINES = 16
"""Failed machines of a pool in which we look for a cause. The others mostly have the same cause."""


def record_registrations(site: Site, cloud: str) -> None:
    """Record the booting machines of a cloud whose nodes have come up. A machine that came up
    proves that its pool works, so the pool's pause ends. SlurmError passes.
    """
    booting = [m for m in site.ledger.machines.live() if m.instance.cloud == cloud and m.boots]
    if not booting:
        return
    nodes = site.slurm.nodes(list(dict.fromkeys(m.instance.node for m in booting)))
    actions = decide(
        take_snapshot(site, build_terms(site, cloud), nodes), (RoundRule.REGISTRATIONS,)
    )
    record_registered(site, cloud, [a for a in actions if isinstance(a, Register)])
    reopen_pools(site, [a for a in actions if isinstance(a, ReopenPool)])


def record_registered(site: Site, cloud: str, registered: Sequence[Register]) -> None:
    """Record that the nodes of these machines came up."""
    if registered:
        site.ledger.machines.record_registration(cloud, [a.machine for a in registered], site.now())


def reopen_pools(site: Site, reopened: Sequence[ReopenPool]) -> None:
    """End the cool-downs and pauses that these pools have because of failed machines."""
    for action in reopened:
        # Read the breaker before ``readmit`` deletes it: only a pool that was paused is reported.
        breaker = next(
            (b for b in site.ledger.exclusions.breakers() if b.scope == action.pool), None
        )
        site.ledger.exclusions.readmit(BREAKER, action.pool)
        # A pool that left the configuration still has its breaker, but no cool-down of its own.
        pool = site.pools.get(action.pool)
        cooled = pool is not None and site.ledger.exclusions.readmit(COOL_DOWN, pool_key(pool))
        paused = breaker is not None and bool(breaker.until)
        if paused:
            log.warning(
                "pool no longer paused pool=%s nodes=%s", action.pool, compress(action.nodes)
            )
            subjects = [*action.nodes, pool_subject(action.pool)]
            site.record("boots", "breaker-closed", subjects, action.cause)
        # The holds of its nodes last as long as the cool-down would have. Review them now.
        if cooled or paused:
            site.ledger.exclusions.review_holds(action.pool, site.now())


def record_boot_failures(
    site: Site,
    machines: Sequence[Machine],
    correlation: str,
    jobs: Iterable[int] = (),
    mates: Iterable[str] = (),
    taken_out: BootsFailed | None = None,
) -> None:
    """Count the failed machines against their pools, and hold the nodes that must not be tried
    again at once. ``taken_out``: how Slurm took the machines out of service; None if they did not
    register in time.

    After a failure the pool or its offer cools down for a short time, so that ``jobs`` try other
    pools first. After too many failures in a row the pool is paused. ``mates``: further nodes of
    these jobs, which the caller gives back, too. SlurmError passes, after the failures are counted.
    """
    about = [job_subject(job) for job in jobs]
    # It may be an iterator, and each pool below reads it.
    mates = tuple(mates)
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        # A machine may outlive its pool in the configuration. It counts against no pool.
        if machine.pool in site.pools:
            by_pool.setdefault(machine.pool, []).append(machine)
    # Count all failures before the first call to Slurm, which may raise.
    causes = {
        name: _count_failures(site, site.pools[name], failed, correlation, about, taken_out)
        for name, failed in by_pool.items()
    }
    for name, cause in causes.items():
        pool = site.pools[name]
        nodes = _list_nodes(by_pool[name])
        # If only an offer cools down, other jobs can get the pool's other nodes with other offers.
        spare = 0 if is_cooling(site, pool) else len(pool.nodes)
        of_pool = (n for n in mates if site.pool_of[n] is pool and n not in nodes)
        quarantine_pool(site, pool, [*nodes, *of_pool], site.slurm.nodes(pool.nodes), cause, spare)
        if not spare:
            _keep_out(site, pool, nodes, cause)


def record_ended_by_others(site: Site, cloud: str, ids: Collection[str], correlation: str) -> None:
    """Count the machines among ``ids`` that others ended soon after their start against their
    pools. The ledger has their ends.
    """
    since = site.now() - SOON_S
    machines = [
        m
        for m in (site.ledger.machines.live(ended_since=since) if ids else ())
        if m.instance.cloud == cloud and m.instance.id in ids and ended_by_others_soon(m)
    ]
    how = BootsFailed(
        ended_by_others=True, remedy="find out in the cloud's audit log who ends these machines"
    )
    for name, failed in group_by(machines, lambda m: m.pool).items():
        # A machine may outlive its pool in the configuration. It counts against no pool.
        if name in site.pools:
            subjects = [*_list_nodes(failed), pool_subject(name)]
            _count_against(site, site.pools[name], failed, correlation, subjects, how)


def _list_nodes(machines: Sequence[Machine]) -> list[str]:
    return list(dict.fromkeys(m.instance.node for m in machines))


def _count_failures(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    correlation: str,
    about: Sequence[str],
    taken_out: BootsFailed | None,
) -> AnyCause:
    """Update the breaker and the cool-down of one pool. Returns the cause for holding its nodes."""
    subjects = [*_list_nodes(failed), pool_subject(pool.name), *about]
    how = taken_out or BootsFailed()
    counted, pause = _count_against(site, pool, failed, correlation, subjects, how)
    cooling = _cool_down(site, pool, failed, taken_out, counted.detail)
    if cooling is not None:
        site.record(correlation, "cooled-down", subjects, cooling)
    return pause or cooling or counted


def _count_against(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    correlation: str,
    subjects: Sequence[str],
    how: BootsFailed,
) -> tuple[BootsCounted, PoolPaused | None]:
    """Update the breaker of one pool. Return how the failures count, and the pool's pause."""
    breakers = {b.scope: b for b in site.ledger.exclusions.breakers()}
    before, now = breakers.get(pool.name, Exclusion(kind=BREAKER, scope=pool.name)), site.now()
    timings = site.config.timings
    after = after_failures(
        before,
        len(failed),
        now,
        limit=timings.max_boot_failures,
        cool_down=timings.boot_cooldown,
        how=how,
    )
    site.ledger.exclusions.add(after)
    cause = BootsCounted(
        pool=pool.name,
        in_a_row=after.count,
        failure=how,
        detail=None if how.ended_by_others else find_known_cause(site, failed),
    )
    log.warning(
        "machines failed pool=%s nodes=%s reason=%s",
        pool.name, compress(m.instance.node for m in failed), cause,
    )  # fmt: skip
    site.record(correlation, "boot-failed", subjects, cause)
    pause = paused(after, now)
    # Record a pause once, not again for each further machine that fails during it.
    if pause is not None and after.until != before.until:
        log.error(
            "pool paused pool=%s seconds=%.0f reason=%s; after that one machine is tried, "
            "or `slurm-elastic clear %s` ends it",
            pool.name, after.until - now, after.cause, pool.name,
        )  # fmt: skip
        site.record(correlation, "breaker-open", subjects, pause)
    return cause, pause


def _cool_down(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    taken_out: BootsFailed | None,
    known_cause: BootDetail | None,
) -> ScopesCoolDown | None:
    """Cool down the pool or the offers that failed. Returns what cools down; None if nothing."""
    # Also machines ended since: any that registered proves that the pool works.
    since = min(_describe_boot(m).launched for m in failed)
    ids = {m.instance.id for m in failed}
    other_machines = [
        m
        for m in site.ledger.machines.live(ended_since=since)
        if m.pool == pool.name and m.instance.id not in ids
    ]
    keys = to_cool_down(
        [_describe_boot(m) for m in failed],
        [_describe_boot(m) for m in other_machines],
        pool_key(pool),
    )
    now = site.now()
    scopes: list[ScopeCoolsDown] = []
    standing = {c.scope: c for c in site.ledger.exclusions.cool_downs(now)}
    cause = MachinesFailed(
        nodes=compress(m.instance.node for m in failed),
        count=len(failed),
        failure=taken_out or BootsFailed(),
        detail=known_cause,
    )
    for key in keys:
        # Machines that were already booting when the cool-down began do not prolong it.
        if key in standing:
            cooling = standing[key]
        else:
            cooling = grow_cool_down(
                site, key, site.config.timings.capacity_cooldown, BOOT_FAILED_CODE, cause
            )
            site.ledger.exclusions.add(cooling)
        scopes.append(
            ScopeCoolsDown(
                scope=key,
                until=Deadline.of(cooling.until, now),
                code=cooling.code,
                cause=cooling.cause,
                pool=pool.name if key == pool_key(pool) else "",
            )
        )
    return ScopesCoolDown(scopes=tuple(scopes)) if scopes else None


def _keep_out(site: Site, pool: Pool, failed: Sequence[str], cause: AnyCause) -> None:
    """Hold these nodes for longer than their pool cools down. Slurm and the growth policies take
    the first node, so the next try would be the same one, and nobody would learn whether the pool
    is ill or that node.
    """
    if len(failed) < len(pool.nodes):
        until = find_end_of_hold(site, pool) + site.config.timings.capacity_cooldown
        hold(site, pool, failed, cause, until=until)


def find_known_cause(site: Site, failed: Sequence[Machine]) -> BootDetail | None:
    """Return the known cause of the failures: a secret that a machine did not get, a directory that
    it could not mount, or the output of the site's check; None if there is none.
    """
    for instance in (m.instance for m in failed[:MAX_ASKED_MACHINES]):
        for decision in reversed(site.ledger.decisions.about(instance.node)):
            if isinstance(decision.cause, KeyNotBrought) and decision.cause.machine == instance.id:
                ssh = site.config.join.ssh
                secret = MUNGE_KEY if ssh is None else ssh.secret_name
                return SecretMissing(name=secret, error=decision.cause.error)
    return _read_report(site, failed)


def _read_report(site: Site, failed: Sequence[Machine]) -> BootDetail | None:
    """Return why a machine's agent did not start slurmd. The agent left it in the comment of the
    node.
    """
    machines = {m.instance.node: m for m in failed[:MAX_ASKED_MACHINES]}
    # The cause only explains the failures. They are counted also if Slurm does not answer.
    with contextlib.suppress(SlurmError):
        nodes = site.slurm.nodes(list(machines))
        reports = (_parse_report(machines[name], node.comment) for name, node in nodes.items())
        return next((report for report in reports if report is not None), None)
    return None


def _parse_report(machine: Machine, comment: str) -> BootDetail | None:
    """Return what the node's comment says about this machine's launch; None if it says nothing
    about that launch.
    """
    for prefix in (GATE_PREFIX, PREPARE_PREFIX):
        generation, colon, report = comment.removeprefix(prefix).partition(":")
        is_report = comment.startswith(prefix) and colon
        if not is_report or not _reports_launch(machine, generation):
            continue
        if prefix == PREPARE_PREFIX:
            return MachineNotPrepared(error=report)
        return CheckFailed(check_output=report)
    return None


def _reports_launch(machine: Machine, generation: str) -> bool:
    """Whether the machine's agent writes this generation into its comment. A machine that was
    stopped and started still has the user data of its first launch.
    """
    is_first_launch = (
        machine.first_launched_at is not None
        and generation_time(generation) == machine.first_launched_at
    )
    return is_first_launch or generation == machine.instance.generation


def _describe_boot(machine: Machine) -> Boot:
    instance = machine.instance
    return Boot(
        offer=instance.offer_key, launched=decided_at(instance), registered=machine.registered_at
    )


def is_cooling(site: Site, pool: Pool) -> bool:
    """Whether the pool is paused or cools down because its machines did not register."""
    now = site.now()
    breaker = next((b for b in site.ledger.exclusions.breakers() if b.scope == pool.name), None)
    key = pool_key(pool)
    return paused(breaker, now) is not None or any(
        c.scope == key for c in site.ledger.exclusions.cool_downs(now)
    )
