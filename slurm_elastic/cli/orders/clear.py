"""``slurm-elastic clear``: end cool-downs and pauses, count jobs again for growth, and close the
records of machines of former clouds.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import brief, counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.cli.orders.clear_gone import gone
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.controller.other_heads import SUBJECT as OTHER_HEAD_SUBJECT
from slurm_elastic.controller.other_heads import continue_here
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, DOUBT
from slurm_elastic.policies.launch.exclusions import touches
from slurm_elastic.state.audit_trail import list_subject, pool_subject
from slurm_elastic.state.host import read_host
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.watch.door.rights import Person, own_person, require_trusted

_JOB = "job:"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "clear",
        description="End cool-downs of offers and clouds, and pauses of pools, so that they are "
        "tried again at once. The daemon's next round releases the nodes that were held for them. "
        "A cloud's name also makes the daemon trust the cloud's list of machines again. A job "
        "(job:17) is counted again by the growth policy, which stopped because machines came up "
        "for it in vain. other-head says that this head continues after another one was found to "
        "work for this cluster; stop the other one first. --gone counts machines of clouds that "
        "have left the configuration as gone. For root and SlurmUser only.",
        epilog=examples(
            "slurm-elastic clear burst",
            "slurm-elastic clear aws/c5.xlarge/eu-central-1a/spot",
            "slurm-elastic clear job:17",
            "slurm-elastic clear other-head",
            "slurm-elastic clear --gone i-0123456789abcdef0",
        ),
    )
    parser.add_argument(
        "subjects",
        metavar="OFFER|POOL|CLOUD|JOB|MACHINE|other-head",
        nargs="*",
        help="an offer as `status` shows it (cloud/type/zone/market), a pool, a cloud or "
        "job:NUMBER, or other-head; with --gone a stray machine or launch as `status` shows it, "
        "or a cloud for all of its machines",
    )
    parser.add_argument(
        "--gone",
        action="store_true",
        help="you have checked a cloud that left the configuration, and these machines are gone: "
        "stop counting their cost",
    )
    parser.add_argument("--all", action="store_true", help="clear everything")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be cleared, and change nothing"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Clear, and print each cleared entry. Exit 2 without subjects.

    Raises SlurmElasticError if the user may not clear, ConfigError for an unknown subject.
    """
    config, person = config_to_look(args), own_person()
    require_trusted(config, person)
    if misuse := wrong_use(args):
        print(misuse, file=sys.stderr)
        return 2
    cleared = carry_out(args, config, person, time.time())
    for line in cleared:
        plain().print(f"{'would be cleared' if args.dry_run else 'cleared'}: {line}")
    print(outlook(args, config, cleared))
    return 0


def wrong_use(args: argparse.Namespace) -> str:
    """Why these arguments do not fit together; "" if they fit."""
    if bool(args.subjects) == args.all:
        return "nothing to clear: name offers, pools or clouds, machines with --gone, or give --all"
    if args.gone and args.all:
        return "--all cannot be combined with --gone: name the machines or clouds"
    return ""


def outlook(args: argparse.Namespace, config: Config, cleared: Sequence[str]) -> str:
    """The last line of the output for people: what happens after these entries were cleared."""
    if not cleared:
        return "nothing was cooling down or paused"
    if args.dry_run:
        return "dry run: nothing was changed"
    return f"slurm-elasticd acts on it within {brief(config.timings.reconcile_interval)}"


def carry_out(
    args: argparse.Namespace, config: Config, person: Person, now: float
) -> tuple[str, ...]:
    """Clear for this person, unless it is a dry run. Returns one line for each entry."""
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            return _cleared(args, config, path, person, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be used: {error}") from error


def _cleared(
    args: argparse.Namespace, config: Config, path: Path, person: Person, now: float
) -> tuple[str, ...]:
    if not is_there(path):
        raise SlurmElasticError(f"{path} does not exist: nothing is cooling down")
    with contextlib.closing(Ledger(path)) as ledger:
        if args.gone:
            return gone(config, ledger, args.subjects, now, person.uid, dry=args.dry_run)
        subjects = None if args.all else args.subjects
        if subjects is not None and OTHER_HEAD_SUBJECT in subjects:
            # By its name alone: --all must not decide which of two heads continues.
            return _head_chosen(config, ledger, subjects, now, person.name, dry=args.dry_run)
        if args.dry_run:
            return clearance(config, ledger, subjects, now).lines
        return clear(config, ledger, subjects, now, person.name)


def _head_chosen(
    config: Config, ledger: Ledger, subjects: Sequence[str], now: float, giver: str, *, dry: bool
) -> tuple[str, ...]:
    """Let this head continue although another one works or worked for this cluster. Return one
    line; none if no other head was found.
    """
    if len(subjects) > 1:
        raise ConfigError(f"{OTHER_HEAD_SUBJECT} is cleared by itself, without other subjects")
    finding = ledger.owner.other_head()
    if finding is None:
        return ()
    if not dry:
        host = read_host() if config.ha.directory is None else None
        continue_here(ledger, host, ledger.journal_origin(), now, giver)
    return (f"this head continues; before, {finding.cause}",)


class Clearance(Struct, frozen=True, kw_only=True):
    """The entries that end: scopes of cool-downs, pools with a breaker, clouds whose lists are in
    doubt, the number of holds by pool, and jobs that growth does not count. ``chosen``: all keys
    and pools that the subjects stand for.
    """

    cool_downs: tuple[str, ...]
    breakers: tuple[str, ...]
    doubts: tuple[str, ...]
    holds: Mapping[str, int]
    jobs: tuple[int, ...]
    chosen: frozenset[str]

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            *(f"cool-down of {key}" for key in self.cool_downs),
            *(f"failed boots of pool {name}" for name in self.breakers),
            *(f"doubt about the list of cloud {name}" for name in self.doubts),
            *(
                f"{counted(held, 'hold')} of nodes of pool {name}"
                for name, held in self.holds.items()
                if held
            ),
            *(f"growth counts job {job} again" for job in self.jobs),
        )


def clearance(
    config: Config, ledger: Ledger, subjects: Sequence[str] | None, now: float
) -> Clearance:
    """The entries that these subjects stand for (None: all). ConfigError for an unknown subject."""
    jobs = _jobs(ledger, subjects)
    if subjects is not None:
        subjects = [subject for subject in subjects if not subject.startswith(_JOB)]
    pools = domain_pools(config, expand)
    doubts = {row.scope for row in ledger.exclusions.all() if row.kind == DOUBT}
    clouds = [c.name for c in config.clouds if subjects is None or c.name in subjects]
    keys = [c.scope for c in ledger.exclusions.cool_downs(now)]
    paused = [b.scope for b in ledger.exclusions.breakers()]
    chosen = {*keys, *paused, *(p.name for p in pools)}
    if subjects is not None:
        cloud_names = {c.name for c in config.clouds}
        chosen = set().union(
            *(_meant(subject, pools, cloud_names, keys, paused) for subject in subjects)
        )
    cleared_keys = tuple(key for key in keys if key in chosen)
    held = Counter(row.pool for row in ledger.exclusions.holds() if row.kind == CAPACITY)
    return Clearance(
        cool_downs=cleared_keys,
        breakers=tuple(name for name in paused if name in chosen),
        doubts=tuple(name for name in clouds if name in doubts),
        holds={
            pool.name: held[pool.name]
            for pool in pools
            if pool.name in chosen or any(touches(key, pool) for key in cleared_keys)
        },
        jobs=tuple(jobs),
        chosen=frozenset(chosen),
    )


def clear(
    config: Config, ledger: Ledger, subjects: Sequence[str] | None, now: float, giver: str
) -> tuple[str, ...]:
    """Clear these subjects (None: all) for the person ``giver``. Returns one line for each cleared
    entry. The daemon's next round decides from the new state.
    """
    entries = clearance(config, ledger, subjects, now)
    # One transaction: the daemon must not see a released node whose offer still cools down.
    with ledger.together():
        ledger.exclusions.readmit(DOUBT, *entries.doubts)
        ledger.exclusions.readmit(COOL_DOWN, *entries.cool_downs)
        ledger.exclusions.readmit(BREAKER, *entries.breakers)
        for pool in entries.holds:
            ledger.exclusions.review_holds(pool, now)
        ledger.growth_guard.count_again(entries.jobs)
        if entries.lines:
            _record(config, ledger, entries, now, giver)
    return entries.lines


def _record(config: Config, ledger: Ledger, entries: Clearance, now: float, giver: str) -> None:
    chosen = entries.chosen
    names = {*entries.breakers, *(pool.name for pool in config.pools)}
    scopes = (pool_subject(subject) if subject in names else subject for subject in sorted(chosen))
    lists = (list_subject(name) for name in entries.doubts)
    subjects_changed = (
        *scopes,
        *lists,
        *(f"{_JOB}{job}" for job in entries.jobs),
        *(row.scope for row in ledger.exclusions.holds() if row.pool in chosen),
    )
    ledger.decisions.record(
        Decision(
            at=now,
            correlation="clear",
            kind="cleared",
            subjects=subjects_changed,
            cause=Quoted(text=f"by {giver}: {'; '.join(entries.lines)}"),
        )
    )


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
        # The first part of an offer's key is its cloud.
        return pool_names | {key for key in keys if key.split("/")[0] == subject}
    if subject in paused:  # a pool that has left the configuration
        return {subject}
    choices = ", ".join((*keys, *by_name, *sorted(clouds)))
    raise ConfigError(
        f"{subject!r} is no offer that cools down, no pool and no cloud; choose from {choices}"
    )
