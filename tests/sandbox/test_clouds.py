"""The emulated cloud of a sandbox: its machines, what is done to them, and whose keys it sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from needs import unless
from patience import patience

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.loopback_only import EMULATOR_KEY
from slurm_elastic.sandbox.seen import ALIVE

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    unless("slurmctld"),
]
REAL_LOOKING = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "production-token",
    "AWS_PROFILE": "production",
    "AWS_ENDPOINT_URL_EC2": "https://ec2.us-east-1.amazonaws.com",
    "HTTPS_PROXY": "http://proxy.example.org:3128",
}


@pytest.fixture(scope="module")
def cluster():
    """Brought up by the installed command, as a caller with credentials of their own."""
    directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
    home = directory.with_name(f"{directory.name}-home")
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text(
        "[production]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = x\n"
    )
    (home / ".aws" / "config").write_text("[profile production]\nregion = eu-west-1\n")
    environment = os.environ | REAL_LOOKING | {"HOME": str(home)}
    options = ["--boot", "1", "--never-boot", "pub6", "--suspend-time", "300"]
    done = cli("up", "--dir", str(directory), *options, env=environment)
    assert done.returncode == 0, done.stderr
    assert "eval $(slurm-elastic sandbox env" in done.stdout
    yield Sandbox.attach(directory)
    assert cli("down", "--dir", str(directory)).returncode == 0
    assert not directory.exists()
    shutil.rmtree(home)


def cli(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "sandbox", *arguments],
        capture_output=True, text=True, check=False, env=env, timeout=patience(120),
    )  # fmt: skip


def emulated(cluster, node):
    return next(
        (m for m in cluster.ec2.state().machines if m.node == node and m.state in ALIVE), None
    )


@pytest.fixture(scope="module")
def spot_machine(cluster):
    """A spot machine on which a job runs."""
    job = cluster.submit("sleep 600", "-p", "aws", "-N1", "--no-requeue", "--comment=spot=ok")
    node = cluster.wait_job(job, "RUNNING")["NodeList"]
    return emulated(cluster, node)


def test_the_callers_credentials_are_never_used(cluster, spot_machine):
    assert spot_machine.market == "spot"
    assert cluster.ec2.state().access_keys == (EMULATOR_KEY,)
    for name in cluster.processes.names():
        pid = cluster.processes.get(name).pid
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert not [value for value in REAL_LOOKING.values() if f"={value}\0" in environment], name


def test_status_shows_daemons_nodes_and_machines(cluster, spot_machine):
    done = cli("status", "--dir", str(cluster.layout.dir))
    assert done.returncode == 0, done.stderr
    assert "slurm-elasticd        running" in done.stdout
    assert spot_machine.id in done.stdout


def test_env_leads_a_shell_into_the_sandbox(cluster):
    environment = os.environ | REAL_LOOKING | {"SLURM_CONF": "/nonexistent"}
    lines = cli("env", "--dir", str(cluster.layout.dir), env=environment).stdout
    shown = subprocess.run(
        ["sh", "-c", f"{lines}\nsinfo -h -o %P; env"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "batch*" in shown
    assert "production" not in shown
    assert "AKIAIOSFODNN7EXAMPLE" not in shown
    assert "SLURM_ELASTIC_SANDBOX_DIR" not in shown


def test_prices_and_failures_are_set_and_healed(cluster):
    where = ("--dir", str(cluster.layout.dir))
    assert cli("price", "c5.*", "us-east-1a", "0.5", *where).returncode == 0
    quotes = {(q.type, q.zone): q.price for q in cluster.ec2.state().prices}
    assert quotes["c5.large", "us-east-1a"] == 0.5
    assert cli("price", "c5.*", "*", "trace", *where).returncode == 0
    assert cli("fail", "capacity", "--market", "spot", "--count", "3", *where).returncode == 0
    (fault,) = cluster.ec2.state().faults
    assert (fault.kind, fault.market, fault.count) == ("capacity", "spot", 3)
    assert "failing: capacity" in cli("status", *where).stdout
    assert cli("heal", *where).returncode == 0
    assert cluster.ec2.state().faults == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fail", "meteorite"), "expected one of: capacity, quota"),
        (("interrupt", "pub77"), "no emulated machine 'pub77'"),
        (("price", "c5.*", "*", "cheap"), "'cheap'"),
        (("up",), "already up"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(cluster, arguments, said):
    done = cli(*arguments, "--dir", str(cluster.layout.dir))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_that_never_boots_is_paid_but_has_no_slurmd(cluster):
    job = cluster.submit("true", "-p", "aws", "-w", "pub6")
    machine = cluster.wait_for(lambda: emulated(cluster, "pub6"), 60, "pub6 is launched")
    up = cluster.submit("true", "-p", "aws", "-w", "pub5")
    cluster.wait_job(up)
    assert cluster.machines.get(machine.id) is None
    cluster.run(["scancel", str(job)])


def test_an_interrupted_machine_is_powered_off_with_its_job(cluster, spot_machine):
    assert cluster.machines.alive(spot_machine.id)
    done = cli("interrupt", spot_machine.node, "--notice", "1", "--dir", str(cluster.layout.dir))
    assert done.returncode == 0, done.stderr
    cluster.wait_for(lambda: not cluster.machines.alive(spot_machine.id), 60, "it is gone")
    states = {m.id: m.state for m in cluster.ec2.state().machines}
    assert states[spot_machine.id] not in ALIVE
