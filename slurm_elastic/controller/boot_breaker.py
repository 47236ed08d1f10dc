"""Who has registered and who never did: the pools' breakers (``policies.boot_breaker``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.audit_trail import job_subject, pool_subject
from slurm_elastic.controller.context import Site, generation_time
from slurm_elastic.controller.launch import grown
from slurm_elastic.controller.reject import quarantine_pool
from slurm_elastic.controller.suspend import SUSPENDED
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Breaker, Pool
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.boot_breaker import (
    NEVER_REGISTERED,
    TAKEN_OUT,
    Boot,
    after_failures,
    paused,
    sickly,
    to_rest,
)
from slurm_elastic.policies.node_health import ill
from slurm_elastic.policies.power_state import Phase, is_down, phase
from slurm_elastic.policies.ranking import rest_key
from slurm_elastic.spool import Request

log = logging.getLogger(__name__)

DAY = 86400.0
SOUND = 600.0
"""Seconds in service after which a machine is a proof that Slurm takes its pool's as they are;
SuspendTime, where that is shorter: for as long stays a machine that has had its job.
"""
OUT_OF_SERVICE = "Slurm took it out of service: "
"""The beginning of the reason for which such a machine ends."""
CODE = "BootFailed"
"""The code of cool-downs after a machine that has not registered."""
KEY_REFUSED, KEY_FAILED = "key-refused", "key-failed"
"""Decisions on a machine that got no munge key; the reason begins with its id (``munge_keys``)."""
LOOKED_AT = 16
"""How many of a pool's failed machines are asked for a cause: what ails one mostly ails all."""


def record_registrations(
    site: Site, cloud: str, view: Mapping[str, SlurmNode] | None = None
) -> None:
    """Take in which booting machines' nodes are up; one that is proves that its pool works."""
    booting = [m for m in site.ledger.machines() if m.instance.cloud == cloud and m.boots]
    if not booting:
        return
    if view is None:
        view = site.slurm.nodes(list(dict.fromkeys(m.instance.node for m in booting)))
    user = site.config.slurm.user
    up = [m for m in booting if _is_up(view.get(m.instance.node), user)]
    if not up:
        return
    site.ledger.registered(cloud, [m.instance.id for m in up], site.now())
    for pool in dict.fromkeys(m.pool for m in up):
        _note_works(site, pool, [m.instance.node for m in up if m.pool == pool])


def _is_up(node: SlurmNode | None, slurm_user: str) -> bool:
    """Whether it has registered, and Slurm takes it as it is."""
    if node is None or phase(node) is not Phase.UP or is_down(node):
        return False
    return ill(node, slurm_user) is None


def note_sound(site: Site, cloud: str, view: Mapping[str, SlurmNode]) -> None:
    """A pool whose machines Slurm took out of service works again when one that registered since
    has been in service for a while (``SOUND``), or was until Slurm powered it down: a Prolog fails
    at the first job only.
    """
    sick = {b.pool for b in site.ledger.breakers() if sickly(b)}
    if not sick:
        return
    user, now = site.config.slurm.user, site.now()
    machines = site.ledger.machines(ended_since=now - DAY)
    idle = site.config.suspend_time(site.config.cloud(cloud))
    served = min(SOUND, max(idle, site.config.timings.reconcile))  # a round has looked at it
    for name in sick:
        mine = [m for m in machines if m.pool == name and m.instance.cloud == cloud]
        failed = [_boot(m).launched for m in mine if (m.why or "").startswith(OUT_OF_SERVICE)]
        since = max(failed, default=0.0)
        well = [
            m.instance.node
            for m in mine
            if _boot(m).launched > since
            and _service(m, now) >= served
            and (_left_in_peace(m) or _is_up(view.get(m.instance.node), user))
        ]
        if well:
            _note_works(site, name, well, sound=True)


def _service(machine: Machine, now: float) -> float:
    """For how many seconds it has been in service, or was."""
    ends = [at for at in (machine.suspending, machine.ended, now) if at is not None]
    return min(ends) - machine.registered if machine.registered is not None else 0.0


def _left_in_peace(machine: Machine) -> bool:
    """Whether Slurm had it in service to the end."""
    return machine.suspending is not None and machine.why == SUSPENDED


def _note_works(site: Site, name: str, nodes: Sequence[str], *, sound: bool = False) -> None:
    """The pool's cool-downs and pause for its failed machines are over."""
    breaker = next((b for b in site.ledger.breakers() if b.pool == name), None)
    if breaker is None or (sickly(breaker) and not sound):
        return
    site.ledger.clear_breaker(name)
    rested = name in site.pools and site.ledger.clear_cool_down(rest_key(site.pools[name]))
    if breaker.until is not None:
        why = f"a machine of pool {name} has registered: it works again"
        log.warning("breaker closed pool=%s nodes=%s", name, compress(nodes))
        site.record("boots", "breaker-closed", [*nodes, pool_subject(name)], why)
    if rested or breaker.until is not None:
        site.ledger.review_holds(name, site.now())


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
        and generation_time(m.instance.generation) <= request.received
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
    known = {b.pool: b for b in site.ledger.breakers()}
    before, now = known.get(pool.name, Breaker(pool=pool.name)), site.now()
    timings = site.config.timings
    after = after_failures(
        before,
        len(failed),
        now,
        limit=timings.boot_failures,
        cool_down=timings.boot_cooldown,
        words=f"{TAKEN_OUT}{taken_out}" if taken_out else NEVER_REGISTERED,
    )
    site.ledger.set_breaker(after)
    row = f"{after.failures} in a row in pool {pool.name}"
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
    why = f"pool {pool.name} is paused: {after.reason}"
    if after.until != before.until:
        log.error(
            "pool paused pool=%s seconds=%.0f reason=%s; after that one machine is tried, "
            "or `slurm-elastic clear %s` ends it",
            pool.name, (after.until or now) - now, after.reason, pool.name,
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
    standing = {c.key: c for c in site.ledger.cool_downs(now)}
    nodes = compress(m.instance.node for m in failed)
    reason = f"the machine of {nodes} did not register{_cause(site, failed)}"
    if taken_out:
        reason = f"Slurm took {nodes} out of service: {taken_out}"
    for key in keys:
        if key in standing:  # these were on their way already: it counts once
            cooling = standing[key]
        else:
            cooling = grown(site, key, site.config.timings.capacity_cooldown, CODE, reason)
            site.ledger.cool_down(cooling)
        what = f"pool {pool.name}" if key == rest_key(pool) else key
        told.append(f"{what} rests for {cooling.until - now:.0f} s: {cooling.reason}")
    return "; ".join(told) or None


def _cause(site: Site, failed: Sequence[Machine]) -> str:
    """The cause as far as it is known, as the end of a sentence: the first of them that got no
    munge key.
    """
    for one in (m.instance for m in failed[:LOOKED_AT]):
        for made in reversed(site.ledger.decisions(one.node)):
            ours, _, why = made.reason.partition(": ")
            if made.kind in (KEY_REFUSED, KEY_FAILED) and ours == one.id:
                return f"; munge key not brought: {why}"
    return ""


def _boot(machine: Machine) -> Boot:
    """By the head's clock; a machine whose launch is not known has its cloud's."""
    one = machine.instance
    launched = generation_time(one.generation) or one.launched
    return Boot(offer=one.offer_key, launched=launched, registered=machine.registered)


def _rests(site: Site, pool: Pool) -> bool:
    """Whether nothing is bought for the pool now, because its machines did not register."""
    now = site.now()
    breaker = next((b for b in site.ledger.breakers() if b.pool == pool.name), None)
    key = rest_key(pool)
    return paused(breaker, now) is not None or any(
        c.key == key for c in site.ledger.cool_downs(now)
    )
