"""The quickstart's output: a clock on a terminal, lines of progress, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from slurm_elastic.model.cluster import Market
from slurm_elastic.sandbox.quickstart_proof import CostRow, JobWatch, markets
from slurm_elastic.state.ledger import Machine

_JOBS = {"wait": "waiting", "start": "starting", "run": "running", "done": "completed"}


class Progress:
    """Prints a row when jobs, nodes or machines change, and a clock below on a terminal."""

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

    def show(self, watch: JobWatch, machines: Iterable[Market], seconds: float) -> None:
        """Print a row if it differs from the last one; ``seconds``: time since the start."""
        if self._status:
            self._status.update(f"{seconds:.0f} s")
        row = standing(watch, machines)
        if not self._last:
            self._console.print(heading(watch))
        if row != self._last:
            self._console.print(f"{seconds:4.0f} s {row}")
            self._last = row


def heading(watch: JobWatch) -> str:
    """The two lines above the rows of ``standing``."""
    jobs = "".join(f"{name:>6}" for name in _JOBS)
    clouds = "".join(f"{p.cloud:>7}" for p in watch.places.values())
    markets_ = "".join(f"{m:>10}" for m in Market)
    above = f"{'':6} {'jobs':>{len(jobs)}} {'nodes':>{len(clouds)}} {'machines':>{len(markets_)}}"
    return f"{above}\n{'':6} {jobs} {clouds} {markets_}"


def standing(watch: JobWatch, machines: Iterable[Market]) -> str:
    """One row: jobs by state, busy nodes by cloud, machines by market."""
    states, busy, bought = watch.states(), watch.busy(), Counter(machines)
    jobs = "".join(f"{states[state] or '-':>6}" for state in _JOBS.values())
    busy_of_all = (f"{busy[p.cloud]}/{len(p.nodes)}" for p in watch.places.values())
    nodes = "".join(f"{text:>7}" for text in busy_of_all)
    paid = "".join(f"{bought[m] or '-':>10}" for m in Market)
    odd = "".join(f"  {states[s]} {s}" for s in sorted(states.keys() - set(_JOBS.values())))
    return f"{jobs} {nodes} {paid}{odd}"


def job_table(watch: JobWatch, machines: Sequence[Machine]) -> Table:
    """One row for each job: its nodes, and the market of its machines."""
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
    """The cost of the machines, and what they would have cost on demand."""
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
