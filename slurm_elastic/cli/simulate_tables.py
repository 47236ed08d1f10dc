"""A simulation's result as a table, one row a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_elastic.simulate.certainty import Comparison, Interval
from slurm_elastic.simulate.outcome import Figures


class PolicyRow(Protocol):
    """The values that a row needs."""

    @property
    def policy(self) -> str:
        """As it was asked for."""
        ...

    @property
    def figures(self) -> Figures:
        """The figures of its simulation."""
        ...


Show = Callable[[Figures, Figures], str]

COLUMNS: Sequence[tuple[str, Show]] = (
    ("cost", lambda f, _: f"${f.cost:,.2f}"),
    ("on demand", lambda f, _: f"${f.on_demand:,.2f}"),
    ("spot", lambda f, _: f"${f.spot:,.2f}"),
    ("saving", lambda f, first: f"{1 - f.cost / first.cost:.1%}" if first.cost else ""),
    ("mean wait", lambda f, _: duration(f.mean_wait)),
    ("p95 wait", lambda f, _: duration(f.p95_wait)),
    ("slowdown", lambda f, _: f"{f.slowdown:,.1f}"),
    ("used", lambda f, _: f"{f.utilisation:.1%}"),
    ("peak", lambda f, _: f"{f.peak:,}"),
    ("lost h", lambda f, _: f"{f.lost_hours:,.1f}"),
    ("ckpts", lambda f, _: f"{f.checkpoints:,}"),
    ("interrupted", lambda f, _: f"{f.interruptions:,}"),
    ("API calls", lambda f, _: f"{f.api_calls:,}"),
    ("jobs", lambda f, _: f"{f.jobs:,}"),
)


WORDS = """\
saving: of the cost of the first policy. used: share of the machine time that is paid, or stands
anyway, in which a job has the machine. peak: most machines at a time. slowdown: (wait + run) / run,
in the mean, with runs of 10 s at least. lost h: machine-hours of work that interruptions took."""
"""The meaning of the table's words."""

SCHEDULER = (
    "The simulated scheduler serves jobs in the order of their submission, with EASY backfill. It "
    "knows no priorities, fair-share, QOS, limits of partitions or associations, dependencies, "
    "reservations or preemption: where these decide who runs first, waits will differ."
)
"""To be read with each advice from a simulation."""


def render(rows: Sequence[PolicyRow], console: Console) -> None:
    """Print the table; upright, a line a figure, where it would not fit across."""
    head, lines = cells(rows)
    columns = zip(head, *lines, strict=True)
    if sum(max(map(len, column)) + 2 for column in columns) <= console.width:
        _across(head, lines, console)
    else:
        _upright(head, lines, console)
    console.print(Text(" ".join(WORDS.split()), style="dim"))
    console.print(Text(SCHEDULER))


def cells(rows: Sequence[PolicyRow]) -> tuple[list[str], list[list[str]]]:
    """The head and a line a policy; savings are those against the first."""
    first = rows[0].figures
    lines = [[row.policy, *(show(row.figures, first) for _, show in COLUMNS)] for row in rows]
    return ["policy", *(name for name, _ in COLUMNS)], lines


def duration(seconds: float) -> str:
    """Short: ``45 s``, ``12 min``, ``5.2 h``, ``3.1 d``."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if size < 3600 else f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def told(comparison: Comparison) -> str:
    """A comparison of two policies as words, with how sure it is."""
    saving, wait = comparison.saving, comparison.wait
    cost = _ranged(saving, ("cheaper", "dearer"), _percent) or "the same cost"
    waits = _ranged(wait, ("longer", "shorter"), duration) or "as long"
    unsure = [name for name, one in (("cost", saving), ("wait", wait)) if one.low < 0 < one.high]
    doubt = f"; which way the {' and the '.join(unsure)} would go is not sure" if unsure else ""
    return (
        f"{cost}, and jobs wait {waits} (in parentheses: what to expect of as many weeks to come, "
        f"by how far single ones of these {comparison.weeks} differ){doubt}"
    )


def _ranged(found: Interval, words: tuple[str, str], shown: Callable[[float], str]) -> str:
    """``12 s longer (8 s to 15 s)``; empty where there is no difference to be seen."""
    value, low, high = (_size(one, words, shown) for one in (found.value, found.low, found.high))
    nothing = shown(0.0)
    if {value[0], low[0], high[0]} == {nothing}:
        return ""
    ends = (low, high) if found.value >= 0 else (high, low)
    if len({word for size, word in (value, *ends) if size != nothing}) == 1:
        return f"{' '.join(value)} ({' to '.join(size for size, _ in ends)})"
    return f"{' '.join(value)} ({' to '.join(' '.join(end) for end in ends)})"


def _size(value: float, words: tuple[str, str], shown: Callable[[float], str]) -> tuple[str, str]:
    return shown(abs(value)), words[value < 0]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def unbought(figures: Mapping[str, Figures]) -> list[str]:
    """Which policies never bought a machine, and why: a sentence for those of one reason."""
    reasons = dict.fromkeys(one.unbought for one in figures.values() if one.unbought)
    return [
        f"{', '.join(policy for policy in figures if figures[policy].unbought == why)}: {why}"
        for why in reasons
    ]


def tell_unbought(figures: Mapping[str, Figures], console: Console) -> None:
    """Print these sentences."""
    for sentence in unbought(figures):
        console.print(Text(sentence, style="bold red"))


def _across(head: Sequence[str], lines: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(box=box.SIMPLE)
    for name in head:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for line in lines:
        table.add_row(Text(line[0]), *line[1:])
    console.print(table)


def _upright(head: Sequence[str], lines: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for line in lines:
        table.add_column(Text(line[0]), justify="right", overflow="fold")
    for index, name in enumerate(head[1:], 1):
        table.add_row(name, *(line[index] for line in lines))
    console.print(table)
