"""Jobs that stand in the way when nodes or partitions leave slurm.conf.

slurmctld ends every job of a partition that is gone when it starts, also a pending one that merely
lists it beside others (NODE_FAIL, measured on 22.05). So such lists are cut first, and what has no
other partition, or runs on a node that goes, is a reason to refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from slurm_elastic.config import SlurmSettings
from slurm_elastic.errors import ConfigError
from slurm_elastic.model import SlurmJob
from slurm_elastic.slurm import controller, fragment
from slurm_elastic.slurm.cli import SlurmCli
from slurm_elastic.slurm.hostlist import compress
from slurm_elastic.slurm.siteconf import Line, names, read_lines

log = logging.getLogger(__name__)

_ON_NODES = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED"})
_SHOWN = 10


class Things(Struct, frozen=True, kw_only=True):
    """Nodes and partitions by name."""

    nodes: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()

    def without(self, others: Things) -> Things:
        """Those that ``others`` does not have."""
        return Things(
            nodes=self.nodes - others.nodes, partitions=self.partitions - others.partitions
        )

    def __bool__(self) -> bool:
        return bool(self.nodes or self.partitions)


def installed(directory: Path) -> Things:
    """What the fragment beside slurm.conf has, which may be older than the configuration."""
    path = directory / fragment.FILE_NAME
    return of_lines(read_lines(path) if path.exists() else ())


def of_lines(lines: Sequence[Line]) -> Things:
    """The nodes and partitions that these lines define."""
    nodes = [n for li in lines if li.entries[0].key == "nodename" for n in names(li.entries[0])]
    partitions = [li.entries[0].value for li in lines if li.entries[0].key == "partitionname"]
    return Things(nodes=frozenset(nodes), partitions=frozenset(partitions))


def leave(settings: SlurmSettings, gone: Things, *, up: bool, force: bool = False) -> None:
    """Make pending jobs ready for ``gone`` to go. ``up``: slurmctld answers.

    Raises ConfigError, with no job changed, for jobs that cannot do without; not with ``force``.
    """
    if not gone or (force and not up):
        return
    if not up:
        raise ConfigError(
            "slurmctld does not answer, so jobs on cloud nodes that leave cannot be ruled out;"
            " start it, or use --force"
        )
    jobs = SlurmCli(settings).jobs()
    running = [job for job in jobs if gone.nodes & set(job.nodes) and job.states & _ON_NODES]
    waiting = [
        job for job in jobs if "PENDING" in job.states and gone.partitions & set(job.partitions)
    ]
    stuck = [job for job in waiting if gone.partitions >= set(job.partitions)]
    if not force and (running or stuck):
        raise ConfigError(*_complaints(running, stuck))
    for job in waiting:
        rest = tuple(name for name in job.partitions if name not in gone.partitions)
        if rest:
            controller.set_partitions(settings, job.id, rest)
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
    ids = ", ".join(str(job.id) for job in jobs[:_SHOWN])
    more = f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    return f"job {ids} is" if len(jobs) == 1 else f"jobs {ids}{more} are"
