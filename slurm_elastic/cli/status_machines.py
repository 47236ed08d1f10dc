"""The machines of ``status``: a row each, in three forms by the screen's width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_elastic.cli.ckpt_tables import titled_table
from slurm_elastic.cli.shortened import with_rest, words
from slurm_elastic.watch.view.next_action import brief
from slurm_elastic.watch.view.rows import InstanceView, JobView

WIDE, NARROW = 120, 72
SORTS = ("node", "cost", "price", "age")
_WARN, _DIM = "yellow", "dim"
_JOBS_SHOWN = 3


def machines(
    instances: Sequence[InstanceView], width: int, top: int | None, sort: str | None
) -> RenderableType:
    """At most ``top`` of them (None: all), in the order of ``sort`` (one of SORTS; None: by node,
    where not all are shown those that need attention first), and how many more there are.
    """
    shown, rest = _chosen(instances, top, sort)
    if width >= WIDE:
        return with_rest(_instances(shown), rest)
    return with_rest((_instances_narrow if width >= NARROW else _instances_small)(shown), rest)


def _instances(instances: Sequence[InstanceView]) -> RenderableType:
    table = titled_table("Machines", "Node", "Id", "Type", "Zone", "Market")
    for name in ("$/h", "Age", "Cost $"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("Jobs", "State", "Next"):
        table.add_column(name)
    for i in instances:
        table.add_row(
            Text(i.node),
            Text(i.id),
            Text(i.instance_type),
            Text(i.zone),
            Text(i.market),
            Text(f"{i.price:.4f}"),
            Text(brief(i.age)),
            Text(f"{i.cost:.4f}"),
            _jobs(i.jobs),
            Text(i.state),
            _next(i),
        )
    return table


def _instances_narrow(instances: Sequence[InstanceView]) -> RenderableType:
    table = titled_table("Machines", "Node, id", "Type, zone, market")
    table.add_column("$/h, cost", justify="right", no_wrap=True)
    table.add_column("Age", justify="right", no_wrap=True)
    table.add_column("Jobs, next", ratio=1)
    table.expand = True
    for i in instances:
        jobs = _jobs(i.jobs)
        last = Group(jobs, _next(i)) if i.jobs else _next(i)
        table.add_row(
            Group(Text(i.node, style="bold"), Text(i.id, overflow="fold")),
            Group(Text(i.instance_type), Text(f"{i.zone} {i.market}", overflow="fold")),
            Group(Text(f"{i.price:.4f}"), Text(f"{i.cost:.4f}")),
            Group(Text(brief(i.age)), Text(i.state, style=_DIM)),
            last,
        )
    return table


def _instances_small(instances: Sequence[InstanceView]) -> RenderableType:
    lines: list[RenderableType] = [Text("Machines", style="bold")]
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
    """Which to show, and a word about the others."""
    keys: dict[str, Callable[[InstanceView], float]] = {
        "cost": lambda i: -i.cost, "price": lambda i: -i.price, "age": lambda i: -i.age,
    }  # fmt: skip
    if sort in keys:
        instances = sorted(instances, key=keys[sort])
    if top is None or len(instances) <= top:
        return instances, ""
    if sort is None:
        instances = sorted(instances, key=lambda i: i.calm)
    hidden = instances[top:]
    loud = sum(not i.calm for i in hidden)
    what = f", {loud} of which need attention" if loud else ", none of which needs attention"
    return instances[:top], f"and {len(hidden)} more{what}: --all, --top N, --cloud, --pool"


def _jobs(jobs: Sequence[JobView]) -> Text:
    shown = [f"{job.id} {job.user}".rstrip() for job in jobs[:_JOBS_SHOWN]]
    if len(jobs) > _JOBS_SHOWN:
        shown.append(f"and {len(jobs) - _JOBS_SHOWN} more")
    return words(", ".join(shown))


def _next(instance: InstanceView) -> Text:
    return words(instance.next, "" if instance.calm else _WARN)
