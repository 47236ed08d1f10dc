"""The time limits of arrays on a real slurmctld: each task has the one that a single job would have
in its partition, and all nodes that may work do, whoever is free when the array is submitted.

The cloud nodes never boot: what counts is where Slurm starts a task, and with which limit.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from e2e.submission_site import SubmissionSite, wait_for

from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, Timings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.fake.settings import FakeCloud

pytestmark = pytest.mark.e2e

NODES = 2
"""Of the site, and of each cloud."""
OF_SITE = "DefaultTime=60 MaxTime=2-00:00:00"
SITES: Mapping[str, str] = {
    "a default": "DefaultTime=30", "no limit": "", "a longest": "MaxTime=2-00:00:00",
}  # fmt: skip
"""What the site's default partition says of time. The clouds say 10 minutes, 60 at most; of the
last site they say nothing."""
LIMITED = Who(max_time=3600.0, default_time=600.0)
SHORT = {"00:10:00": "10:00", "01:00:00": "1:00:00"}
"""How squeue prints what scontrol prints."""
Limits = frozenset[tuple[str, str]]


@pytest.fixture(scope="module", params=SITES)
def site(request: pytest.FixtureRequest) -> Iterator[SubmissionSite]:
    with tempfile.TemporaryDirectory(prefix="arrays-") as directory:
        os.chmod(directory, 0o755)
        site = SubmissionSite(Path(directory), enforce="NO")
        text = site.conf.read_text()
        assert OF_SITE in text
        site.conf.write_text(text.replace(OF_SITE, SITES[request.param]))
        site.install(config(site, Who() if request.param == "a longest" else LIMITED))
        try:
            site.start()
            yield site
        finally:
            site.stop()


def config(site: SubmissionSite, who: Who) -> Config:
    clouds = ("near", "far")
    return Config(
        cluster=Cluster(name="submissions"),
        state_dir=str(site.root / "state"),
        clouds=tuple(
            FakeCloud(name=name, location=Location.ON_PREMISES, allow=who) for name in clouds
        ),
        pools=tuple(
            PoolSettings(
                name=f"{name}-pool", slurmd_port=port, cloud=name, nodes=f"{name}[1-{NODES}]",
                cpus=2, memory=2000, real_memory=1000,
            )
            for port, name in enumerate(clouds, 1)
        ),
        timings=Timings(resume_timeout=450.0, suspend_time=3600.0),
        slurm=SlurmSettings(conf=str(site.conf), programs_dir=str(site.root / "programs")),
    )  # fmt: skip


def rows(site: SubmissionSite, job: str) -> list[tuple[str, str]]:
    """Partition and limit of each task that has nodes."""
    out = site.run("squeue", "-h", "-r", "-t", "R,CF", "-j", job, "-o", "%P %l").out
    return [(line.split()[0], line.split()[1]) for line in out.splitlines()]


def cleared(site: SubmissionSite) -> None:
    site.run("scancel", "-u", "root")
    wait_for("the queue to be empty", lambda: not site.run("squeue", "-h").out.strip())
    free = ("-h", "-N", "-t", "idle", "-o", "%N")
    wait_for("all nodes to be free", lambda: len(site.run("sinfo", *free).out.split()) >= NODES * 3)


def submitted(site: SubmissionSite, *args: str) -> str:
    done = site.run("sbatch", "--parsable", "-c2", "-o", "/dev/null", *args, "--wrap", "sleep 600")
    assert done.code == 0, done
    return done.out.strip()


def limits_of_single_jobs(site: SubmissionSite, *args: str) -> Limits:
    """The limits of jobs alone in each partition: as many as there are nodes."""
    jobs = ",".join(submitted(site, *args) for _ in range(3 * NODES))
    wait_for("all single jobs to have nodes", lambda: len(rows(site, jobs)) == 3 * NODES)
    found = frozenset(rows(site, jobs))
    cleared(site)
    return found


def shown(site: SubmissionSite, partition: str) -> str:
    return site.run("scontrol", "show", "partition", partition).out


def has_default(site: SubmissionSite) -> bool:
    return "DefaultTime=NONE" not in shown(site, "static")


def either_scheduler(site: SubmissionSite) -> Limits:
    """What a single job without a limit may get here: of the main scheduler the partition's
    DefaultTime, or else its MaxTime, and of the backfill scheduler MaxTime, or a year for none.
    """
    limits: set[tuple[str, str]] = set()
    for name in ("static", "near", "far"):
        fields = dict(re.findall(r"(DefaultTime|MaxTime)=(\S+)", shown(site, name)))
        longest = fields["MaxTime"]
        default = longest if fields["DefaultTime"] == "NONE" else fields["DefaultTime"]
        limits |= {(name, SHORT.get(default, default))}
        limits |= {
            (name, "365-00:00:00" if longest == "UNLIMITED" else SHORT.get(longest, longest))
        }
    return frozenset(limits)


def has_no_limit(site: SubmissionSite) -> bool:
    """Whether jobs without a limit have none on the site's own nodes: arrays then stay there."""
    return not has_default(site) and "MaxTime=UNLIMITED" in shown(site, "static")


def check(site: SubmissionSite, array: str, alone: Limits, free: list[str]) -> None:
    """Each task has the limit of a single job, and only partitions in ``free`` have tasks."""
    found = rows(site, array)
    assert alone.issuperset(found)
    used = Counter(part for part, _ in found)
    assert used.keys() <= set(free)
    assert used == dict.fromkeys(free, NODES) or len(found) < NODES * len(free)


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(False, id="own nodes free"),
        pytest.param(True, id="own nodes busy", marks=pytest.mark.release),
    ],
)
@pytest.mark.parametrize("limit", [(), ("-t", "20")], ids=["without -t", "with -t"])
@pytest.mark.parametrize(
    "tasks", [20, *(pytest.param(n, marks=pytest.mark.release) for n in (1, 6, 1000))]
)
def test_tasks_of_an_array_have_the_limit_of_a_single_job(
    site: SubmissionSite, tasks: int, limit: tuple[str, ...],
    busy: bool,
) -> None:  # fmt: skip
    alone = limits_of_single_jobs(site, *limit)
    if not limit and not has_default(site):
        alone |= either_scheduler(site)
    if busy:
        filler = submitted(site, "-p", "static", "--array=1-2", "-t", "20")
        wait_for("the filler to have the site's nodes", lambda: len(rows(site, filler)) == NODES)
    array = submitted(site, *limit, f"--array=1-{tasks}")
    stays = tasks > 1 and not limit and has_no_limit(site)
    free = ([] if busy else ["static"]) + ([] if stays else ["near", "far"])
    most = min(tasks, NODES * len(free))
    wait_for("all nodes that may work to have a task", lambda: len(rows(site, array)) == most)
    check(site, array, alone, free)
    if tasks >= most + NODES:
        # The next tasks start where the first ones, or other jobs, end.
        site.run("scancel", "-p", "static", "--state=RUNNING", "-u", "root")
        again = ["static", *(part for part in free if part != "static")]
        wait_for("the next tasks", lambda: len(rows(site, array)) == NODES * len(again))
        check(site, array, alone, again)
    cleared(site)
