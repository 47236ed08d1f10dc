"""The machines of ``status``: one line each, or several on a small screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_elastic.base.units import brief
from slurm_elastic.cli.columns import Rows
from slurm_elastic.cli.shortened import with_rest, words
from slurm_elastic.watch.view.departing import TAKEN
from slurm_elastic.watch.view.rows import InstanceView, JobView

WIDE, NARROW = 120, 72
SORTS = ("node", "cost", "price", "age")
_WARN, _DIM = "yellow", "dim"
_JOBS_SHOWN = 3


def machines(
    instances: Sequence[InstanceView], width: int, top: int | None, sort: str | None
) -> RenderableType:
    """At most ``top`` machines (None: all), and a note about the hidden ones.

    ``sort``: one of SORTS. None: by node, and if some are hidden, machines that need attention
    come first.
    """
    shown, hidden = _chosen(instances, top, sort)
    if width >= WIDE:
        return with_rest(_instances(shown), hidden)
    if width >= NARROW:
        return with_rest(_instances_narrow(shown, sort), hidden)
    return with_rest(_instances_small(shown), hidden)


def _instances(instances: Sequence[InstanceView]) -> RenderableType:
    names = ("Node", "Id", "Type", "Zone", "Market", "$/h", "Age", "Cost $", "Jobs", "Next")
    table = Rows(
        "", *names, right=("$/h", "Age", "Cost $"), wrapped={"Jobs": 20, "Next": 46},
        gives=("Zone", "Id", ("Type", 12), "Market", "Age", "$/h", "Type"),
        otherwise=lambda: _instances_small(instances),
    )  # fmt: skip
    for i in instances:
        table.add(
            i.node or i.id, i.id, i.instance_type, i.zone, i.market, f"{i.price:.4f}",
            brief(i.age), f"{i.cost:.4f}", _jobs(i.jobs), _next(i),
        )  # fmt: skip
    return table


def _instances_narrow(instances: Sequence[InstanceView], sort: str | None) -> RenderableType:
    """One row for each machine; ``explain NODE`` and a wider screen show more."""
    money = "$/h" if sort == "price" else "Cost $"
    table = Rows(
        "", "Node", "Type", "Market", money, "Age", "Jobs, next", right=(money, "Age"),
        wrapped={"Jobs, next": 42}, gives=(("Type", 12), "Age", "Market", money, "Type"),
        otherwise=lambda: _instances_small(instances),
    )  # fmt: skip
    for i in instances:
        table.add(
            Text(i.node or i.id, style="bold"), i.instance_type, i.market,
            f"{i.price if sort == 'price' else i.cost:.4f}", brief(i.age), _jobs_next(i),
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


def _instances_small(instances: Sequence[InstanceView]) -> RenderableType:
    lines: list[RenderableType] = []
    for i in instances:
        lines.append(Text.assemble((i.node, "bold"), f" {i.id} {i.state}, {i.cost:.4f} $"))
        lines.append(
            Text(f"  {i.instance_type} {i.zone} {i.market} {i.price:.4f} $/h {brief(i.age)}")
        )
        jobs = _jobs(i.jobs).append(": ") if i.jobs else Text()
        lines.append(Text.assemble("  ", jobs, _next(i)))
    return Group(*lines)


def _chosen(
    instances: Sequence[InstanceView], top: int | None, sort: str | None
) -> tuple[Sequence[InstanceView], str]:
    """The machines to show, and a note about the hidden ones."""
    keys: dict[str, Callable[[InstanceView], float]] = {
        "cost": lambda i: -i.cost, "price": lambda i: -i.price, "age": lambda i: -i.age,
    }  # fmt: skip
    if sort in keys:
        instances = sorted(instances, key=keys[sort])
    if top is None or len(instances) <= top:
        return instances, ""
    if sort is None:
        instances = sorted(instances, key=lambda i: (i.calm, not i.next.startswith(TAKEN)))
    hidden = instances[top:]
    loud = sum(not i.calm for i in hidden)
    attention = f", {loud} of which need attention" if loud else ", none of which needs attention"
    return instances[:top], f"and {len(hidden)} more{attention}: --all, --top N, --cloud, --pool"


def _jobs(jobs: Sequence[JobView]) -> Text:
    shown = [f"{job.label or job.id} {job.user}".rstrip() for job in jobs[:_JOBS_SHOWN]]
    if len(jobs) > _JOBS_SHOWN:
        shown.append(f"and {len(jobs) - _JOBS_SHOWN} more")
    return words(", ".join(shown))


def _next(instance: InstanceView) -> Text:
    return words(instance.next, "" if instance.calm else _WARN)
