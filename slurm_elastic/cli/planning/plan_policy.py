"""``slurm-elastic plan policy``: find the policies that suit a site's own history."""

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
from slurm_elastic.cli import arguments
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.planning.simulate_tables import (
    SCHEDULER,
    comparison_text,
    duration,
    tell_unbought,
)
from slurm_elastic.config.document import write
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import Figures, unserved
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.studies.certainty import Choice, Comparison, Unlike, compared
from slurm_elastic.simulate.studies.kept import KeptResults
from slurm_elastic.simulate.studies.policy_search import first_policies, search
from slurm_elastic.simulate.studies.search import (
    NEAR,
    Tried,
    apart,
    front,
    of_most_jobs,
    within,
)

WIDE_COLUMNS = 100  # on narrower terminals the table leaves out its last two columns
SELECTION_NOTE = (
    "The policy was chosen on this same history, and the ranges include that it looks better there "
    "than it is: on public histories that were not used for the widths of these ranges, nine in "
    "ten ranges also held for as many following weeks."
)
"""See ``certainty.WIDTHS``; docs/benchmarks.md has more."""
COLUMNS: Sequence[tuple[str, Callable[[Figures], str]]] = (
    ("cost", lambda f: f"${f.cost:,.2f}"),
    ("mean wait", lambda f: duration(f.mean_wait)),
    ("p95 wait", lambda f: duration(f.p95_wait)),
    ("used", lambda f: f"{f.utilisation:.1%}"),
    ("peak", lambda f: f"{f.peak:,}"),
)


class PolicyPlan(Struct, frozen=True, kw_only=True):
    """The document of ``--json``.

    ``chosen``: None if no policy keeps the limit. ``beside``: the chosen policy compared with the
    site's configuration, or None. ``unlike``: in its place if the history's halves differ too much.
    ``is_whole``: the search was not interrupted.
    """

    workload: str
    tried: tuple[Tried, ...]
    front: tuple[str, ...]
    chosen: str | None
    beside: Comparison | None = None
    unlike: Unlike | None = None
    is_whole: bool = True
    version: int = 1


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "policy",
        help="show which policy suits the history",
        description="Try policies and their parameters on a history, and the site's "
        "configuration. Print the best trade-offs between cost and mean wait, the best policy "
        "within a limit, how it compares with the current configuration, and its lines for the "
        "configuration.",
        epilog=examples("slurm-elastic plan policy --workload history.swf --max-wait 60"),
    )
    history.add_arguments(parser)
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--max-wait", type=arguments.seconds, metavar="S",
        help="choose the cheapest policy with a mean wait of at most S seconds",
    )  # fmt: skip
    limit.add_argument(
        "--budget", type=arguments.amount, metavar="$",
        help="choose the policy with the shortest mean wait that costs at most this, over the "
        "whole history",
    )  # fmt: skip
    parser.add_argument(
        "--policies",
        metavar="POLICIES",
        help="start with these policies instead of the default ones",
    )
    parser.add_argument(
        "--rounds", type=arguments.count, default=2, metavar="N",
        help="try N times, each time around the best policies so far (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", type=Path, metavar="FILE",
        help="keep each result in FILE, and simulate nothing again that it has already",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=Path, metavar="OUT.html", help="also write cost against wait as a picture"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search and print the result. Exit 1 if no policy keeps the limit, 130 after an interruption,
    which prints the results so far.
    """
    setting = history.read(args)
    tried, is_whole = _searched(setting, args)
    best = front(tried)
    chosen = within(tried, args.max_wait, args.budget)
    configured = next((candidate for candidate in tried if candidate.policy == CONFIGURED), None)
    comparison = _comparison(setting, chosen, configured) if is_whole else None
    console = Output()
    tell_unbought({candidate.policy: candidate.figures for candidate in tried}, console)
    console.print(_table(apart(best, keep=(chosen, configured)), chosen, configured, console.width))
    console.print(Text(_how(args, len(tried), len(best)), style="dim"))
    for sentence in _compare(chosen, configured, comparison) if is_whole else ():
        console.print(sentence, markup=False, highlight=False)
    console.print(SCHEDULER, markup=False, highlight=False)
    _advise(chosen, console, lease=args.billing.lease if args.billing else 1)
    notes = setting.notes_for(candidate.policy for candidate in tried)
    jobs_left = unserved(chosen.policy, chosen.figures) if chosen else ()
    for note in (*notes, *jobs_left, *_fewer_jobs(tried)):
        print(f"note: {note}", file=sys.stderr)
    if not is_whole:
        print(f"note: {_interrupted(args.resume)}", file=sys.stderr)
    document = PolicyPlan(
        workload=setting.history.source,
        tried=tuple(tried),
        front=tuple(candidate.policy for candidate in best),
        chosen=chosen.policy if chosen else None,
        beside=comparison if isinstance(comparison, Comparison) else None,
        unlike=comparison if isinstance(comparison, Unlike) else None,
        is_whole=is_whole,
    )
    if args.json:
        writing.as_told(
            args.json, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
        )
    if args.plot:
        from slurm_elastic.cli.planning.plots import front_page

        writing.as_told(
            args.plot, front_page(tried, best, chosen, configured, setting.history.source)
        )
    if not is_whole:
        return 130  # 128 + SIGINT, as in a shell
    return 0 if chosen else 1


def _searched(setting: Setting, args: argparse.Namespace) -> tuple[list[Tried], bool]:
    """All results of ``search``, with the progress, and whether it came to its end. After an
    interruption they are those so far. ConfigError if there are none.
    """
    names, strict = first_policies(args.policies), bool(args.policies)
    kept = KeptResults(args.resume, setting.jobs, setting.history.start) if args.resume else None
    tried: list[Tried] = []
    with history.progress(len(setting.jobs) * len(names) * args.rounds) as advance:
        results = search(setting, names, args.rounds, strict=strict, advance=advance, kept=kept)
        try:
            tried.extend(results)
        except KeyboardInterrupt:
            if not tried:
                raise
            return tried, False
    if not tried:
        raise ConfigError("no policy makes sense here")
    return tried, True


def _interrupted(resume: Path | None) -> str:
    """The note after an interruption."""
    how = (
        f"the same command with --resume {resume} continues"
        if resume
        else "with --resume FILE a search continues where it was interrupted"
    )
    return f"the search was interrupted, so better policies may be missing; {how}"


def _comparison(
    setting: Setting, chosen: Tried | None, configured: Tried | None
) -> Comparison | Unlike | None:
    """Compare the two policies. Both are simulated again: the search keeps only figures."""
    if chosen is None or configured is None or chosen == configured:
        return None
    chosen_outcome, configured_outcome = (
        simulate(setting.jobs, setting.scenario(candidate.policy), setting.history.start)
        for candidate in (chosen, configured)
    )
    return compared(chosen_outcome, configured_outcome, Choice.CHOSEN)


def _compare(
    chosen: Tried | None, configured: Tried | None, comparison: Comparison | Unlike | None
) -> Iterator[str]:
    """Sentences that compare the chosen policy with the site's configuration."""
    if chosen is None or configured is None:
        return
    if chosen == configured:
        yield "The current configuration is the best of these."
        return
    yield (
        f"{chosen.policy} compared with the current configuration: {comparison_text(comparison)}."
    )
    if isinstance(comparison, Comparison):
        yield SELECTION_NOTE


def _fewer_jobs(tried: Sequence[Tried]) -> Iterator[str]:
    """A note of the policies that are no choice."""
    counted = of_most_jobs(tried)
    out = [candidate.policy for candidate in tried if candidate not in counted]
    if out:
        yield f"no choice, because fewer jobs run than under the others: {', '.join(out)}"


def _how(args: argparse.Namespace, tried: int, best: int) -> str:
    """The text below the table: which policies it shows, and the rule of the choice."""
    chosen = "the best compromise, by the distance to the lowest cost and the shortest wait"
    if args.max_wait is not None:
        chosen = f"the cheapest policy with a mean wait of at most {brief(args.max_wait)}"
    if args.budget is not None:
        chosen = f"the policy with the shortest mean wait for at most ${args.budget:,.2f}"
    return (
        f"{best} of {tried} policies are best trade-offs between cost and mean wait; policies "
        f"within {NEAR:.1%} of the one above are left out (--json has all). >: {chosen}. now: the "
        "current configuration."
    )


def _table(
    best: Sequence[Tried], chosen: Tried | None, configured: Tried | None, width: int
) -> Table:
    columns = COLUMNS if width >= WIDE_COLUMNS else COLUMNS[:-2]
    rows = best if configured is None or configured in best else (*best, configured)
    shown = [[show(candidate.figures) for _, show in columns] for candidate in rows]
    room = _room([[name for name, _ in columns], *shown], width)
    table = Table(box=box.SIMPLE)
    table.add_column("")
    table.add_column("policy", overflow="fold")
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for candidate, cells in zip(rows, shown, strict=True):
        mark = ">" if candidate == chosen else "now" if candidate == configured else ""
        table.add_row(mark, _broken(candidate.policy, room), *cells)
    return table


def _room(cells: Sequence[Sequence[str]], width: int) -> int:
    """The characters of a line that the other columns leave for a policy's name."""
    widths = [len("now"), *(max(map(len, column)) for column in zip(*cells, strict=True))]
    count = len(widths) + 1
    return width - sum(widths) - 2 * count - (count + 1)  # padding, and the box's own blanks


def _broken(policy: str, room: int) -> str:
    """The name, with a line break between growth and release if it is wider than ``room``."""
    return policy if len(policy) <= room else policy.replace(")+", ")\n+", 1)


def _advise(chosen: Tried | None, console: Console, *, lease: int) -> None:
    if chosen is None:
        console.print("no policy keeps this limit on this history")
        return
    console.print("for slurm-elastic.yaml:\n")
    console.print(snippet(chosen.policy, lease=lease), markup=False, highlight=False, end="")


def snippet(policy: str, *, lease: int = 1) -> str:
    """The lines of slurm-elastic.yaml for this policy; ``lease``: billing increment (s)."""
    if policy == CONFIGURED:
        return "# no change\n"
    growth, *terms = split(policy, "+")
    keys = {"growth": growth}
    for term in terms:
        keys["machine_order" if term in tuple(IdleOrder) else "release"] = term
    if lease > 1:
        keys["billing_increment"] = "1h" if lease == 3600 else f"{lease}s"
    return write({"policies": keys})
