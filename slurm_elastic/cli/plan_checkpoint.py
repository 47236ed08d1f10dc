"""``slurm-elastic plan checkpoint``: the checkpoint policy that is cheapest on a site's history."""

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
from slurm_elastic.cli import history
from slurm_elastic.cli.columns import Rows
from slurm_elastic.cli.console import Output
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.simulate_tables import SCHEDULER, duration, tell_unbought, told
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, parse
from slurm_elastic.policies.policy_text import split, text_of
from slurm_elastic.simulate.certainty import Comparison, compared
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, RunResult
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import Setting

POLICIES = (
    "none",
    "on_notice",
    "daly",
    "first_of(on_notice, daly)",
    "hour(margin=200)",
    "first_of(on_notice, hour(margin=200))",
)
"""The policies that are tried beside the one of the site."""


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """A checkpoint policy and what it did to the history."""

    policy: str
    figures: Figures


class CheckpointPlan(Struct, frozen=True, kw_only=True):
    """``--json``: ``site`` is the site's policy, ``beside`` compares the cheapest with it."""

    workload: str
    tried: tuple[CheckpointRow, ...]
    site: str
    cheapest: str
    beside: Comparison | None = None
    version: int = 1


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "checkpoint",
        help="tell which checkpoint policy is cheapest on the history",
        description="Simulate the site as it is configured with one checkpoint policy after the "
        "other, none among them, and print what each costs, how long jobs wait, what work is lost "
        "and how many saves are made. See docs/planning.md.",
        epilog=examples(
            "slurm-elastic plan checkpoint --workload h.swf --prices spot.csv \\\n"
            "      --availability us-west-2a_v100_1.json"
        ),
    )
    history.add_arguments(parser)
    parser.add_argument(
        "--policies", metavar="POLICIES", help="try these policies, not the usual ones"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate each policy and print."""
    setting = history.read(args)
    own = text_of(setting.configured.checkpoints.policy)
    outcomes = _simulated(setting, _policies(args.policies, own))
    best = min(outcomes, key=lambda text: _order(outcomes[text].figures))
    beside = compared(outcomes[best], outcomes[own]) if best != own else None
    rows = [
        CheckpointRow(policy=text, figures=outcome.figures) for text, outcome in outcomes.items()
    ]
    console = Output()
    tell_unbought({row.policy: row.figures for row in rows}, console)
    console.print(_table(rows, best, own))
    console.print(_advice(rows, best, own, beside), markup=False, highlight=False)
    console.print(SCHEDULER, markup=False, highlight=False)
    for note in setting.told([CONFIGURED]):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        found = CheckpointPlan(
            workload=setting.history.source,
            tried=tuple(rows),
            site=own,
            cheapest=best,
            beside=beside,
        )
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
        )
    return 0


def _policies(given: str | None, own: str) -> dict[str, AnyPolicy]:
    """By their texts: the site's own first."""
    found: dict[str, AnyPolicy] = {}
    for text in (own, *(split(given) if given else POLICIES)):
        try:
            policy = parse(text)
        except ValueError as error:
            raise ConfigError(f"--policies: {error}") from None
        found.setdefault(text_of(policy), policy)
    return found


def _simulated(setting: Setting, policies: dict[str, AnyPolicy]) -> dict[str, RunResult]:
    outcomes = {}
    with history.progress(len(setting.jobs) * len(policies)) as advance:
        for text, policy in policies.items():
            scenario = setting.scenario(CONFIGURED)
            scenario = replace(scenario, checkpoints=replace(scenario.checkpoints, policy=policy))
            outcomes[text] = simulate(setting.jobs, scenario, setting.history.start, advance)
    return outcomes


def _order(figures: Figures) -> tuple[float, float, int]:
    """To the cent: then by how long jobs wait, then by the fewest saves."""
    return round(figures.cost, 2), figures.mean_wait, figures.checkpoints


def _table(rows: Sequence[CheckpointRow], best: str, own: str) -> Rows:
    right = ("cost", "mean wait", "lost h", "saving h", "saves", "taken")
    table = Rows("", "", "policy", *right, right=right, words={"policy": 20})
    for row in rows:
        figures = row.figures
        table.add(
            ">" if row.policy == best else "now" if row.policy == own else "",
            row.policy,
            f"${figures.cost:,.2f}",
            duration(figures.mean_wait),
            f"{figures.lost_hours:,.1f}",
            f"{figures.overhead_hours:,.1f}",
            f"{figures.checkpoints:,}",
            f"{figures.interruptions:,}",
        )
    return table


def _advice(rows: Sequence[CheckpointRow], best: str, own: str, beside: Comparison | None) -> str:
    if not any(row.figures.interruptions for row in rows):
        return (
            "No machine is taken from a job here, so no save pays. --prices and --availability say "
            "when spot machines are taken."
        )
    if best == own:
        return f"The site's own policy, {own}, is the cheapest of these."
    sure = told(beside) if beside else "the history is too short to say how sure that is"
    return f"checkpoint: {{policy: '{best}'}} beside the site's own {own}: {sure}."
