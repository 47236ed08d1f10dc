"""Two virtual machines behind a router that masquerades: a job of both, and their home, by the tunnel.
``test_trixie_head.py`` runs this on a head of Debian trixie, by ``trixie``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.config import configfile
from slurm_elastic.image.commands import run
from slurm_elastic.image.network import BRIDGE
from slurm_elastic.machine.hub.link import by_address
from slurm_elastic.machine.hub.wire import PeerSeen, Show, ask
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.hypervisor import MachineNetwork, settings
from slurm_elastic.sandbox.spec import VIRTUAL_HEAD as HEAD
from tests.e2e.world import live_machines
from tests.machines.nfs import HOME, Server, lines, nfs
from tests.machines.spot import BOOT, IMAGE, PATIENCE
from tests.netns import INSIDE

pytestmark = [pytest.mark.machines, pytest.mark.e2e, pytest.mark.timeout(6000)]

ROUTER = "10.77.0.253"
RULES = f"""\
add table ip nat
add chain ip nat out {{ type nat hook postrouting priority 100; }}
add rule ip nat out ip daddr {HEAD} masquerade
"""
NODES = {"pub1", "pub2"}
FAR = {"path": "/far", "from": "head:/home"}
TUNNEL = "10.99.0.1"
"""The head's address in the tunnel."""
AWAY = 90.0
"""Seconds for which the NFS server is gone."""
WRITING = 6
"""Jobs that write meanwhile."""
WRITER = """\
#!/bin/bash
for n in $(seq 60); do
  echo "line $n"
  seq $((n * 1000)) $((n * 1000 + 999)) >>data-$SLURM_JOB_ID
  sleep 1
done
"""
LINES = [["line", str(n)] for n in range(1, 61)]
DATA = "".join(f"{number}\n" for number in range(1000, 61000))
JOB = """\
#!/bin/bash
echo "home $(df --output=source . | tail -n 1)"
srun bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME"'
srun bash -c 'trap "echo heard \\$SLURMD_NODENAME; exit 0" USR1
  echo "waits $SLURMD_NODENAME"
  while :; do sleep 1; done'
echo "ends $?"
"""


def masquerade(network: MachineNetwork) -> None:
    """The machines' network is behind a router from now on, and nobody has a route into it."""
    inside = network.inside()
    run([*inside, "ip", "link", "set", "head", "nomaster"])
    run([*inside, "ip", "address", "add", f"{ROUTER}/32", "dev", "head"])
    run([*inside, "ip", "route", "add", f"{HEAD}/32", "dev", "head"])
    run(["ip", "route", "add", f"{ROUTER}/32", "dev", network.name, "src", HEAD])
    # Machines take the head for a neighbour: the router answers for it.
    for setting in ("ip_forward", f"conf/{BRIDGE}/proxy_arp"):
        run([*inside, "sh", "-c", f"echo 1 >/proc/sys/net/ipv4/{setting}"])
    run([*inside, "nft", "-f", "-"], text=RULES)


@contextmanager
def hub(site: Sandbox, place: Path) -> Iterator[None]:
    """slurm-elastic-hub, root's, until the end of the block."""
    words = [
        sys.executable,
        "-P",
        "-m",
        "slurm_elastic.cli.services.hub",
        "--config",
        str(site.layout.config),
    ]
    with (place / "hub.log").open("wb") as log:
        service = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        service.terminate()
        service.wait(patience(60))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that SlurmUser may enter, with the hub's keys."""
    with tempfile.TemporaryDirectory(prefix="se-wg-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        key = place / "wireguard.key"
        key.touch(mode=0o600)
        key.write_text(run(["wg", "genkey"]))
        (place / "wireguard.pub").write_text(run(["wg", "pubkey"], text=key.read_text()))
        yield place


@pytest.fixture
def lab(
    sandbox: Callable[..., Sandbox], place: Path, tmp_path: Path
) -> Iterator[tuple[Sandbox, Server]]:
    run(["ip", "address", "add", f"{INSIDE}/32", "dev", "lo"])
    tunnel = {"endpoint": f"{HEAD}:51820", "routes": ["10.1.2.0/24"], "head_ports": [6817, 2049],
              "public_key": f"{place}/wireguard.pub", "socket": f"{place}/hub.sock"}  # fmt: skip
    made = sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=60.0, groups=("alice",),
        slurm_conf=(f"SlurmctldHost={os.uname().nodename}({INSIDE})", "SlurmctldPort=6817"),
        elastic={"join": {"head": INSIDE, "network": tunnel, "mounts": [FAR]},
                 "pools": [{"name": "pub", "nodes": "pub[1-2]"}]},
        **settings(Path(os.environ[IMAGE])),
    )  # fmt: skip
    masquerade(MachineNetwork(made.layout.dir))
    try:
        with hub(made, place), nfs(tmp_path) as server:
            yield made, server
    except BaseException:
        print((place / "hub.log").read_text())
        raise


def peers(site: Sandbox) -> dict[str, PeerSeen]:
    """The hub's, by the address that each has in the tunnel."""
    network = configfile.load(site.layout.config).join.network
    assert network is not None
    return dict(by_address(ask(network.socket, Show()).peers))


def test_two_machines_behind_a_router_have_a_job_and_its_home_by_the_tunnel(
    lab: tuple[Sandbox, Server],
) -> None:
    site, server = lab
    options = ("--partition=aws", "--nodes=2", "--chdir=/far/alice", "--output=out-%j")
    job = site.submit(JOB, *options, user="alice")
    site.wait_for(lambda: len(lines(job, "waits")) == 2, 2 * BOOT, "both wait", period=2.0)
    assert lines(job, "home") == [["home", f"{TUNNEL}:/home"]]
    tasks = {(words[1], words[3], words[5]) for words in lines(job, "task")}
    assert {(number, of) for number, of, _ in tasks} == {("0", "2"), ("1", "2")}
    assert {node for *_, node in tasks} == NODES
    addresses = {node.address for name, node in site.nodes().items() if name in NODES}
    assert addresses == set(peers(site)), "NodeAddr is the one in the tunnel"
    assert {peer.endpoint.partition(":")[0] for peer in peers(site).values()} == {ROUTER}

    site.run(["scancel", "--signal=USR1", f"{job}.1"])
    site.wait_job(job, timeout=PATIENCE)
    assert {words[1] for words in lines(job, "heard")} == NODES
    assert lines(job, "ends") == [["ends", "0"]]
    loses_no_byte(site, server)
    site.wait_for(lambda: live_machines(site) == [], 2 * PATIENCE, "both are given back")
    site.wait_for(lambda: not peers(site), PATIENCE, "the hub has no peer any more")
    assert [path.name for path in HOME.parent.iterdir()] == ["alice"], "no login's home"


def loses_no_byte(site: Sandbox, server: Server) -> None:
    """Jobs write into their home while its server is killed, is away, and starts again."""
    options = ("--partition=aws", "-N1", "-n1", "--chdir=/far/alice", "--output=out-%j")
    jobs = [site.submit(WRITER, *options, user="alice") for _ in range(WRITING)]
    site.wait_for(
        lambda: max(len(lines(job, "line")) for job in jobs) > 10,
        2 * BOOT,
        "they write",
        period=2.0,
    )
    server.kill()
    before = [lines(job, "line") for job in jobs]
    time.sleep(AWAY)
    assert [lines(job, "line") for job in jobs] == before
    server.start()
    for job in jobs:
        site.wait_job(job, timeout=BOOT)
    assert [lines(job, "line") for job in jobs] == [LINES] * WRITING
    assert [(HOME / f"data-{job}").read_text() == DATA for job in jobs] == [True] * WRITING
