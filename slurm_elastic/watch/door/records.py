"""Reads the ledger, slurm-elastic-ckptman's memory and the spool, for who may open the files."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.controller.books import Costs, read_books, report
from slurm_elastic.controller.budget import (
    barred,
    limits_now,
    spending,
    spending_of_payers,
)
from slurm_elastic.model.memory import Run
from slurm_elastic.policies.money.account_budgets import barring
from slurm_elastic.state.audit_trail import (
    Stay,
    machines_of,
    nodes_of,
    pool_subject,
    tell_job,
    tell_node,
)
from slurm_elastic.state.ckptstate import FILE, CheckpointState
from slurm_elastic.state.heartbeat import (
    CKPTMAN,
    CKPTMAN_MARK,
    DAEMON,
    latest,
    process_exists,
    read_mark,
    told,
)
from slurm_elastic.state.ledger import Decision, Ledger, Machine
from slurm_elastic.state.spool import Spool
from slurm_elastic.watch.door.asks import Chain, ChainAsk, CostAsk
from slurm_elastic.watch.door.bars import bars
from slurm_elastic.watch.view import DAY, Facts
from slurm_elastic.watch.view.checkpoints import CheckpointFacts

LAST = 253402300799
"""The last second of the year 9999, which is the last one that has a date."""


def may_read(config: Config) -> bool:
    """Whether this process may open the files, as far as there are any."""
    ledger = config.state / "ledger.db"
    try:
        os.stat(ledger)
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(ledger, os.R_OK)


def read_facts(config: Config, now: float) -> Facts:
    """The facts say which part cannot be read."""
    mark = read_mark(config.state)
    why = told(config.state, mark, now, config.timings.heartbeat_stale)
    facts = replace(_ledger_facts(config, now), mark=mark, end_only=why)
    if (beat := latest(facts.heartbeat, mark.beat if mark else None)) is not None:
        facts = replace(facts, process_found=process_exists(beat[1]))
    try:
        facts = replace(facts, checkpoints=_checkpoints(config, now))
    except (OSError, sqlite3.Error, SlurmElasticError) as error:
        facts = replace(facts, checkpoints_error=f"{config.state / FILE}: {error}")
    with contextlib.suppress(OSError):
        if (config.state / "requests").is_dir():
            facts = replace(facts, pending=Spool(config.state).count())
    return facts


def _ledger_facts(config: Config, now: float) -> Facts:
    path = config.state / "ledger.db"
    try:
        ledger = Ledger(path, read_only=True)
        with contextlib.closing(ledger):
            found = ledger.machines(ended_since=now - DAY, stopped=True)  # read once: thousands
            return Facts(
                now=now,
                machines=tuple(m for m in found if m.stopped is None),
                stopped=tuple(m for m in found if m.stopped is not None and m.ended is None),
                open_launches=ledger.open_launches(),
                cool_downs=ledger.cool_downs(now),
                holds=ledger.holds(),
                spent=spending(limits_now(config, ledger, now), ledger, now),
                payers=spending_of_payers(config, ledger, now),
                breakers=ledger.breakers(),
                directives=ledger.directives(),
                health=ledger.health(),
                heartbeat=ledger.heartbeat(DAEMON),
            )
    except SlurmElasticError as error:
        return Facts(now=now, ledger_error=str(error))
    except OSError as error:
        return Facts(now=now, ledger_error=f"{path}: {error.strerror or error}")
    except sqlite3.Error as error:
        return Facts(now=now, ledger_error=f"{path}: {error}")


def _checkpoints(config: Config, now: float) -> CheckpointFacts | None:
    """None where the service has never run."""
    path = config.state / FILE
    if not path.exists():
        return None
    with contextlib.closing(CheckpointState(path, read_only=True)) as state:
        images, warned = state.images(), state.notices()
        unsavable = tuple(state.unsavable().values())
        migrations = state.migrations(since=now - DAY)
    mark = read_mark(config.state, CKPTMAN_MARK)
    beat = mark.beat if mark else None
    with (
        contextlib.suppress(sqlite3.Error, SlurmElasticError),  # slurm-elasticd sees to that
        contextlib.closing(Ledger(config.state / "ledger.db", read_only=True)) as ledger,
    ):
        beat = latest(beat, ledger.heartbeat(CKPTMAN))
    found = None if beat is None else process_exists(beat[1])
    return CheckpointFacts(
        heartbeat=beat,
        process_found=found,
        trouble=told(config.state, mark, now, config.timings.heartbeat_stale),
        images=images,
        warned=warned,
        migrations=migrations,
        unsavable=unsavable,
    )


def read_costs(config: Config, ask: CostAsk, now: float, uid: int | None = None) -> Costs:
    """The costs of one user's jobs (``uid``), or of all. SlurmElasticError where the ledger cannot
    be read, and for times that are none.
    """
    for name, at in (("since", ask.since), ("until", ask.until)):
        if at is not None and not 0 <= at <= LAST:
            raise SlurmElasticError(f"{name} is {at:g}, expected a Unix time from 0 to {LAST}")
    path = config.state / "ledger.db"
    try:
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            books = read_books(config, ledger, ask.since, ask.until, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be read: {error}") from error
    return report(books, ask.by, share_unused=ask.share_unused, uid=uid)


def read_day(config: Config, now: float) -> tuple[tuple[Machine, ...], tuple[Run, ...]]:
    """The machines and the runs of which some part is within the last 24 hours. SlurmElasticError
    where the ledger cannot be read.
    """
    path = config.state / "ledger.db"
    try:
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            return ledger.machines(ended_since=now - DAY), ledger.runs(now - DAY, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be read: {error}") from error


def read_chain(config: Config, ask: ChainAsk, now: float) -> Chain:
    """SlurmElasticError where the ledger cannot be read."""
    path = config.state / "ledger.db"
    try:
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            return _chain(config, ledger, ask, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be read: {error}") from error


def _chain(config: Config, ledger: Ledger, ask: ChainAsk, now: float) -> Chain:
    if ask.about == "pool":
        machines = tuple(m for m in ledger.machines() if m.pool == ask.name)
        return Chain(decisions=ledger.decisions(pool_subject(ask.name)), machines=machines)
    if ask.about == "node":
        # A word that was no UTF-8 on the command line cannot be asked for, and names nothing.
        found = tell_node(ask.name, ledger.decisions) if ask.name.isprintable() else []
        since = found[0].at if found else None
        machines = ledger.machines(ended_since=since, nodes=[ask.name])
    else:
        found = tell_job(int(ask.name), ledger.decisions, ask.nodes)
        machines = _machines_of_job(config, ledger, ask, found)
    asks = ask.account or ask.user
    why = barring(barred(config, ledger, now), ask.account, ask.user) if asks else None
    return Chain(
        decisions=tuple(found),
        machines=machines,
        barred=why.reason if why else "",
        bars=bars(config, ledger, ask.wants, now) if ask.wants else (),
    )


def _machines_of_job(
    config: Config, ledger: Ledger, ask: ChainAsk, chain: Sequence[Decision]
) -> tuple[Machine, ...]:
    """By where it was when; before its first run those that were launched for it."""
    job = int(ask.name)
    stays = _stays(config, ledger, ask)
    if stays:
        nodes = {node for stay in stays for node in stay.nodes}
        since = min(stay.begin for stay in stays)
        return machines_of(stays, ledger.machines(ended_since=since, nodes=nodes))
    nodes = {node for decision in chain for node in nodes_of(decision)}
    known = ledger.machines(ended_since=chain[0].at if chain else None, nodes=nodes)
    return tuple(machine for machine in known if job in machine.jobs)


def _stays(config: Config, ledger: Ledger, ask: ChainAsk) -> list[Stay]:
    """A run that ended soon after its begin may be known to Slurm or to the moves alone."""
    job = int(ask.name)
    stays = [Stay(ask.nodes, ask.begin, ask.end)] if ask.nodes else []
    for run in ledger.runs_of(job):
        nodes = tuple(node for hostlist, _ in run.shares for node in expand(hostlist))
        stays.append(Stay(nodes, run.begin, run.end))
    path = config.state / FILE
    with contextlib.suppress(OSError, sqlite3.Error, SlurmElasticError):
        if path.exists():
            with contextlib.closing(CheckpointState(path, read_only=True)) as state:
                moves = state.migrations_of(job)
            stays += [Stay(move.run.nodes, move.run.started, move.changed) for move in moves]
    return stays
