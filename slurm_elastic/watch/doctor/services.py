"""The services: whether they run, and the troubles that the ledger knows."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief, counted
from slurm_elastic.config import Config
from slurm_elastic.controller.other_heads import trouble_of_head
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.directive import Directive, clock, scope_of_pool, stop_reason
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.finding import Finding, FindingLevel, try_pool
from slurm_elastic.policies.clock_guard import CLOCK_REMEDY, wrong_clock
from slurm_elastic.policies.launch.exclusions import DENIED, sickly
from slurm_elastic.policies.launch.unhelped_words import unhelped_sentence
from slurm_elastic.policies.repair.strays import count_of
from slurm_elastic.slurm.conf import plan
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
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
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.store.trouble import TroubleKind, trouble_of
from slurm_elastic.watch import causes
from slurm_elastic.watch.causes import DISK, LEDGER
from slurm_elastic.watch.doctor.reserved import UNUSED_S, reserved
from slurm_elastic.watch.door.records import read_consoles
from slurm_elastic.watch.out_of_reach import unendable

_CONSOLE = "repair the cloud (above), or end them in its console"
_ROOTS_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_STRAYS = (
    "look for them in the cloud: a deletion that failed, a protection, tags that were changed; of "
    "a cloud that left the configuration: slurm-elastic clear --gone, once they are gone"
)


def daemon(config: Config, now: float) -> Iterator[Finding]:
    """Yield slurm-elasticd's heartbeat, its last errors, and the pools and clouds that it has
    paused.
    """
    path, mark = config.state / "ledger.db", read_mark(config.state)
    service = trouble_of_service(config.state, mark, now, config.timings.daemon_timeout)
    # Another head is reported from the ledger, also while the service does not run.
    if service and not service.is_other_head and not _stands_by(config, mark):
        yield _cannot_write("daemon", service, "a ledger", DAEMON, LEDGER)
    try:
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            # Read everything before the first finding goes out: the ledger must not stay open
            # while the caller prints.
            ledger_findings = tuple(
                _ledger_findings(config, ledger, mark.beat if mark else None, now)
            )
        yield from ledger_findings
    except (sqlite3.Error, OSError) as error:
        trouble = trouble_of(error, path)
        yield Finding.wrong(
            f"ledger {path}",
            trouble.text,
            expected="a ledger that can be read",
            advice=f"{trouble.remedy}; until then slurm-elasticd, if it runs, only ends machines",
            cause=DISK if trouble.kind is TroubleKind.FULL else LEDGER,
        )
    except ConfigError as error:  # a later release wrote it: a start would fail, too
        yield _of_later_release(f"ledger {path}", error, DAEMON)
    except SlurmElasticError as error:
        yield Finding.wrong(
            f"ledger {path}",
            str(error),
            expected="a ledger of this release",
            advice="start slurm-elasticd, which makes it and brings it up to date",
            cause=DAEMON,
        )


def _of_later_release(subject: str, error: ConfigError, cause: str) -> Finding:
    """Report a file of a later release; the error names the remedy."""
    expected = "a file of this release or an earlier one"
    return Finding.wrong(subject, str(error), expected=expected, cause=cause)


def _ledger_findings(
    config: Config, ledger: Ledger, mark_beat: tuple[float, int] | None, now: float
) -> Iterator[Finding]:
    if (trouble := trouble_of_head(ledger)) is not None:
        yield Finding.wrong(
            "head",
            trouble.finding,
            expected="one head that works for this cluster",
            advice=trouble.remedy,
        )
    beat = latest(ledger.health.heartbeat(DAEMON), mark_beat)
    yield _alive(config, beat, now)
    yield from _clock(beat, ledger, now)
    yield from _ckptman(config, ledger, now)
    clouds = {cloud.name for cloud in config.clouds}
    machines = ledger.machines.live()
    for health in ledger.health.all():
        if health.error:
            # Only a note: the cloud's own examination reports the cause, and it counts once.
            if unendable_text := unendable(
                health, [m for m in machines if m.instance.cloud == health.name]
            ):
                yield Finding.note("paid machines", unendable_text, advice=_CONSOLE)
            advice = _STRAYS if count_of(health.code) else ""
            cause = causes.cause_of_health(health, clouds)
            error_text = health.dated_error(max(now - health.checked, 1.0))
            yield Finding.wrong("last errors", error_text, advice=advice, cause=cause)
    breakers = ledger.exclusions.breakers()
    consoles = read_consoles(ledger, [breaker.scope for breaker in breakers])
    for breaker in breakers:
        console = consoles.get(breaker.scope, "")
        if breaker.until or _was_taken_out(breaker):
            yield _paused(breaker, now, console)
        elif console:
            yield _failing(breaker, console)
    orders = [d for d in ledger.directives.all() if d.holds(now)]
    yield from map(_order, orders)
    yield from _held(config, ledger)
    yield from _unhelped(ledger, now)
    yield from reserved(config, ledger.machines.live(ended_since=now - UNUSED_S), now)
    yield from _cooling(ledger.exclusions.cool_downs(now), now)


def _unhelped(ledger: Ledger, now: float) -> Iterator[Finding]:
    """Report jobs that still wait although machines came up for them."""
    if rows := ledger.growth_guard.jobs(now):
        text, advice = unhelped_sentence(rows)
        yield Finding.note("waiting jobs", text, advice=advice, cause=causes.UNHELPED)


def checkpoints(config: Config, now: float) -> Iterator[Finding]:
    """Yield whether slurm-elastic-ckptman can record its work, and whether nodes on this host are
    ready for checkpoints.
    """
    yield from _guard(config)
    mark = read_mark(config.state, CKPTMAN_MARK)
    trouble = trouble_of_service(config.state, mark, now, config.timings.daemon_timeout)
    if trouble and not _stands_by(config, mark):
        yield _cannot_write("checkpoints", trouble, "a state directory", CKPTMAN, CKPTMAN)
    path = config.state / FILE
    try:
        if path.exists():
            CheckpointState(path, read_only=True).close()
    except ConfigError as error:
        yield _of_later_release(f"records of saves {path}", error, CKPTMAN)
    except (sqlite3.Error, OSError) as error:
        fault = trouble_of(error, path)
        yield Finding.wrong(
            f"records of saves {path}",
            fault.text,
            expected="records that can be read",
            advice=fault.remedy,
            cause=DISK if fault.kind is TroubleKind.FULL else CKPTMAN,
        )


def _stands_by(config: Config, mark: Mark | None) -> bool:
    """Return whether the service is well and only waits for the other head (see ``two_heads``)."""
    return config.ha.directory is not None and mark is not None and mark.stands_by


def _guard(config: Config) -> Iterator[Finding]:
    """Report a missing firewall on a host whose own nodes use DMTCP.

    The firewall keeps DMTCP's coordinators from other users.
    """
    local_clouds = {cloud.name for cloud in config.clouds if cloud.provider == "local"}
    pools = [pool for pool in config.pools if pool.cloud in local_clouds]
    methods = {(p.checkpoint and p.checkpoint.method) or config.checkpoint.method for p in pools}
    if "dmtcp" in methods and shutil.which("nft", path=_ROOTS_PATH) is None:
        yield Finding.wrong(
            "dmtcp",
            "no nft on this host, where its nodes are",
            expected="nftables: without it jobs of this method run without checkpoints",
            advice="apt install nftables, or method criu",
        )


def _cannot_write(
    subject: str, trouble: ServiceTrouble, place: str, service: str, cause: str
) -> Finding:
    return Finding.wrong(
        subject,
        trouble.finding,
        expected=f"{place} that can be written",
        advice=f"{trouble.remedy}; {service} then continues without a restart",
        cause=DISK if trouble.is_disk_full else cause,
    )


def _clock(beat: tuple[float, int] | None, ledger: Ledger, now: float) -> Iterator[Finding]:
    """Report if the clock was set back since the ledger was written, or was ahead of a cloud's."""
    times = [machine.instance.launched for machine in ledger.machines.live()]
    lead_s = ledger.machines.clock_lead_s()
    if trouble := wrong_clock([*times, beat[0]] if beat else times, now, lead_s):
        yield Finding.wrong("clock", trouble.finding, advice=CLOCK_REMEDY)


def _ckptman(config: Config, ledger: Ledger, now: float) -> Iterator[Finding]:
    """Report if slurm-elastic-ckptman has stopped.

    If it has never run, the site does not use it, and nothing is reported.
    """
    mark = read_mark(config.state, CKPTMAN_MARK)
    beat = latest(ledger.health.heartbeat(CKPTMAN), mark.beat if mark else None)
    if beat is None or alive(beat, process_exists(beat[1]), now, config.timings.daemon_timeout):
        return
    yield Finding.wrong(
        "checkpoints",
        f"slurm-elastic-ckptman does not run: last heartbeat {brief(now - beat[0])} ago",
        expected="it runs: without it no job is saved, nor moved before its machine is taken",
        advice=service_remedies.start_or_log("slurm-elastic-ckptman"),
    )


def _order(directive: Directive) -> Finding:
    """Report an operator's order, and the command that ends it."""
    return Finding.note(
        "order",
        stop_reason(directive, f" since {clock(directive.since)}"),
        advice=f"to end it: {directive.word.ending_command}",
        cause=causes.cause_of_order(directive.number),
    )


def _held(config: Config, ledger: Ledger) -> Iterator[Finding]:
    """Report pools that start no machine now."""
    pools = {pool.name: pool for pool in plan.pools_of(config)}
    # A growth policy holds its pools' nodes whenever it does not need them: that is normal.
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
    """Report offers not tried now, by reason."""
    by_cause: dict[tuple[str, AnyCause], list[Exclusion]] = {}
    for cool_down in cool_downs:
        by_cause.setdefault((cool_down.code, cool_down.cause), []).append(cool_down)
    for (code, cause), exclusions in by_cause.items():
        until = Deadline.of(max(cool_down.until for cool_down in exclusions), now)
        offers = (
            exclusions[0].scope
            if len(exclusions) == 1
            else f"{exclusions[0].scope} and {len(exclusions) - 1} more"
        )
        denied = exclusions[0].code == DENIED
        yield Finding(
            subject="cool-down",
            level=FindingLevel.WRONG if denied else FindingLevel.NOTE,
            observed=f"{offers}, {until}: {code}: {cause}",
            advice="grant the right (slurm-elastic iam render has all), or take the offer out of "
            "the pool"
            if denied
            else "",
            cause=causes.cause_of_cool_down(exclusions[0]),
        )


def _was_taken_out(breaker: Exclusion) -> bool:
    """Whether Slurm has taken machines of the pool out of service. A few machines that others have
    ended are no finding.
    """
    return isinstance(breaker.cause, BootsFailed) and bool(breaker.cause.node_reason)


def _paused(breaker: Exclusion, now: float, console: str) -> Finding:
    """Report a pool whose machines fail; if Slurm took them out of service, with its remedy."""
    failure = breaker.cause if isinstance(breaker.cause, BootsFailed) else BootsFailed()
    remedy = failure.remedy
    state = "is paused" if breaker.until > now else "is tried with one machine"
    if not breaker.until:
        state = f"{breaker.count} so far"
    advice = try_pool(breaker.scope)
    if remedy or sickly(breaker):
        first_step = remedy or "look into slurmd's log on a machine of the pool"
        advice = f"{first_step}; then slurm-elastic clear {breaker.scope}"
    evidence = f"; its console ended with: {console}" if console and not remedy else ""
    return Finding.wrong(
        f"pool {breaker.scope}",
        f"{state}: {failure.finding}{evidence}",
        expected="machines that register with Slurm and are as it expects them",
        advice=advice,
        cause=scope_of_pool(breaker.scope),
    )


def _failing(breaker: Exclusion, console: str) -> Finding:
    """Report a pool not paused yet, with the evidence of its last failure."""
    failed = counted(breaker.count, "machine")
    return Finding.note(
        f"pool {breaker.scope}",
        f"{failed} booted but never registered with Slurm; its console ended with: {console}",
        advice=try_pool(breaker.scope),
        cause=scope_of_pool(breaker.scope),
    )


def _alive(config: Config, beat: tuple[float, int] | None, now: float) -> Finding:
    limit = config.timings.daemon_timeout
    if beat is not None and alive(beat, process_exists(beat[1]), now, limit):
        text = f"heartbeat {brief(max(now - beat[0], 0))} ago, pid {beat[1]}"
        return Finding.ok("daemon", text)
    text, expected = "has never run", "it runs"
    if beat is not None:
        text = f"last heartbeat {brief(max(now - beat[0], 0))} ago"
        expected = f"a heartbeat within {brief(limit)}"
        if not process_exists(beat[1]):
            text, expected = f"its process {beat[1]} is gone, {text}", "it runs"
    return Finding.wrong(
        "daemon",
        text,
        expected=f"{expected}: without it nothing is launched or ended",
        advice=service_remedies.start_or_log("slurm-elasticd"),
        cause=DAEMON,
    )
