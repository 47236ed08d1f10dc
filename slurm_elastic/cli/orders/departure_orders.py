"""Shared by ``drain``, ``replace`` and ``migrate``: the subject, the effects and the cost."""

from __future__ import annotations

import argparse
import datetime
import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.base.local_time import minute
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import counted, does, format_duration, money
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.operate.status import gather
from slurm_elastic.cli.orders.giving_orders import PlannedOrder, duration, run_planned
from slurm_elastic.cli.orders.other_cloud import in_other_cloud, require_open
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.limit_changes import places, pools_in, scope_named
from slurm_elastic.model.directive import (
    Departure,
    clock,
    describe,
    replaced_orders,
    scope_in_words,
)
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.departure import concerned, jobs_on
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.heartbeat import CKPTMAN, alive
from slurm_elastic.state.ledger import Machine
from slurm_elastic.watch.door.orders import MAX_ORDER_S
from slurm_elastic.watch.door.questions import DirectAsk
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.job_saves import choice_of

SHOWN = 12  # jobs that are named of each kind
TYPING_TIME_S = 60.0  # a time that has passed while somebody typed it means now
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d)?", re.ASCII)


def moment(text: str) -> float:
    """Unix time of ``22:00`` (the next one, local), ``2026-11-30T22:00`` (local if it names no
    zone) or ``now+2h``, for argparse.
    """
    now = time.time()
    if text.startswith("now+"):
        return now + duration(text[4:])
    try:
        at = _next(text, now) if _CLOCK.fullmatch(text) else _of_date(text)
    except (ValueError, OverflowError):
        forms = "22:00, 2026-11-30T22:00 (local time) or now+2h"
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is no time such as {forms}") from None
    if at < now - TYPING_TIME_S:
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is in the past: it is {minute(now)} now")
    if at > now + MAX_ORDER_S:
        longest = format_duration(MAX_ORDER_S)
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is more than {longest} from now")
    return at


def _next(text: str, now: float) -> float:
    hour = datetime.time.fromisoformat(text)
    today = datetime.datetime.fromtimestamp(now).date()  # noqa: DTZ006 - the day on local clocks
    for day in (today, today + datetime.timedelta(days=1)):
        # The time without a zone. A zone of now would be wrong after a change of the clocks.
        at = datetime.datetime.combine(day, hour).timestamp()
        if at > now:
            break
    return at


def _of_date(text: str) -> float:
    # Beyond the years 1 to 9999 of UTC no other command could show the time: OverflowError.
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC).timestamp()


def add_leaving(parser: argparse.ArgumentParser) -> None:
    """Add the options that the commands of all three departures have."""
    parser.add_argument(
        "--max-unavailable", type=count, metavar="N", dest="unavailable",
        help="let at most N machines leave at a time (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--at", type=moment, metavar="TIME",
        help="begin then: 22:00, 2026-11-30T22:00 (local time) or now+2h (default: now)",
    )  # fmt: skip
    parser.add_argument(
        "--yes", action="store_true",
        help="do not ask at a terminal before jobs lose work or a cloud is emptied",
    )  # fmt: skip


def add_subject(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``drain`` and ``replace``: the subject, and whether jobs are moved."""
    parser.add_argument(
        "subject", metavar="NODES|POOL|CLOUD", help="nodes of pools, a pool or a cloud"
    )
    parser.add_argument(
        "--aggressive", action="store_true",
        help="save and requeue their jobs; jobs that cannot be saved start over",
    )  # fmt: skip


def read(config: Config, now: float) -> Facts:
    """Read the records and Slurm."""
    return gather(config, PromptCli(config.slurm), now)


def leave(verb: str, args: argparse.Namespace) -> int:
    """Print the effects of a drain or a replacement, and order it. Returns the exit code, 2 if the
    subject is not ours.
    """
    return run_planned(args, functools.partial(plan_leaving, verb), read)


def plan_leaving(verb: str, args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    word = departure(config, verb, args.subject)
    return planned(args, config, facts, replace(word, aggressive=args.aggressive))


def planned(
    args: argparse.Namespace, config: Config, facts: Facts, word: Departure
) -> PlannedOrder:
    """The departure ``word`` with its effects. ConfigError if the other cloud is closed."""
    word = replace(word, unavailable=args.unavailable)
    starts = max(args.at or facts.now, facts.now)
    if word.to:
        require_open(config, facts, word.to, starts)
    return PlannedOrder(
        ask=DirectAsk(word=word, starts=args.at, seconds=args.seconds, reason=args.reason),
        preview=tuple(preview(config, facts, word, starts)),
        question="" if args.yes else question(config, facts, word, starts),
        basis=tuple(_basis(config, facts, word, starts)),
    )


def _basis(config: Config, facts: Facts, word: Departure, starts: float) -> Iterator[object]:
    """The ids of the machines that leave, and of the jobs that would not run to their
    ends on them.
    """
    machines = concerned([m for m in facts.machines if m.is_wanted], word, starts)
    yield sorted(m.instance.id for m in machines)
    yield sorted(m.instance.id for m in concerned(facts.stopped, word, starts))
    yield [d.number for d in replaced_orders(facts.directives, word, starts, facts.now)]
    if not word.aggressive:
        return
    jobs = moved_jobs(config, facts, jobs_on(facts.jobs, [m.instance.node for m in machines]))
    yield {method: [job.id for job in saved] for method, saved in jobs.saved.items()}
    yield [job.id for job in jobs.restarted]
    yield [job.id for job in jobs.awaited]


def departure(config: Config, verb: str, text: str) -> Departure:
    """The departure of the cloud, the pool or the nodes in ``text``. Raises ConfigError if they are
    not ours.
    """
    pools = domain_pools(config, expand)
    ours = {node for pool in pools for node in pool.nodes}
    try:
        names = tuple(expand(text))
    except HostlistError:
        names = ()
    if names and set(names) <= ours:
        return Departure(verb=verb, about=compress(names), nodes=names)
    if names and not ours.isdisjoint(names):
        strange = compress(n for n in names if n not in ours)
        raise ConfigError(f"{strange}: no pool of the configuration has it")
    scope = scope_named(config, text, nodes=True)
    if not scope:
        raise ConfigError(f"{text!r}: name nodes, a pool or a cloud; there are {places(config)}")
    mine = pools_in(config, scope)
    nodes = tuple(node for pool in pools if pool.name in mine for node in pool.nodes)
    return Departure(verb=verb, about=scope_in_words(scope), nodes=nodes, scope=scope)


def preview(config: Config, facts: Facts, word: Departure, starts: float) -> Iterator[str]:
    """Yield a sentence for each effect of the departure ``word`` from ``starts`` on, and for its
    cost.
    """
    live = [m for m in facts.machines if m.is_wanted]
    machines = concerned(live, word, starts)
    kept = concerned(facts.stopped, word, starts)
    when = f"From {clock(starts)} on: " if starts > facts.now else ""
    verb = {"drain": "Drain", "replace": "Replace", "migrate": "Empty"}[word.verb]
    how = f"at most {word.unavailable} at a time, " if word.unavailable else ""
    after = "after its jobs" if len(machines) == 1 else "after their jobs"
    mode = "jobs are moved" if word.aggressive else after
    subject = f"{when}{verb.lower() if when else verb} {word.about}: "
    if machines or not kept:
        leave = does(len(machines), "leave")
        yield f"{subject}{_priced(machines, 'machine')} {leave}, {how}{mode}."
        subject = ""
    if kept:
        are = "is" if len(kept) == 1 else "are"
        yield f"{subject}{_priced(kept, 'stopped machine')} {are} ended."
    for earlier, end in replaced_orders(facts.directives, word, starts, facts.now).items():
        ends = "at once" if end is None else f"at {clock(end)}"
        yield f"It replaces an order, which ends {ends}: {describe(earlier, facts.now)}."
    if word.blocks_starts:
        nodes = counted(len(word.nodes), "node")
        yield f"Nothing new starts there ({nodes}) until `{word.ending_command}`."
    jobs = jobs_on(facts.jobs, [m.instance.node for m in machines])
    if word.aggressive and jobs:
        yield from _silent_ckptman(config, facts)
    if word.aggressive:
        yield from _moved(facts, moved_jobs(config, facts, jobs))
    else:
        yield from _after(facts, jobs, machines)
    if word.to:
        yield from in_other_cloud(config, facts, word, machines, jobs, starts)


def _priced(machines: Sequence[Machine], noun: str) -> str:
    dollars = sum(m.instance.price for m in machines)
    return f"{counted(len(machines), noun)} at {money(dollars)}/h"


def _after(facts: Facts, jobs: Sequence[SlurmJob], machines: Sequence[Machine]) -> Iterator[str]:
    busy = {node for job in jobs for node in job.nodes}
    idle = sum(m.instance.node not in busy for m in machines)
    if idle:
        yield f"{counted(idle, 'machine')} without a job: at once."
    if not jobs:
        return
    ends = [ends_at for job in jobs if (ends_at := job.ends_at_latest) is not None]
    known = len(ends) == len(jobs)
    latest = max(ends, default=facts.now)
    yield f"{counted(len(jobs), 'job')} {does(len(jobs), 'end')} first: {_named(jobs)}."
    if known:
        cost = sum(
            m.lease.cost(max(latest, facts.now)) - m.lease.cost(facts.now)
            for m in machines
            if m.instance.node in busy
        )
        over = f"By their time limits the last one ends at {clock(latest)}"
        yield f"{over}, at most {money(cost)} from now."
    else:
        yield "Some have no time limit or are suspended, so the end is unknown."


class MovedJobs(Struct, frozen=True):
    """The jobs of machines that leave before these jobs have ended, by their fate."""

    saved: Mapping[str, Sequence[SlurmJob]]
    """By checkpoint method; they continue elsewhere."""
    restarted: Sequence[SlurmJob]
    """They have no method, so they lose their work."""
    awaited: Sequence[SlurmJob]
    """Interactive jobs, and jobs that may not be requeued."""


def moved_jobs(config: Config, facts: Facts, jobs: Sequence[SlurmJob]) -> MovedJobs:
    """Sort the jobs by the effect of an aggressive departure."""
    saved: dict[str, list[SlurmJob]] = {}
    restarted: list[SlurmJob] = []
    awaited: list[SlurmJob] = []
    for job in jobs:
        choice = choice_of(config, job)
        unsaved = choice.refused or choice.method == "none" or facts.checkpoints is None
        method = "" if unsaved else choice.method
        if not job.batch or not (job.requeue or method):
            awaited.append(job)
        elif method:
            saved.setdefault(method, []).append(job)
        else:
            restarted.append(job)
    return MovedJobs(saved, restarted, awaited)


def _moved(facts: Facts, jobs: MovedJobs) -> Iterator[str]:
    for method, saved in jobs.saved.items():
        yield f"{_are(saved, 'saved')} by {method}, to continue elsewhere: {_named(saved)}."
    if restarted := jobs.restarted:
        lost = sum((facts.now - j.start) * max(len(j.nodes), 1) for j in restarted if j.start)
        # Jobs that have just begun lose less than is worth a figure.
        hours = round(lost / 3600, 1)
        loss = f", {hours:.1f} node-hours of work are LOST" if hours > 0 else ""
        start = does(len(restarted), "start")
        count_ = counted(len(restarted), "job")
        yield f"{count_} without a method {start} over{loss}: {_named(restarted)}."
    if awaited := jobs.awaited:
        count_ = counted(len(awaited), "job")
        run = does(len(awaited), "run")
        yield f"{count_} {run} to the end, interactive or not to be requeued: {_named(awaited)}."


def question(config: Config, facts: Facts, word: Departure, starts: float) -> str:
    """The question before jobs lose work or a cloud is emptied. "" if neither happens."""
    live = [m for m in facts.machines if m.is_wanted]
    machines = concerned(live, word, starts)
    jobs = jobs_on(facts.jobs, [m.instance.node for m in machines])
    restarted = moved_jobs(config, facts, jobs).restarted if word.aggressive else ()
    if restarted:
        return f"{counted(len(restarted), 'job')} {does(len(restarted), 'lose')} all work. Do it?"
    if machines and word.blocks_starts and word.scope.startswith("cloud:"):
        return f"This empties {word.about}. Do it?"
    return ""


def _are(jobs: Sequence[SlurmJob], done: str) -> str:
    return f"{counted(len(jobs), 'job')} {'is' if len(jobs) == 1 else 'are'} {done}"


def _silent_ckptman(config: Config, facts: Facts) -> Iterator[str]:
    there, stale = facts.checkpoints, config.timings.daemon_timeout
    if facts.checkpoints_error:
        yield f"{CKPTMAN} cannot be asked: {facts.checkpoints_error}."
    elif there is None:
        yield f"{CKPTMAN} has never run here: nothing can be saved."
    elif not alive(there.heartbeat, there.process_found, facts.now, stale):
        yield (
            f"{CKPTMAN} does NOT RUN: no job is saved or moved until it does; "
            f"do: {service_remedies.start(CKPTMAN)}"
        )


def _named(jobs: Sequence[SlurmJob]) -> str:
    names = [job.label for job in jobs[:SHOWN]]
    more = len(jobs) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
