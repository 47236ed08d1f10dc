"""``slurm-elastic simulate``: what policies would have cost on a job history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli import history
from slurm_elastic.cli.console import Output
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.simulate_tables import cells, render, tell_unbought, unserved
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, Outcome
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED


class Row(Struct, frozen=True, kw_only=True):
    """One policy's result."""

    policy: str
    figures: Figures


class Result(Struct, frozen=True, kw_only=True):
    """The document that ``--json`` writes. ``notes``: assumptions; ``complaints``: about the
    history.
    """

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
        description="Replay a job history (Standard Workload Format, or sacct) on the pools of the "
        "configuration and show cost, waits and losses for each policy.",
        epilog="A policy is GROWTH[+RELEASE][+ORDER], with options in parentheses: slurm, "
        "'on_demand+idle(60)', 'semi_elastic(wait_limit=300)+delayed(before_end=60)+max_margin'. "
        "docs/simulate.md describes them.\n\n"
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
        help="policies to compare, with commas between (default: configured, which is the site as "
        "its configuration has it); none is the site without public machines",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="also write tables and plots as one HTML file"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate every policy and print the table."""
    setting = history.read(args)
    runs = simulated(setting, args.compare)
    result = _result(setting, runs, args.seed)
    console = Output()
    tell_unbought({row.policy: row.figures for row in result.rows}, console)
    render(result.rows, console)
    for note in (*result.notes, *result.complaints):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"
        )
    if args.html:
        from slurm_elastic.cli.plots import report_page

        page = report_page(runs, setting, *cells(result.rows), args.seed)
        writing.as_told(args.html, page)
    return 0


def simulated(setting: history.Setting, compare: str) -> list[tuple[str, Outcome]]:
    """Each policy's run. All policies are checked before the first job is simulated."""
    policies = split(compare)
    scenarios = [setting.scenario(policy) for policy in policies]
    if not scenarios:
        raise ConfigError("--compare names no policy")
    runs = []
    with history.progress(len(setting.jobs) * len(scenarios)) as advance:
        for policy, scenario in zip(policies, scenarios, strict=True):
            outcome = simulate(setting.jobs, scenario, setting.history.start, advance)
            runs.append((policy, outcome))
    return runs


def _result(setting: history.Setting, runs: Sequence[tuple[str, Outcome]], seed: int) -> Result:
    rows = tuple(Row(policy=policy, figures=outcome.figures) for policy, outcome in runs)
    return Result(
        workload=setting.source,
        jobs=len(setting.jobs),
        cancelled=setting.history.cancelled,
        seed=seed,
        notes=(
            *setting.told(row.policy for row in rows),
            *_cancelled(setting.history.cancelled, len(setting.jobs)),
            *unserved(rows),
        ),
        complaints=tuple(setting.history.complaints.sentences()),
        rows=rows,
    )


def _cancelled(cancelled: int, ran: int) -> Iterator[str]:
    if cancelled:
        yield (
            f"{cancelled:,} of {cancelled + ran:,} jobs were cancelled before they ran, and are"
            " left out"
        )
