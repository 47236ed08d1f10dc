"""The services: whether they are alive, and which troubles the ledger knows of."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.directive import Directive, clock, scope_of_pool, stop_reason
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.finding import Finding, Level, try_pool
from slurm_elastic.policies.clock_guard import CLOCK_REMEDY, set_back
from slurm_elastic.policies.launch.exclusions import DENIED, sickly
from slurm_elastic.policies.launch.unhelped_words import unhelped_sentence
from slurm_elastic.policies.repair.strays import CODE
from slurm_elastic.slurm.conf import plan
from slurm_elastic.state.heartbeat import (
    CKPTMAN,
    CKPTMAN_MARK,
    DAEMON,
    Mark,
    ServiceTrouble,
    alive,
    latest,
    process_exists,
    read_mark,
)
from slurm_elastic.state.heartbeat import trouble_of as trouble_of_service
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.store.trouble import Kind, trouble_of
from slurm_elastic.watch import causes
from slurm_elastic.watch.causes import DISK, LEDGER
from slurm_elastic.watch.out_of_reach import unendable

_CONSOLE = "put the cloud right (above), or end them in its console"
_ROOTS_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_STRAYS = (
    "look for them in the cloud: a deletion that failed, a protection, tags that were changed; of "
    "a cloud that left the configuration: slurm-elastic clear --gone, once they are gone"
)


def daemon(config: Config, now: float) -> Iterator[Finding]:
    """Its heartbeat, the last errors it got, and what it has paused."""
    path, mark = config.state / "ledger.db", read_mark(config.state)
    service = trouble_of_service(config.state, mark, now, config.timings.heartbeat_stale)
    if service and not _stands_by(config, mark):
        yield _cannot_write("daemon", service, "a ledger", DAEMON, LEDGER)
    try:
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            found = tuple(_by_ledger(config, ledger, mark.beat if mark else None, now))
        yield from found
    except (sqlite3.Error, OSError) as error:
        trouble = trouble_of(error, path)
        yield Finding.wrong(
            f"ledger {path}",
            trouble.what,
            expected="a ledger that can be read",
            advice=f"{trouble.remedy}; meanwhile slurm-elasticd, if it runs, only ends machines",
            cause=DISK if trouble.kind is Kind.FULL else LEDGER,
        )
    except SlurmElasticError as error:
        yield Finding.wrong(
            f"ledger {path}",
            str(error),
            expected="a ledger of this release",
            advice="start slurm-elasticd, which makes it and brings it up to date",
            cause=DAEMON,
        )


def _by_ledger(
    config: Config, ledger: Ledger, marked: tuple[float, int] | None, now: float
) -> Iterator[Finding]:
    beat = latest(ledger.health.heartbeat(DAEMON), marked)
    yield _alive(config, beat, now)
    yield from _clock(beat, ledger.machines.live(), now)
    yield from _ckptman(config, ledger, now)
    clouds = {cloud.name for cloud in config.clouds}
    machines = ledger.machines.live()
    for health in ledger.health.all():
        if health.error:
            # A note: the cause is counted once, where the cloud itself was asked.
            if paid := unendable(health, [m for m in machines if m.instance.cloud == health.name]):
                yield Finding.note("paid machines", paid, advice=_CONSOLE)
            advice = _STRAYS if health.code == CODE else ""
            found = f"{health.told} ({brief(max(now - health.checked, 1.0))} ago)"
            cause = causes.cause_of_health(health, clouds)
            yield Finding.wrong("last errors", found, advice=advice, cause=cause)
    for breaker in ledger.exclusions.breakers():
        if breaker.until or sickly(breaker):
            yield _paused(breaker, now)
    given = [d for d in ledger.directives.all() if d.holds(now)]
    yield from map(_order, given)
    yield from _held(config, ledger)
    yield from _unhelped(ledger, now)
    yield from _cooling(ledger.exclusions.cool_downs(now), now)


def _unhelped(ledger: Ledger, now: float) -> Iterator[Finding]:
    """Jobs for which machines came up in vain."""
    if rows := ledger.growth_guard.jobs(now):
        found, advice = unhelped_sentence(rows)
        yield Finding.note("waiting jobs", found, advice=advice, cause=causes.UNHELPED)


def checkpoints(config: Config, now: float) -> Iterator[Finding]:
    """Whether slurm-elastic-ckptman can write down what it does, and nodes here are ready."""
    yield from _guard(config)
    mark = read_mark(config.state, CKPTMAN_MARK)
    trouble = trouble_of_service(config.state, mark, now, config.timings.heartbeat_stale)
    if trouble and not _stands_by(config, mark):
        yield _cannot_write("checkpoints", trouble, "a state directory", CKPTMAN, CKPTMAN)


def _stands_by(config: Config, mark: Mark | None) -> bool:
    """Whether all is well with a service that waits for the other head (``two_heads`` reports)."""
    return config.ha.directory is not None and mark is not None and mark.stands_by


def _guard(config: Config) -> Iterator[Finding]:
    """The firewall that keeps DMTCP's coordinators from other users, on nodes of this very host."""
    here = {cloud.name for cloud in config.clouds if cloud.provider == "local"}
    pools = [pool for pool in config.pools if pool.cloud in here]
    methods = {(p.checkpoint and p.checkpoint.method) or config.checkpoint.method for p in pools}
    if "dmtcp" in methods and shutil.which("nft", path=_ROOTS_PATH) is None:
        yield Finding.wrong(
            "dmtcp",
            "no nft on this host, where its nodes are",
            expected="nftables: without it jobs of this method run without checkpoints",
            advice="apt install nftables, or method criu",
        )


def _cannot_write(
    what: str, trouble: ServiceTrouble, place: str, service: str, cause: str
) -> Finding:
    return Finding.wrong(
        what,
        trouble.finding,
        expected=f"{place} that can be written",
        advice=f"{trouble.remedy}; {service} goes on by itself then",
        cause=DISK if trouble.is_disk_full else cause,
    )


def _clock(
    beat: tuple[float, int] | None, machines: Iterable[Machine], now: float
) -> Iterator[Finding]:
    """Whether the clock was set back since the ledger was written."""
    times = [machine.instance.launched for machine in machines]
    if trouble := set_back([*times, beat[0]] if beat else times, now):
        yield Finding.wrong("clock", trouble.finding, advice=CLOCK_REMEDY)


def _ckptman(config: Config, ledger: Ledger, now: float) -> Iterator[Finding]:
    """Whether slurm-elastic-ckptman is alive; if it never ran, nobody misses it."""
    mark = read_mark(config.state, CKPTMAN_MARK)
    beat = latest(ledger.health.heartbeat(CKPTMAN), mark.beat if mark else None)
    if beat is None or alive(beat, process_exists(beat[1]), now, config.timings.heartbeat_stale):
        return
    yield Finding.wrong(
        "checkpoints",
        f"slurm-elastic-ckptman does not run: last heartbeat {brief(now - beat[0])} ago",
        expected="it runs: without it no job is saved, nor moved before its machine is taken",
        advice="systemctl start slurm-elastic-ckptman; "
        "journalctl -u slurm-elastic-ckptman says why it stopped",
    )


def _order(given: Directive) -> Finding:
    """What an operator has ordered, and how it ends."""
    return Finding.note(
        "order",
        stop_reason(given, f" since {clock(given.since)}"),
        advice=f"to end it: {given.word.ended_by}",
        cause=causes.cause_of_order(given.number),
    )


def _held(config: Config, ledger: Ledger) -> Iterator[Finding]:
    """Pools that start no machine now."""
    pools = {pool.name: pool for pool in plan.pools_of(config)}
    # A growth policy holds the nodes of its pools whenever it does not need them.
    held = [h for h in ledger.exclusions.holds() if h.pool in pools and h.cause != GrowthStartsIt()]
    groups = Counter((hold.pool, hold.cause) for hold in held)
    for (pool, cause), count in groups.items():
        yield Finding.note(
            f"pool {pool}",
            f"{count} of its {len(pools[pool].nodes)} nodes are held: {cause}",
            expected="nodes that Slurm may start, once that is over",
            cause=causes.cause_of_hold(cause),
        )


def _cooling(cool_downs: Iterable[Exclusion], now: float) -> Iterator[Finding]:
    """Offers that are not asked for now, by reason."""
    by_cause: dict[tuple[str, AnyCause], list[Exclusion]] = {}
    for one in cool_downs:
        by_cause.setdefault((one.code, one.cause), []).append(one)
    for (code, cause), found in by_cause.items():
        until = Deadline.of(max(one.until for one in found), now)
        offers = (
            found[0].scope if len(found) == 1 else f"{found[0].scope} and {len(found) - 1} more"
        )
        denied = found[0].code == DENIED
        yield Finding(
            what="cool-down",
            level=Level.WRONG if denied else Level.NOTE,
            found=f"{offers}, {until}: {code}: {cause}",
            advice="grant the right (slurm-elastic iam render has all), or take the offer out of "
            "the pool"
            if denied
            else "",
            cause=causes.cause_of_cool_down(found[0]),
        )


def _paused(breaker: Exclusion, now: float) -> Finding:
    """If Slurm took the machines out of service, the reason has the remedy in it."""
    how = breaker.cause if isinstance(breaker.cause, BootsFailed) else BootsFailed()
    remedy = how.remedy
    state = "is paused" if breaker.until > now else "is tried with one machine"
    if not breaker.until:
        state = f"{breaker.count} so far"
    advice = try_pool(breaker.scope)
    if remedy or sickly(breaker):
        looks = remedy or "look into slurmd's log on a machine of the pool"
        advice = f"{looks}; then slurm-elastic clear {breaker.scope}"
    return Finding.wrong(
        f"pool {breaker.scope}",
        f"{state}: {how.finding}",
        expected="machines that register with Slurm, and that it takes as they are",
        advice=advice,
        cause=scope_of_pool(breaker.scope),
    )


def _alive(config: Config, beat: tuple[float, int] | None, now: float) -> Finding:
    limit = config.timings.heartbeat_stale
    if beat is not None and alive(beat, process_exists(beat[1]), now, limit):
        found = f"heartbeat {brief(max(now - beat[0], 0))} ago, pid {beat[1]}"
        return Finding.ok("daemon", found)
    found, expected = "has never run", "it runs"
    if beat is not None:
        found = f"last heartbeat {brief(max(now - beat[0], 0))} ago"
        expected = f"a heartbeat within {brief(limit)}"
        if not process_exists(beat[1]):
            found, expected = f"its process {beat[1]} is gone, {found}", "it runs"
    return Finding.wrong(
        "daemon",
        found,
        expected=f"{expected}: without it nothing is launched or ended",
        advice="systemctl start slurm-elasticd; journalctl -u slurm-elasticd says why it stopped",
        cause=DAEMON,
    )
