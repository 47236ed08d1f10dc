"""``slurm-elastic price``: when a job would start and what it would cost, before submission."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.local_time import clock
from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs import why_not
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate import cloud_table
from slurm_elastic.cli.operate.cloud_table import RankedCloudRow, published_rows
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.status import kept_of
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.time_limits import default_limits, exceeding
from slurm_elastic.policies.launch.verdict import Verdict
from slurm_elastic.slurm.client.commands import sbatch_test_only
from slurm_elastic.slurm.client.commands.sbatch_test_only import Submission
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.slurm.client.requested_job import requested_job
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks import sbatch_rules, submit_filter
from slurm_elastic.watch.door.client import chain_of, prices
from slurm_elastic.watch.door.orders import name_of
from slurm_elastic.watch.door.questions import KNOWN_JOBS, Chain, ChainAsk, PartitionPrice, PriceAsk

BARS = frozenset(
    {"partition", "account", "qos", "group", "requeue", "time", "features", "gres", "cpus",
     "memory", "size", "filter"}
)  # fmt: skip
"""The predicates of ``policies.launch.verdict`` that exclude a job permanently; the others pass
with time.
"""
CLOSED = frozenset({"bound", "health"})
"""The predicates of a pool that starts no machine now: its cloud is sold out, paused or limited."""
MAX_QUERIES = 8  # ask slurmctld for at most this many partitions: each query is one command
NO_ESTIMATE_S = 182 * 86400
"""Slurm assumes that a job without a time limit runs for a year. An estimate this far ahead only
says that such jobs are first in the queue.
"""


class PartitionRow(Struct, frozen=True, kw_only=True, rename={"by_slurm": "by_slurm_s"}):
    """A forecast, and slurmctld's own estimate (seconds until the start; None: no estimate)."""

    forecast: PartitionPrice
    by_slurm: int | None = None


class ClosedPool(Struct, frozen=True, kw_only=True):
    """A pool that starts no machine now. ``retry_at``: when its sold-out cloud is asked again (Unix
    time; None: it is not sold out).
    """

    cloud: str
    pool: str
    reason: str
    retry_at: float | None = None


class Priced(Struct, frozen=True, kw_only=True, rename={"limit": "limit_s"}):
    """The document of ``price --json``.

    ``limit``: the job's own time limit (s); None if it has none, so that each forecast has its own.
    ``options``: the options as sbatch understood them. ``at``: Unix time. ``clouds``: the order in
    which the job would use the clouds. ``closed``: pools that start no machine now. The forecasts
    do not know how long this lasts.
    """

    at: float
    job: str
    limit: int | None
    rows: tuple[PartitionRow, ...]
    options: Mapping[str, str]
    version: int = 1
    clouds: tuple[RankedCloudRow, ...] = ()
    closed: tuple[ClosedPool, ...] = ()


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "price",
        description="Show for each partition when a job would start if it were submitted now, what "
        "it would cost, how likely it is to be interrupted there, and what checkpoints would save. "
        "Nothing is submitted. Starts are forecast from the current queue and the real run times "
        "of this site's jobs.",
        epilog=examples(
            "slurm-elastic price job.sh",
            "slurm-elastic price job.sh --nodes 4 --time 2:00:00",
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("script", metavar="SCRIPT", help="a job script for sbatch")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="OPTION",
        help="options of sbatch, which override the script's #SBATCH lines",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the forecasts. Exit 1 if the job can start in no partition."""
    config, now = load(Path(args.config)), time.time()
    as_json = args.json or "--json" in args.options
    options = [word for word in args.options if word != "--json"]
    if not Path(args.script).is_file():
        raise ConfigError(f"SCRIPT: {args.script} does not exist")
    priced = gather(config, args.script, options, now)
    if as_json:
        write_json(priced)
    else:
        render(priced, plain())
    return 0 if any(row.forecast.start for row in priced.rows) else 1


def gather(config: Config, script: str, options: Sequence[str], now: float) -> Priced:
    """Ask sbatch, Slurm and the daemon. Raises SlurmElasticError if sbatch rejects the job."""
    asked = sbatch_test_only.ask_sbatch(config.slurm, script, options)
    if asked.components > 1:
        raise SlurmElasticError(
            "price forecasts one component of a heterogeneous job (`:`) at a time: ask for each"
            " component with its own options"
        )
    _require_partitions(config, asked)
    job = submitted_job(config, asked)
    # excluded=False saves a query of 22.05: a job that is not submitted excludes no nodes.
    slurm = PromptCli(config.slurm, excluded=False)
    # Our own verdict and limits first: Slurm is asked only about partitions that remain.
    chain = _chain(config, now)
    verdicts = why_not.waits_now(config, job, chain, kept_of(slurm, now)).of_all_pools(job)
    barred = barred_pools(verdicts)
    limits, too_short = _limits(slurm, job, asked.options)
    ask = PriceAsk(job=job, save=config.checkpoint.expected_duration, limits=limits)
    rows = [
        _without_forecast(
            submission, barred.get(submission.pool, "") or too_short.get(submission.partition, "")
        )
        for submission in prices(config, slurm, ask, now)
    ]
    names = list(dict.fromkeys(row.partition for row in rows if not row.why))
    answers = {
        name: asked  # reuse the first answer: each query uses up a job number
        if asked.options.get("partition") == name
        else sbatch_test_only.ask_sbatch(config.slurm, script, options, partition=name)
        for name in names[:MAX_QUERIES]
    }
    refused = {
        name: f"Slurm says: {submission.refused}"
        for name, submission in answers.items()
        if submission.refused
    }
    rows = [
        _without_forecast(submission, refused.get(submission.partition, "")) for submission in rows
    ]
    return Priced(
        at=now,
        job=Path(script).name,
        limit=job.limit,
        rows=tuple(
            PartitionRow(forecast=row, by_slurm=_slurm_estimate(answers, row, now)) for row in rows
        ),
        options=asked.options,
        clouds=possible_rows(published_rows(config, job, now), barred),
        closed=closed_pools(verdicts, chain),
    )


def submitted_job(config: Config, asked: Submission) -> SlurmJob:
    """The job that Slurm would make of the options, with the partitions that the filter adds."""
    site = why_not.site_of(config)
    requeue = sbatch_rules.may_requeue(asked.options, site)
    return job_of(asked.options, _partitions(config, asked, site), requeue=requeue)


def barred_pools(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the pools that never run the job, each with its reason."""
    return {verdict.pool: verdict.reason for verdict in verdicts if verdict.predicate in BARS}


def possible_rows(
    rows: Iterable[RankedCloudRow], barred: Collection[str]
) -> tuple[RankedCloudRow, ...]:
    """The rows of pools that may run the job. ``barred``: the pools that never do. The submit
    filter lists the partition of such a pool, too, because it leaves accounts, QOS and sizes to
    Slurm.
    """
    return tuple(row for row in rows if row.pool not in barred)


def _without_forecast(forecast: PartitionPrice, reason: str) -> PartitionPrice:
    """Replace the forecast by the reason, if there is one, that the job cannot start there."""
    if not reason or forecast.why:
        return forecast
    return PartitionPrice(
        partition=forecast.partition, pool=forecast.pool, nodes=forecast.nodes, why=reason
    )


def _slurm_estimate(
    answers: Mapping[str, Submission], row: PartitionPrice, now: float
) -> int | None:
    start = answers[row.partition].start if row.partition in answers else None
    return None if start is None else max(int(start - now), 0)


def job_of(options: Mapping[str, str], partitions: Sequence[str], *, requeue: bool) -> SlurmJob:
    """The pending job that Slurm would make for this user from these options of sbatch."""
    uid = os.geteuid()
    return requested_job(
        options, partitions, requeue=requeue, user=name_of(uid), uid=uid, gid=os.getegid()
    )


def _partitions(config: Config, asked: Submission, site: SiteConf | None) -> list[str]:
    """The partitions that the job names, else the default one, and ours that the filter adds."""
    own_name = asked.options.get("partition", "") or why_not.default_partition(site)
    names = [name for name in own_name.split(",") if name]
    if not submit_filter.trouble(Path(config.slurm.conf)):
        clouds = sbatch_rules.open_clouds(config, site, asked.options, own_name)
        names += [cloud.partition_name for cloud in clouds]
    return list(dict.fromkeys(names))


def _require_partitions(config: Config, asked: Submission) -> None:
    """ConfigError if the job names a partition that slurmctld does not have."""
    if not asked.has_invalid_partition:
        return
    named = asked.options.get("partition", "").split(",")
    site = read_site(config.slurm)
    configured = list(dict.fromkeys(name for record in site.partitions for name in record.names))
    strange = [name for name in named if name not in configured] or named
    raise ConfigError(
        f"Slurm has no partition {', '.join(strange)}; slurm.conf has {', '.join(configured)}"
    )


def _chain(config: Config, now: float) -> Chain:
    """The reasons for which slurm-elasticd starts no machine now; empty if they cannot be read, or
    if this user may not see them.
    """
    with contextlib.suppress(SlurmElasticError):
        return chain_of(config, ChainAsk(about="job", name="0"), now)
    return Chain()


def closed_pools(verdicts: Iterable[Verdict], chain: Chain) -> tuple[ClosedPool, ...]:
    """The pools that could run the job but start no machine now, in the words of ``explain``."""
    return tuple(
        ClosedPool(
            cloud=verdict.cloud,
            pool=verdict.pool,
            reason=verdict.reason,
            retry_at=chain.obstacles.retry_at.get(verdict.pool),
        )
        for verdict in verdicts
        if verdict.predicate in CLOSED
    )


def _limits(
    slurm: Slurm, job: SlurmJob, options: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Two maps by partition for a job without --time.

    The first has the time limit (s) that Slurm gives it, the second the reasons why it cannot
    start there.
    """
    defaults, max_times = slurm.default_times(), slurm.max_times()
    granted = default_limits(job.partitions, defaults, max_times)
    limits = {name: int(limit) for name, limit in granted.items() if limit is not None}
    if "time" in options:
        return limits, {}
    leader = job.partitions[0] if job.partitions else ""
    # Slurm gives each partition of a list that the user wrote its own limit, unless the first one
    # has a DefaultTime.
    by_slurm = "," in options.get("partition", "") and leader not in defaults
    names = () if by_slurm else exceeding(job.partitions, defaults, max_times)
    return limits, dict.fromkeys(
        names, f"without --time the job gets the time limit of {leader}, which is longer than here"
    )


# The rest prints a table that fits into 80 columns.


def render(priced: Priced, console: Console) -> None:
    """Print starts and costs, then interruptions, then partitions that are closed to the job."""
    each = "one task of " if "array" in priced.options else ""
    console.print(f"{each}{priced.job}, {_limit_text(priced)}, if it were submitted now:")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("WHERE", overflow="fold")
    for name in ("NODES", "STARTS IN", "90 % BY", "SLURM SAYS", "RUNS", "COSTS", "AT MOST"):
        table.add_column(name, justify="right", no_wrap=True)
    started = [row for row in priced.rows if row.forecast.start]
    jobs = max((row.forecast.jobs_known for row in started), default=0)
    for row in started:
        table.add_row(*_cells(row, is_guess=jobs < KNOWN_JOBS))
    if started:
        console.print(table)
    for row in started:
        if row.forecast.chance is not None:
            console.print(_interruption(row.forecast), style="dim")
    for row in priced.rows:
        if row.forecast.why:
            console.print(f"{_where(row.forecast)}: no forecast: {row.forecast.why}")
    for text in _closed_texts(priced):
        console.print(words(text, "yellow"))
    cloud_table.show(priced.clouds, console)
    if started:
        _print_notes(started, jobs, console)


def _closed_texts(priced: Priced) -> Iterator[str]:
    """Yield lines such as ``Cloud aws (pool general) starts no machine now: ...; it is asked again
    at 09:31``.
    """
    groups: dict[tuple[str, str], list[ClosedPool]] = {}
    for row in priced.closed:
        groups.setdefault((row.cloud, row.reason), []).append(row)
    for (cloud, reason), rows in groups.items():
        pools = ", ".join(row.pool for row in rows)
        noun = "pool" if len(rows) == 1 else "pools"
        times = [row.retry_at for row in rows if row.retry_at is not None]
        again = f"; it is asked again at {clock(min(times))}" if times else ""
        yield f"Cloud {cloud} ({noun} {pools}) starts no machine now: {reason}{again}"


def _print_notes(started: Sequence[PartitionRow], jobs: int, console: Console) -> None:
    """Print the notes that explain the columns."""
    if any(_is_no_estimate(row) for row in started):
        console.print("SLURM SAYS no limit: jobs that come first have no time limit.")
    console.print(_basis(jobs))
    if any(row.forecast.high for row in started):
        console.print(
            "Costs are for whole machines while the job runs; `cost --by job` shows its share."
        )


def _limit_text(priced: Priced) -> str:
    """The text ``with a time limit of 30m``, or the limits that a job without --time gets."""
    if priced.limit is not None:
        return f"with a time limit of {brief(priced.limit)}"
    partitions: dict[int | None, list[str]] = {}
    for row in priced.rows:
        names = partitions.setdefault(row.forecast.limit, []) if row.forecast.start else []
        if row.forecast.partition not in names:
            names.append(row.forecast.partition)
    texts = [
        f"no limit in {', '.join(names)} (costs are of a day)"
        if limit is None
        else f"{brief(limit)} in {', '.join(names)}"
        for limit, names in partitions.items()
    ]
    ends = f" (it gets {', '.join(texts)})" if texts else ""
    return f"without a time limit{ends}"


def _basis(jobs: int) -> str:
    if jobs >= KNOWN_JOBS:
        return (
            f"The forecast uses the run times of {jobs} jobs that ended here lately. Later jobs "
            "with a higher priority may start first."
        )
    ended = counted(jobs, "ended job") if jobs else "no ended jobs"
    return (
        f"This is a rough guess (~): Slurm remembers {ended} of this site, so the forecast uses "
        "run times of other sites. Later jobs with a higher priority may start first."
    )


def _is_no_estimate(row: PartitionRow) -> bool:
    return row.by_slurm is not None and row.by_slurm >= NO_ESTIMATE_S


def _cells(row: PartitionRow, *, is_guess: bool) -> list[str]:
    forecast = row.forecast
    _, median, late = forecast.start
    slurm = "" if row.by_slurm is None else _start_text(row.by_slurm)
    if _is_no_estimate(row):
        slurm = "no limit"
    times = [_start_text(median), _start_text(late), brief(forecast.run[1])]
    costs = (
        ["", ""]
        if forecast.low is None or forecast.high is None
        else [money(forecast.low), money(forecast.high)]
    )
    if is_guess:
        times = [_guess(second) for second in (median, late, forecast.run[1])]
        costs[0] = costs[0] and _guessed_dollars(forecast.low or 0.0)
    starts, by, runs = times
    return [_where(forecast), str(forecast.nodes), starts, by, slurm, runs, *costs]


def _guess(seconds: int) -> str:
    """A guess as text: ``~4m``. It has one unit only, because more digits would look exact."""
    if seconds < 1:
        return "now"
    unit = next((unit for unit in (86400, 3600, 60) if seconds >= unit), 1)
    return f"~{brief(max(round(seconds / unit), 1) * unit)}"


def _guessed_dollars(dollars: float) -> str:
    """A guessed amount as text, such as ``~$0.06``, with a single digit after the zeros."""
    return f"~{money(float(f'{dollars:.0e}'))}" if dollars else money(0.0)


def _where(forecast: PartitionPrice) -> str:
    return (
        f"{forecast.partition}/{forecast.pool}"
        if forecast.pool and forecast.pool != forecast.partition
        else forecast.partition
    )


def _interruption(forecast: PartitionPrice) -> str:
    chance = (
        "under 1 %"
        if (forecast.chance or 0.0) < 0.01
        else f"{100 * (forecast.chance or 0.0):.0f} %"
    )
    text = f"{_where(forecast)}: {chance} chance that spot machines are taken away during the job"
    if forecast.saves_seconds is None or forecast.saves_dollars is None:
        return f"{text}; without checkpoints it would hardly ever end"
    if forecast.saves_seconds < 1:
        return f"{text}; checkpoints would save nothing"
    return (
        f"{text}; checkpoints save {brief(forecast.saves_seconds)} and "
        f"{money(forecast.saves_dollars)} on average"
    )


def _start_text(seconds: int) -> str:
    return brief(seconds) if seconds >= 1 else "now"
