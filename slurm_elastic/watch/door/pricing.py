"""Collects what a price forecast needs: the question, and one reading of Slurm and the records.

``forecasts`` computes the answer. The forecast reveals no other user's job, so every user may ask.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.config import Config
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.habits import Habits, RequestedJob
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.watch.door.questions import PartitionPrice, PriceAsk
from slurm_elastic.watch.door.records import opened

SPAN_S = 30 * 86400.0  # count boots, prices and interruptions of this last time
MOST_ASKED, MAX_PARTITIONS = 1 << 31, 32
HABITS_DAYS = 14
_FORECASTS = "slurm_elastic.watch.door.forecasts"


class Moment(Struct, frozen=True, kw_only=True):
    """Slurm and the records at one moment.

    ``interruptions``: the number of machines that clouds took away, by offer.
    """

    now: float
    jobs: Sequence[SlurmJob]
    nodes: Mapping[str, SlurmNode]
    habits: Habits
    machines: Sequence[Machine] = ()
    interruptions: Mapping[str, int] = field(default_factory=dict)


def records_of(config: Config, now: float) -> tuple[Sequence[Machine], Mapping[str, int]]:
    """The machines of 30 days and the interruptions by offer; nothing if files are unreadable."""
    machines: Sequence[Machine] = ()
    interruptions: Mapping[str, int] = {}
    with contextlib.suppress(OSError, SlurmElasticError), opened(config) as ledger:
        machines = ledger.machines.live(ended_since=now - SPAN_S)
    with (
        contextlib.suppress(sqlite3.Error, OSError, SlurmElasticError),
        contextlib.closing(CheckpointState(config.state / FILE, read_only=True)) as state,
    ):
        interruptions = state.interruptions(now - SPAN_S)
    return machines, interruptions


def habits_of(rows: Iterable[tuple[str, str, int, int, int]]) -> Habits:
    """Habits from ended jobs: (user, account, CPUs, limit, run), oldest first, times in seconds."""
    habits = Habits()
    for user, account, cpus, limit, run in rows:
        if limit > 0 and run > 0:
            habits.add(RequestedJob(size=cpus, limit=limit, user=user, account=account), run)
    return habits


def habits_now(slurm: Slurm) -> Habits:
    """Habits from slurmdbd if there is one, else from the ended jobs that slurmctld still has."""
    with contextlib.suppress(SlurmError):
        return habits_of(slurm.finished(HABITS_DAYS))
    with contextlib.suppress(SlurmError):
        ended = [job for job in slurm.jobs(ended=True) if job.has_ended and job.start and job.end]
        return habits_of(
            (job.user, job.account, job.cpus, job.limit or 0, int(job.end - job.start))
            for job in sorted(ended, key=lambda job: job.end)
        )
    return Habits()


def seen_now(
    config: Config,
    slurm: Slurm,
    now: float,
    habits: Habits | None = None,
    jobs: Sequence[SlurmJob] | None = None,
) -> Moment:
    """Read everything once, but not ``habits`` and ``jobs`` if they are given. SlurmError if Slurm
    does not answer.
    """
    machines, interruptions = records_of(config, now)
    return Moment(
        now=now, jobs=slurm.jobs() if jobs is None else jobs, nodes=slurm.nodes(),
        machines=machines, interruptions=interruptions,
        habits=habits_now(slurm) if habits is None else habits,
    )  # fmt: skip


def sound_ask(ask: PriceAsk) -> PriceAsk:
    """Check and return the question. SlurmElasticError for impossible sizes or times."""
    job = ask.job
    if len(ask.limits) > MAX_PARTITIONS:
        raise SlurmElasticError(f"a forecast is for {MAX_PARTITIONS} partitions at most")
    limits = [limit or 1 for limit in (job.limit, *ask.limits.values())]
    sizes = (job.node_count, job.cpus, job.node_cpus, *limits)
    if not all(0 < size < MOST_ASKED for size in sizes) or not 0 < ask.save < MOST_ASKED:
        raise SlurmElasticError("this is no job: a size or a time of it makes no sense")
    if len(job.partitions) > MAX_PARTITIONS:
        raise SlurmElasticError(f"a forecast is for {MAX_PARTITIONS} partitions at most")
    return ask


def prices_of(config: Config, ask: PriceAsk, moment: Moment) -> tuple[PartitionPrice, ...]:
    """One forecast for each partition of the job and each of its pools that could run the job.

    slurm-elasticd must call it with ``run_bounded``: it imports the simulator into its process.
    """
    # The module is named, not imported, because slurm-elasticd imports this module: the simulator's
    # code, and the memory it takes, have no place in the process that starts and ends machines.
    forecasts = importlib.import_module(_FORECASTS)
    prices: tuple[PartitionPrice, ...] = forecasts.forecasts_of(config, ask, moment)
    return prices
