"""Who has registered and who never did: the pools' breakers (``policies.launch.exclusions``)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config.joining import MUNGE_KEY
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.giving_back import quarantine_pool
from slurm_elastic.controller.launch import grown
from slurm_elastic.controller.snapshot import see, terms_of
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import ScopeCoolsDown, ScopesCoolDown
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import (
    BootsCounted,
    BootsFailed,
    CheckFailed,
    KeyNotBrought,
    MachinesFailed,
    SecretMissing,
)
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, Exclusion
from slurm_elastic.model.memory import decided_at, generation_time
from slurm_elastic.policies.actions import Register, ReopenPool
from slurm_elastic.policies.launch.exclusions import (
    Boot,
    after_failures,
    paused,
    pool_key,
    to_cool_down,
)
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import Rule
from slurm_elastic.state.audit_trail import job_subject, pool_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


CODE = "BootFailed"
"""The code of cool-downs after a machine that has not registered."""
KEY_REFUSED, KEY_FAILED = "key-refused", "key-failed"
"""Decisions on a machine that got no munge key (``munge_keys``)."""
GATE = "slurm-elastic:gate:"
"""How the comment on a node begins whose machine failed ``join.check``; its launch follows."""
Known = SecretMissing | CheckFailed | None
LOOKED_AT = 16
"""How many of a pool's failed machines are asked for a cause: what ails one mostly ails all."""


def record_registrations(site: Site, cloud: str) -> None:
    """Take in which booting machines' nodes are up; one that is proves that its pool works."""
    booting = [m for m in site.ledger.machines.live() if m.instance.cloud == cloud and m.boots]
    if not booting:
        return
    nodes = site.slurm.nodes(list(dict.fromkeys(m.instance.node for m in booting)))
    found = decide(see(site, terms_of(site, cloud), nodes), (Rule.REGISTRATIONS,))
    register(site, cloud, [a for a in found if isinstance(a, Register)])
    reopen_pools(site, [a for a in found if isinstance(a, ReopenPool)])


def register(site: Site, cloud: str, some: Sequence[Register]) -> None:
    """Write down that the nodes of these machines came up."""
    if some:
        site.ledger.machines.registered(cloud, [a.machine for a in some], site.now())


def reopen_pools(site: Site, some: Sequence[ReopenPool]) -> None:
    """The pools' cool-downs and pauses for failed machines are over."""
    for one in some:
        breaker = next((b for b in site.ledger.exclusions.breakers() if b.scope == one.pool), None)
        site.ledger.exclusions.readmit(BREAKER, one.pool)
        pool = site.pools.get(one.pool)
        cooled = pool is not None and site.ledger.exclusions.readmit(COOL_DOWN, pool_key(pool))
        paused = breaker is not None and bool(breaker.until)
        if paused:
            log.warning("breaker closed pool=%s nodes=%s", one.pool, compress(one.nodes))
            subjects = [*one.nodes, pool_subject(one.pool)]
            site.record("boots", "breaker-closed", subjects, one.reason)
        if cooled or paused:
            site.ledger.exclusions.review_holds(one.pool, site.now())


def record_boot_failures(
    site: Site,
    machines: Sequence[Machine],
    correlation: str,
    jobs: Iterable[int] = (),
    mates: Iterable[str] = (),
    taken_out: BootsFailed | None = None,
) -> None:
    """Count them against their pools, and keep Slurm from what is not to be tried at once again.
    ``taken_out``: how Slurm took them out of service; None: they did not register in time.

    After one the pool, or its offer, cools down for a short while, so that ``jobs`` go elsewhere
    first; a pool that has too many in a row is paused. ``mates`` are further nodes of these jobs,
    which are given back, too.
    """
    about = [job_subject(job) for job in jobs]
    mates = tuple(mates)
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.pool in site.pools:
            by_pool.setdefault(machine.pool, []).append(machine)
    # All are counted before Slurm, which may not answer, is asked for anything.
    causes = {
        name: _count(site, site.pools[name], failed, correlation, about, taken_out)
        for name, failed in by_pool.items()
    }
    for name, cause in causes.items():
        pool = site.pools[name]
        nodes = _nodes_of(by_pool[name])
        # Where only offers cool down, the pool's other nodes can be had by others.
        spare = 0 if is_cooling(site, pool) else len(pool.nodes)
        of_pool = (n for n in mates if site.pool_of[n] is pool and n not in nodes)
        quarantine_pool(site, pool, [*nodes, *of_pool], site.slurm.nodes(pool.nodes), cause, spare)


def _nodes_of(machines: Sequence[Machine]) -> list[str]:
    return list(dict.fromkeys(m.instance.node for m in machines))


def _count(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    correlation: str,
    about: Sequence[str],
    taken_out: BootsFailed | None,
) -> AnyCause:
    """The breaker and the cool-down of one pool; why its nodes are kept from Slurm."""
    subjects = [*_nodes_of(failed), pool_subject(pool.name), *about]
    known = {b.scope: b for b in site.ledger.exclusions.breakers()}
    before, now = known.get(pool.name, Exclusion(kind=BREAKER, scope=pool.name)), site.now()
    timings = site.config.timings
    after = after_failures(
        before,
        len(failed),
        now,
        limit=timings.boot_failures,
        cool_down=timings.boot_cooldown,
        how=taken_out or BootsFailed(),
    )
    site.ledger.exclusions.add(after)
    explained = known_of(site, failed)
    why: AnyCause = BootsCounted(
        pool=pool.name, in_a_row=after.count, how=taken_out or BootsFailed(), known=explained
    )
    log.warning(
        "boot failed pool=%s nodes=%s", pool.name, compress(m.instance.node for m in failed)
    )
    site.record(correlation, "boot-failed", subjects, why)
    if (cooling := _cool_down(site, pool, failed, taken_out, explained)) is not None:
        site.record(correlation, "cooled-down", subjects, cooling)
        why = cooling
    pause = paused(after, now)
    if pause is None:
        return why
    # A pause that stands already is not told again with each further machine.
    if after.until != before.until:
        log.error(
            "pool paused pool=%s seconds=%.0f reason=%s; after that one machine is tried, "
            "or `slurm-elastic clear %s` ends it",
            pool.name, after.until - now, after.cause, pool.name,
        )  # fmt: skip
        site.record(correlation, "breaker-open", subjects, pause)
    return pause


def _cool_down(
    site: Site,
    pool: Pool,
    failed: Sequence[Machine],
    taken_out: BootsFailed | None,
    known: Known,
) -> ScopesCoolDown | None:
    """Cool down what is to be left alone for a while, and say what; None where nothing is."""
    since = min(_boot(m).launched for m in failed)
    ids = {m.instance.id for m in failed}
    others = [
        m
        for m in site.ledger.machines.live(ended_since=since)
        if m.pool == pool.name and m.instance.id not in ids
    ]
    keys = to_cool_down([_boot(m) for m in failed], [_boot(m) for m in others], pool_key(pool))
    now = site.now()
    scopes: list[ScopeCoolsDown] = []
    standing = {c.scope: c for c in site.ledger.exclusions.cool_downs(now)}
    cause = MachinesFailed(
        nodes=compress(m.instance.node for m in failed),
        count=len(failed),
        how=taken_out or BootsFailed(),
        known=known,
    )
    for key in keys:
        if key in standing:  # these were on their way already: it counts once
            cooling = standing[key]
        else:
            cooling = grown(site, key, site.config.timings.capacity_cooldown, CODE, cause)
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


def known_of(site: Site, failed: Sequence[Machine]) -> Known:
    """What is known of the cause: of the first of them that got no secret."""
    for one in (m.instance for m in failed[:LOOKED_AT]):
        for made in reversed(site.ledger.decisions.about(one.node)):
            if isinstance(made.cause, KeyNotBrought) and made.cause.machine == one.id:
                ssh = site.config.join.ssh
                secret = MUNGE_KEY if ssh is None else ssh.secret_name
                return SecretMissing(name=secret, error=made.cause.error)
    return _gate(site, failed)


def _gate(site: Site, failed: Sequence[Machine]) -> Known:
    """The words of the site's check that kept a machine out, as its agent left them on the node."""
    machines = {m.instance.node: m for m in failed[:LOOKED_AT]}
    with contextlib.suppress(SlurmError):
        for name, node in site.slurm.nodes(list(machines)).items():
            generation, colon, words = node.comment.removeprefix(GATE).partition(":")
            is_gate = node.comment.startswith(GATE) and colon
            if is_gate and _has_word(machines[name], generation):
                return CheckFailed(said=words)
    return None


def _has_word(machine: Machine, generation: str) -> bool:
    """Whether its agent goes by that launch. One that was stopped since has the user data of its
    first.
    """
    first = machine.born is not None and generation_time(generation) == machine.born
    return first or generation == machine.instance.generation


def _boot(machine: Machine) -> Boot:
    one = machine.instance
    return Boot(offer=one.offer_key, launched=decided_at(one), registered=machine.registered_at)


def is_cooling(site: Site, pool: Pool) -> bool:
    """Whether nothing is bought for the pool now, because its machines did not register."""
    now = site.now()
    breaker = next((b for b in site.ledger.exclusions.breakers() if b.scope == pool.name), None)
    key = pool_key(pool)
    return paused(breaker, now) is not None or any(
        c.scope == key for c in site.ledger.exclusions.cool_downs(now)
    )
