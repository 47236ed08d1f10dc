"""``slurm-elastic clear``: end cool-downs and pauses, count jobs again for growth, and close the
records of machines of former clouds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import brief, counted
from slurm_elastic.cli.clear_gone import gone
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.giving_orders import require_trusted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.configfile import load
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, DOUBT
from slurm_elastic.policies.launch.exclusions import touches
from slurm_elastic.state.audit_trail import list_subject, pool_subject
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.store.shared_journal import is_there

_JOB = "job:"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "clear",
        description="End cool-downs of offers and clouds, and pauses of pools, so that they are "
        "tried again at once. The daemon's next round releases the nodes that were held for them. "
        "A cloud's name also makes the daemon trust the cloud's list of machines again. A job "
        "(job:17) is counted again by the growth policy, which stopped because machines came up "
        "for it in vain. --gone counts machines of clouds that have left the configuration as "
        "gone. For root and SlurmUser only.",
        epilog=examples(
            "slurm-elastic clear burst",
            "slurm-elastic clear aws/c5.xlarge/eu-central-1a/spot",
            "slurm-elastic clear job:17",
            "slurm-elastic clear --gone i-0123456789abcdef0",
        ),
    )
    parser.add_argument(
        "subjects",
        metavar="OFFER|POOL|CLOUD|JOB|MACHINE",
        nargs="*",
        help="an offer as `status` shows it (cloud/type/zone/market), a pool, a cloud or "
        "job:NUMBER; with --gone a stray machine or launch as `status` shows it, or a cloud for "
        "all of its machines",
    )
    parser.add_argument(
        "--gone",
        action="store_true",
        help="you have checked a cloud that left the configuration, and these machines are gone: "
        "stop counting their cost",
    )
    parser.add_argument("--all", action="store_true", help="clear everything")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Clear, and print each cleared entry. Exit 2 without subjects.

    Raises SlurmElasticError if the user may not clear, ConfigError for an unknown subject.
    """
    config = load(Path(args.config))
    require_trusted(config)
    if bool(args.subjects) == args.all:
        print(
            "nothing to clear: name offers, pools or clouds, machines with --gone, or give --all",
            file=sys.stderr,
        )
        return 2
    if args.gone and args.all:
        print("--all cannot be combined with --gone: name the machines or clouds", file=sys.stderr)
        return 2
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            cleared = _cleared(args, config, path)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be used: {error}") from error
    for line in cleared:
        plain().print(f"cleared: {line}")
    outlook = f"slurm-elasticd acts on it within {brief(config.timings.reconcile_interval)}"
    print(outlook if cleared else "nothing was cooling down or paused")
    return 0


def _cleared(args: argparse.Namespace, config: Config, path: Path) -> tuple[str, ...]:
    if not is_there(path):
        raise SlurmElasticError(f"{path} does not exist: nothing is cooling down")
    with contextlib.closing(Ledger(path)) as ledger:
        if args.gone:
            return gone(config, ledger, args.subjects, time.time())
        return clear(config, ledger, None if args.all else args.subjects, time.time())


def clear(
    config: Config, ledger: Ledger, subjects: Sequence[str] | None, now: float
) -> tuple[str, ...]:
    """Clear these subjects (None: all). Returns one line for each cleared entry.

    This is safe while the daemon runs: each step is one transaction, and the daemon's next round
    decides from the new state.
    """
    jobs = _jobs(ledger, subjects)
    if subjects is not None:
        subjects = [subject for subject in subjects if not subject.startswith(_JOB)]
    pools = domain_pools(config, expand)
    clouds = [c.name for c in config.clouds if subjects is None or c.name in subjects]
    # readmit() returns whether there was such an entry.
    doubted = [name for name in clouds if ledger.exclusions.readmit(DOUBT, name)]
    keys = [c.scope for c in ledger.exclusions.cool_downs(now)]
    paused = [b.scope for b in ledger.exclusions.breakers()]
    chosen = {*keys, *paused, *(p.name for p in pools)}
    if subjects is not None:
        cloud_names = {c.name for c in config.clouds}
        chosen = set().union(
            *(_meant(subject, pools, cloud_names, keys, paused) for subject in subjects)
        )
    lines = [
        f"cool-down of {key}"
        for key in keys
        if key in chosen and ledger.exclusions.readmit(COOL_DOWN, key)
    ]
    ended = [name for name in paused if name in chosen and ledger.exclusions.readmit(BREAKER, name)]
    lines += [f"failed boots of pool {name}" for name in ended]
    lines += [f"doubt about the list of cloud {name}" for name in doubted]
    for pool in pools:
        if pool.name in chosen or any(touches(key, pool) for key in keys if key in chosen):
            held = ledger.exclusions.review_holds(pool.name, now)
            lines += [f"{counted(held, 'hold')} of nodes of pool {pool.name}"] if held else []
    if ledger.growth_guard.count_again(jobs):
        lines += [f"growth counts job {job} again" for job in jobs]
    if lines:
        text = f"by the operator (uid {os.getuid()}): {'; '.join(lines)}"
        names = {*paused, *(pool.name for pool in pools)}
        scopes = (
            pool_subject(subject) if subject in names else subject for subject in sorted(chosen)
        )
        lists = (list_subject(name) for name in doubted)
        subjects_changed = (
            *scopes,
            *lists,
            *(f"{_JOB}{job}" for job in jobs),
            *(row.scope for row in ledger.exclusions.holds() if row.pool in chosen),
        )
        ledger.decisions.record(
            Decision(
                at=now,
                correlation="clear",
                kind="cleared",
                subjects=subjects_changed,
                cause=Quoted(text=text),
            )
        )
    return tuple(lines)


def _jobs(ledger: Ledger, subjects: Sequence[str] | None) -> list[int]:
    """The named jobs (None: all) that growth has stopped counting. ConfigError for another job."""
    uncounted = [row.job for row in ledger.growth_guard.rows()]
    if subjects is None:
        return uncounted
    named = [subject for subject in subjects if subject.startswith(_JOB)]
    for subject in named:
        if subject.removeprefix(_JOB) not in map(str, uncounted):
            choices = ", ".join(f"{_JOB}{job}" for job in uncounted) or "none"
            raise ConfigError(
                f"{subject!r} is no job that the growth policy has stopped counting; such jobs: "
                f"{choices}"
            )
    return [int(subject.removeprefix(_JOB)) for subject in named]


def _meant(
    subject: str,
    pools: Sequence[Pool],
    clouds: set[str],
    keys: Sequence[str],
    paused: Sequence[str],
) -> set[str]:
    """The keys of cool-downs and the names of pools that ``subject`` stands for.

    A pool stands for its own offers, a cloud for all of its pools and offers. Raises ConfigError
    for an unknown subject.
    """
    by_name = {pool.name: pool for pool in pools}
    if subject in keys:
        return {subject}
    if subject in by_name:
        return {subject, *(key for key in keys if touches(key, by_name[subject]))}
    if subject in clouds:
        pool_names = {p.name for p in pools if p.cloud == subject}
        return pool_names | {key for key in keys if key.split("/")[0] == subject}
    if subject in paused:  # a pool that has left the configuration
        return {subject}
    choices = ", ".join((*keys, *by_name, *sorted(clouds)))
    raise ConfigError(
        f"{subject!r} is no offer that cools down, no pool and no cloud; choose from {choices}"
    )
