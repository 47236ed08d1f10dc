"""Who uses the machines, kept in the ledger for ``cost``: Slurm forgets a job MinJobAge (300 s)
after its end. And counters of what machines and jobs came to.

Times are Slurm's own. A run that Slurm does not tell any more ended by the look that missed it: one
that was requeued, or that ended while slurm-elasticd was away.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from slurm_elastic.books import Books, charges, read_books
from slurm_elastic.config import Config
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.cost_notes import note_costs
from slurm_elastic.controller.periodic import PeriodicTask
from slurm_elastic.errors import ProviderError
from slurm_elastic.hostlist import compress, expand
from slurm_elastic.ledger import Ledger, Machine
from slurm_elastic.ledger.histograms import Counts, observe, series
from slurm_elastic.model_ledger import Run, generation_time
from slurm_elastic.model_slurm import ENDED, SlurmJob
from slurm_elastic.policies.account_budgets import NONE
from slurm_elastic.policies.cost_split import Unused, share
from slurm_elastic.protocols import Provider

PERIOD = 60.0
"""Seconds between two looks; a job is told for MinJobAge after its end."""
PACE = 20.0
"""A look at most takes one part in so many and one of the time."""
RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING"})
"""States of a job whose start is settled; one that is CONFIGURING waits for its machines."""


class UsageRecord:
    """``looks`` is the daemon's task."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._calls = CallTimes()
        for name, provider in site.providers.items():
            self._calls.watch(name, provider)
        self.looks = PeriodicTask(
            site, worker, self.look, "usage", period=PERIOD, pace=PACE
        )  # fmt: skip

    def look(self) -> None:
        """Bring the ledger's runs up to date; Slurm is not asked while there is no machine, nor was
        one since the look before.
        """
        site, now = self._site, self._site.now()
        settle(site.config, site.ledger, now)
        self._count_calls()
        before = site.ledger.open_runs()
        if not before and not site.ledger.machines(ended_since=now - 3 * PERIOD):
            return
        jobs = site.slurm.jobs(ended=True)
        fresh = news(site, before, jobs, now)
        site.ledger.write_runs(fresh)
        if site.config.books.admin_comment:
            note_costs(site, fresh, jobs)

    def _count_calls(self) -> None:
        counts = self._calls.take()
        if counts:
            self._site.ledger.count(counts)


def news(site: Site, before: Sequence[Run], jobs: Iterable[SlurmJob], now: float) -> list[Run]:
    """The rows that differ from what the ledger has: ``before`` are its open ones."""
    told = [run for job in jobs if (run := run_of(site, job)) is not None]
    since = min((run.end for run in told if run.end is not None), default=now)
    opened = {(run.job, run.begin): run for run in before}
    known = {(run.job, run.begin): run for run in site.ledger.runs(since - 1, now)} | opened
    for run in told:
        opened.pop((run.job, run.begin), None)
    found = [run for run in told if known.get((run.job, run.begin)) != run]
    return found + [replace(run, end=max(run.begin, now)) for run in opened.values()]


def run_of(site: Site, job: SlurmJob) -> Run | None:
    """The run that a job has, or had last, on nodes of ours; None without any."""
    over = job.has_ended
    if not job.start or not (job.states & RUNS or (over and job.states & ENDED)):
        return None
    shares = _shares(site, job)
    if not shares:
        return None
    return Run(
        job=job.id,
        begin=job.start,
        end=max(job.end, job.start) if over else None,
        label=job.label,
        user=job.user,
        uid=job.uid,
        account=job.account,
        partition=job.partitions[0] if job.partitions else "",
        shares=shares,
    )


def _shares(site: Site, job: SlurmJob) -> tuple[tuple[str, int], ...]:
    by_pool: dict[str, list[str]] = {}
    for node in job.nodes:
        pool = site.pool_of.get(node)
        if pool is not None:
            by_pool.setdefault(pool.name, []).append(node)
    found = []
    for name, nodes in by_pool.items():
        pool = site.pools[name]
        part = share(
            job.allocated, len(job.nodes), pool.cpus, pool.real_memory, pool.gres
        )  # fmt: skip
        found.append((compress(nodes), part))
    return tuple(found)


# Counters: rows are forgotten one day, sums are not.
#
# Each span of time is counted once, ``LAG`` seconds after it, when Slurm and the clouds have told
# of it; what is learnt later is in ``cost`` but in no counter. Histograms are counters by bucket.


LAG = 120.0
STEP = 30.0
"""Seconds of a span at least."""
LONGEST = 7 * 86400.0
"""Seconds of a span at most: what slurm-elasticd was away for longer is in no counter."""
CALLS = ("offers", "launch", "instances", "terminate", "notices")
NEVER_UP = 3600.0
"""Seconds after which a job's start has nothing to do with its machine's."""

P = ParamSpec("P")
R = TypeVar("R")


def settle(config: Config, ledger: Ledger, now: float) -> None:
    """Count what has become known; the first call only says from when on."""
    until, since = now - LAG, ledger.settled()
    if since is None or since > now:
        ledger.settle(until, {})
    elif until - since >= STEP:
        ledger.settle(until, counted(config, ledger, max(since, until - LONGEST), until, now))


def counted(config: Config, ledger: Ledger, since: float, until: float, now: float) -> Counts:
    """All of one span."""
    books = read_books(config, ledger, since, until, now)
    counts: Counts = defaultdict(float)
    for machine in books.machines:
        _machine(counts, machine, since, until)
    _money(counts, config, books)
    _starts(counts, books)
    return counts


class CallTimes:
    """How long calls to clouds take, and how they end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[tuple[str, str, str, float]] = []

    def watch(self, cloud: str, provider: Provider) -> None:
        """Time this provider's calls from now on."""
        for name in CALLS:
            setattr(provider, name, self._timed(cloud, name, getattr(provider, name)))

    def take(self) -> Counts:
        """Everything since the last time."""
        with self._lock:
            taken, self._calls = self._calls, []
        counts: Counts = defaultdict(float)
        for cloud, name, outcome, seconds in taken:
            observe(counts, "api_seconds", seconds, cloud=cloud, call=name)
            counts[series("api_calls", cloud=cloud, call=name, outcome=outcome)] += 1
        return counts

    def _timed(self, cloud: str, name: str, call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            began, outcome = time.monotonic(), "error"
            try:
                answer = call(*args, **kwargs)
            except ProviderError as error:
                outcome = type(error).__name__.removesuffix("Error").lower()
                raise
            else:
                outcome = "ok"
                return answer
            finally:
                seconds = time.monotonic() - began
                with self._lock:
                    self._calls.append((cloud, name, outcome, seconds))

        return timed


def _machine(counts: Counts, machine: Machine, since: float, until: float) -> None:
    one = machine.instance
    labels = {"cloud": one.cloud, "pool": machine.pool, "market": str(one.market)}
    if since <= one.launched < until:
        counts[series("launched", **labels)] += 1
    if machine.ended is not None and since <= machine.ended < until:
        asked = "asked" if machine.suspending is not None else "lost"
        counts[series("ended", why=asked, **labels)] += 1
    if machine.registered is not None and since <= machine.registered < until:
        seconds = max(machine.registered - one.launched, 0.0)
        observe(counts, "boot_seconds", seconds, cloud=one.cloud, pool=machine.pool)


def _money(counts: Counts, config: Config, books: Books) -> None:
    budgets = config.policies.account_budgets
    for charge in charges(books):
        one, pool = charge.machine.instance, charge.machine.pool
        market = str(one.market)
        counts[series("dollars", cloud=one.cloud, pool=pool, market=market)] += charge.micro / 1e6
        for hour in charge.hours:
            for key, micro in hour.parts.items():
                if isinstance(key, Unused):
                    name = series("unused_dollars", cloud=one.cloud, pool=pool, why=str(key))
                else:
                    account = books.runs[key].account or NONE
                    known = account if account in budgets else "(other)"
                    name = series("account_dollars", account=known)
                counts[name] += micro / 1e6


def _starts(counts: Counts, books: Books) -> None:
    """From registered, and from asked for, to running: of a machine's first job."""
    first: dict[str, Machine] = {m.instance.node: m for m in books.machines}
    for run in books.runs:
        nodes = [node for hostlist, _ in run.shares for node in expand(hostlist)]
        mine = [first.pop(node) for node in nodes if node in first]
        if not books.since <= run.begin < books.until:
            continue
        ups = [m.registered for m in mine if m.registered is not None]
        if len(mine) < len(nodes) or not ups or not 0 <= run.begin - max(ups) <= NEVER_UP:
            continue
        cloud = mine[0].instance.cloud
        observe(counts, "start_delay_seconds", run.begin - max(ups), cloud=cloud)
        asked = [generation_time(m.instance.generation) for m in mine if run.job in m.jobs]
        if asked and min(asked) > 0:
            seconds = max(run.begin - min(asked), 0.0)
            observe(counts, "resume_to_running_seconds", seconds, cloud=cloud)
