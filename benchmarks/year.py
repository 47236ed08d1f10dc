"""A year of a busy site through the real ledger: its size, and whether readings stay as quick.

2,000 machines of 10,000 nodes, 10,000 jobs a day, requests of ten nodes each of which 40 offers may
serve. Every row is written by the ledger's own methods and forgotten by its own pruning; only the
clock is virtual, rows of an hour share a transaction, and pruning comes once a day.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as with_clock
from itertools import count
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from benchmarks import operate
from benchmarks.report import Report, Row, bounded, compared, median, noted, report
from slurm_elastic.cli.jobs.explain import explain
from slurm_elastic.cli.jobs.explain_text import render_short
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.machine_ends import SuspendedBySlurm
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.providers.fake.provider import FakeAccount, FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view import status_view

DAY, HOUR = 86400.0, 3600.0
MONTH = 31
FLAT = 1.5
"""Times of the first month that a reading at the year's end may take."""
REQUEST = 10
"""Nodes of a request."""
JOBS_OF_A_MACHINE = 4
KEEP_HISTORY = 30 * DAY
START = 1_700_000_000.0


class Year:
    """The site's state between two hours."""

    def __init__(self, ledger: Ledger, nodes: int, machines: int, jobs: int, offers: int) -> None:
        self.ledger = ledger
        self.nodes, self.machines, self.jobs = nodes, machines, jobs
        self.offers = tuple(offers_of(offers))
        self.live: deque[tuple[Instance, ...]] = deque()
        self._requests, self._jobs = count(1), count(1)

    def run(self, first: int, last: int) -> None:
        """The days from ``first`` up to ``last``."""
        per_hour = self.jobs / JOBS_OF_A_MACHINE / REQUEST / 24
        due = 0.0
        for day in range(first, last):
            for hour in range(24):
                now = START + day * DAY + hour * HOUR
                due += per_hour
                with self.ledger.together():
                    for _ in range(int(due)):
                        self.request(now)
                due -= int(due)
            self.ledger.prune(START + (day + 1) * DAY - KEEP_HISTORY)
            self.ledger.compact(START + (day + 1) * DAY)

    def request(self, now: float) -> None:
        """Ten nodes are wanted, launched and used; the oldest ten machines end."""
        number = next(self._requests)
        while len(self.live) * REQUEST >= self.machines:
            self.end(self.live.popleft(), now)
        begin = (number - 1) * REQUEST
        names = tuple(f"n{(begin + i) % self.nodes + 1}" for i in range(REQUEST))
        pool = Pool(name="p", cloud="pub", nodes=names, cpus=2, real_memory=4000)
        jobs = tuple(next(self._jobs) for _ in range(REQUEST * JOBS_OF_A_MACHINE))
        first, *others = self.offers
        spec = LaunchSpec(
            generation=f"g{int(now * 1000):013d}-{number:08x}", pool=pool, nodes=names,
            offer=first, jobs=jobs[:REQUEST], alternatives=tuple(others),
        )  # fmt: skip
        found = tuple(
            Instance(
                id=f"i-{begin + i:017x}", cloud="pub", node=name, generation=spec.generation,
                instance_type=first.instance_type, zone=first.zone, market=first.market,
                price=first.price, state=InstanceState.RUNNING, launched=now,
                address=f"10.{begin + i >> 16 & 255}.{begin + i >> 8 & 255}.{begin + i & 255}",
            )
            for i, name in enumerate(names)
        )  # fmt: skip
        self.ledger.launches.record_intent(spec, f"r{number}", now)
        self.ledger.machines.record_launch(spec.generation, found, now + 2)
        self.ledger.machines.record_registration("pub", [one.id for one in found], now + 90)
        subjects = (*names, *(f"job:{job}" for job in jobs[:REQUEST]))
        self.ledger.decisions.record(*told(self.offers, subjects, f"r{number}", now))
        self.ledger.usage.write(list(runs(names, jobs, now)))
        self.live.append(found)

    def end(self, found: Sequence[Instance], now: float) -> None:
        """Slurm has suspended them."""
        ids, cause = [one.id for one in found], SuspendedBySlurm()
        self.ledger.machines.record_ending("pub", ids, cause, now)
        self.ledger.machines.record_end("pub", ids, cause, now + 5)
        nodes = tuple(one.node for one in found)
        self.ledger.decisions.record(
            Decision(at=now, correlation="s", kind="terminated", subjects=nodes, cause=cause)
        )


def offers_of(number: int) -> Iterator[Offer]:
    """Types in two zones on two markets, the cheapest first."""
    for n in range(number):
        spot = n % 2 == 0
        yield Offer(
            cloud="pub", location=Location.PUBLIC, instance_type=f"c{n // 4}.large",
            zone=f"eu-west-1{'ab'[n // 2 % 2]}", market=Market.SPOT if spot else Market.ON_DEMAND,
            price=0.03 + n / 1000, cpus=2, memory=4096, on_demand_price=0.1 + n / 1000,
        )  # fmt: skip


def told(
    offers: Sequence[Offer], subjects: tuple[str, ...], request: str, now: float
) -> Iterator[Decision]:
    """The chain of one request."""
    detail: dict[str, object] = {
        "ranked": [[o.key, 10, f"public, {o.market}, ${o.price:.4f}/h"] for o in offers[:3]],
        "behind": [[o.key, "dearer"] for o in offers[3:6]],
        "rejected": [[o.key, "the cluster is limited to 2000 nodes"] for o in offers[6:9]],
    }
    best = f"best offer for {REQUEST} node(s) of pool p: {offers[0].key}"
    for kind, reason, more in (("ranked", best, detail), ("launched", "c0.large, spot", None)):
        yield Decision(
            at=now,
            correlation=request,
            kind=kind,
            subjects=subjects,
            cause=Quoted(text=reason),
            detail=more,
        )


def runs(names: Sequence[str], jobs: Sequence[int], now: float) -> Iterator[ChargedRun]:
    """The runs of each machine's jobs, one after the other, an hour each."""
    for i, job in enumerate(jobs):
        begin = now + 90 + HOUR * (i // len(names))
        yield ChargedRun(
            job=job, begin=begin, end=begin + HOUR, label=str(job), user=f"user{job % 300}",
            uid=1000 + job % 300, account=f"account{job % 40}", partition="pub",
            shares=((names[i % len(names)], 1_000_000),),
        )  # fmt: skip


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench year")
    for name, usual in (
        ("days", 365), ("nodes", 10_000), ("machines", 2_000), ("jobs", 10_000), ("offers", 40),
        ("runs", 5),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-year-") as name:
        return report("year", list(measured(Path(name), options)))


def measured(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of sizes, then of readings at the end beside those of the first month."""
    file = operate.site(place, options.nodes, 1)
    path = place / "state" / "ledger.db"
    for old in (*path.parent.glob("ledger.db*"), *path.parent.glob("journal/ledger[-.]*")):
        old.unlink()
    budget = Budget(per_month=1e9)
    config = replace(configfile.load(file), policies=SitePolicies(budget=budget))
    ledger = Ledger(path)
    year = Year(ledger, options.nodes, options.machines, options.jobs, options.offers)
    began = time.process_time()
    month = min(MONTH, options.days)
    year.run(0, month)
    first, size = readings(config, year, START + month * DAY, options.runs), path.stat().st_size
    year.run(month, options.days)
    last = readings(config, year, START + options.days * DAY, options.runs)
    spent = time.process_time() - began
    yield noted("ledger after a month", size / 1e6, "MB")
    yield noted("ledger at the end", path.stat().st_size / 1e6, "MB")
    kept = ledger.store.select("select min(at) from decisions")[0][0]
    days = (START + options.days * DAY - kept) / DAY
    yield bounded("days of decisions at the end", days, KEEP_HISTORY / DAY + 1, "days")
    for table in ("machines", "launches", "decisions", "runs"):
        rows = ledger.store.select(f"select count(*) from {table}")[0][0]
        yield noted(f"rows of {table} at the end", rows, "rows")
    for what, seconds in last.items():
        yield compared(f"{what}, beside the first month", seconds, first[what], "s", at_most=FLAT)
    yield noted("processor time of it all", spent, "s")
    ledger.close()


def readings(config: Config, year: Year, now: float, runs: int) -> dict[str, float]:
    """Processor time (s) of each, the median."""
    live = [one for some in year.live for one in some]
    slurm = slurm_of(year, live)
    newest, newest_job = live[-1].node, str(slurm.jobs()[-1].id)

    def status() -> None:
        facts = replace(read_facts(config, now), nodes=slurm.nodes(), jobs=slurm.jobs())
        render(status_view(config, facts), console())

    site, clock = site_of(config, year, slurm, live, now)
    round_ = Round(site, "pub")

    def repair() -> None:
        clock[0] += 60
        year.ledger.refresh()
        round_.run()

    asked: dict[str, Callable[[], None]] = {
        "status": status,
        "explain of a node": lambda: render_short(explain(config, slurm, newest), console()),
        "explain of a job": lambda: render_short(explain(config, slurm, newest_job), console()),
        "a round": repair,
    }
    for call in asked.values():  # what is read for the first time comes from the disk
        call()
    return {what: median([used(call) for _ in range(runs)]) for what, call in asked.items()}


def used(call: Callable[[], None]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def console() -> Console:
    return Output(file=io.StringIO(), width=120, markup=False, emoji=False, highlight=False)


def slurm_of(year: Year, live: Sequence[Instance]) -> FakeSlurm:
    """Nodes with machines run a job each; of the last request they are the newest."""
    busy, off = frozenset({"ALLOCATED", "CLOUD"}), frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
    address = {one.node: one.address or "" for one in live}
    nodes = [
        SlurmNode(name=name, states=busy if name in address else off, address=address.get(name, ""))
        for name in (f"n{n}" for n in range(1, year.nodes + 1))
    ]
    last = next(year._jobs) - REQUEST * JOBS_OF_A_MACHINE
    jobs = [
        SlurmJob(id=last - len(live) + n, states=frozenset({"RUNNING"}), nodes=(one.node,))
        for n, one in enumerate(live, 1)
    ]
    return FakeSlurm(nodes, jobs)


def site_of(
    config: Config, year: Year, slurm: FakeSlurm, live: Sequence[Instance], now: float
) -> tuple[Site, list[float]]:
    """The daemon's context over a cloud that has these machines; its clock."""
    clock = [now]
    account = FakeAccount()
    for one in live:
        account.add_foreign(one, owner=config.cluster.uuid)
    settings = config.cloud("pub")
    cloud = FakeProvider(settings, config.cluster, account, lambda: clock[0])  # type: ignore[arg-type]
    site = Site.of(config, slurm, year.ledger, {"pub": cloud}, lambda: clock[0])
    return with_clock(site, monotonic=lambda: clock[0]), clock
