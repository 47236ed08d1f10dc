"""``slurm-elastic plan policy``: the policies that suit a site's own history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import brief
from slurm_elastic.cli import arguments, history
from slurm_elastic.cli.console import Output
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.simulate_tables import SCHEDULER, duration, tell_unbought, told
from slurm_elastic.config.document import write
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.certainty import LEAST, Comparison, compared
from slurm_elastic.simulate.engine import Progress as Told
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, unserved
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.search import NEAR, Tried, apart, front, grid, neighbours, within
from slurm_elastic.simulate.setting import Setting

WIDE = 100  # columns of a terminal from which on the table has all of its own
HELD = (
    "It was chosen for what it did to this very history, which flatters it: of such choices on "
    "public histories nine in ten savings and waits of the weeks that followed lay within, at one "
    "site seven in ten waits."
)
"""By ``scripts/bench held_back``, its rows of chosen policies; docs/planning.md has more."""
COLUMNS: Sequence[tuple[str, Callable[[Figures], str]]] = (
    ("cost", lambda f: f"${f.cost:,.2f}"),
    ("mean wait", lambda f: duration(f.mean_wait)),
    ("p95 wait", lambda f: duration(f.p95_wait)),
    ("used", lambda f: f"{f.utilisation:.1%}"),
    ("peak", lambda f: f"{f.peak:,}"),
)


class PolicyPlan(Struct, frozen=True, kw_only=True):
    """The document that ``--json`` writes. ``chosen`` is None where nothing keeps the limit;
    ``beside`` compares it with the site as it is configured, None where that is not possible.
    """

    workload: str
    tried: tuple[Tried, ...]
    front: tuple[str, ...]
    chosen: str | None
    beside: Comparison | None = None
    version: int = 1


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "policy",
        help="tell which policy suits the history",
        description="Try policies and their parameters on a history, and the site as it is "
        "configured. Print the policies that no other beats in both cost and mean wait, the best "
        "one within a limit, how it compares with the site as it is, and its lines for the "
        "configuration.",
        epilog=examples("slurm-elastic plan policy --workload history.swf --max-wait 60"),
    )
    history.add_arguments(parser)
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--max-wait", type=arguments.seconds, metavar="S",
        help="choose the cheapest policy with a mean wait of S seconds at most",
    )  # fmt: skip
    limit.add_argument(
        "--budget", type=arguments.amount, metavar="$",
        help="choose the policy with the least wait that costs this at most, over the whole "
        "history",
    )  # fmt: skip
    parser.add_argument(
        "--policies", metavar="POLICIES", help="begin with these policies, not with the usual ones"
    )
    parser.add_argument(
        "--rounds", type=arguments.count, default=2, metavar="N",
        help="try N times, each time around the best policies so far (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=Path, metavar="OUT.html", help="also write cost against wait as a picture"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if no policy keeps the limit."""
    setting = history.read(args)
    tried = search(setting, args.policies, args.rounds)
    best = front(tried)
    chosen = within(tried, args.max_wait, args.budget)
    now = next((one for one in tried if one.policy == CONFIGURED), None)
    beside = _beside(setting, chosen, now)
    console = Output()
    tell_unbought({one.policy: one.figures for one in tried}, console)
    console.print(_table(apart(best, keep=(chosen, now)), chosen, now, console.width))
    console.print(Text(_how(args, len(tried), len(best)), style="dim"))
    for sentence in _compare(chosen, now, beside):
        console.print(sentence, markup=False, highlight=False)
    console.print(SCHEDULER, markup=False, highlight=False)
    _advise(chosen, console, lease=args.billing.lease if args.billing else 1)
    notes = setting.told(one.policy for one in tried)
    for note in (*notes, *(unserved(chosen.policy, chosen.figures) if chosen else ())):
        print(f"note: {note}", file=sys.stderr)
    found = PolicyPlan(
        workload=setting.history.source,
        tried=tuple(tried),
        front=tuple(one.policy for one in best),
        chosen=chosen.policy if chosen else None,
        beside=beside,
    )
    if args.json:
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
        )
    if args.plot:
        from slurm_elastic.cli.plots import front_page

        writing.as_told(args.plot, front_page(tried, best, chosen, now, setting.history.source))
    return 0 if chosen else 1


def search(setting: Setting, policies: str | None, rounds: int) -> list[Tried]:
    """All that was tried, in the order of trying: the site as it is configured first."""
    tried: list[Tried] = []
    names = [CONFIGURED, *(split(policies) if policies else grid())]
    names = list(dict.fromkeys(names))
    with history.progress(len(setting.jobs) * len(names) * rounds) as advance:
        for _ in range(rounds):
            for name in names:
                asked = bool(policies) and name != CONFIGURED
                tried += _tried(setting, name, advance, strict=asked)
            names = neighbours([t.policy for t in front(tried)], [t.policy for t in tried])
    if not tried:
        raise ConfigError("no policy makes sense here")
    return tried


def _tried(setting: Setting, policy: str, advance: Told | None, *, strict: bool) -> list[Tried]:
    """A policy of our own grid that makes no sense on this site is passed over."""
    try:
        scenario = setting.scenario(policy)
    except ConfigError:
        if strict:
            raise
        return []
    outcome = simulate(setting.jobs, scenario, setting.history.start, advance)
    return [Tried(policy=policy, figures=outcome.figures)]


def _beside(setting: Setting, chosen: Tried | None, now: Tried | None) -> Comparison | None:
    """Both are simulated once more: of what was tried only the figures are kept."""
    if chosen is None or now is None or chosen == now:
        return None
    ours, other = (
        simulate(setting.jobs, setting.scenario(one.policy), setting.history.start)
        for one in (chosen, now)
    )
    return compared(ours, other)


def _compare(chosen: Tried | None, now: Tried | None, beside: Comparison | None) -> Iterator[str]:
    """How the choice compares with the site as it is, in sentences."""
    if chosen is None or now is None:
        return
    if chosen == now:
        yield "The site as it is configured is the best of these."
    elif beside is None:
        yield (
            f"{chosen.policy} beside the site as it is configured: the history has fewer than "
            f"{LEAST} whole weeks with costs, so nobody can say how sure the difference is."
        )
    else:
        yield f"{chosen.policy} beside the site as it is configured: {told(beside)}."
        yield HELD


def _how(args: argparse.Namespace, tried: int, best: int) -> str:
    """The words below the table: which policies it shows, and by what the choice is made."""
    chosen = "the nearest to the least cost and the least wait at once, each by its range here"
    if args.max_wait is not None:
        chosen = f"the cheapest whose jobs wait {brief(args.max_wait)} at most in the mean"
    if args.budget is not None:
        chosen = f"the one whose jobs wait least for ${args.budget:,.2f} at most"
    return (
        f"{best} of {tried} policies are beaten by no other in both cost and mean wait; those "
        f"within {NEAR:.1%} of the one above are left out (--json has all). >: {chosen}. now: the "
        "site as it is configured."
    )


def _table(best: Sequence[Tried], chosen: Tried | None, now: Tried | None, width: int) -> Table:
    columns = COLUMNS if width >= WIDE else COLUMNS[:-2]
    rows = best if now is None or now in best else (*best, now)
    shown = [[show(one.figures) for _, show in columns] for one in rows]
    room = _room([[name for name, _ in columns], *shown], width)
    table = Table(box=box.SIMPLE)
    table.add_column("")
    table.add_column("policy", overflow="fold")
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one, cells in zip(rows, shown, strict=True):
        mark = ">" if one == chosen else "now" if one == now else ""
        table.add_row(mark, _broken(one.policy, room), *cells)
    return table


def _room(cells: Sequence[Sequence[str]], width: int) -> int:
    """Characters of a line that the table's other columns leave to a policy's name."""
    widths = [len("now"), *(max(map(len, column)) for column in zip(*cells, strict=True))]
    count = len(widths) + 1
    return width - sum(widths) - 2 * count - (count + 1)  # padding, and the box's own blanks


def _broken(policy: str, room: int) -> str:
    """The name, between its growth and its release where one line has no room for both."""
    return policy if len(policy) <= room else policy.replace(")+", ")\n+", 1)


def _advise(chosen: Tried | None, console: Console, *, lease: int) -> None:
    if chosen is None:
        console.print("no policy keeps this limit on this history")
        return
    console.print("for slurm-elastic.yaml:\n")
    console.print(snippet(chosen.policy, lease=lease), markup=False, highlight=False, end="")


def snippet(policy: str, *, lease: int = 1) -> str:
    """Configuration that makes the daemon follow the policy; ``lease``: seconds paid at once."""
    if policy == CONFIGURED:
        return "# as it is\n"
    growth, *rest = split(policy, "+")
    keys = {"growth": growth}
    for part in rest:
        keys["order" if part in tuple(IdleOrder) else "release"] = part
    if lease > 1:
        keys["lease"] = "1h" if lease == 3600 else f"{lease}s"
    return write({"policies": keys})
