"""Jobs and machines that stand in the way when nodes or partitions leave slurm.conf.

slurmctld ends every job of a partition that is gone when it starts, also a pending one that merely
lists it beside others (NODE_FAIL, measured on 22.05). So such lists are cut first, and what has no
other partition, or runs on a node that goes, is a reason to refuse. So is a machine that is paid:
Slurm suspends no node that it does not know.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config, SlurmSettings
from slurm_elastic.model.exclusion import CAPACITY, POLICY
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.siteconf import Line, names, read_lines
from slurm_elastic.slurm.conf import fragment
from slurm_elastic.state.ledger import Launch, Ledger, Machine
from slurm_elastic.state.store.shared_journal import is_there

log = logging.getLogger(__name__)

_SHOWN = 10


class Things(Struct, frozen=True, kw_only=True):
    """Nodes and partitions by name."""

    nodes: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()

    def without(self, others: Things) -> Things:
        """The nodes and partitions that ``others`` does not have."""
        return Things(
            nodes=self.nodes - others.nodes, partitions=self.partitions - others.partitions
        )

    def __bool__(self) -> bool:
        return bool(self.nodes or self.partitions)


class Paid(Struct, frozen=True, kw_only=True):
    """What costs money on nodes that leave: machines, and launches without an answer."""

    machines: tuple[Machine, ...] = ()
    launches: tuple[Launch, ...] = ()
    unread: str | None = None

    def __bool__(self) -> bool:
        return bool(self.machines or self.launches or self.unread)

    def lines(self) -> Iterator[str]:
        """A sentence for each kind, naming the first few."""
        if self.unread:
            yield f"machines that are paid cannot be ruled out: {self.unread}"
        if self.machines:
            shown = [f"{m.instance.id} of {m.instance.node or 'no node'}" for m in self.machines]
            yield f"still paid: {_first(shown)}"
        for launch in self.launches:
            yield f"a launch at {launch.cloud} for {compress(launch.nodes)} has no answer yet"

    def problems(self, known: Set[str]) -> Iterator[str]:
        """The same, with what to do about it. ``known``: nodes that Slurm still has."""
        yield from self.lines()
        nodes = compress({m.instance.node for m in self.machines} & known)
        ask = f"`scontrol update nodename={nodes} state=power_down`, then " if nodes else ""
        if self:
            yield (
                f"nothing would end machines once their nodes have left: {ask}leave slurm-elasticd"
                " running, with their cloud in its configuration, until `slurm-elastic status`"
                " shows none; or use --force and end them in the cloud yourself"
            )


def paid(config: Config, gone: Things, clouds: Set[str]) -> Paid:
    """Machines that are paid on nodes of ``gone``, or at a cloud that is not one of ``clouds``."""
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            if not is_there(path):
                return Paid()
            with contextlib.closing(Ledger(path, read_only=True)) as ledger:
                state = ledger.state()
    except (sqlite3.Error, SlurmElasticError) as error:
        return Paid(unread=f"{path}: {error}")
    return Paid(
        machines=tuple(
            m
            for m in state.machines
            if m.instance.node in gone.nodes or m.instance.cloud not in clouds
        ),
        launches=tuple(
            one for one in state.launches if gone.nodes & set(one.nodes) or one.cloud not in clouds
        ),
    )


def forget_holds(config: Config) -> None:
    """Nodes that have left are held no more: should they come back, they come free."""
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            _readmit_all(path)
    except (sqlite3.Error, SlurmElasticError) as error:
        log.warning("holds stay in the ledger path=%s error=%s", path, error)


def _readmit_all(path: Path) -> None:
    if not is_there(path):
        return
    with contextlib.closing(Ledger(path)) as ledger:
        for kind in (POLICY, CAPACITY):
            nodes = [row.scope for row in ledger.exclusions.holds() if row.kind == kind]
            ledger.exclusions.readmit(kind, *nodes)


def installed(directory: Path) -> Things:
    """The nodes of the fragment beside slurm.conf, which may be older than the configuration."""
    path = directory / fragment.FILE_NAME
    return of_lines(read_lines(path) if path.exists() else ())


def of_lines(lines: Sequence[Line]) -> Things:
    """The nodes and partitions that these lines define."""
    nodes = [n for li in lines if li.entries[0].key == "nodename" for n in names(li.entries[0])]
    partitions = [li.entries[0].value for li in lines if li.entries[0].key == "partitionname"]
    return Things(nodes=frozenset(nodes), partitions=frozenset(partitions))


def leave(
    settings: SlurmSettings, gone: Things, *, up: bool, still: Paid, force: bool = False
) -> None:
    """Make pending jobs ready for ``gone`` to go. ``up``: slurmctld answers.

    Raises ConfigError, with no job changed, for jobs that cannot do without and for what is
    ``still`` paid; not with ``force``.
    """
    if not (gone or still) or (force and not up):
        return
    if not up:
        raise ConfigError(
            "slurmctld does not answer, so jobs on cloud nodes that leave cannot be ruled out;"
            " start it, or use --force"
        )
    slurm = SlurmCli(settings)
    jobs = slurm.jobs()
    running = [job for job in jobs if gone.nodes & set(job.nodes) and job.states & ON_NODES]
    waiting = [
        job for job in jobs if "PENDING" in job.states and gone.partitions & set(job.partitions)
    ]
    stuck = [job for job in waiting if gone.partitions >= set(job.partitions)]
    if not force and (running or stuck or still):
        raise ConfigError(*_complaints(running, stuck), *still.problems(gone.nodes))
    # Or slurmctld ends them when it starts, though they have other partitions (22.05, measured).
    for job in waiting:
        rest = tuple(name for name in job.partitions if name not in gone.partitions)
        if rest:
            slurm.set_partitions(job.id, rest)
            log.info("job moved job=%d partitions=%s", job.id, ",".join(rest))


def _complaints(running: Sequence[SlurmJob], stuck: Sequence[SlurmJob]) -> Iterator[str]:
    if running:
        nodes = compress(node for job in running for node in job.nodes)
        yield f"{_jobs(running)} on cloud nodes ({nodes}); wait for the end, or use --force"
    if stuck:
        yield (
            f"{_jobs(stuck)} waiting in cloud partitions only and would fail;"
            " cancel or move, or use --force"
        )


def _jobs(jobs: Sequence[SlurmJob]) -> str:
    ids = _first([str(job.id) for job in jobs])
    return f"job {ids} is" if len(jobs) == 1 else f"jobs {ids} are"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
