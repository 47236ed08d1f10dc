"""How long a job waits after its machine has registered, with our waiting prolog and without.

Two private slurmctld's, one with our PrologSlurmctld, one as Slurm comes,
get the same jobs at the same time, so far apart that they fall all over Slurm's 30 s tick. Then
jobs on static nodes show what the hooks cost a site's own jobs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from benchmarks.report import Report, Row, bounded, compared, median, report
from benchmarks.small_slurm import SmallSlurm, wait_until
from slurm_elastic.features.power.prolog import PrologServer

Times = dict[int, float]


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench start_delay")
    parser.add_argument("--jobs", type=int, default=6, help="on cloud nodes (default 6)")
    parser.add_argument("--static-jobs", type=int, default=16, help="on static nodes (default 16)")
    parser.add_argument("--spacing", type=float, default=5.3, help="s between jobs (default 5.3)")
    parser.add_argument("--boot", type=float, default=2.0, help="s a machine takes (default 2)")
    options = parser.parse_args(arguments)
    with (
        SmallSlurm(cloud=options.jobs, boot=options.boot) as ours,
        SmallSlurm(cloud=options.jobs, boot=options.boot, prolog=False) as stock,
        prologs(ours),
    ):
        clusters = (ours, stock)
        rows = cloud_rows(clusters, options.jobs, options.spacing)
        rows += static_rows(clusters, options.static_jobs)
    return report("start_delay", rows)


@contextmanager
def prologs(cluster: SmallSlurm) -> Iterator[PrologServer]:
    """The daemon's side of the hook."""
    path = cluster.state / "prolog.sock"
    server = PrologServer(path, cluster.client(), threading.Event())
    server.start()
    shutil.chown(path, "slurm")
    try:
        yield server
    finally:
        server.close()


def cloud_rows(clusters: Sequence[SmallSlurm], count: int, spacing: float) -> list[Row]:
    """Node registered to job running."""
    jobs: list[list[int]] = [[] for _ in clusters]
    for _ in range(count):
        for cluster, ids in zip(clusters, jobs, strict=True):
            ids.append(cluster.submit("--partition=cloud", seconds=300))
        time.sleep(spacing)
    ours, stock = (
        [delay_after_registration(cluster, job) for job in ids]
        for cluster, ids in zip(clusters, jobs, strict=True)
    )
    return [
        compared(
            f"registered to running, median of {count}",
            median(ours),
            median(stock),
            "s",
            at_most=0.2,
        ),
        compared("registered to running, worst", max(ours), max(stock), "s"),
    ]


def delay_after_registration(cluster: SmallSlurm, job: int) -> float:
    wait_until(lambda: cluster.started(job) is not None, timeout=120)
    node = cluster.node_of(job)
    registered = log_time(cluster, rf"Node {node} now responding")
    return (cluster.started(job) or 0.0) - registered


def static_rows(clusters: Sequence[SmallSlurm], count: int) -> list[Row]:
    """Jobs of the site's own: they must not be slower than before."""
    ours, stock = (queue_times(cluster, count) for cluster in clusters)
    added = median(ours[1]) - median(stock[1])
    return [
        compared(f"static: queue of {count} jobs", ours[0], stock[0], "s", at_most=1.15),
        compared("static: allocated to running", median(ours[1]), median(stock[1]), "s"),
        bounded("static: added to each job", max(0.0, added), 0.05, "s"),
    ]


def queue_times(cluster: SmallSlurm, count: int) -> tuple[float, list[float]]:
    """How long until the last of many short jobs has started, and each one's start delay.

    A full queue shows what a hook costs when the next job waits for its node. (An EpilogSlurmctld,
    even an empty one, costs much: 22.05 schedules nothing when it has ended, only at the next
    sched_interval.)
    """
    began = time.time()
    jobs = [cluster.submit("--partition=static", seconds=1) for _ in range(count)]
    wait_until(lambda: all(cluster.started(job) for job in jobs), timeout=300)
    starts = [cluster.started(job) or 0.0 for job in jobs]
    allocated = [log_time(cluster, rf"(?:Allocate|Started) JobId={job} ") for job in jobs]
    return max(starts) - began, [b - a for a, b in zip(allocated, starts, strict=True)]


def log_time(cluster: SmallSlurm, pattern: str) -> float:
    """When slurmctld's log has the (last) line with ``pattern``, in Unix time."""
    found = re.findall(rf"^\[([^\]]+)\].*{pattern}", cluster.log.read_text(), re.MULTILINE)
    return datetime.fromisoformat(found[-1]).astimezone().timestamp()
