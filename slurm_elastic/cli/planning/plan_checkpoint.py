"""``slurm-elastic plan checkpoint``: find the cheapest checkpoint policy for a site's history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.planning.simulate_tables import (
    SCHEDULER,
    comparison_text,
    duration,
    tell_unbought,
)
from slurm_elastic.config.checkpoint_kinds import checked_policy
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy
from slurm_elastic.policies.policy_text import split, text_of
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, RunResult
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.studies.certainty import Choice, Comparison, Unlike, compared

POLICIES = (
    "none",
    "on_notice",
    "daly",
    "first_of(on_notice, daly)",
    "hour(margin=200)",
    "first_of(on_notice, hour(margin=200))",
)
"""The policies that are compared with the site's own."""


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """A checkpoint policy and the figures of its simulation."""

    policy: str
    figures: Figures


class CheckpointPlanDocument(Struct, frozen=True, kw_only=True):
    """The document of ``--json``.

    ``site``: the site's own policy. ``beside``: the cheapest policy compared with it, None if it
    is the cheapest. ``unlike``: in its place if the history's halves differ too much.
    """

    workload: str
    tried: tuple[CheckpointRow, ...]
    site: str
    cheapest: str
    beside: Comparison | None = None
    unlike: Unlike | None = None
    version: int = 1


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "checkpoint",
        help="show which checkpoint policy is cheapest on the history",
        description="Simulate the configured site with several checkpoint policies, also without "
        "checkpoints. Print for each the cost, the wait of jobs, the lost work and the number of "
        f"saves. See {page('planning')}.",
        epilog=examples(
            "slurm-elastic plan checkpoint --workload h.swf --prices spot.csv \\\n"
            "      --availability us-west-2a_v100_1.json"
        ),
    )
    history.add_arguments(parser)
    parser.add_argument(
        "--policies", metavar="POLICIES", help="try these policies instead of the default ones"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate each policy and print the comparison."""
    setting = history.read(args)
    site_policy = text_of(setting.configured.checkpoints.policy)
    outcomes = _simulated(setting, _policies(args.policies, site_policy))
    best = min(outcomes, key=lambda text: _order(outcomes[text].figures))
    comparison = (
        compared(outcomes[best], outcomes[site_policy], Choice.CHOSEN)
        if best != site_policy
        else None
    )
    rows = [
        CheckpointRow(policy=text, figures=outcome.figures) for text, outcome in outcomes.items()
    ]
    console = Output()
    tell_unbought({row.policy: row.figures for row in rows}, console)
    console.print(_table(rows, best, site_policy))
    console.print(_advice(rows, best, site_policy, comparison), markup=False, highlight=False)
    console.print(SCHEDULER, markup=False, highlight=False)
    for note in setting.notes_for([CONFIGURED]):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        document = CheckpointPlanDocument(
            workload=setting.history.source,
            tried=tuple(rows),
            site=site_policy,
            cheapest=best,
            beside=comparison if isinstance(comparison, Comparison) else None,
            unlike=comparison if isinstance(comparison, Unlike) else None,
        )
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
        )
    return 0


def _policies(listed: str | None, site_policy: str) -> dict[str, AnyPolicy]:
    """The policies by their texts, the site's own first. ConfigError for an unknown policy."""
    policies: dict[str, AnyPolicy] = {}
    for text in (site_policy, *(split(listed) if listed else POLICIES)):
        try:
            policy = checked_policy(text)
        except ValueError as error:
            raise ConfigError(f"--policies: {error}") from None
        policies.setdefault(text_of(policy), policy)
    return policies


def _simulated(setting: Setting, policies: dict[str, AnyPolicy]) -> dict[str, RunResult]:
    outcomes = {}
    with history.progress(len(setting.jobs) * len(policies)) as advance:
        for text, policy in policies.items():
            scenario = setting.scenario(CONFIGURED)
            scenario = replace(scenario, checkpoints=replace(scenario.checkpoints, policy=policy))
            outcomes[text] = simulate(setting.jobs, scenario, setting.history.start, advance)
    return outcomes


def _order(figures: Figures) -> tuple[float, float, int]:
    """Sort key: the cost to the cent, then the mean wait, then the number of saves."""
    return round(figures.cost, 2), figures.mean_wait, figures.checkpoints


def _table(rows: Sequence[CheckpointRow], best: str, site_policy: str) -> Rows:
    right = ("cost", "mean wait", "lost h", "saving h", "saves", "taken")
    table = Rows("", "", "policy", *right, right=right, wrapped={"policy": 20})
    for row in rows:
        figures = row.figures
        table.add(
            ">" if row.policy == best else "now" if row.policy == site_policy else "",
            row.policy,
            f"${figures.cost:,.2f}",
            duration(figures.mean_wait),
            f"{figures.lost_hours:,.1f}",
            f"{figures.overhead_hours:,.1f}",
            f"{figures.checkpoints:,}",
            f"{figures.interruptions:,}",
        )
    return table


def _advice(
    rows: Sequence[CheckpointRow],
    best: str,
    site_policy: str,
    comparison: Comparison | Unlike | None,
) -> str:
    if not any(row.figures.interruptions for row in rows):
        return (
            "No machine is taken away from a job here, so no save pays off. Give --prices and "
            "--availability to simulate when spot machines are taken away."
        )
    if best == site_policy:
        return f"The site's own policy, {site_policy}, is the cheapest of these."
    return (
        f"checkpoint: {{policy: '{best}'}} compared with the site's own {site_policy}: "
        f"{comparison_text(comparison)}."
    )
