"""How the quickstart looks: one line that moves on a terminal, plain lines elsewhere, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from slurm_elastic.ledger import Machine
from slurm_elastic.model import Market
from slurm_elastic.sandbox.rehearsal import CostRow, Watch, markets

_ORDER = ("waiting", "starting", "running", "completed")


class Progress:
    """Says where things stand whenever that has changed; on a terminal beside the seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console) if console.is_terminal else None
        self._last = ""

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def show(self, watch: Watch, machines: Iterable[Market], seconds: float) -> None:
        """One look at jobs, nodes and machines, ``seconds`` after the beginning."""
        line = standing(watch, machines)
        if self._status:
            self._status.update(f"{seconds:4.0f} s  {line}")
        if line != self._last:
            self._console.print(f"{seconds:4.0f} s  {line}")
            self._last = line


def standing(watch: Watch, machines: Iterable[Market]) -> str:
    """Jobs by state, taken nodes by cloud, machines by market, in one line."""
    states, busy, bought = watch.states(), watch.busy(), Counter(machines)
    known = [s for s in _ORDER if states[s]] + sorted(states.keys() - {*_ORDER})
    jobs = ", ".join(f"{states[s]} {s}" for s in known)
    nodes = ", ".join(f"{p.cloud} {busy[p.cloud]}/{len(p.nodes)}" for p in watch.places.values())
    paid = ", ".join(f"{bought[m]} {m}" for m in Market if bought[m]) or "none"
    return f"jobs: {jobs} | nodes: {nodes} | machines: {paid}"


def job_table(watch: Watch, machines: Sequence[Machine]) -> Table:
    """Each job: where it ran, and on what kind of machine."""
    table = Table("Job", "Name", "Nodes", "Partition", "Cloud", "Market", "State", box=box.SIMPLE)
    for job in sorted(watch.jobs.values(), key=lambda j: j.id):
        place = watch.place(job) if job.nodes else None
        cloud = place.cloud if place else "-"
        market = ", ".join(markets(job, machines)) or ("static" if place else "-")
        table.add_row(
            str(job.id), job.name, ",".join(job.nodes), job.partition, cloud, market, job.state
        )
    return table


def cost_table(rows: Sequence[CostRow]) -> Table:
    """What the machines cost, and what they would have cost on demand."""
    table = Table("Cloud", "Market", box=box.SIMPLE)
    for name in ("Machines", "Hours", "Cost $", "On-demand $"):
        table.add_column(name, justify="right")
    for row in rows:
        listed = "-" if row.on_demand is None else f"{row.on_demand:.5f}"
        table.add_row(
            row.cloud, str(row.market), str(row.machines), f"{row.hours:.4f}",
            f"{row.dollars:.5f}", listed,
        )  # fmt: skip
    paid = [row for row in rows if row.on_demand is not None]
    if paid:
        cost, listed_cost = sum(r.dollars for r in paid), sum(r.on_demand or 0.0 for r in paid)
        saved = f"saved {1 - cost / listed_cost:.0%}" if listed_cost else ""
        table.add_section()
        table.add_row(
            "public", saved, str(sum(r.machines for r in paid)),
            f"{sum(r.hours for r in paid):.4f}", f"{cost:.5f}", f"{listed_cost:.5f}",
        )  # fmt: skip
    return table
