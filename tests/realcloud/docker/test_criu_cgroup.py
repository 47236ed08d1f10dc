"""CRIU where slurmd holds jobs in control groups (proctrack/cgroup), by cgroup/v1 and cgroup/v2: what is
restored is in the step's group again, and goes with it; and what other plugins see of a job.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import missing

from .criu_world import CriuWorld, gone, needed, started
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]

ROOT = "/sys/fs/cgroup"
SHIM = Path(__file__).parent / "only_v2.c"


class CgroupWorld(CriuWorld):
    """Nodes with cgroup hierarchies of their own, which slurmd may write."""

    node_options = {"cgroupns": "private"}  # noqa: RUF012


class WorldV1(CgroupWorld):
    """The plugin of old, with the freezer."""

    cgroup_conf = "CgroupPlugin=cgroup/v1\n"
    before_slurmd = (
        f"mount -o remount,rw {ROOT}; umount {ROOT}/freezer;"
        f" mount -t cgroup -o freezer none {ROOT}/freezer"
    )
    place = "freezer:/slurm_{node}/uid_2000/job_{job}/step_batch"


class WorldV2(CgroupWorld):
    """The plugin of now, without systemd."""

    cgroup_conf = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
    before_slurmd = (
        f"umount -R {ROOT}; mount -t cgroup2 none {ROOT}; export LD_PRELOAD=/shared/only_v2.so"
    )
    place = "0::/system.slice/{node}_slurmstepd.scope/job_{job}/step_batch/user/task_special"

    def _lay_out(self) -> None:
        super()._lay_out()
        made = self.shared / "only_v2.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"], check=True)
        made.chmod(0o755)


@pytest.fixture(scope="module", params=[WorldV1, WorldV2])
def world(request: pytest.FixtureRequest, docker_engine: Engine, trixie: str) -> Iterator[Any]:
    kind = request.param
    hierarchies = Path("/proc/self/cgroup").read_text()
    if "freezer:" not in hierarchies or "0::" not in hierarchies:
        pytest.skip("this host has not both hierarchies of control groups, v1 and v2")
    if kind is WorldV2 and (reason := missing("gcc")):
        pytest.skip(reason)
    proctrack = "ProctrackType=proctrack/cgroup\n"
    with kind(docker_engine, trixie, nodes=2, conf=proctrack) as running:
        needed(running)
        yield running


def groups(world: CriuWorld, job: int) -> set[str]:
    """The control groups of the job's own processes, one line each."""
    host = world.nodes()[world.job(job)["NodeList"]]
    show = f"for p in $(pgrep -f [c]ontainers/{job}/script); do cat /proc/$p/cgroup; done"
    return set(host.run(["sh", "-c", show]).stdout.split())


def test_a_moved_job_is_in_its_steps_group_and_goes_with_it(world: Any) -> None:
    job = started(world)
    for moves in (0, 1):
        if moves:
            assert world.ask(job, "stop")["ok"]["size"] > 0
            world.move(job)
            world.standing(job)
            world.wait_more(job)
        node = world.job(job)["NodeList"]
        place = world.place.format(node=node, job=job)
        assert any(line.endswith(place) for line in groups(world, job)), groups(world, job)
    world.slurm("scancel", str(job))
    world.wait_job(job, "CANCELLED")
    gone(world, job)


def test_a_moved_job_ends_with_its_own_code(world: Any) -> None:
    world.resume("n1", "n2")
    job = started(world, code=7)
    assert "ok" in world.ask(job, "stop")
    world.move(job)
    world.standing(job)
    assert world.end(job, "FAILED")["ExitCode"] == "7:0"
    gone(world, job)


@pytest.mark.parametrize(("plugin", "seen"), [("linuxproc", True), ("pgid", False)])
def test_the_jobs_processes_are_seen_by_linuxproc_and_not_by_pgid(
    docker_engine: Engine, trixie: str, plugin: str, seen: bool
) -> None:
    conf = f"ProctrackType=proctrack/{plugin}\n"
    with CriuWorld(docker_engine, trixie, nodes=1, conf=conf) as world:
        needed(world)
        job = started(world)
        host = world.nodes()["n1"]
        own = host.run(["pgrep", "-f", f"[c]ontainers/{job}/script"]).stdout.split()
        listed = host.run(["scontrol", "listpids", str(job)]).stdout.splitlines()[1:]
        assert own
        assert (own[-1] in {line.split()[0] for line in listed}) == seen, (own, listed)
