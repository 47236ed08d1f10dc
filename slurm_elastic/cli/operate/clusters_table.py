"""``status --clusters``: this cluster and the others of the configuration in one table."""

from __future__ import annotations

import os
import time

from msgspec import convert, json
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.units import brief
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.status_tables import dollars
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config
from slurm_elastic.watch.door.other_heads import read_heads
from slurm_elastic.watch.view import StatusView
from slurm_elastic.watch.view.clusters import (
    ClusterRow,
    ClustersView,
    HeadAnswer,
    HeadStatus,
    clusters_view,
)

_WARN, _BAD = "yellow", "bold red"


def gather_clusters(config: Config, here: StatusView) -> ClustersView:
    """The rows of this cluster and of the other clusters. ConfigError if no other cluster is
    configured.
    """
    if not config.clusters:
        raise ConfigError("no other cluster is configured: add them to `clusters`")
    status = convert(json.decode(json.encode(here)), HeadStatus)
    answers = read_heads(config.clusters, os.environ, time.time())
    answer = HeadAnswer(name=here.cluster, status=status, seen_at=here.at)
    return clusters_view([answer, *answers], time.time())


def clusters_table(view: ClustersView) -> RenderableType:
    """The table, and a line for each cluster without an answer."""
    right = ("Machines", "$/h now", "$ of 24 h", "Run", "Wait", "Longest", "Age")
    table = Rows(
        "", "Cluster", *right, "Attention", right=right, wrapped={"Attention": 30},
        gives=("Age", "Longest", ("Cluster", 12)), otherwise=lambda: _small(view),
    )  # fmt: skip
    for row in view.clusters:
        table.add(*_cells(row), words(row.trouble or row.note, _BAD if row.trouble else _WARN))
    without = f"without {', '.join(view.missing)}" if view.missing else ""
    table.add(*_cells(view.total, "bold"), words(without, _WARN))
    return Group(Text.assemble(("Clusters", "bold"), (f"   {moment(view.at)}", "dim")), "", table)


def _cells(row: ClusterRow, style: str = "") -> list[Text]:
    values = (
        row.name,
        "-" if row.machines is None else str(row.machines),
        "-" if row.price_now is None else dollars(row.price_now),
        "-" if row.cost is None else dollars(row.cost),
        "-" if row.running is None else str(row.running),
        "-" if row.waiting is None else str(row.waiting),
        "-" if row.oldest is None else brief(row.oldest),
        "-" if row.age is None else brief(row.age),
    )
    return [words(value, style) for value in values]


def _small(view: ClustersView) -> RenderableType:
    lines = []
    for row in (*view.clusters, view.total):
        name, machines, now, cost, running, waiting, *_ = (cell.plain for cell in _cells(row))
        lines.append(Text.assemble((name, "bold"), f": {machines} machines, {now} $/h, {cost} $"))
        lines.append(Text(f"  jobs: {running} run, {waiting} wait"))
        if text := row.trouble or row.note:
            lines.append(words(f"  {text}", _BAD if row.trouble else _WARN))
    if view.missing:
        lines.append(words(f"  without {', '.join(view.missing)}", _WARN))
    return Group(*lines)
