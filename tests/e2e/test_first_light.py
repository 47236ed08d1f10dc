"""``slurm-elastic try`` on real Slurm and the emulated EC2: every step told, every mistake named."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.policies.first_light import Step
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind
from tests.e2e.world import PATIENCE, back_to_zero, machines

pytestmark = pytest.mark.e2e
PROGRAM = (sys.executable, "-m", "slurm_elastic.cli.main", "try")
SIZE = {"cpus": 2, "memory": 1256, "real_memory": 1000}
DEAD = {
    "name": "dead", "cloud": "aws", "nodes": "dead[1-6]", "markets": ["on-demand"],
    "instance_types": ["c5.large"], **SIZE,
}  # fmt: skip
FAULTS = {
    "quota": Fault(kind=FaultKind.QUOTA, action="RunInstances"),
    "expired credentials": Fault(kind=FaultKind.AUTH, action="RunInstances"),
    "wrong image": Fault(
        kind=FaultKind.CAPACITY, action="RunInstances", code="InvalidAMIID.NotFound"
    ),
    "clock off": Fault(kind=FaultKind.AUTH, action="RunInstances", code="RequestExpired"),
    "no capacity or no room": Fault(kind=FaultKind.CAPACITY, action="RunInstances"),
}


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Machines of the pool ``dead`` have no slurmd: a test may play one."""
    return sandbox(
        static_nodes=1, drop=("onprem",), never_boot="dead[1-6]", suspend_time=8.0,
        suspend_timeout=5.0, elastic={"pools": [DEAD]},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def as_new(site: Sandbox) -> Iterator[None]:
    yield
    site.ec2.heal()
    site.run([*PROGRAM[:-1], "clear", "--all"])
    back_to_zero(site)
    site.wait_for(
        lambda: not any("DRAIN" in n.states for n in site.nodes().values()), PATIENCE, "no hold"
    )


def tried(site: Sandbox, *words: str) -> tuple[int, str]:
    done = site.run([*PROGRAM, *words, "--yes"], check=False, timeout=400)
    return done.returncode, done.stdout + done.stderr


def steps(said: str) -> list[str]:
    known = {str(step) for step in Step}
    words = [line.split() for line in said.splitlines()]
    return [w[1] for w in words if len(w) > 1 and w[0].endswith("s") and w[1] in known]


def test_a_machine_is_followed_from_its_order_to_its_end(site: Sandbox) -> None:
    code, said = tried(site, "pub", "--user", "nobody")
    assert code == 0, said
    assert steps(said) == [str(step) for step in Step]
    first, second = said.splitlines()[:2]
    assert first.startswith("One machine of pool pub: aws/")
    assert "at worst: about $0.01" in second
    assert "a job of one node has run on it, by nobody" in said
    assert not machines(site)


@pytest.mark.parametrize("name", FAULTS)
def test_a_cloud_that_refuses_says_why_and_nothing_is_left(site: Sandbox, name: str) -> None:
    site.ec2.fail(FAULTS[name])
    code, said = tried(site, "aws")
    assert code == 1
    assert "STOPPED before launched" in said, said
    assert f"cause: {name}: " in said, said
    assert "  do: " in said
    assert not machines(site)


def test_a_machine_on_which_nothing_answers(site: Sandbox) -> None:
    code, said = tried(site, "dead", "--timeout", "20")
    assert code == 1
    assert "STOPPED before reached" in said, said
    assert "cause: closed port: " in said, said
    assert steps(said) == ["asked", "launched", "running", "address", "ended"]
    assert not machines(site)


def munged(directory: Path) -> subprocess.Popen[bytes]:
    """One with another key than the cluster's."""
    directory.mkdir(mode=0o755)
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    return subprocess.Popen([
        "munged", "--foreground", "--force", f"--socket={directory}/socket", f"--key-file={key}",
        f"--pid-file={directory}/pid", f"--seed-file={directory}/seed",
        f"--log-file={directory}/log",
    ])  # fmt: skip


def play(site: Sandbox, node: str, conf: Path) -> subprocess.Popen[bytes]:
    """The slurmd of a dead node, by another slurm.conf."""
    return subprocess.Popen(["slurmd", "-D", "-N", node, "-f", str(conf)])


def trying(site: Sandbox, *words: str) -> subprocess.Popen[str]:
    env = site.layout.user_env(os.environ)
    return subprocess.Popen(
        [*PROGRAM, *words, "--yes"], env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def read_until(running: subprocess.Popen[str], word: str) -> str:
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if word in line:
            return said
    raise AssertionError(f"{word!r} never came:\n{said}")


def node_in(said: str) -> str:
    return said.rpartition(": ")[2].strip()


def test_another_munge_key_is_named_by_slurmctlds_log(site: Sandbox, tmp_path: Path) -> None:
    other = munged(tmp_path / "munge")
    text = site.layout.slurm_conf.read_text()
    old = f"socket={site.layout.dir}/run/munge.socket"
    assert old in text
    conf = tmp_path / "slurm.conf"
    conf.write_text(text.replace(old, f"socket={tmp_path}/munge/socket"))
    for file in site.layout.slurm_conf.parent.iterdir():
        if file != site.layout.slurm_conf:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    running = trying(site, "dead", "--timeout", "45")
    said = read_until(running, " asked ")
    slurmd = play(site, node_in(said), conf)
    try:
        rest, _ = running.communicate(timeout=400)
    finally:
        for process in (slurmd, other):
            process.terminate()
            process.wait(30)
    assert running.returncode == 1
    assert "cause: wrong munge key: " in rest, said + rest
    assert "STOPPED before registered" in rest


def test_another_release_is_named_by_slurmctlds_log(site: Sandbox) -> None:
    running = trying(site, "dead", "--timeout", "25")
    read_until(running, " launched ")
    for _ in range(5):  # the head of a message as a far newer release sends it
        with socket.create_connection(("127.0.0.1", site.layout.read().ports.slurmctld), 5) as link:
            body = struct.pack("!HHHHI", 0x6000, 0, 0, 1002, 0) + bytes(64)
            link.sendall(struct.pack("!I", len(body)) + body)
    said, _ = running.communicate(timeout=400)
    assert "cause: other Slurm release: " in said, said


def test_ctrl_c_ends_the_machine(site: Sandbox) -> None:
    running = trying(site, "dead")
    read_until(running, " launched ")
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=400)
    assert running.returncode == 130, said
    assert "interrupted: the machine is ended" in said
    assert not machines(site)


def test_a_command_that_is_killed_leaves_the_end_to_the_daemon(site: Sandbox) -> None:
    running = trying(site, "pub")
    read_until(running, " launched ")
    running.kill()
    running.communicate(timeout=60)
    site.wait_for(lambda: not machines(site), 2 * PATIENCE, "the machine ends by itself")
