"""auth/slurm on real Slurm 24.11: a machine joins by its cloud's key, keys change under a running job,
and one that has ended is refused. No munged runs anywhere that matters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from slurm_elastic.slurm.conf.keyset import KeySet

from .engine import Engine
from .keys_world import HUP_HEAD, MACHINE_KEYS, KeysWorld
from .world import Host

pytestmark = [pytest.mark.e2e, pytest.mark.release]

PATIENCE = 700.0
JOB = """\
srun hostname
until [ -e /shared/jobs/go ]; do sleep 0.5; done
srun id -un
"""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str, cloud_image: str) -> Iterator[KeysWorld]:
    with KeysWorld(docker_engine, trixie, cloud_image) as running:
        yield running


def asks(machine: Host) -> str:
    """slurmctld's answer to a machine that asks for its node."""
    done = machine.run(["scontrol", "show", "node", "pub1"], check=False)
    return str(done.stdout + done.stderr)


def test_keys_of_auth_slurm_from_joining_to_their_end(world: KeysWorld) -> None:
    """One story: each step needs the machine of the one before."""
    job = world.sbatch(JOB, "-p", "aws", "-o", "out-%j")
    world.wait_job(job, "RUNNING", patience=PATIENCE)
    machine = next(iter(world.aws.hosts.values()))
    joined_by_its_clouds_key(world, machine)
    changed_under_the_job(world, machine, job)
    ended_is_refused_until_the_next(world, machine)


def joined_by_its_clouds_key(world: KeysWorld, machine: Host) -> None:
    found = world.keys_of(machine)
    assert [key.kid for key in found.keys] == ["slurm.key", "slurm-elastic:aws:1"]
    assert found.default.kid == "slurm-elastic:aws:1"
    assert machine.run(["stat", "-c", "%a %U", MACHINE_KEYS]).stdout.split() == ["400", "root"]
    assert machine.run(["pgrep", "-x", "munged"], check=False).returncode == 1
    assert "NodeName=pub1" in asks(machine)


def changed_under_the_job(world: KeysWorld, machine: Host, job: int) -> None:
    old = {key.kid for key in world.keys_of(world.head).keys}
    assert "pub1" in world.rotate("--dry-run")
    told = world.rotate("--revoke")
    assert "the old keys have ended" in told
    head, own = world.keys_of(world.head), world.keys_of(machine)
    assert not old & {key.kid for key in head.keys}
    assert [key.cloud for key in own.keys] == ["", "aws"]
    assert own.default.cloud == "aws"
    assert world.job(job)["JobState"] == "RUNNING"
    world.wait_for(lambda: "NodeName=pub1" in asks(machine), "the machine is believed")
    (world.shared / "jobs" / "go").touch()
    assert world.wait_job(job)["Restarts"] == "0"
    assert (world.shared / "jobs" / f"out-{job}").read_text() == "pub1\nalice\n"


def ended_is_refused_until_the_next(world: KeysWorld, machine: Host) -> None:
    head = world.keys_of(world.head)
    own = world.keys_of(machine).default.kid
    ended = KeySet(tuple(replace(k, exp=1) if k.kid == own else k for k in head.keys))
    world.put_keys(world.head, ended)
    world.head.run(["sh", "-c", HUP_HEAD])
    world.wait_for(lambda: "authentication error" in asks(machine), "it is refused")
    log = (world.shared / "log" / "slurmctld.log").read_text()
    assert f"token received for expired key kid={own}" in log
    doctor = ["slurm-elastic", "--config", "/etc/elastic/slurm-elastic.yaml", "doctor", "--quick"]
    told = " ".join(world.head.run(doctor, check=False).stdout.split())
    assert f"slurm.jwks: key {own}" in told
    world.rotate()
    world.wait_for(lambda: "NodeName=pub1" in asks(machine), "with the next it is believed")
    again = world.sbatch("hostname", "-p", "aws", "-o", "out-%j")
    world.wait_job(again, patience=PATIENCE)
