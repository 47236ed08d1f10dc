"""Counters of use. The ledger deletes its rows after a retention time, but not the counters.

Each span of time is counted once, ``LAG_S`` seconds after its end, when Slurm and the clouds have
usually reported everything. Facts that arrive later are in ``cost`` but in no counter. A histogram
is one counter per bucket.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, ParamSpec, TypeVar

from slurm_elastic.base.age import known_age_s
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.features.money.books import CostRows, charges, idle_reservations, read_books
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.machine_states import Ended, Lost
from slurm_elastic.model.memory import generation_time
from slurm_elastic.model.protocols import Provider, Tidying
from slurm_elastic.policies.money.account_budgets import NONE
from slurm_elastic.policies.money.cost_split import Unused
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.ledger.histograms import Counts, observe, series
from slurm_elastic.state.ledger.retention import MACHINES_KEPT

LAG_S = 120.0
MIN_SPAN_S = 30.0
"""Minimum length of a span."""
MAX_SPAN_S = 7 * 86400.0
"""Maximum length of a span. No counter has a longer span: slurm-elasticd was down for longer, or
the clock is far ahead, and running machines would be counted as if they had run until then.
"""
CALLS = ("offers", "launch", "instances", "terminate", "notices")
MAX_START_DELAY_S = 3600.0
"""Seconds between a machine's registration and the start of a job. A longer delay is not
counted.
"""

P = ParamSpec("P")
R = TypeVar("R")


def record_reservations(config: Config, ledger: Ledger, now: float) -> None:
    """Record the begun reservations, so that costs count them after their entries have left the
    configuration. The function does nothing while the ledger's file cannot be used, because the
    file may have older records.
    """
    if not ledger.end_only:
        # Older ones are not kept: see ``Ledger.compact``.
        held = [held for held in config.held if held.ends_at >= now - MACHINES_KEPT]
        ledger.books.record_reservations(held, now)


def settle(config: Config, ledger: Ledger, now: float) -> None:
    """Count the span since the last call. The first call only records the begin. While the ledger's
    file cannot be used it records nothing, because the file may already contain a begin.
    """
    until, since = now - LAG_S, ledger.usage.settled()
    # If the clock was set in between, or the pause was too long, start over.
    if since is None or known_age_s(since, now, LAG_S + MAX_SPAN_S, skew_s=0.0) is None:
        if not ledger.end_only:
            ledger.usage.settle(until, {})
    elif until - since >= MIN_SPAN_S:
        ledger.usage.settle(until, counted(config, ledger, since, until, now))


def counted(config: Config, ledger: Ledger, since: float, until: float, now: float) -> Counts:
    """All counts of one span (Unix time)."""
    books = read_books(config, ledger, since, until, now)
    counts: Counts = defaultdict(float)
    for machine in books.machines:
        _count_machine(counts, machine, since, until)
    _count_dollars(counts, config, books)
    _count_starts(counts, books)
    return counts


class CallTimes:
    """Durations and outcomes of calls to clouds. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_calls")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[tuple[str, str, str, float]] = []

    def watch(self, cloud: str, provider: Provider) -> None:
        """Wrap the provider's methods so that each call is recorded."""
        for name in CALLS:
            setattr(provider, name, self._timed(cloud, name, getattr(provider, name)))
        if isinstance(provider, Tidying):
            # It lists, too, in the place of ``instances``.
            provider.tidy = self._timed(cloud, "instances", provider.tidy)  # type: ignore[method-assign]

    def take(self) -> Counts:
        """Return the counts since the last call of ``take``, and reset them."""
        with self._lock:
            calls, self._calls = self._calls, []
        counts: Counts = defaultdict(float)
        for cloud, name, outcome, seconds in calls:
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


def _count_machine(counts: Counts, machine: Machine, since: float, until: float) -> None:
    instance = machine.instance
    labels = {"cloud": instance.cloud, "pool": machine.pool, "market": str(instance.market)}
    if since <= instance.launched < until:
        counts[series("launched", **labels)] += 1
    life = machine.life
    if isinstance(life, Ended | Lost) and since <= life.ended_at < until:
        end_kind = "asked" if isinstance(life, Ended) else "lost"
        counts[series("ended", reason=end_kind, **labels)] += 1
    if life.registered_at is not None and since <= life.registered_at < until:
        seconds = max(life.registered_at - instance.launched, 0.0)
        observe(counts, "boot_seconds", seconds, cloud=instance.cloud, pool=machine.pool)


def _count_dollars(counts: Counts, config: Config, books: CostRows) -> None:
    budgets = config.policies.account_budgets
    for charge in charges(books):
        instance, pool = charge.machine.instance, charge.machine.pool
        market = str(instance.market)
        counts[series("dollars", cloud=instance.cloud, pool=pool, market=market)] += (
            charge.micro / 1e6
        )
        for hour in charge.hours:
            for key, micro in hour.parts.items():
                if isinstance(key, Unused):
                    name = series(
                        "unused_dollars", cloud=instance.cloud, pool=pool, reason=str(key)
                    )
                else:
                    account = books.runs[key].account or NONE
                    account_label = account if account in budgets else "(other)"
                    name = series("account_dollars", account=account_label)
                counts[name] += micro / 1e6
    for idle in idle_reservations(books):
        cloud, pool = idle.held.cloud, f"(reservation {idle.held.name})"
        market, reason = str(Market.RESERVED), str(Unused.RESERVED)
        dollars = series("dollars", cloud=cloud, pool=pool, market=market)
        unused = series("unused_dollars", cloud=cloud, pool=pool, reason=reason)
        for name in (dollars, unused):
            counts[name] += idle.micro / 1e6


def _count_starts(counts: Counts, books: CostRows) -> None:
    """Count the delays until a machine's first job runs: since the machine's registration, and
    since the request for it.
    """
    first_machines: dict[str, Machine] = {m.instance.node: m for m in books.machines}
    for run in books.runs:
        nodes = [node for hostlist, _ in run.shares for node in expand(hostlist)]
        # Remove the machines of runs before the span, too: a later run is not their first.
        run_machines = [first_machines.pop(node) for node in nodes if node in first_machines]
        if not books.since <= run.begin < books.until:
            continue
        ups = [m.registered_at for m in run_machines if m.registered_at is not None]
        if (
            len(run_machines) < len(nodes)
            or not ups
            or not 0 <= run.begin - max(ups) <= MAX_START_DELAY_S
        ):
            continue
        cloud = run_machines[0].instance.cloud
        observe(counts, "start_delay_seconds", run.begin - max(ups), cloud=cloud)
        asked = [generation_time(m.instance.generation) for m in run_machines if run.job in m.jobs]
        if asked and min(asked) > 0:
            seconds = max(run.begin - min(asked), 0.0)
            observe(counts, "resume_to_running_seconds", seconds, cloud=cloud)
