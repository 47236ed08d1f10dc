"""The result of a simulation as a table, one row for each policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.studies.certainty import (
    MIN_COMPARED_WEEKS,
    Comparison,
    Interval,
    Unlike,
)


class PolicyRow(Protocol):
    """A row of the table: the values that it is made from."""

    @property
    def policy(self) -> str:
        """The policy's text, as the user gave it."""
        ...

    @property
    def figures(self) -> Figures:
        """The figures of its simulation."""
        ...


Show = Callable[[Figures, Figures], str]

RESERVED, ENERGY = "reserved", "kWh"
"""The columns of sites that hold reservations, and that give the power of machines."""
COLUMNS: Sequence[tuple[str, Show]] = (
    ("cost", lambda f, _: f"${f.cost:,.2f}"),
    ("on demand", lambda f, _: f"${f.on_demand:,.2f}"),
    ("spot", lambda f, _: f"${f.spot:,.2f}"),
    (RESERVED, lambda f, _: f"${f.reserved:,.2f}"),
    ("per used h", lambda f, _: _per_used_hour(f)),
    ("saving", lambda f, first: f"{1 - f.cost / first.cost:.1%}" if first.cost else ""),
    ("mean wait", lambda f, _: duration(f.mean_wait)),
    ("p95 wait", lambda f, _: duration(f.p95_wait)),
    ("slowdown", lambda f, _: f"{f.slowdown:,.1f}"),
    ("used", lambda f, _: f"{f.utilisation:.1%}"),
    ("peak", lambda f, _: f"{f.peak:,}"),
    (ENERGY, lambda f, _: f"{f.energy:,.1f}"),
    ("lost h", lambda f, _: f"{f.lost_hours:,.1f}"),
    ("ckpts", lambda f, _: f"{f.checkpoints:,}"),
    ("interrupted", lambda f, _: f"{f.interruptions:,}"),
    ("API calls", lambda f, _: f"{f.api_calls:,}"),
    ("jobs", lambda f, _: f"{f.jobs:,}"),
)


LEGEND = """\
per used h: cost by the hours in which machines that cost money have jobs. saving: share of the
first policy's cost. used: share of the machine time (paid, or of the site's own machines) in which
a job has the machine. peak: most machines at a time. slowdown: mean of (wait + run) / run, with
runs of at least 10 s. lost h: machine-hours of work lost by interruptions."""
"""The meaning of the table's headings."""
RESERVED_LEGEND = (
    "reserved: for machines that were started on held reservations, and for unused reservations."
)

SCHEDULER = (
    "The simulated scheduler serves jobs in the order of their submission, with EASY backfill. It "
    "knows no priorities, fair-share, QOS, limits of partitions or associations, dependencies, "
    "reservations or preemption. If these decide which job runs first, real waits will differ."
)
"""A note to print below each advice from a simulation."""


def render(rows: Sequence[PolicyRow], console: Console) -> None:
    """Print the table: one row per policy, or one row per figure if that is too wide."""
    head, lines = cells(rows)
    legend = f"{LEGEND} {RESERVED_LEGEND}" if RESERVED in head else LEGEND
    if (baseline := _baseline(rows)) is not rows[0]:
        legend += f" {rows[0].policy} costs nothing: savings compare with {baseline.policy}."
    columns = zip(head, *lines, strict=True)
    if sum(max(map(len, column)) + 2 for column in columns) <= console.width:
        _across(head, lines, console)
    else:
        _upright(head, lines, console)
    console.print(Text(" ".join(legend.split()), style="dim"))
    console.print(Text(SCHEDULER))


def cells(rows: Sequence[PolicyRow]) -> tuple[list[str], list[list[str]]]:
    """The headings, and one row of cells for each policy; savings compare with the first policy
    that costs anything.
    """
    first_figures = _baseline(rows).figures
    hidden = [
        name
        for name, is_shown in (
            (RESERVED, any(row.figures.reserved for row in rows)),
            (ENERGY, any(row.figures.energy for row in rows)),
        )
        if not is_shown
    ]
    columns = [column for column in COLUMNS if column[0] not in hidden]
    lines = [
        [row.policy, *(show(row.figures, first_figures) for _, show in columns)] for row in rows
    ]
    return ["policy", *(name for name, _ in columns)], lines


def _baseline(rows: Sequence[PolicyRow]) -> PolicyRow:
    # With policy ``none`` a site may have no machines that cost money.
    return next((row for row in rows if row.figures.cost), rows[0])


def _per_used_hour(figures: Figures) -> str:
    paid = [pool for pool in figures.pools if pool.on_demand + pool.spot + pool.reserved]
    hours = sum(pool.busy_hours for pool in paid)
    return f"${figures.cost / hours:,.3f}" if hours else ""


def duration(seconds: float) -> str:
    """A duration with one unit: ``45 s``, ``12 min``, ``5.2 h``, ``3.1 d``."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if size < 3600 else f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def comparison_text(comparison: Comparison | Unlike | None) -> str:
    """A comparison of two policies in words, with its uncertainty, or why there is no range."""
    if comparison is None:
        return (
            f"the history has fewer than {MIN_COMPARED_WEEKS} whole weeks with costs. Treat the "
            "difference as a guess"
        )
    if isinstance(comparison, Unlike):
        return _unlike_text(comparison)
    saving, wait = comparison.saving, comparison.wait
    cost = _ranged(saving, ("cheaper", "dearer"), _percent) or "the same cost"
    waits = _ranged(wait, ("longer", "shorter"), duration) or "as long"
    unsure = [
        name
        for name, interval in (("cost", saving), ("wait", wait))
        if interval.low < 0 < interval.high
    ]
    doubt = (
        f"; it is not sure which way the {' and the '.join(unsure)} would change" if unsure else ""
    )
    return (
        f"{cost}, and jobs wait {waits} (in parentheses: the range to expect in as many coming "
        f"weeks, from the variation between these {comparison.weeks} weeks){doubt}"
    )


def _unlike_text(unlike: Unlike) -> str:
    first, second = (
        f"{' '.join(_size(saving, ('cheaper', 'dearer'), _percent))}, and jobs wait "
        f"{' '.join(_size(wait, ('longer', 'shorter'), duration))}"
        for saving, wait in zip(unlike.savings, unlike.waits, strict=True)
    )
    return (
        f"in the first half of these {unlike.weeks} weeks {first}; in the second half {second}. "
        "The halves of the history are too unlike each other for a range. Treat the difference as "
        "a guess"
    )


def _ranged(interval: Interval, directions: tuple[str, str], shown: Callable[[float], str]) -> str:
    """``12 s longer (8 s to 15 s)``; "" if no difference is visible."""
    value, low, high = (
        _size(bound, directions, shown) for bound in (interval.value, interval.low, interval.high)
    )
    nothing = shown(0.0)
    if {value[0], low[0], high[0]} == {nothing}:
        return ""
    ends = (low, high) if interval.value >= 0 else (high, low)
    if len({word for size, word in (value, *ends) if size != nothing}) == 1:
        return f"{' '.join(value)} ({' to '.join(size for size, _ in ends)})"
    return f"{' '.join(value)} ({' to '.join(' '.join(end) for end in ends)})"


def _size(
    value: float, directions: tuple[str, str], shown: Callable[[float], str]
) -> tuple[str, str]:
    return shown(abs(value)), directions[value < 0]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def unbought(figures: Mapping[str, Figures]) -> list[str]:
    """The policies that never bought a machine: one sentence for each reason."""
    reasons = dict.fromkeys(
        policy_figures.unbought for policy_figures in figures.values() if policy_figures.unbought
    )
    return [
        f"{', '.join(policy for policy in figures if figures[policy].unbought == reason)}: {reason}"
        for reason in reasons
    ]


def tell_unbought(figures: Mapping[str, Figures], console: Console) -> None:
    """Print the sentences of ``unbought``."""
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
