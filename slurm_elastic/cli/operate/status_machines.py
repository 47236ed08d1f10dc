"""The machines of ``status``: one line each, or several on a small screen."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_elastic.base.units import brief
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.status_screen import NARROW, WIDE, Screen
from slurm_elastic.cli.reports.shortened import with_rest, words
from slurm_elastic.watch.view.departing import TAKEN
from slurm_elastic.watch.view.rows import InstanceView, JobView

_WARN, _DIM = "yellow", "dim"
_JOBS_SHOWN = 3


def machines(instances: Sequence[InstanceView], width: int, screen: Screen) -> RenderableType:
    """As many machines as the screen shows, and a note about the hidden ones."""
    top = screen.rows(width)
    ranked = ordered(instances, screen, top)
    shown, hidden = _window(ranked, top, screen.selected)
    notes = (
        [f"filter {screen.pattern}: {len(ranked)} of {len(instances)}"] if screen.pattern else []
    )
    if hidden:
        loud = sum(not i.calm for i in hidden)
        attention = f"{loud} of which need attention" if loud else "none of which needs attention"
        notes.append(f"and {len(hidden)} more, {attention}: --all, --top N, --cloud, --pool")
    marked = frozenset({screen.selected})
    if width >= WIDE:
        table = _instances(shown, marked)
    elif width >= NARROW:
        table = _instances_narrow(shown, screen.sort, marked)
    else:
        table = _instances_small(shown, marked)
    return with_rest(table, "; ".join(notes))


def ordered(
    instances: Sequence[InstanceView], screen: Screen, top: int | None
) -> Sequence[InstanceView]:
    """The machines that pass the filter, in the order of the screen.

    They are sorted by node if no order is chosen. If more than ``top`` pass, machines that need
    attention come first.
    """
    keys: dict[str, Callable[[InstanceView], float]] = {
        "cost": lambda i: -i.cost, "price": lambda i: -i.price, "age": lambda i: -i.age,
    }  # fmt: skip
    if wanted := screen.pattern.lower():
        instances = [i for i in instances if wanted in _searched(i)]
    if screen.sort in keys:
        return sorted(instances, key=keys[screen.sort])
    if screen.sort is None and top is not None and len(instances) > top:
        return sorted(instances, key=lambda i: (i.calm, not i.next.startswith(TAKEN)))
    return instances


def _searched(i: InstanceView) -> str:
    """The text in which the filter looks."""
    jobs = [f"{job.label or job.id} {job.user}" for job in i.jobs]
    fields = (i.node, i.id, i.pool, i.cloud, i.market, i.instance_type, i.zone, i.next, *jobs)
    return " ".join(fields).lower()


def _window(
    ranked: Sequence[InstanceView], top: int | None, selected: str
) -> tuple[Sequence[InstanceView], Sequence[InstanceView]]:
    """The ``top`` machines to show, among them the selected one, and the hidden ones."""
    if top is None or len(ranked) <= top:
        return ranked, ()
    place = next((n for n, i in enumerate(ranked) if i.id == selected), 0)
    first = max(place - top + 1, 0)
    return ranked[first : first + top], [*ranked[:first], *ranked[first + top :]]


def _instances(instances: Sequence[InstanceView], marked: Container[str]) -> RenderableType:
    names = ("Node", "Id", "Type", "Zone", "Market", "$/h", "Age", "Cost $", "Jobs", "Next")
    table = Rows(
        "", *names, right=("$/h", "Age", "Cost $"), wrapped={"Jobs": 20, "Next": 46},
        gives=("Zone", "Id", ("Type", 12), "Market", "Age", "$/h", "Type"),
        otherwise=lambda: _instances_small(instances, marked),
    )  # fmt: skip
    for i in instances:
        table.add(
            i.node or i.id, i.id, i.instance_type, i.zone, i.market, f"{i.price:.4f}",
            brief(i.age), f"{i.cost:.4f}", _jobs(i.jobs), _next(i), is_marked=i.id in marked,
        )  # fmt: skip
    return table


def _instances_narrow(
    instances: Sequence[InstanceView], sort: str | None, marked: Container[str]
) -> RenderableType:
    """One row for each machine; ``explain NODE`` and a wider screen show more."""
    money = "$/h" if sort == "price" else "Cost $"
    table = Rows(
        "", "Node", "Type", "Market", money, "Age", "Jobs, next", right=(money, "Age"),
        wrapped={"Jobs, next": 42}, gives=(("Type", 12), "Age", "Market", money, "Type"),
        otherwise=lambda: _instances_small(instances, marked),
    )  # fmt: skip
    for i in instances:
        table.add(
            Text(i.node or i.id, style="bold"), i.instance_type, i.market,
            f"{i.price if sort == 'price' else i.cost:.4f}", brief(i.age), _jobs_next(i),
            is_marked=i.id in marked,
        )  # fmt: skip
    return table


def _jobs_next(i: InstanceView) -> Text:
    """The jobs and the next action; without its details if the machine needs no attention."""
    if not i.jobs:
        return _next(i)
    if i.calm and i.next == "in use":
        return _jobs(i.jobs)
    follows = words(i.next.partition(": times out")[0]) if i.calm else _next(i)
    return _jobs(i.jobs).append(": ").append(follows)


def _instances_small(instances: Sequence[InstanceView], marked: Container[str]) -> RenderableType:
    lines: list[RenderableType] = []
    for i in instances:
        head = Text.assemble((i.node, "bold"), f" {i.id} {i.state}, {i.cost:.4f} $")
        if i.id in marked:
            head.stylize("reverse")
        lines.append(head)
        lines.append(
            Text(f"  {i.instance_type} {i.zone} {i.market} {i.price:.4f} $/h {brief(i.age)}")
        )
        jobs = _jobs(i.jobs).append(": ") if i.jobs else Text()
        lines.append(Text.assemble("  ", jobs, _next(i)))
    return Group(*lines)


def _jobs(jobs: Sequence[JobView]) -> Text:
    shown = [f"{job.label or job.id} {job.user}".rstrip() for job in jobs[:_JOBS_SHOWN]]
    if len(jobs) > _JOBS_SHOWN:
        shown.append(f"and {len(jobs) - _JOBS_SHOWN} more")
    return words(", ".join(shown))


def _next(instance: InstanceView) -> Text:
    return words(instance.next, "" if instance.calm else _WARN)
