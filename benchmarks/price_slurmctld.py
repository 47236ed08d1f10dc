"""The forecasts of ``benchmarks.price`` on a real slurmctld, beside its own estimates.

A sandbox of some static nodes runs consecutive jobs of a history: as many nodes as they had in
proportion, limits of minutes, and the same part of them used. At each submission slurmctld is asked
by ``sbatch --test-only`` when such a job would start, and the forecast is made from what squeue and
sinfo say at that moment; later the queue tells when it did start.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.price import Forecast
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.habits import Habits, RequestedJob
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.studies import start_forecast
from slurm_elastic.slurm.client.commands.sbatch_test_only import ask_sbatch
from slurm_elastic.watch.door.forecasts import present_of
from slurm_elastic.watch.door.pricing import Moment
from slurm_elastic.watch.door.questions import PriceAsk

NODES, CPUS = 3, 2
LONGEST = 4
"""Minutes of the longest time limit; a month's longest becomes that."""
EVERY = 6.0
"""Seconds between two submissions."""
PARTITION = "batch"
SCHEDULER = "batch_sched_delay=0,sched_interval=2,bf_interval=2,bf_resolution=1"
SLICE = 30_000
"""The first of the history's jobs that is run."""


class Case(Struct, frozen=True, kw_only=True):
    """A job of the history as the sandbox runs it."""

    nodes: int
    minutes: int
    run: int
    user: str

    @property
    def asked(self) -> RequestedJob:
        """The job as forecasts know it."""
        return RequestedJob(size=self.nodes * CPUS, limit=self.minutes * 60, user=self.user)


def cases(jobs: Jobs, first: int, count: int, machines: int) -> Iterator[Case]:
    """So many jobs from that one on."""
    for number in range(first, first + count):
        share = min(jobs.run[number] / max(jobs.limit[number], 1), 1.0)
        minutes = min(max(round(jobs.limit[number] * LONGEST / 64_800), 1), LONGEST)
        nodes = max(round(jobs.procs[number] * NODES / machines), 1)
        yield Case(
            nodes=nodes, minutes=minutes, run=max(round(share * minutes * 60), 1),
            user=str(jobs.user[number]),
        )  # fmt: skip


def replayed(learnt: Sequence[Case], played: Sequence[Case]) -> list[Forecast]:
    """The starts of ``played``, forecast with the habits of ``learnt``. Takes minutes."""
    habits = Habits()
    for case in learnt:
        habits.add(case.asked, case.run)
    with tempfile.TemporaryDirectory(prefix="se-price-", dir="/tmp") as place:
        directory = Path(place)
        directory.chmod(0o755)
        site = Sandbox(SandboxSpec(
            dir=directory / "site", static_nodes=NODES, cpus=CPUS, drop=("aws",),
            slurm_conf=(f"SchedulerParameters={SCHEDULER}",),
        ))  # fmt: skip
        site.up()
        try:
            return _played(site, habits, played, directory)
        finally:
            site.down()


def _played(
    site: Sandbox, habits: Habits, played: Sequence[Case], directory: Path
) -> list[Forecast]:
    settings = SlurmSettings(conf=str(site.layout.slurm_conf))
    script = directory / "job.sh"
    script.write_text("#!/bin/sh\nsleep 1\n")
    told: dict[int, tuple[float, tuple[int, ...], int]] = {}
    began: dict[int, float] = {}
    due = time.monotonic()
    for case in played:
        while time.monotonic() < due:
            _look(site, began)
            time.sleep(0.5)
        due += EVERY
        options = [f"--nodes={case.nodes}", f"--ntasks={case.nodes * CPUS}",
                   f"--time={case.minutes}", f"--job-name=u{case.user}"]  # fmt: skip
        now = time.time()
        forecast = _forecast(site, habits, case, now)
        estimate = ask_sbatch(settings, str(script), options).start
        job = site.submit(f"sleep {case.run}", *options)
        if forecast and estimate is not None:
            told[job] = now, forecast, max(int(estimate - now), 0)
    site.wait_for(lambda: _look(site, began) >= told.keys(), 1800, "all have started", period=1.0)
    return [
        Forecast(was=max(int(began[job] - now), 0), told=forecast, limits=estimate)
        for job, (now, forecast, estimate) in told.items()
    ]


def _look(site: Sandbox, began: dict[int, float]) -> set[int]:
    """Note the starts that are known by now."""
    for job in site.slurm.jobs(ended=True):
        if job.nodes and job.start:
            began.setdefault(job.id, job.start)
    return set(began)


def _forecast(site: Sandbox, habits: Habits, case: Case, now: float) -> tuple[int, ...]:
    wish = SlurmJob(
        id=0, states=frozenset({"PENDING"}), user=case.user, partitions=(PARTITION,),
        node_count=case.nodes, cpus=case.nodes * CPUS, limit=case.minutes * 60,
    )  # fmt: skip
    jobs = [replace(job, user=job.name.removeprefix("u")) for job in site.slurm.jobs()]
    nodes = [n for n in site.slurm.nodes().values() if PARTITION in n.partitions]
    present = present_of(PriceAsk(job=wish), Moment(now=now, jobs=jobs, nodes={}, habits=habits),
                         PARTITION, nodes)  # fmt: skip
    return start_forecast.starts(present, case.asked, habits)
