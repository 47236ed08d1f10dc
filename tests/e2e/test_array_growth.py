"""Arrays on a site whose clouds grow ``on_demand``: all nodes that may work do, each task has the
time limit that a single job would have there, and no machine is bought that no task uses.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from msgspec import Struct

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import cleared, held, machines, set_default_time

pytestmark = pytest.mark.e2e

NODES = {"batch": 2, "onprem": 2, "aws": 3}
CLOUD_NODES = NODES["onprem"] + NODES["aws"]
LOOKS_S = 8.0
"""Seconds for which no further machine must start: several looks of the daemon and of slurmctld."""
LIMITS = {"without -t": (), "with -t": ("-t", "20")}
SITES = ("10", "")
"""DefaultTime of the site's own partition, which may have none. The clouds say 10 minutes, an hour at most."""
EITHER_SCHEDULER = frozenset({
    ("batch", "UNLIMITED"), ("batch", "365-00:00:00"),
    *((cloud, limit) for cloud in ("onprem", "aws") for limit in ("10:00", "1:00:00")),
})  # fmt: skip
"""A job without a limit, and without a DefaultTime of its first partition: the main scheduler gives
it the partition's DefaultTime, or else MaxTime, the backfill scheduler MaxTime, or a year for none.
"""


class Task(Struct, frozen=True, kw_only=True):
    """A task that runs: where, and with which time limit."""

    partition: str
    limit: str
    node: str


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    site = sandbox(
        static_nodes=NODES["batch"],
        elastic={
            "policies": {
                "growth": "on_demand",
                "release": "idle(seconds=5)",
                "poll_interval": "1s",
            },
            "pools": [{"name": "pub", "nodes": f"pub[1-{NODES['aws']}]"}],
        },
    )
    at_rest(site)
    return site


@pytest.fixture(autouse=True)
def calm(site: Sandbox) -> Iterator[None]:
    yield
    cleared(site)
    at_rest(site)


@pytest.fixture(scope="module")
def limits_of_single_jobs(site: Sandbox) -> Callable[..., frozenset[tuple[str, str]]]:
    """``(own, limit)``: partitions and time limits of as many single jobs as there are nodes."""
    measured: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}

    def measure(own: str, limit: str) -> frozenset[tuple[str, str]]:
        if (own, limit) not in measured:
            jobs = ",".join(
                str(site.submit("sleep 600", "-c2", *LIMITS[limit])) for _ in range(total())
            )
            site.wait_for(lambda: len(tasks(site, jobs)) == total(), 120, "all single jobs run")
            measured[own, limit] = frozenset((t.partition, t.limit) for t in tasks(site, jobs))
            cleared(site)
            at_rest(site)
        return measured[own, limit]

    return measure


def total() -> int:
    return sum(NODES.values())


def at_rest(site: Sandbox) -> None:
    site.wait_for(lambda: len(held(site)) == CLOUD_NODES, 120, "all cloud nodes are held")


def tasks(site: Sandbox, job: str) -> list[Task]:
    """All tasks that run."""
    shown = site.run(["squeue", "-h", "-r", "-t", "R", "-j", job, "-o", "%P %l %N %t"]).stdout
    rows = (line.split() for line in shown.splitlines())
    # Newer Slurms list tasks of which a node boots as running, too.
    return [Task(partition=r[0], limit=r[1], node=r[2]) for r in rows if r[3:] == ["R"]]


def launches(site: Sandbox) -> Counter[str]:
    """How often each node has got a machine."""
    return Counter(machine.instance.node for machine in machines(site, ended=True))


def in_use(site: Sandbox, array: str) -> Counter[str]:
    return Counter(task.partition for task in tasks(site, array))


def expected_use(count: int, free: list[str]) -> Counter[str]:
    """The tasks by partition, the first partition first."""
    use: Counter[str] = Counter()
    for partition in free:
        use[partition] = min(count - use.total(), NODES[partition])
    return +use


CASES = [
    pytest.param(
        own, limit, busy, count,
        id=f"{'a default' if own else 'none'}-{limit}-{'busy' if busy else 'free'}-{count}",
        # The first one was wrong: the rest of the array may not start in a cloud.
        marks=() if (own, limit, busy, count) == ("", "without -t", False, 20)
        else pytest.mark.release,
    )
    for own in SITES for limit in LIMITS for busy in (False, True) for count in (20, 1, 6, 1000)
]  # fmt: skip


@pytest.mark.parametrize(("own", "limit", "busy", "count"), CASES)
def test_an_array_has_all_nodes_that_may_work_and_no_machine_in_vain(
    site: Sandbox, limits_of_single_jobs: Callable[..., frozenset[tuple[str, str]]],
    own: str, limit: str, busy: bool, count: int,
) -> None:  # fmt: skip
    set_default_time(site, own)
    alone = limits_of_single_jobs(own, limit)
    if not own and limit == "without -t":
        alone |= EITHER_SCHEDULER
    if busy:
        filler = site.submit("sleep 600", "-c2", "-p", "batch", "-t", "20", "--array=1-2")
        site.wait_for(lambda: len(tasks(site, str(filler))) == 2, 60, "the filler runs")
    # Without a limit of one value everywhere, an array stays where its first task starts.
    stays = count > 1 and not own and limit == "without -t"
    free = [p for p in NODES if not (busy and p == "batch") and not (stays and p != "batch")]
    before = launches(site)
    array = str(site.submit("sleep 600", "-c2", f"--array=1-{count}", *LIMITS[limit]))
    use = expected_use(count, free)
    site.wait_for(lambda: in_use(site, array) == use, 120, f"the tasks have the nodes: {use}")
    time.sleep(LOOKS_S)
    check(site, array, use, alone, before)
    if count <= use.total():
        return
    # The next tasks start where other jobs end, and no machine is started for them.
    site.run(["scancel", "-p", "batch", "--state=RUNNING"])
    use["batch"] = min(NODES["batch"], count - use.total())
    site.wait_for(lambda: in_use(site, array) == use, 120, f"the tasks have the nodes: {use}")
    time.sleep(LOOKS_S)
    check(site, array, use, alone, before)


def check(
    site: Sandbox,
    array: str,
    use: Counter[str],
    alone: frozenset[tuple[str, str]],
    before: Counter[str],
) -> None:
    running = tasks(site, array)
    assert Counter(task.partition for task in running) == use
    assert alone.issuperset((task.partition, task.limit) for task in running)
    own = Counter(task.node for task in running if task.partition != "batch")
    assert launches(site) - before == own, "a machine for each task there, and no other one"
