"""A real OpenStack control plane as the on-premises cloud of real Slurm: ACTIVE servers become nodes."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.conftest import why_not
from tests.e2e.trying import config_with, steps, tried
from tests.e2e.world import (
    Until,
    back_to_zero,
    cleared,
    held,
    ledger,
    partition_of,
    runs,
    submit_many,
)
from tests.realcloud.openstack.plane import ControlPlane, clouds_of

pytestmark = [pytest.mark.e2e, pytest.mark.release]
FULL = "--cpus-per-task=2"
POOL = {
    "name": "os", "cloud": "stack", "nodes": "os[1-4]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["small"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(control_plane: ControlPlane, sandbox: Callable[..., Sandbox]) -> Sandbox:
    """The daemon is user slurm and reads a clouds.yaml that is its own."""
    mine = control_plane.place.etc / "clouds-of-slurm.yaml"
    shutil.copy(control_plane.clouds_file, mine)
    mine.chmod(0o600)
    slurm = pwd.getpwnam("slurm")
    os.chown(mine, slurm.pw_uid, slurm.pw_gid)
    cloud = clouds_of(
        control_plane, name="stack", location="on-premises", clouds_file=str(mine),
        types={"small": {"cpus": 2, "memory": 4096}},
    )  # fmt: skip
    aws = {"name": "aws", "provider": "aws"}
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        resume_timeout=180.0,
        elastic={"clouds": [aws, cloud], "pools": [POOL]},
    )


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    if reason := why_not():
        pytest.skip(reason)
    plane: ControlPlane = request.getfixturevalue("control_plane")
    site: Sandbox = request.getfixturevalue("site")
    yield
    plane.admin.quota(instances=-1)
    plane.admin.empty_host()
    cleared(site)
    plane.admin.wait(plane.admin.is_empty, "no server is left")
    site.wait_for(lambda: not held(site), 150, "all holds are over")


def is_over(job: SlurmJob) -> bool:
    return bool(job.states & {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})


def reasons(site: Sandbox, job: int) -> str:
    book = ledger(site)
    try:
        return " ".join(str(d.reason) for d in book.decisions.about(f"job:{job}"))
    finally:
        book.close()


def test_plain_jobs_run_on_its_servers_which_are_gone_afterwards(
    site: Sandbox, control_plane: ControlPlane
) -> None:
    """One static node, then OpenStack for the rest of the jobs, one of them on two nodes."""
    wide = site.submit("sleep 5", FULL, "--nodes=2", "--partition=stack")
    until = Until(site)
    plain = submit_many(site, 3, until.script, FULL)
    seen: dict[str, set[str]] = {}

    def active() -> int:
        return sum("ACTIVE" in statuses for statuses in seen.values())

    def over() -> bool:
        for server in control_plane.admin.servers().values():
            assert server.metadata["slurm-elastic:cluster-name"] == "sandbox"
            seen.setdefault(server.id, set()).add(server.status)
        jobs = site.jobs()
        if set(plain) <= {job.id for job in jobs if runs(job)} and active() >= 2:
            until.go()
        return not {wide, *plain} & {job.id for job in jobs if not is_over(job)}

    site.wait_for(over, 400, "all jobs have ended")
    for job in (wide, *plain):
        assert site.wait_job(job)["JobState"] == "COMPLETED"
    assert partition_of(site, wide) == {"stack"}
    assert {"stack"} in [partition_of(site, job) for job in plain]
    assert active() >= 2
    assert not any("ERROR" in statuses for statuses in seen.values())
    back_to_zero(site)
    control_plane.admin.wait(control_plane.admin.is_empty, "no server is left")


def test_full_by_no_valid_host_the_job_goes_on_to_aws(
    site: Sandbox, control_plane: ControlPlane
) -> None:
    control_plane.admin.leave_room(0)
    (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=stack,aws")
    assert site.wait_job(job)["Partition"] == "aws"
    assert "No valid host was found." in reasons(site, job)
    assert control_plane.admin.is_empty()


def test_full_by_quota_the_job_goes_on_to_aws(site: Sandbox, control_plane: ControlPlane) -> None:
    control_plane.admin.quota(instances=0)
    (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=stack,aws")
    assert site.wait_job(job)["Partition"] == "aws"
    assert "quota of instances is 0 and 0 are used" in reasons(site, job)


def test_try_follows_a_server_from_its_order_to_its_end(
    site: Sandbox, control_plane: ControlPlane
) -> None:
    code, said = tried(site, "stack", "--user", "nobody")
    assert code == 0, said
    assert steps(said) == [str(step) for step in TrialStep]
    assert "One machine of pool os: stack/small/" in said
    control_plane.admin.wait(control_plane.admin.is_empty, "no server is left")


def test_try_names_novas_quota(site: Sandbox, control_plane: ControlPlane) -> None:
    control_plane.admin.quota(instances=0)
    code, said = tried(site, "stack")
    assert code == 1, said
    assert "STOPPED before launched" in said, said
    assert "cause: quota: " in said, said
    assert "the project's quota of instances is 0 and 0 are used" in said


def test_try_names_the_credentials_that_keystone_refuses(site: Sandbox, tmp_path: Path) -> None:
    """They were good when slurm-elasticd began: ``try`` asks with what the file has now."""
    clouds = yaml.safe_load(site.layout.config.read_text())["clouds"]
    (stack,) = [cloud for cloud in clouds if cloud["name"] == "stack"]
    words = yaml.safe_load(Path(stack["clouds_file"]).read_text())
    words["clouds"][stack["cloud"]]["auth"]["password"] = "that-of-last-month"
    earlier = Path(stack["clouds_file"])
    changed = earlier.with_name("changed-clouds.yaml")
    changed.touch(mode=0o600)
    # The trial runs as SlurmUser, as slurm-elasticd does.
    shutil.chown(changed, earlier.owner(), earlier.group())
    changed.write_text(yaml.safe_dump(words))
    stack["clouds_file"] = str(changed)
    code, said = tried(site, "stack", config=config_with(site, tmp_path, {"clouds": clouds}))
    assert code == 1, said
    assert "STOPPED before launched" in said, said
    assert "cause: expired credentials: stack: " in said, said
