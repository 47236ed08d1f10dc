"""``slurm-elastic simulate``: what policies would have cost on a job history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import Progress

from slurm_elastic.cli.simulate_tables import render
from slurm_elastic.configfile import load as load_config
from slurm_elastic.errors import ConfigError
from slurm_elastic.policies.checkpoint import parse as parse_checkpoint
from slurm_elastic.policies.spelled import split
from slurm_elastic.prices.trace import PriceTrace, load_trace
from slurm_elastic.simulate import swf
from slurm_elastic.simulate.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.engine import Progress as Told
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.ride import Checkpoints
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.site import (
    Span,
    World,
    load_availability,
    pools_of,
    scenario_of,
)

LONG = 20_000
DEPTH = 500
"""Jobs that one look at the queue considers; Slurm's bf_max_job_test."""


class Row(Struct, frozen=True, kw_only=True):
    """One policy's result."""

    policy: str
    figures: Figures


class Result(Struct, frozen=True, kw_only=True):
    """What ``--json`` writes. ``notes``: what was assumed; ``complaints``: about the history."""

    workload: str
    jobs: int
    cancelled: int
    seed: int
    notes: tuple[str, ...]
    complaints: tuple[str, ...]
    rows: tuple[Row, ...]
    version: int = 1


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "simulate",
        help="replay a job history under the configuration's pools and other policies",
        description="Replay a job history (Standard Workload Format) on the pools of the "
        "configuration and show cost, waits and losses for each policy.",
        epilog="A policy is GROWTH[+RELEASE][+ORDER], with options in parentheses: slurm, "
        "'on_demand+idle(60)', 'semi_elastic(wait_limit=300)+delayed(before_end=60)+max_margin'. "
        "See docs/simulate.md.",
    )
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE", help="SWF, or -")
    parser.add_argument(
        "--compare", default="slurm", metavar="POLICIES", help="by commas (default: slurm)"
    )
    parser.add_argument("--prices", type=Path, action="append", default=[], metavar="CSV")
    parser.add_argument("--availability", type=Path, metavar="JSON", help="of spot machines")
    parser.add_argument("--checkpoint", default="none", metavar="POLICY", help="default: none")
    parser.add_argument("--dump", type=_count, default=60, metavar="S", help="for a checkpoint")
    parser.add_argument("--static", type=_static, metavar="NODESxCPUS", help="always there")
    parser.add_argument("--boot", type=_count, default=120, metavar="S", help="default: 120")
    parser.add_argument("--billing", choices=("per_second", "hourly"), default="per_second")
    parser.add_argument("--reservations", type=_count, default=1, metavar="K", help="default: 1")
    parser.add_argument(
        "--depth", type=_count, default=DEPTH, metavar="N", help=f"of backfill, default: {DEPTH}"
    )
    parser.add_argument("--max-jobs", type=_count, metavar="N", help="only the first N jobs")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result there too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate every policy and print the table."""
    result = simulated(args)
    render(result.rows, Console())
    for note in (*result.notes, *result.complaints):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return 0


def simulated(args: argparse.Namespace) -> Result:
    """The whole run. Everything is read and checked before the first job is simulated."""
    config = load_config(Path(args.config))
    history = swf.load(args.workload, args.max_jobs)
    jobs = history.jobs
    last = max(s + r for s, r in zip(jobs.submit, jobs.run, strict=True))
    world = World(
        span=Span(history.start, jobs.submit[0], last),
        static=args.static,
        boot=args.boot,
        billing=_billing(args.billing),
        prices=_prices(args.prices),
        availability=load_availability(args.availability) if args.availability else None,
    )
    pools, notes = pools_of(config, world)
    base = Scenario(
        pools=pools,
        checkpoints=_checkpoints(args),
        reservations=args.reservations,
        depth=args.depth,
        seed=args.seed,
    )
    policies = split(args.compare)
    scenarios = [scenario_of(policy, pools, base) for policy in policies]
    if not scenarios:
        raise ConfigError("--compare names no policy")
    rows = []
    with _progress(len(jobs) * len(scenarios)) as advance:
        for policy, scenario in zip(policies, scenarios, strict=True):
            engine = Engine(jobs, scenario, history.start, advance)
            rows.append(Row(policy=policy, figures=engine.run().figures))
    return Result(
        workload=str(args.workload),
        jobs=len(jobs),
        cancelled=history.cancelled,
        seed=args.seed,
        notes=(*notes, *_unserved(rows)),
        complaints=tuple(history.complaints.sentences()),
        rows=tuple(rows),
    )


def _unserved(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.figures.too_large:
            yield f"{row.policy}: {row.figures.too_large} jobs need more than any pool has"
        if row.figures.unserved:
            yield f"{row.policy}: {row.figures.unserved} jobs were never started"


def _checkpoints(args: argparse.Namespace) -> Checkpoints:
    try:
        policy = parse_checkpoint(args.checkpoint)
    except ValueError as error:
        raise ConfigError(f"--checkpoint: {error}") from None
    return Checkpoints(policy=policy, dump=args.dump)


def _billing(name: str) -> Billing:
    return Hourly(refund=True) if name == "hourly" else PerSecond()


def _prices(paths: Sequence[Path]) -> PriceTrace | None:
    merged = {key: series for path in paths for key, series in load_trace(path).series.items()}
    return PriceTrace(merged) if merged else None


@contextmanager
def _progress(total: int) -> Iterator[Told | None]:
    """A bar on the terminal's error side, for what takes a while; calls back with jobs done."""
    console = Console(stderr=True)
    if total < LONG or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=total)
        yield lambda jobs: progress.advance(task, jobs)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _static(text: str) -> tuple[int, int]:
    nodes, _, procs = text.partition("x")
    return _count(nodes), _count(procs or "1")
