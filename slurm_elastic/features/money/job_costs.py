"""The costs of single jobs so far, and their present rates, from the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.features.money.books import charges, of_jobs, read_books
from slurm_elastic.model.memory import ChargedRun, Machine
from slurm_elastic.policies.money.cost_split import WHOLE, Unused
from slurm_elastic.state.ledger import Ledger

_HOUR_S = 3600


class JobCost(Struct, frozen=True, kw_only=True):
    """The cost of all runs of a job in micro-dollars. ``markets``: of the machines that it used."""

    micro: int = 0
    markets: frozenset[str] = frozenset()


def costs_of_jobs(
    config: Config,
    ledger: Ledger,
    jobs: Mapping[int, int],
    now: float,
    ends: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, JobCost]:
    """The costs of jobs that ran on our machines, to the micro-dollar as in ``cost --by job``.

    ``jobs``: the uid of each job's user. Slurm's numbers come again (MaxJobId, a lost
    StateSaveLocation), and the runs of another user's earlier job of the number do not count.
    ``ends``: by job, when it ended according to Slurm. The ledger learns of an end up to a minute
    later, and until then counts the run as if it went on.
    """
    # Read the runs job by job. The ledger may keep millions of runs, and a reading holds its lock.
    runs = (run for job in jobs for run in ledger.usage.runs_of(job) if _is_of(run, jobs))
    begin = min((run.begin for run in runs), default=None)
    if begin is None:
        return {}
    # An hour of a machine is split as a whole: from within an hour the parts would be rounded
    # otherwise than in a report of the month.
    books = read_books(config, ledger, begin // _HOUR_S * _HOUR_S, None, now)
    books = books._replace(runs=[_ended_run(run, ends) for run in books.runs])
    # Reservations need all machines, because these share the price.
    books = books if books.held else of_jobs(books, jobs)
    micro: defaultdict[int, int] = defaultdict(int)
    markets: defaultdict[int, set[str]] = defaultdict(set)
    for charge in charges(books):
        for hour in charge.hours:
            for key, share_micro in hour.parts.items():
                if not isinstance(key, Unused) and _is_of(books.runs[key], jobs):
                    job = books.runs[key].job
                    micro[job] += share_micro
                    markets[job].add(str(charge.machine.instance.market))
    return {job: JobCost(micro=micro[job], markets=frozenset(markets[job])) for job in micro}


def _is_of(run: ChargedRun, jobs: Mapping[int, int]) -> bool:
    return jobs.get(run.job) == run.uid


def _ended_run(run: ChargedRun, ends: Mapping[int, float]) -> ChargedRun:
    """The run with the end of its job, if the ledger does not know the end yet."""
    end = ends.get(run.job)
    return run if run.end is not None or end is None else replace(run, end=max(end, run.begin))


def rates_of_jobs(
    ledger: Ledger, jobs: Mapping[int, int], machines: Iterable[Machine]
) -> Mapping[int, float]:
    """The cost of each job now, in dollars per hour: its share of the ``machines`` that it runs on.
    A job on a machine of unknown price is left out. ``jobs``: as in ``costs_of_jobs``.
    """
    prices = node_prices(machines)
    rates: dict[int, float] = {}
    for run in ledger.usage.open_runs():
        shares = [(node, share) for nodes, share in run.shares for node in expand(nodes)]
        if _is_of(run, jobs) and all(node in prices for node, _ in shares):
            rates[run.job] = sum(prices[node] * share / WHOLE for node, share in shares)
    return rates


def node_prices(machines: Iterable[Machine]) -> Mapping[str, float]:
    """The price of the machine of each node now, in dollars per hour."""
    return {
        machine.instance.node: max(machine.instance.price, _reserved_price(machine))
        for machine in machines
        if not machine.has_ended and not machine.is_off
    }


def _reserved_price(machine: Machine) -> float:
    """The price of a machine whose reservation is paid by other rows of the books."""
    return machine.worst_price if not machine.instance.price else 0.0
