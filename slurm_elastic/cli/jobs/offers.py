"""``slurm-elastic offers``: the ranking as it would be now, by the daemon's own code."""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.account import acting_as
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import counted
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs.explain import silent
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate import cloud_table
from slurm_elastic.cli.operate.cloud_table import RankedCloudRow, cloud_rows, pools_of
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.status_screen import NARROW
from slurm_elastic.cli.orders.subjects import job_label, queued_job_number
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.cli.services.service_environment import as_the_services
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import read
from slurm_elastic.config.pool_rules import types_of
from slurm_elastic.controller.context import Site
from slurm_elastic.features.orders.cloud_order import pool_terms
from slurm_elastic.model.causes.refusals import CloudSilent
from slurm_elastic.model.cluster import Market, NodeRequest, Offer, Pool
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.ranking import Scope, rank, serving, unsold
from slurm_elastic.policies.launch.reorder import shape_of
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.catalogues import completed
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.slurm.hooks.submit_filter import ranked_pools
from slurm_elastic.state.heartbeat import read_mark, trouble_text
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.watch.view.attention import sentence
from slurm_elastic.watch.view.reserved import ReservedView, reserved_views


class OfferRow(Struct, frozen=True, kw_only=True, rename={"worst": "worst_price"}):
    """An offer. ``room``: the number of nodes that it could serve now (0: rejected). ``take``: the
    number of machines that would be bought. ``price``: $ per machine-hour now (None: the cloud
    shows no price and so does not sell it). ``worst``: the price that limits count. ``notes``: the
    part of the reason that is in no other field.
    """

    offer: str
    price: float | None
    worst: float | None
    room: int
    take: int
    reason: str
    notes: str = ""


class PoolOffers(Struct, frozen=True, kw_only=True):
    """A pool's ranking for ``nodes`` nodes, best first. ``free``: how many of its nodes have
    no machine yet. ``error``: why its cloud did not answer.
    """

    pool: str
    cloud: str
    nodes: int
    free: int
    ranked: tuple[OfferRow, ...] = ()
    rejected: tuple[OfferRow, ...] = ()
    error: str | None = None

    @property
    def had(self) -> int:
        """The number of nodes that could start with these offers."""
        return sum(row.take for row in self.ranked)


class OffersDocument(Struct, frozen=True, kw_only=True):
    """The document of ``offers --json``. ``about``: the job, pool or pools asked for;
    ``standstill``: why nothing is bought now, whatever the clouds offer. ``clouds``: for a job, the
    order in which it uses the clouds. ``reserved``: the reservations of the pools' clouds.
    """

    at: float
    about: str
    pools: tuple[PoolOffers, ...]
    version: int = 1
    standstill: tuple[str, ...] = ()
    clouds: tuple[RankedCloudRow, ...] = ()
    reserved: tuple[ReservedView, ...] = ()


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "offers",
        description="Ask the clouds what they sell and rank it as the daemon would now: limits, "
        "cool-downs, pauses and the worst price count. Nothing is bought.",
        epilog=examples("slurm-elastic offers --pool burst --nodes 4"),
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--job", type=job_label, metavar="JOBID", help="rank for this job of Slurm's queue"
    )
    what.add_argument("--pool", metavar="POOL", help="rank for this pool (default: for each pool)")
    parser.add_argument(
        "--nodes",
        type=count,
        metavar="N",
        help="rank for this many nodes (default: the job's, or the pool's without a machine)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the offers. Exit 1 if none of the clouds that were asked has answered."""
    typed = read(Path(args.config))
    slurm = PromptCli(typed.slurm)
    with as_the_services(args.config, typed):
        with acting_as(typed.slurm.user):
            config = completed(typed, time.time())
        job = None if args.job is None else queued_job_number(config, slurm, args.job)
        found = gather(config, slurm, time.time(), job, args.pool, args.nodes)
    if args.json:
        write_json(found)
    else:
        render(found, plain())
    return 1 if all(pool.error for pool in found.pools) else 0


def gather(
    config: Config,
    slurm: Slurm,
    now: float,
    job: int | None = None,
    pool: str | None = None,
    nodes: int | None = None,
) -> OffersDocument:
    """Ask the clouds, and rank their offers. SlurmElasticError without the job or a ledger,
    ConfigError without the pool.
    """
    path = config.state / "ledger.db"
    try:
        with config.sharing(), _ledger(path) as (ledger, note):
            site = Site.of(config, slurm, ledger, {}, lambda: now)
            question = _question(site, job, pool)
            scopes = [site.scope(p) for p in question.pools]
            machines = ledger.machines.live()
            taken = {machine.instance.node for machine in machines}
            served = site.served_nodes()
    except PermissionError as error:
        raise SlurmElasticError(
            f"offers are for root and {config.slurm.user}: the ledger {path} is theirs alone"
        ) from error
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be read: {error}") from error
    with acting_as(config.slurm.user):  # the daemon has no credentials but SlurmUser's
        answers = [_ask(config, question, p, taken) for p in question.pools]
    rows = list(zip(question.pools, scopes, answers, strict=True))
    return OffersDocument(
        at=now,
        about=question.about + note,
        pools=tuple(
            _of_pool(config, p, answer, scope, now, nodes or question.nodes)
            for p, scope, answer in rows
        ),
        standstill=tuple(_standstill(config, slurm, now)),
        clouds=() if question.job is None else _compared(site, question.job, nodes, rows, served),
        reserved=tuple(
            row
            for row in reserved_views(config, machines, now)
            if row.cloud in {p.cloud for p in question.pools}
        ),
    )


def _compared(
    site: Site,
    job: SlurmJob,
    nodes: int | None,
    rows: Sequence[tuple[Pool, Scope, _Answer]],
    served: Collection[str],
) -> tuple[RankedCloudRow, ...]:
    """The order in which the job uses the clouds of its pools. ``nodes``: how many machines it
    takes, if its own number does not count.
    """
    slurm_nodes: Mapping[str, SlurmNode] = {}
    with contextlib.suppress(SlurmError):  # ``_standstill`` reports it
        slurm_nodes = site.slurm.nodes()
    terms = {
        pool.name: pool_terms(site, pool, answer.offers, scope, served, slurm_nodes, answer.silence)
        for pool, scope, answer in rows
    }
    pools = ranked_pools(site.config, [pool for pool, _, _ in rows])
    shape = shape_of(job, pools)
    if nodes is not None:
        shape = replace(shape, machines=dict.fromkeys(shape.machines, nodes))
    return cloud_rows(shape, [terms[pool.name] for pool in pools], site.config.ranking)


def _standstill(config: Config, slurm: Slurm, now: float) -> Iterator[str]:
    """Why nothing is bought now: the sentences with which ``status`` begins."""
    mark, stale = read_mark(config.state), config.timings.daemon_timeout
    yield from filter(
        None, (sentence(trouble_text(config.state, mark, now, stale)), silent(mark, now, stale))
    )
    try:
        slurm.nodes([])
    except SlurmError as error:
        remedy = service_remedies.slurmctld_state()
        yield f"Slurm does not answer: {error}; nothing is bought; do: {remedy}"


@contextlib.contextmanager
def _ledger(path: Path) -> Iterator[tuple[Ledger, str]]:
    """The ledger, and a note. Before slurm-elasticd's first start this is an empty ledger, so that
    clouds can be asked before that, too.
    """
    if is_there(path):
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            yield ledger, ""
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(Ledger(Path(directory) / path.name)) as ledger,
    ):
        yield ledger, " (slurm-elasticd has not run yet: nothing runs or cools down)"


class _Question(Struct, frozen=True, kw_only=True):
    """A question to the clouds. ``about``: the question in words. ``nodes``: for how many nodes
    (None: the pool's own). ``job``: the job, if the question is about a job.
    """

    about: str
    pools: Sequence[Pool]
    nodes: int | None = None
    job: SlurmJob | None = None


class _Answer(Struct, frozen=True, kw_only=True):
    """A cloud's answer for a pool. ``free``: the pool's nodes without a machine. ``error``: why
    there are no offers.
    """

    free: Sequence[str]
    offers: Sequence[Offer] = ()
    error: str = ""
    cloud: str

    @property
    def silence(self) -> CloudSilent | None:
        return CloudSilent(cloud=self.cloud, error=self.error) if self.error else None


def _question(site: Site, job: int | None, pool: str | None) -> _Question:
    if pool is not None:
        if pool not in site.pools:
            raise ConfigError(f"there is no pool {pool!r}; there are {', '.join(site.pools)}")
        return _Question(about=f"pool {pool}", pools=[site.pools[pool]])
    if job is None:
        return _Question(about="all pools", pools=list(site.pools.values()))
    found = next((j for j in site.slurm.jobs() if j.id == job), None)
    if found is None:
        raise SlurmElasticError(f"job {job} is not in Slurm's queue")
    pools = pools_of(site.config, found)
    if not pools:
        partitions = {site.config.cloud(p.cloud).partition_name for p in site.pools.values()}
        raise SlurmElasticError(
            f"job {job} is for partition {','.join(found.partitions)}, which is not a cloud's "
            f"({', '.join(sorted(partitions))})"
        )
    count = max(found.node_count, len(found.nodes), 1)
    about = f"job {job}, {counted(count, 'node')}"
    return _Question(about=about, pools=pools, nodes=count, job=found)


def _ask(config: Config, question: _Question, pool: Pool, taken: Collection[str]) -> _Answer:
    """Ask the pool's cloud. For a job, ask even if all nodes of the pool have machines, because the
    job may run on an existing machine, and its price counts in the comparison.
    """
    free = [name for name in pool.nodes if name not in taken]
    if not free and question.job is None:
        return _Answer(cloud=pool.cloud, free=free)
    try:
        provider: Provider = open_provider(config.cloud(pool.cloud), config.cluster, config)
        # Prices and types may all be typed in the configuration: without this call a cloud that
        # refuses our credentials would seem to sell machines.
        provider.check()
        return _Answer(cloud=pool.cloud, free=free, offers=provider.offers(pool))
    except Exception as error:  # noqa: BLE001 - an SDK raises what it likes; the others go on
        known = isinstance(error, SlurmElasticError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        return _Answer(cloud=pool.cloud, free=free, error=text)


def _of_pool(
    config: Config, pool: Pool, answer: _Answer, scope: Scope, now: float, count: int | None
) -> PoolOffers:
    """The pool's ranking for ``count`` nodes, or for all its free nodes."""
    free, offers = answer.free, answer.offers
    found = PoolOffers(pool=pool.name, cloud=pool.cloud, nodes=count or len(free), free=len(free))
    if not free:
        return found
    if answer.error:
        return replace(found, error=answer.error)
    request = NodeRequest(id="offers", pool=pool, nodes=tuple(free[:count]))
    missing = unsold(pool, offers, types_of(config.cloud(pool.cloud), pool))
    placement = rank(request, offers, scope, now, config.ranking)
    taken = serving(request, offers, scope, now, config.ranking)
    take = {launch.offer.key: launch.room for launch in taken}
    return replace(
        found,
        ranked=tuple(
            _row(r.offer, r.room, take.get(r.offer.key, 0), r.reason, r.notes)
            for r in placement.ranked
        ),
        rejected=(
            *(_row(r.offer, 0, 0, str(r.cause)) for r in placement.rejected),
            *(_missing(pool, *one) for one in missing),
        ),
    )


def _missing(pool: Pool, name: str, market: Market) -> OfferRow:
    """The types that the configuration names and the cloud does not offer, in no zone."""
    return OfferRow(
        offer=f"{pool.cloud}/{name}/*/{market}",
        price=None,
        worst=None,
        room=0,
        take=0,
        reason=f"the cloud gives no {market} price for it",
    )


def _row(offer: Offer, room: int, take: int, reason: str, notes: str = "") -> OfferRow:
    return OfferRow(
        offer=offer.key,
        price=offer.price,
        worst=offer.worst_price,
        room=room,
        take=take,
        reason=reason,
        notes=notes,
    )


def render(found: OffersDocument, console: Console) -> None:
    at = moment(found.at)
    for trouble in found.standstill:
        console.print(words(trouble, "bold red"))
    console.print(Text(f"Offers for {found.about}, {at}", style="bold"))
    cloud_table.show(found.clouds, console)
    for row in found.reserved:
        console.print(words(f"Reserved: {row.text}"))
    for pool in found.pools:
        console.print()
        console.print(_headline(pool, "could" if found.standstill else "can"))
        if pool.ranked or pool.rejected:
            console.print(_table(pool, console.width))
        for rows, reason in _reasons(pool):
            line = Table.grid(padding=(0, 1, 0, 0))
            line.add_column(no_wrap=True)
            line.add_column(overflow="fold")
            line.add_row(Text(f"{rows}:", style="dim"), words(reason, "yellow"))
            console.print(line)


def _headline(pool: PoolOffers, can: str) -> Text:
    title = f"Pool {pool.pool} of cloud {pool.cloud}"
    if pool.error:
        return words(
            f"{title} did not answer, so nothing is known of its offers: {pool.error}", "bold red"
        )
    if not pool.free:
        return Text(f"{title}: each of its nodes has a machine", style="yellow")
    if not pool.ranked and not pool.rejected:
        return Text(f"{title}: the cloud has no offer that the pool may use", style="yellow")
    style = "green" if pool.had >= pool.nodes and can == "can" else "yellow"
    few = f", as only {pool.free} of the pool's have no machine" if pool.nodes > pool.free else ""
    return Text(
        f"{title}: {pool.had} of {counted(pool.nodes, 'node')} {can} start{few}", style=style
    )


def _table(pool: PoolOffers, width: int) -> Table:
    """A table with numbered rows. On a narrow screen the figures of each row are below its name."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("Offer", overflow="fold")
    small = width < NARROW
    for name in () if small else ("$/h", "Worst", "Room", "Buy"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate((*pool.ranked, *pool.rejected), 1):
        prices = ["-" if price is None else f"{price:.4f}" for price in (row.price, row.worst)]
        style = "" if row.room > 0 else "yellow"
        if small:
            figures = f"${prices[0]}/h, room {row.room}, buy {row.take}"
            table.add_row(str(number), Group(words(row.offer), Text(figures)), style=style)
        else:
            cells = [*prices, str(row.room), str(row.take)]
            table.add_row(str(number), words(row.offer), *map(Text, cells), style=style)
    return table


def _reasons(pool: PoolOffers) -> Iterator[tuple[str, str]]:
    """Each reason that bounds or excludes rows, once, beside the numbers of its rows."""
    rows: dict[str, list[int]] = {}
    for number, row in enumerate((*pool.ranked, *pool.rejected), 1):
        # The reason of a ranked one begins with what its row says already.
        reason = row.notes if row.room > 0 else row.reason
        if reason:
            rows.setdefault(reason, []).append(number)
    for reason, numbers in rows.items():
        yield _spans(numbers), reason


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, such as ``1-3, 5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)
