"""One table that compares all clouds for one job, for ``offers``, ``explain`` and ``price``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.text import Text

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import counted, money
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.pool_order import (
    MARKET,
    PRICE,
    RISK,
    JobShape,
    PoolTerms,
    RankedPool,
    job_order,
    keys_of,
    partition_order,
)
from slurm_elastic.policies.launch.reorder import shape_of, terms_for
from slurm_elastic.watch.door.client import published_terms

TITLE = "Clouds for this job, best first (costs for its time limit, else for a day):"


class RankedCloudRow(Struct, frozen=True, kw_only=True):
    """A pool that can hold the job. ``rank``: the place of its partition in the job's list (None:
    Slurm uses another pool of this partition first). ``market``: of the best offer. ``price``: $
    per machine-hour, on average over the machines. ``cost``: $ for all ``machines`` from their boot
    until the job's time limit (a day without a limit). All are None if the cloud has no offer.
    ``reason``: why the cloud cannot sell now, or what puts it behind the row before.
    """

    rank: int | None
    partition: str
    pool: str
    cloud: str
    market: Market | None
    machines: int
    price: float | None
    cost: float | None
    reason: str = ""


def cloud_rows(
    job: JobShape, table: Sequence[PoolTerms], ranking: Sequence[str]
) -> tuple[RankedCloudRow, ...]:
    """Return the rows, in the order in which the submit filter lists the partitions."""
    leaders = partition_order(job, table, ranking)
    leading = {leader.terms.pool for leader in leaders}
    others = [row for row in job_order(job, table, ranking) if row.terms.pool not in leading]
    rows: list[RankedCloudRow] = []
    for place, leader in enumerate(leaders):
        behind = _decides(job, leaders[place - 1], leader, ranking) if place else ""
        rows.append(_row(job, leader, place + 1, behind))
        # In a partition, the weights of the nodes decide.
        after = f"Slurm uses pool {leader.terms.pool} of this partition first"
        rows += (
            _row(job, row, None, after)
            for row in others
            if row.terms.partition == leader.terms.partition
        )
    return tuple(rows)


def published_rows(config: Config, job: SlurmJob, now: float) -> tuple[RankedCloudRow, ...]:
    """Return the rows by the terms that slurm-elasticd publishes; none if it publishes none, as on
    a site with one public cloud.
    """
    pools = pools_of(config, job)
    if len({pool.cloud for pool in pools}) < 2:
        return ()
    published = published_terms(config, now)
    if published is None:
        return ()
    accounts_of = {c.name: config.who_of(c).no_requeue_on_spot for c in config.clouds}
    table = terms_for(job, published.table, accounts_of)
    return cloud_rows(shape_of(job, pools), table, published.ranking)


def pools_of(config: Config, job: SlurmJob) -> list[Pool]:
    """Return the pools whose partitions the job lists, in the order of the file."""
    return [
        pool
        for pool in domain_pools(config, expand)
        if config.cloud(pool.cloud).partition_name in job.partitions
    ]


def show(rows: Sequence[RankedCloudRow], console: Console) -> None:
    """Print the table; nothing if there are no two clouds to compare."""
    if len({row.partition for row in rows}) < 2:
        return
    console.print(TITLE)
    console.print(_table(rows))


def _row(job: JobShape, row: RankedPool, rank: int | None, behind: str) -> RankedCloudRow:
    terms, offers = row.terms, job.offers_of(row.terms)
    # The cost includes the traffic, which no hour has, and the machines while the data moves.
    seconds = terms.boot_s + terms.traffic.seconds(job.data) + job.seconds
    hours = row.machines * terms.billed_hours(seconds)
    machine_dollars = row.cost - terms.traffic.dollars(job.data)
    if terms.offers and not offers:
        behind = "its reservation ends before the job"
    return RankedCloudRow(
        rank=rank,
        partition=terms.partition,
        pool=terms.pool,
        cloud=terms.cloud,
        market=offers[0].market if offers else None,
        machines=row.machines,
        price=machine_dollars / hours if offers and hours else None,
        cost=row.cost if offers else None,
        reason=behind if terms.unavailable is None else str(terms.unavailable),
    )


def _decides(job: JobShape, above: RankedPool, row: RankedPool, ranking: Sequence[str]) -> str:
    """Return what puts the row behind the row above: the first key whose numbers differ."""
    pairs = zip(keys_of(ranking), above.keys, row.keys, strict=True)
    name, before, after = next((pair for pair in pairs if pair[1] != pair[2]), ("", 0.0, 0.0))
    cloud = above.terms.cloud
    if not name:
        return f"equal to {cloud}; the order of the file decides"
    if name == "location":
        return "on-premises clouds come first"
    if name == MARKET:
        return _market_text(job, above, row)
    if name in (PRICE, RISK):
        lost = ", with work lost by interruptions" if name == RISK else ""
        return f"costs {money(after - before)} more than {cloud}{lost}"
    if name == "waste":
        return f"more of its machines stays unused than in {cloud}"
    return f"behind {cloud} by the ranking key {name}"


def _market_text(job: JobShape, above: RankedPool, row: RankedPool) -> str:
    """Spot comes first, unless it costs as much as on demand in another cloud."""
    first, second = (
        next((offer.market for offer in job.offers_of(pool.terms)), None) for pool in (above, row)
    )
    if (first, second) == (Market.ON_DEMAND, Market.SPOT):
        return "its spot machines cost no less than on-demand machines"
    return f"{first} comes before {second}"


def _table(rows: Sequence[RankedCloudRow]) -> Rows:
    numbers = ("Machines", "$/h each", "Job $")
    table = Rows(
        "", "", "Partition/pool", "Cloud", "Market", *numbers, "Why here", right=("", *numbers),
        wrapped={"Why here": 40}, gives=("Cloud", "$/h each", "Machines", "Market"),
        otherwise=lambda: _small(rows),
    )  # fmt: skip
    for row in rows:
        style = "" if row.rank else "dim"
        cells = (
            str(row.rank or ""), _where(row), row.cloud, row.market or "-", str(row.machines),
            _number(row.price), _number(row.cost),
        )  # fmt: skip
        table.add(*(words(cell, style) for cell in cells), words(row.reason, style))
    return table


def _small(rows: Sequence[RankedCloudRow]) -> RenderableType:
    lines = []
    for row in rows:
        lines.append(Text(f"{row.rank or '-'} {_where(row)}", style="bold"))
        machines = counted(row.machines, f"{row.market or ''} machine".strip())
        price = "" if row.price is None else f" at ${_number(row.price)}/h"
        cost = "no price" if row.cost is None else f"${_number(row.cost)}"
        lines.append(Text(f"  {cost}: {machines}{price}"))
        if row.reason:
            lines.append(Text("  ").append(words(row.reason)))
    return Group(*lines)


def _where(row: RankedCloudRow) -> str:
    return row.partition if row.pool == row.partition else f"{row.partition}/{row.pool}"


def _number(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:.4f}"
