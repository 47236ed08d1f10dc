"""``slurm-elastic simulate``: show what policies would have cost on a job history."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.planning.simulate_tables import cells, render, tell_unbought
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate import SimulationResult, engine, simulate
from slurm_elastic.simulate.outcome import Figures, RunResult
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import NONE


class PolicyResultRow(Struct, frozen=True, kw_only=True):
    policy: str
    figures: Figures


class SimulateDocument(Struct, frozen=True, kw_only=True):
    """The document of ``--json``.

    ``notes``: assumptions of this run. ``complaints``: problems of the history.
    """

    workload: str
    jobs: int
    cancelled: int
    seed: int
    notes: tuple[str, ...]
    complaints: tuple[str, ...]
    rows: tuple[PolicyResultRow, ...]
    version: int = 1


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        description="Replay a job history (Standard Workload Format, or sacct) on the pools of the "
        "configuration and show cost, waits and losses for each policy.",
        epilog="A policy is GROWTH[+RELEASE][+ORDER], with options in parentheses: slurm, "
        "'on_demand+idle(60)', 'semi_elastic(wait_limit=300)+delayed(before_end=60)+max_margin'. "
        f"{page('simulate')} describes them.\n\n"
        + examples(
            "slurm-elastic simulate --workload SDSC-SP2.swf.gz --static 100x16",
            "slurm-elastic simulate --workload h.swf --compare 'slurm,on_demand+idle(60)'",
            "sacct -X -a --json -S 2026-01-01 | slurm-elastic simulate --sacct -",
        ),
    )
    history.add_arguments(parser)
    parser.add_argument(
        "--compare",
        default=CONFIGURED,
        metavar="POLICIES",
        help="policies to compare, separated by commas (default: configured, the site's own "
        "configuration); none is the site without public machines",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="also write tables and plots as one HTML file"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate every policy and print the table."""
    result = simulated(args)
    shown = _document(result, args.seed)
    console = Output()
    tell_unbought({row.policy: row.figures for row in shown.rows}, console)
    render(shown.rows, console)
    for note in (*shown.notes, *shown.complaints):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(shown), indent=1) + b"\n"
        )
    if args.html:
        from slurm_elastic.cli.planning.plots import report_page

        with history.spinner("simulating the site without public clouds"):
            baseline = _without_clouds(result)
        with history.spinner("drawing the report, which takes some seconds"):
            arguments = (*cells(shown.rows), args.seed, baseline)
            page = report_page(result.runs, result.setting, *arguments)
        writing.as_told(args.html, page)
    return 0


def simulated(args: argparse.Namespace) -> SimulationResult:
    """Simulate each policy. ConfigError for a wrong one, before the first job is simulated."""
    job_history, config, options = history.read_inputs(args)
    with history.progress(len(job_history.jobs) * len(split(args.compare))) as advance:
        return simulate(job_history, config, args.compare, options, progress=advance)


def _without_clouds(result: SimulationResult) -> RunResult | None:
    """The run without public clouds.

    None if it is among the runs already, or if the site's own machines are too few to ever finish
    the jobs.
    """
    if NONE in dict(result.runs):
        return None
    try:
        scenario = result.setting.scenario(NONE)
    except ConfigError:
        return None
    jobs = result.setting.jobs
    work = sum(seconds * procs for seconds, procs in zip(jobs.run, jobs.procs, strict=True))
    room = sum(pool.machines * pool.procs for pool in scenario.pools)
    if work > room * (jobs.submit[-1] - jobs.submit[0]):
        return None
    return engine.simulate(jobs, scenario, result.setting.history.start)


def _document(result: SimulationResult, seed: int) -> SimulateDocument:
    job_history = result.setting.history
    return SimulateDocument(
        workload=job_history.source,
        jobs=len(job_history.jobs),
        cancelled=job_history.cancelled,
        seed=seed,
        notes=result.notes,
        complaints=result.complaints,
        rows=tuple(
            PolicyResultRow(policy=policy, figures=run.figures) for policy, run in result.runs
        ),
    )
