"""``slurm-elastic plan deadline``: can a job use spot machines and still end in time?"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich import box
from rich.table import Table

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import brief, format_duration, parse_duration
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.policies.checkpoint.deadline import (
    DeadlineChoice,
    Race,
    choose,
    greedy,
    pay,
    uniform,
)
from slurm_elastic.simulate.availability import Availability, load_availability
from slurm_elastic.simulate.studies.deadline import Odds, tried

HOUR_S = 3600.0
MAX_DURATION_S = 366 * 86400.0
ZONES_NOTE = (
    "Each trace is simulated alone. A job that can move to another zone does better than shown "
    "here: with several zones, that is worth more than the choice of a policy."
)
"""A note to print below the tables."""
PRICES_NOTE = (
    "The costs are means over starts on these days. No range is shown, because the days of one "
    "trace say too little about others: in tests, a range that had nine in ten costs of one half "
    "of a trace had 59 % of the other half's."
)
"""A note to print below the tables with prices."""
POLICIES: Mapping[str, Callable[[Race], DeadlineChoice]] = {
    "by dollars": choose,
    "uniform progress": uniform,
    "greedy": greedy,
    "on demand": pay,
}


class DeadlineRow(Struct, frozen=True, kw_only=True):
    """One policy on one trace.

    ``cost``: mean $ for one machine over all starts; None without ``--prices``.
    """

    trace: str
    policy: str
    odds: Odds
    cost: float | None


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "deadline",
        help="show whether a job with a deadline can use spot machines, and the savings",
        description="Simulate one job from many random starts along traces of spot machines: the "
        "share of its work that they do, its cost, and how often it would be late. See "
        f"{page('planning')}.",
        epilog=examples(
            "slurm-elastic plan deadline --availability us-west-2a_v100_1.json \\\n"
            "      --work 48h --deadline 60h --prices 0.3,1"
        ),
    )
    parser.add_argument(
        "--availability", type=Path, action="append", required=True, metavar="JSON",
        help="a trace of how many spot machines were available; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=_duration, required=True, metavar="TIME",
        help="how long the job computes, such as 48h",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", type=_duration, required=True, metavar="TIME",
        help="the job must end this long after its start, such as 60h",
    )  # fmt: skip
    parser.add_argument(
        "--restart", type=_duration, default=600.0, metavar="TIME",
        help="time that each new machine costs the job, for the boot and the restart from its save "
        "(default: 10m)",
    )  # fmt: skip
    parser.add_argument(
        "--prices", type=_prices, metavar="SPOT,ON-DEMAND",
        help="dollars an hour for one machine (default: show no costs)",
    )  # fmt: skip
    parser.add_argument(
        "--starts", type=count, default=300, metavar="N",
        help="start the job at N random moments of each trace (default: 300)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of random choices (default: 0)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate every policy on every trace. Exit 1: the first policy may miss the deadline."""
    traces = {str(path): load_availability(path) for path in args.availability}
    for name, trace in traces.items():
        # With time for two restarts and one step of the trace the policy is never late.
        earliest = args.work + 2 * args.restart + trace.gap
        if args.deadline < earliest:
            raise ConfigError(
                f"--deadline: found {format_duration(args.deadline)}, expected at least"
                f" {format_duration(earliest)}: the work, two restarts and the step of"
                f" {brief(trace.gap)} of {name}"
            )
    rows = [
        _row(args, name, trace, policy) for name, trace in traces.items() for policy in POLICIES
    ]
    for name in traces:
        Output().print(_table(name, [row for row in rows if row.trace == name], args.work))
    notes = f"{PRICES_NOTE}\n{ZONES_NOTE}" if args.prices else ZONES_NOTE
    Output().print(notes, markup=False, highlight=False)
    if args.json:
        writing.as_told(args.json, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    default_policy = next(iter(POLICIES))
    return int(any(row.odds.missed for row in rows if row.policy == default_policy))


def _row(args: argparse.Namespace, name: str, trace: Availability, policy: str) -> DeadlineRow:
    odds = tried(
        trace.counts,
        trace.gap,
        work=args.work,
        deadline=args.deadline,
        restart=args.restart,
        choose=POLICIES[policy],
        starts=args.starts,
        seed=args.seed,
        **({"price": args.prices[0] / args.prices[1]} if args.prices else {}),
    )
    if not args.prices:
        return DeadlineRow(trace=name, policy=policy, odds=odds, cost=None)
    spot, on_demand = args.prices
    cost = (odds.paid_spot * spot + odds.paid_on_demand * on_demand) / HOUR_S
    return DeadlineRow(trace=name, policy=policy, odds=odds, cost=cost)


def _table(trace: str, rows: Sequence[DeadlineRow], work: float) -> Table:
    table = Table(box=box.SIMPLE, title=Path(trace).name, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for name in ("spot", "machines", "done", "late", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        odds = row.odds
        table.add_row(
            row.policy,
            f"{odds.spot / work:.0%}",
            f"{odds.restarts:.1f}",
            f"{odds.end / HOUR_S:.1f} h",
            f"{odds.missed}/{odds.starts}",
            "-" if row.cost is None else f"${row.cost:.2f}",
        )
    return table


def _duration(text: str) -> float:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= duration <= MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"{text[:24]} is not between a second and a year")
    return duration


def _prices(text: str) -> tuple[float, float]:
    price_texts = text.split(",")
    try:
        spot, on_demand = (float(price_text) for price_text in price_texts)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:24]} is not two prices, such as 0.3,1") from None
    if not (0 <= spot < float("inf") and 0 < on_demand < float("inf")):
        raise argparse.ArgumentTypeError(f"{text[:24]}: prices must be finite and not negative")
    return spot, on_demand
