"""Reads the ledger, slurm-elastic-ckptman's records and the spool, if the process may open them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.ckptman.unannounced_ends import unannounced_ends
from slurm_elastic.config import Config
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    read_payer_spending,
    read_spending,
)
from slurm_elastic.controller.other_heads import trouble_of_head
from slurm_elastic.features.growth.closed_pools import read_obstacles
from slurm_elastic.features.money.books import Costs, read_books, report, reports
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.state.audit_trail import (
    Stay,
    jobs_of,
    machines_of,
    nodes_of,
    pool_subject,
    tell_job,
    tell_node,
)
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.heartbeat import (
    CKPTMAN,
    CKPTMAN_MARK,
    DAEMON,
    latest,
    process_exists,
    read_mark,
    trouble_of,
    trouble_text,
)
from slurm_elastic.state.ledger import Decision, Ledger, Machine
from slurm_elastic.state.spool import Spool
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.state.store.trouble import trouble_of as file_trouble_of
from slurm_elastic.watch.door.questions import Chain, ChainAsk, CostAsk
from slurm_elastic.watch.door.visibility import Viewer, day_seen
from slurm_elastic.watch.view import DAY_S, Facts
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.day import DaySpan, DayView

LAST = 253402300799  # the last second of the year 9999: Python's dates end there


def may_read(config: Config) -> bool:
    """Whether this process may open the files; True if they do not exist."""
    ledger = config.state / "ledger.db"
    try:
        os.stat(ledger)
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(ledger, os.R_OK)


def read_facts(config: Config, now: float) -> Facts:
    """The facts, with an error in place of each part that cannot be read."""
    with config.sharing():
        return _read_facts(config, now)


def _read_facts(config: Config, now: float) -> Facts:
    mark = read_mark(config.state)
    trouble = trouble_of(config.state, mark, now, config.timings.daemon_timeout)
    facts = _ledger_facts(config, now)
    # Another head comes first: its finding is in the ledger also while the service does not run.
    facts = replace(facts, mark=mark, end_only=facts.end_only or trouble)
    if (beat := latest(facts.heartbeat, mark.beat if mark else None)) is not None:
        facts = replace(facts, process_found=process_exists(beat[1]))
    try:
        facts = replace(facts, checkpoints=_checkpoints(config, now))
    except (OSError, sqlite3.Error) as error:
        facts = replace(facts, checkpoints_error=file_trouble_of(error, config.state / FILE).text)
    except SlurmElasticError as error:
        facts = replace(facts, checkpoints_error=f"{config.state / FILE}: {error}")
    if config.ha.directory is not None:
        # Imported only here: status with one head does not need it, and must be quick.
        from slurm_elastic.watch.door.acting_head import read_head

        facts = replace(facts, head=read_head(config, Path(config.ha.directory), now))
    with contextlib.suppress(OSError):
        if (config.state / "requests").is_dir():
            facts = replace(facts, pending=Spool(config.state).count())
    return facts


def _ledger_facts(config: Config, now: float) -> Facts:
    path = config.state / "ledger.db"
    try:
        ledger = Ledger(path, read_only=True)
        with contextlib.closing(ledger), ledger.moment():
            # One query for live and stopped machines: there may be thousands.
            machines = ledger.machines.live(ended_since=now - DAY_S, stopped=True)
            breakers = ledger.exclusions.breakers()
            return Facts(
                now=now,
                machines=tuple(m for m in machines if not m.is_off),
                stopped=tuple(m for m in machines if m.is_off and not m.has_ended),
                open_launches=ledger.launches.open(),
                cool_downs=ledger.exclusions.cool_downs(now),
                holds=ledger.exclusions.holds(),
                spent=read_spending(apply_directives(config, ledger, now), ledger, now),
                payers=read_payer_spending(config, ledger, now),
                breakers=breakers,
                consoles=read_consoles(ledger, [breaker.scope for breaker in breakers]),
                directives=ledger.directives.all(),
                obstacles=read_obstacles(config, ledger, now),
                requeued=ledger.decisions.requeued(),
                health=ledger.health.all(),
                heartbeat=ledger.health.heartbeat(DAEMON),
                end_only=trouble_of_head(ledger),
                clock_lead_s=ledger.machines.clock_lead_s(),
            )
    except SlurmElasticError as error:
        return Facts(now=now, ledger_error=str(error))
    except OSError as error:
        return Facts(now=now, ledger_error=f"{path}: {error.strerror or error}")
    except sqlite3.Error as error:
        return Facts(now=now, ledger_error=f"{path}: {error}")


def read_consoles(ledger: Ledger, pools: Iterable[str]) -> dict[str, str]:
    """By pool: the last console line of its last machine that did not register."""
    lines: dict[str, str] = {}
    for pool in pools:
        for decision in ledger.decisions.about(pool_subject(pool)):
            if isinstance(decision.cause, ConsoleRead):
                lines[pool] = decision.cause.last_line
            elif decision.kind == "breaker-closed":
                lines.pop(pool, None)  # of failures that are over
    return lines


def _checkpoints(config: Config, now: float) -> CheckpointFacts | None:
    """Read the records of saves and moves; None if slurm-elastic-ckptman has never run."""
    path = config.state / FILE
    if not is_there(path):
        return None
    with contextlib.closing(CheckpointState(path, read_only=True)) as state:
        images, warned = state.images(), state.notices()
        unsavable = tuple(state.unsavable().values())
        migrations = state.migrations(since=now - DAY_S)
    mark = read_mark(config.state, CKPTMAN_MARK)
    beat = mark.beat if mark else None
    with contextlib.suppress(SlurmElasticError), opened(config) as ledger:  # else its facts say so
        beat = latest(beat, ledger.health.heartbeat(CKPTMAN))
        migrations += unannounced_ends(ledger, now - DAY_S, migrations)
    is_running = None if beat is None else process_exists(beat[1])
    stands_by = config.ha.directory is not None and mark is not None and mark.stands_by
    trouble = trouble_text(config.state, mark, now, config.timings.daemon_timeout)
    return CheckpointFacts(
        heartbeat=beat,
        process_found=is_running,
        trouble="" if stands_by else trouble,  # the line of the heads reports it
        images=images,
        warned=warned,
        migrations=migrations,
        unsavable=unsavable,
    )


def ckptman_beat(config: Config) -> tuple[float, int] | None:
    """The last heartbeat of slurm-elastic-ckptman and its process, if its own records cannot be
    read; None if it has never run.
    """
    mark = read_mark(config.state, CKPTMAN_MARK)
    beat = mark.beat if mark else None
    with contextlib.suppress(SlurmElasticError), opened(config) as ledger:
        return latest(beat, ledger.health.heartbeat(CKPTMAN))
    return beat


def read_costs(config: Config, ask: CostAsk, now: float, uid: int | None = None) -> Costs:
    """The costs of one user's jobs (``uid``), or of all. SlurmElasticError if the ledger cannot be
    read, or for impossible times.
    """
    for name, moment in (("since", ask.since), ("until", ask.until)):
        if moment is not None and not 0 <= moment <= LAST:
            raise SlurmElasticError(f"{name} is {moment:g}, expected a Unix time from 0 to {LAST}")
    with opened(config) as ledger:
        books = read_books(config, ledger, ask.since, ask.until, now)
    return report(books, ask.by, share_unused=ask.share_unused, uid=uid)


def read_costs_by_key(
    config: Config, keys: Sequence[By], since: float, until: float, now: float
) -> dict[By, Costs]:
    """The costs of all jobs, summed by each key from one reading of the ledger."""
    with opened(config) as ledger:
        books = read_books(config, ledger, since, until, now)
    return reports(books, keys)


def read_day(
    config: Config, now: float, span: DaySpan = DaySpan.DAY
) -> tuple[tuple[Machine, ...], tuple[ChargedRun, ...]]:
    """The machines and runs of that span. SlurmElasticError for an unreadable ledger."""
    since = now - span.seconds
    with opened(config) as ledger:
        return ledger.machines.live(ended_since=since), ledger.usage.runs(since, now)


def read_days(config: Config, now: float, span: DaySpan, viewer: Viewer | None = None) -> DayView:
    """The last hours or days, as far as ``viewer`` may see them (None: all)."""
    return day_seen(*read_day(config, now, span), now, span, viewer)


@contextlib.contextmanager
def opened(config: Config) -> Iterator[Ledger]:
    """Open the ledger for reading. SlurmElasticError if its database cannot be read."""
    path = config.state / "ledger.db"
    try:
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            yield ledger
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be read: {error}") from error


def read_chain(config: Config, ask: ChainAsk, now: float) -> Chain:
    """The decisions about a subject. SlurmElasticError if the ledger cannot be read."""
    with opened(config) as ledger:
        return _chain(config, ledger, ask, now)


def _chain(config: Config, ledger: Ledger, ask: ChainAsk, now: float) -> Chain:
    if ask.about == "pool":
        machines = tuple(m for m in ledger.machines.live() if m.pool == ask.name)
        return Chain(
            decisions=ledger.decisions.about(pool_subject(ask.name)),
            machines=machines,
            obstacles=read_obstacles(config, ledger, now),
        )
    if ask.about == "node":
        # sqlite rejects a name in invalid UTF-8, and no node has such a name.
        decisions = tell_node(ask.name, ledger.decisions.about) if ask.name.isprintable() else []
        since = decisions[0].at if decisions else None
        machines = ledger.machines.live(ended_since=since, nodes=[ask.name])
    else:
        decisions = tell_job(int(ask.name), ledger.decisions.about, ask.nodes)
        machines = _machines_of_job(config, ledger, ask, decisions)
    named = {job for decision in decisions for job in jobs_of(decision)}
    if ask.about == "job":
        named.add(int(ask.name))
    return Chain(
        decisions=tuple(decisions),
        machines=machines,
        obstacles=read_obstacles(config, ledger, now) if ask.about == "job" else Obstacles(),
        labels=ledger.usage.labels(named),
    )


def _machines_of_job(
    config: Config, ledger: Ledger, ask: ChainAsk, chain: Sequence[Decision]
) -> tuple[Machine, ...]:
    """The machines that the job ran on; before its first run, the machines launched for it."""
    job = int(ask.name)
    stays = _stays(config, ledger, ask)
    if stays:
        nodes = {node for stay in stays for node in stay.nodes}
        since = min(stay.begin for stay in stays)
        return machines_of(stays, ledger.machines.live(ended_since=since, nodes=nodes))
    nodes = {node for decision in chain for node in nodes_of(decision)}
    candidates = ledger.machines.live(ended_since=chain[0].at if chain else None, nodes=nodes)
    return tuple(machine for machine in candidates if job in machine.jobs)


def _stays(config: Config, ledger: Ledger, ask: ChainAsk) -> list[Stay]:
    """The nodes of the job over time, from Slurm, the usage records and the moves.

    A short run may be in only one source.
    """
    job = int(ask.name)
    stays = [Stay(ask.nodes, ask.begin, ask.end)] if ask.nodes else []
    for run in ledger.usage.runs_of(job):
        nodes = tuple(node for hostlist, _ in run.shares for node in expand(hostlist))
        stays.append(Stay(nodes, run.begin, run.end))
    path = config.state / FILE
    with contextlib.suppress(OSError, sqlite3.Error, SlurmElasticError):
        if is_there(path):
            with contextlib.closing(CheckpointState(path, read_only=True)) as state:
                moves = state.migrations_of(job)
            stays += [Stay(move.run.nodes, move.run.started, move.changed) for move in moves]
    return stays
