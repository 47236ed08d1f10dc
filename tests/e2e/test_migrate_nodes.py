"""Four of five machines go to another cloud on real Slurm, as in the VHEC paper's second case: they
end after their jobs, and four new ones start in the other cloud at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.crash import FULL
from tests.e2e.world import ELASTIC, PATIENCE, Until, machines, partition_of, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
MOVED = "op[1-4]"
SLEEP = "#!/bin/sh\n#SBATCH --cpus-per-task=2\nsleep 3\n"
SUSPEND_S = 12.0


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    size = {"cpus": 2, "memory": 1256, "real_memory": 1000}
    second = {"name": "rented", "provider": "local", "location": "on-premises", "price": 0.1}
    pools = [
        {"name": "op", "cloud": "onprem", "nodes": "op[1-5]"},
        {"name": "rent", "cloud": "rented", "nodes": "rent[1-6]", **size},
    ]
    return sandbox(
        static_nodes=1,
        drop=("aws",),
        suspend_time=SUSPEND_S,
        elastic={"clouds": [second], "pools": pools},
    )


def command(site: Sandbox, *words: str) -> str:
    """What our command prints, with the breaks of lines as blanks."""
    return " ".join(site.run([*ELASTIC, *words]).stdout.split())


def in_cloud(site: Sandbox, cloud: str) -> set[str]:
    return {m.instance.node for m in machines(site) if m.instance.cloud == cloud}


def up(site: Sandbox, name: str) -> set[str]:
    return {
        n.name for n in site.nodes().values() if n.name.startswith(name) and phase(n) is Phase.UP
    }


def test_four_nodes_leave_after_their_jobs_and_four_start_in_the_other_cloud(site: Sandbox) -> None:
    until = Until(site)
    jobs = [site.submit(until.script, FULL, "--partition=onprem") for _ in range(5)]
    nodes = running_nodes(site, jobs)
    waiting = [site.submit(SLEEP, "--partition=onprem") for _ in range(4)]
    later = site.submit(SLEEP, "--partition=onprem", "--begin=now+1hour")
    order = ("migrate", MOVED, "--to", "rented", "--after-jobs", "--start-replacements")
    preview = command(site, *order, "--dry-run")
    assert "4 jobs end first" in preview
    assert "4 replacements start at once at $0.40/h" in preview
    assert "Jobs may also start in partition rented, 5 waiting jobs at once" in preview
    assert "are emptied to rented, with replacements by root" in command(site, *order)
    site.wait_for(lambda: len(in_cloud(site, "rented")) == 4, PATIENCE, "four start")
    rented = in_cloud(site, "rented")
    for job in waiting:
        site.wait_job(job)
        assert partition_of(site, job) == {"rented"}
    assert {frozenset(some) for some in nodes.values()} <= {
        frozenset({name}) for name in in_cloud(site, "onprem")
    }, "no running job was disturbed"
    assert "4 of 4 replacements started" in command(site, "status")
    text = command(site, "explain", min(rented))
    assert "it starts in place of op" in text
    until.go()
    for job in jobs:
        assert site.wait_job(job)["Restarts"] == "0"
    site.wait_for(lambda: in_cloud(site, "onprem") <= {"op5"}, 2 * PATIENCE, "the four have left")
    assert set(site.job(later)["Partition"].split(",")) == {"onprem", "rented"}
    command(site, "resume", MOVED)
    site.wait_for(
        lambda: site.job(later)["Partition"] == "onprem", PATIENCE, "it has its own partition again"
    )
    assert "it may start in onprem again" in command(site, "explain", str(later))
    site.run(["scancel", str(later)])
    site.wait_for(lambda: not in_cloud(site, "rented"), 2 * PATIENCE, "unused machines end")


def test_unused_replacements_outlast_suspend_time_until_the_order_ends(site: Sandbox) -> None:
    until = Until(site)
    job = site.submit(until.script, FULL, "--partition=onprem")
    ((node, *_),) = running_nodes(site, [job]).values()
    command(site, "migrate", node, "--to", "rented", "--after-jobs", "--start-replacements")
    site.wait_for(lambda: len(up(site, "rent")) == 1, PATIENCE, "its replacement is up")
    (replacement,) = up(site, "rent")
    waited = site.submit("#!/bin/sh\nsleep 40\n", "--partition=batch")
    site.wait_job(waited)
    assert up(site, "rent") == {replacement}, "idle for more than three times SuspendTime"
    view = json.loads(command(site, "status", "--json"))
    (machine,) = [m for m in view["instances"] if m["node"] == replacement]
    assert machine["next"].startswith("kept ")
    command(site, "resume", node)
    until.go()
    site.wait_job(job)
    site.wait_for(lambda: not up(site, "rent"), 2 * PATIENCE, "it ends when idle")
