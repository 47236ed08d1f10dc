"""``slurm-elastic plan own``: compare owned machines with rented machines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.cli.arguments import amount, count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.orders.pool_option import pool_index
from slurm_elastic.cli.planning.simulate_tables import SCHEDULER, duration, tell_unbought
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, unserved
from slurm_elastic.simulate.studies.ownership import Ownership, default_sizes, own_or_rent


class OwnRow(Struct, frozen=True, kw_only=True):
    """One way to run the jobs. ``pays_below``: the price of an owned machine ($/h) below which this
    way costs less than renting alone (see ``Ownership``).
    """

    name: str
    owned: int
    rents: bool
    pays_below: float | None
    figures: Figures


class OwnPlanDocument(Struct, frozen=True, kw_only=True):
    """The document of ``--json``. ``price``: of an owned machine-hour ($), None if not given."""

    workload: str
    pool: str
    policy: str
    price: float | None
    rows: tuple[OwnRow, ...]
    version: int = 1


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "own",
        help="show whether to own machines or to rent them",
        description="Simulate the history on machines that you own, on rented machines, and on "
        "both. Print costs and waits, and below which price of a machine-hour owning is cheaper. "
        f"See {page('planning')}.",
        epilog=examples("slurm-elastic plan own --workload h.swf --price 0.45 --machines 93,186"),
    )
    history.add_arguments(parser)
    parser.add_argument(
        "--price", type=amount, metavar="$",
        help="the price of an owned machine in an hour, used or not: its purchase by its life, "
        "power, room and staff (without it, only the price below which owning pays is shown)",
    )  # fmt: skip
    parser.add_argument(
        "--machines", type=sizes, metavar="N,N,...",
        help="numbers of owned machines to compare (default: once to twice the mean number of "
        "busy rented machines)",
    )  # fmt: skip
    parser.add_argument(
        "--policy", default="slurm", metavar="POLICY",
        help="how rented machines come and go (default: slurm)",
    )  # fmt: skip
    parser.add_argument(
        "--pool", metavar="NAME", help="own machines of this pool (default: the only public one)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def sizes(text: str) -> tuple[int, ...]:
    """Parse ``93,186``, for argparse."""
    return tuple(dict.fromkeys(count(size.strip()) for size in text.split(",")))


def run(args: argparse.Namespace) -> int:
    """Simulate and print the comparison."""
    setting = history.read(args)
    scenario = setting.scenario(args.policy)
    index = pool_index(args.pool, scenario.pools)
    model = scenario.pools[index]
    if not scenario.reuse:
        raise ConfigError(
            f"--policy: with {args.policy} each machine serves one job, so owning is impossible"
        )
    steps = 2 * len(args.machines or (0,) * 5) + 1
    with history.progress(len(setting.jobs) * steps) as advance:
        rented = simulate(setting.jobs, scenario, setting.history.start, advance)
        machines = args.machines or default_sizes(setting, rented, index)
        price = args.price or 0.0
        choices = own_or_rent(setting, scenario, rented, index, machines, price, advance)
    console = Output()
    tell_unbought({args.policy: rented.figures}, console)
    console.print(_table(choices, priced=args.price is not None))
    console.print(_advice(choices, model.name, args.price), markup=False, highlight=False)
    console.print(SCHEDULER, markup=False, highlight=False)
    jobs_left = [text for row in choices for text in unserved(row.name, row.figures)]
    for note in (*setting.notes_for([args.policy]), *jobs_left):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        document = OwnPlanDocument(
            workload=setting.history.source,
            pool=model.name,
            policy=args.policy,
            price=args.price,
            rows=tuple(
                OwnRow(
                    name=row.name,
                    owned=row.owned,
                    rents=row.rents,
                    pays_below=row.pays_below,
                    figures=row.figures,
                )
                for row in choices
            ),
        )
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
        )
    return 0


def _table(choices: Sequence[Ownership], *, priced: bool) -> Rows:
    right = ("cost", "mean wait", "p95 wait", "used", "pays below")
    table = Rows("", "", "machines", *right, right=right)
    cheapest = _cheapest(choices) if priced else None
    for row in choices:
        figures = row.figures
        table.add(
            ">" if row is cheapest else "",
            row.name,
            f"${figures.cost:,.2f}" if priced or not row.owned else "",
            duration(figures.mean_wait),
            duration(figures.p95_wait),
            f"{figures.utilisation:.1%}",
            ""
            if not row.owned
            else "never"
            if row.pays_below is None
            else f"${row.pays_below:.4f}",
        )
    return table


def _price_below(row: Ownership) -> str:
    if not row.owned:
        return ""
    return "never" if row.pays_below is None else f"${row.pays_below:.4f}"


def _cheapest(choices: Sequence[Ownership]) -> Ownership:
    """The cheapest of the rows that run at least as many jobs as renting alone."""
    whole = [row for row in choices if row.figures.jobs >= choices[0].figures.jobs]
    return min(whole, key=lambda row: round(row.figures.cost, 2))


def _advice(choices: Sequence[Ownership], pool: str, price: float | None) -> str:
    meaning = (
        f"own N: only N machines as pool {pool} has, which always run. own N + rent: the owned"
        " machines first, then rented machines. pays below: the price of an owned machine-hour"
        " below which the row costs less than renting alone."
    )
    if price is None:
        return f"{meaning} Give --price to see what owning costs."
    best, rent = _cheapest(choices), choices[0]
    if best is rent:
        return (
            f"{meaning}\nAt ${price:g} an hour for each owned machine, renting alone is cheapest."
        )
    saved = 1 - best.figures.cost / rent.figures.cost if rent.figures.cost else 0.0
    waits = f"{duration(best.figures.mean_wait)} instead of {duration(rent.figures.mean_wait)}"
    return (
        f"{meaning}\n>: the cheapest way to run all jobs: {best.name}, {100 * saved:.1f} % cheaper"
        f" than renting alone. Jobs then wait {waits} in the mean."
    )
