"""``slurm-elastic try`` on real Slurm and the emulated EC2: every step told, every mistake named."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pages
import pytest
from patience import undisturbed

from slurm_elastic.base.units import parse_duration
from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.slurm.client.prompt import COMMAND_TIMEOUT_S as SLURM_COMMAND_TIMEOUT_S
from tests.e2e.trying import (
    Trying,
    agreed,
    conf_with,
    config_with,
    in_namespaces,
    munged,
    no_namespaces,
    running,
    shown,
    steps,
    tried,
)
from tests.e2e.world import (
    PATIENCE,
    cleared,
    forget_cool_downs,
    ledger,
    live_ec2,
    machines,
    slurmctld_away,
)

pytestmark = pytest.mark.e2e
Again = Callable[[Callable[[], None]], None]
SIZE = {"cpus": 2, "memory": 1256, "real_memory": 1000}
DEAD = {
    "name": "dead", "cloud": "aws", "nodes": "dead[1-6]", "markets": ["on-demand"],
    "instance_types": ["c5.large"], **SIZE,
}  # fmt: skip
SILENT = {**DEAD, "name": "silent", "nodes": "silent1"}
STRANGER = "games"
"""A user of this host that some machines do not have."""
FAULTS = {
    "quota": Fault(kind=FaultKind.QUOTA, action="RunInstances"),
    "expired credentials": Fault(kind=FaultKind.AUTH, action="RunInstances"),
    "wrong image": Fault(
        kind=FaultKind.CAPACITY, action="RunInstances", code="InvalidAMIID.NotFound"
    ),
    "clock off": Fault(kind=FaultKind.AUTH, action="RunInstances", code="RequestExpired"),
    "no capacity or no room": Fault(kind=FaultKind.CAPACITY, action="RunInstances"),
}
AHEAD = 7200
STILL = 5.0
"""Seconds of a standstill after which a trial that has a short time is tried again."""
HANGS = SLURM_COMMAND_TIMEOUT_S + 3.0
ROOM = "16k"
"""The size of a disk on which slurmd can just start."""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Machines of the pool ``dead`` have no slurmd: a test may play one."""
    return sandbox(
        static_nodes=1, drop=("onprem",), never_boot="dead[1-6],silent1", suspend_time=8.0,
        suspend_timeout=5.0, elastic={"pools": [DEAD, SILENT]}, groups=("nogroup", "root", STRANGER),
    )  # fmt: skip


@pytest.fixture
def namespaces() -> None:
    if reason := no_namespaces():
        pytest.skip(reason)


@pytest.fixture
def again(site: Sandbox) -> Again:
    """``again(attempt)``: a trial that gives up soon, whatever a standstill of the machine took of that."""
    return partial(undisturbed, still=STILL, renew=partial(renew, site))


@pytest.fixture(autouse=True)
def as_new(site: Sandbox) -> Iterator[None]:
    yield
    renew(site)


def renew(site: Sandbox) -> None:
    site.ec2.heal()
    cleared(site)
    forget_cool_downs(site)
    site.wait_for(
        lambda: not any("DRAIN" in n.states for n in site.nodes().values()), PATIENCE, "no hold"
    )


def room(directory: Path) -> Path:
    """For one attempt."""
    return Path(tempfile.mkdtemp(dir=directory))


def of_the_site(site: Sandbox, node: str) -> list[str]:
    """The slurmd of a machine that has nothing wrong."""
    return ["slurmd", "-b", "-D", "-N", node, "-f", str(site.layout.slurm_conf)]


def test_a_machine_is_followed_from_its_order_to_its_end(site: Sandbox) -> None:
    """As docs/first-light.md shows it: the same lines, but for figures, names of machines and of the user."""
    prompt, _, promised = pages.shown("docs/first-light.md", "$ slurm-elastic try").text.partition(
        "\n"
    )
    code, said = agreed(site, f"{prompt.removeprefix('$ ')} --user nobody")
    assert code == 0, said
    assert steps(said) == [str(step) for step in TrialStep]
    assert "at worst: about $0.01" in said
    assert "a job of one node has run on it, by nobody" in said
    assert shape(said) == shape(promised)
    assert not machines(site)


def shape(told: str) -> list[str]:
    """Its lines, whatever was bought where at which price, how long it took and who ran the job."""
    for varies in (
        r"i-[0-9a-f]{17}",
        r"[cm]5\.large",
        r"us-east-1[abc]",
        r"[0-9]+(\.[0-9]+)*",
        r"(?<=, by )\w+",
    ):
        told = re.sub(varies, "*", told)
    return [" ".join(line.split()) for line in told.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "name",
    [name if name == "quota" else pytest.param(name, marks=pytest.mark.release) for name in FAULTS],
)
def test_a_cloud_that_refuses_says_why_and_nothing_is_left(site: Sandbox, name: str) -> None:
    site.ec2.fail(FAULTS[name])
    code, said = tried(site, "aws")
    assert code == 1, said
    assert "STOPPED before launched" in said, said
    assert f"cause: {name}: " in said, said
    assert "  do: " in said
    assert "no machine was started" in said
    assert not machines(site)


@pytest.mark.release
def test_a_machine_on_which_nothing_answers(site: Sandbox, again: Again) -> None:
    again(partial(nothing_answers, site))


def nothing_answers(site: Sandbox) -> None:
    code, said = tried(site, "silent", "--timeout", "20")
    assert code == 1, said
    assert "STOPPED before reached" in said, said
    assert "cause: closed port: 127.0.0.1:" in said, said
    assert steps(said) == ["asked", "launched", "running", "address", "ended"]
    assert not machines(site)


@pytest.mark.release
def test_another_munge_key_is_named_by_slurmctlds_log(
    site: Sandbox, tmp_path: Path, again: Again
) -> None:
    again(lambda: another_munge_key(site, room(tmp_path)))


def another_munge_key(site: Sandbox, tmp_path: Path) -> None:
    old = f"socket={site.layout.dir}/run/munge.socket"
    conf = conf_with(site, tmp_path, {old: f"socket={tmp_path}/munge/socket"})
    trial = Trying(site, "dead", "--timeout", "45")
    node = trial.node()
    with (
        munged(tmp_path / "munge", os.urandom(128)),
        running(["slurmd", "-D", "-N", node, "-f", str(conf)], tmp_path / "slurmd"),
    ):
        assert trial.rest() == 1
    assert "cause: wrong munge key: " in trial.said, trial.said
    assert "STOPPED before registered" in trial.said, trial.said


@pytest.mark.release
def test_a_machine_whose_clock_is_off_is_named_by_how_much(
    site: Sandbox, tmp_path: Path, again: Again
) -> None:
    again(lambda: clock_is_off(site, room(tmp_path)))


def clock_is_off(site: Sandbox, tmp_path: Path) -> None:
    library = tmp_path / "clock_off.so"
    source = Path(__file__).with_name("clock_off.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    clock = {"LD_PRELOAD": str(library), "CLOCK_OFF": str(AHEAD)}
    key = (site.layout.dir / "etc" / "munge.key").read_bytes()
    old = f"socket={site.layout.dir}/run/munge.socket"
    conf = conf_with(site, tmp_path, {old: f"socket={tmp_path}/munge/socket"})
    trial = Trying(site, "dead", "--timeout", "45")
    node = trial.node()
    with (
        munged(tmp_path / "munge", key, **clock),
        running(["slurmd", "-D", "-N", node, "-f", str(conf)], tmp_path / "slurmd", **clock),
    ):
        assert trial.rest() == 1
    assert "cause: clock off: out of sync clocks: the sender's is " in trial.said, trial.said
    off = trial.said.partition("the sender's is ")[2].partition(" ahead of the head's")[0]
    assert abs(parse_duration(off) - AHEAD) < 300
    # Reached, if Slurm has NodeAddr of slurm.conf still. A power-down forgets that, and the address
    # of an emulated machine leads nowhere.
    assert "STOPPED before re" in trial.said, trial.said


@pytest.mark.release
def test_another_release_is_named_by_slurmctlds_log(site: Sandbox, again: Again) -> None:
    again(partial(another_release, site))


def another_release(site: Sandbox) -> None:
    trial = Trying(site, "dead", "--timeout", "25")
    trial.until(" launched ")
    for _ in range(5):  # the head of a message as a far newer release sends it
        with socket.create_connection(("127.0.0.1", site.layout.read().ports.slurmctld), 5) as link:
            body = struct.pack("!HHHHI", 0x6000, 0, 0, 1002, 0) + bytes(64)
            link.sendall(struct.pack("!I", len(body)) + body)
    trial.rest()
    assert "cause: other Slurm release: " in trial.said, trial.said


@pytest.mark.release
@pytest.mark.parametrize(
    ("head", "printed", "cause"),
    [
        (
            "127.0.0.1:1", "Unable to contact slurm controller",
            "wrong head address: no answer at join.head: 127.0.0.1:1 refuses",
        ),
        (
            "head.invalid", "getaddrinfo() failed",
            "name that does not resolve: no answer at join.head: head.invalid:",
        ),
    ],
    ids=["port", "name"],
)  # fmt: skip
def test_a_machine_that_is_told_a_wrong_head(
    site: Sandbox, tmp_path: Path, again: Again, head: str, printed: str, cause: str
) -> None:
    again(lambda: wrong_head(site, room(tmp_path), head, printed, cause))


def wrong_head(site: Sandbox, tmp_path: Path, head: str, printed: str, cause: str) -> None:
    config = config_with(site, tmp_path, {"join": {"head": head}})
    trial = Trying(site, "dead", "--timeout", "30", config=config)
    node, machine, log = trial.node(), trial.machine(), tmp_path / "slurmd"
    argv = ["slurmd", "-D", "-N", node, "--conf-server", head]
    with running(argv, log, SLURMD_DEBUG="verbose"):
        shown(site, machine, log, printed)
        assert trial.rest() == 1
    assert f"cause: {cause}" in trial.said, trial.said
    assert f"SlurmctldPort is {site.layout.read().ports.slurmctld}" in trial.said
    assert "STOPPED before re" in trial.said, "reached, or registered"
    assert printed in trial.said, "the console is shown"


@pytest.mark.release
@pytest.mark.usefixtures("namespaces")
def test_a_user_that_the_machine_does_not_have(site: Sandbox, tmp_path: Path) -> None:
    trial = Trying(site, "dead", "--user", STRANGER)
    slurmd = " ".join(of_the_site(site, trial.node()))
    trial.machine()  # one that boots in no time has booted before slurmctld asks for it
    script = f"""\
grep -v '^{STRANGER}:' /etc/passwd >{tmp_path}/passwd
mount --bind {tmp_path}/passwd /etc/passwd
exec {slurmd}"""
    with running(in_namespaces(script), tmp_path / "slurmd"):
        assert trial.rest() == 1
    assert "STOPPED before job" in trial.said, trial.said
    assert "cause: missing user: " in trial.said, trial.said
    assert STRANGER in trial.said


@pytest.mark.release
@pytest.mark.usefixtures("namespaces")
def test_a_machine_whose_disk_is_full(site: Sandbox, tmp_path: Path) -> None:
    trial = Trying(site, "dead", "--user", "nobody")
    node = trial.node()
    trial.machine()
    spool = site.layout.dir / "spool" / node
    spool.mkdir(exist_ok=True)
    script = f"""\
mount -t tmpfs -o size={ROOM} tmpfs {spool}
dd if=/dev/zero of={spool}/filler bs=4k || true
exec {" ".join(of_the_site(site, node))}"""
    with running(in_namespaces(script), tmp_path / "slurmd"):
        assert trial.rest() == 1
    assert "STOPPED before job" in trial.said, trial.said
    assert "cause: full disk: " in trial.said, trial.said


def test_ctrl_c_ends_the_machine(site: Sandbox) -> None:
    trial = Trying(site, "dead")
    trial.until(" launched ")
    trial.interrupt()
    assert trial.rest() == 130, trial.said
    assert "interrupted: ending its machine" in trial.said
    assert "the machine is ended; $0." in trial.said
    assert not machines(site)
    assert not live_ec2(site)


@pytest.mark.release
def test_ctrl_c_between_the_order_and_the_clouds_answer_waits_for_the_machine(
    site: Sandbox,
) -> None:
    """Nobody knows of it yet, and it is started and paid all the same."""
    # Long, as this test may stand still between its look at the order and Ctrl-C; its client waits 25 s.
    site.ec2.fail(Fault(kind=FaultKind.SLOW, action="RunInstances", seconds=18.0))
    trial = Trying(site, "dead")
    trial.until(" asked ")

    def ordered() -> bool:
        book = ledger(site)
        try:
            return bool(book.launches.open())
        finally:
            book.close()

    site.wait_for(ordered, PATIENCE, "the order is on its way")
    trial.interrupt()
    assert trial.rest() == 130, trial.said
    assert steps(trial.said) == ["asked", "ended"]
    assert "the machine is ended; $0." in trial.said
    assert not machines(site)
    assert not live_ec2(site)


@pytest.mark.release
def test_a_slurmctld_that_answers_late_ends_no_trial(site: Sandbox) -> None:
    """For longer than a command waits for it."""
    trial = Trying(site, "pub", "--user", "nobody")
    trial.until(" launched ")
    with slurmctld_away(site, "hanging"):
        time.sleep(HANGS)
    assert trial.rest() == 0, trial.said
    assert steps(trial.said) == [str(step) for step in TrialStep]


@pytest.mark.release
def test_a_command_that_is_killed_leaves_the_end_to_the_daemon(site: Sandbox) -> None:
    trial = Trying(site, "pub")
    trial.until(" launched ")
    trial.process.kill()
    trial.rest()
    site.wait_for(lambda: not machines(site), 2 * PATIENCE, "the machine ends by itself")
