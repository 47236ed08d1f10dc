"""Counters of use: rows are forgotten one day, sums are not.

Each span of time is counted once, ``LAG`` seconds after it, when Slurm and the clouds have told
of it; what is learnt later is in ``cost`` but in no counter. Histograms are counters by bucket.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, ParamSpec, TypeVar

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.features.books import Books, charges, read_books
from slurm_elastic.model.machine_states import Ended, Lost
from slurm_elastic.model.memory import generation_time
from slurm_elastic.model.protocols import Provider
from slurm_elastic.policies.money.account_budgets import NONE
from slurm_elastic.policies.money.cost_split import Unused
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.ledger.histograms import Counts, observe, series

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
    """Count what has become known; the first call only says from when on. That waits for files in
    use: in theirs it may have been said already.
    """
    until, since = now - LAG, ledger.usage.settled()
    # Ahead of now where the clock was set back: it is begun anew.
    if since is None or since > now:
        if not ledger.end_only:
            ledger.usage.settle(until, {})
    elif until - since >= STEP:
        ledger.usage.settle(until, counted(config, ledger, max(since, until - LONGEST), until, now))


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

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_calls")}

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
    life = machine.life
    if isinstance(life, Ended | Lost) and since <= life.ended_at < until:
        why = "asked" if isinstance(life, Ended) else "lost"
        counts[series("ended", why=why, **labels)] += 1
    if life.registered_at is not None and since <= life.registered_at < until:
        seconds = max(life.registered_at - one.launched, 0.0)
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
        # Also of a run before the span: the next one is not the first job of its machine.
        mine = [first.pop(node) for node in nodes if node in first]
        if not books.since <= run.begin < books.until:
            continue
        ups = [m.registered_at for m in mine if m.registered_at is not None]
        if len(mine) < len(nodes) or not ups or not 0 <= run.begin - max(ups) <= NEVER_UP:
            continue
        cloud = mine[0].instance.cloud
        observe(counts, "start_delay_seconds", run.begin - max(ups), cloud=cloud)
        asked = [generation_time(m.instance.generation) for m in mine if run.job in m.jobs]
        if asked and min(asked) > 0:
            seconds = max(run.begin - min(asked), 0.0)
            observe(counts, "resume_to_running_seconds", seconds, cloud=cloud)
