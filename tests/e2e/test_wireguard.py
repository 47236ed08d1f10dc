"""Machines behind a router that masquerades join by a tunnel: real slurmctld, slurmd's, munged's,
sshd's, WireGuard (wireguard-go where the kernel has none) and nftables, on hosts of namespaces. The
shipped join text runs on the machines as it is; EC2 is the sandbox's, which shows their consoles.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.config import configfile
from slurm_elastic.hub.link import by_address
from slurm_elastic.hub.rules import TABLE
from slurm_elastic.hub.wire import HubError, Seen, Show, ask
from slurm_elastic.providers.base.joining import TUNNEL_KEY, program_of
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.world import ledger, live_machines
from tests.netns import HEAD, INSIDE, NAT, Lab
from tests.real_sshd import make_key
from tests.real_sshd import why_not as no_sshd

pytestmark = pytest.mark.e2e

PATIENCE = 240.0
MACHINE = """set -e
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
for place in /etc/slurm /var/log/munge {root}/run; do
  mkdir -p $place
  mount -t tmpfs tmpfs $place
done
mkdir -p /var/lib/slurm-elastic-node {disk}/node {disk}/munge
mount --bind {disk}/node /var/lib/slurm-elastic-node
mount --bind {disk}/munge /etc/munge
mkdir -p /var/lib/munge /run/sshd /run/munge
chown munge:munge /etc/munge /var/log/munge /var/lib/munge
ln -s /run/munge/munge.socket.2 {root}/run/munge.socket
cp /etc/hosts /run/hosts
mount --bind /run/hosts /etc/hosts
touch {place}/console
mount --bind {place}/console /dev/console
mkdir /run/slurm-elastic
echo {node} >/run/slurm-elastic/node
printf 'node=%s\\npool=pub\\ngeneration=%s\\n' {node} {generation} >/run/slurm-elastic/launch
ssh-keygen -q -t ed25519 -N '' -f /run/host
/usr/sbin/sshd -f /dev/null -h /run/host -o AuthorizedKeysFile={place}/authorized -o UsePAM=no \
  -o StrictModes=no -o PidFile=none -E {place}/sshd.log
{{
  echo "-----BEGIN SSH HOST KEY KEYS-----"
  cat /run/host.pub
  echo "-----END SSH HOST KEY KEYS-----"
}} >>{place}/console
set +e
sh {program}
sleep 1000000 &
wait
"""


def public_key(private: str) -> str:
    """By wg(8)."""
    done = subprocess.run(
        ["wg", "pubkey"], input=private, text=True, capture_output=True, check=True
    )
    return done.stdout.strip()


class Machines:
    """EC2's hypervisor: boots a host of the lab for each machine, with what its disk keeps, and has
    EC2 show what it prints. Power is cut by the test.
    """

    def __init__(self, site: Sandbox, lab: Lab, place: Path, disks: Path, public: str) -> None:
        self.site, self.lab, self.place, self.public = site, lab, place, public
        self.disks, self.interface = disks, f"wg{os.getpid()}"
        self._told: dict[str, str] = {}
        self.free = list(lab.machines)
        self.hosts: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._shown: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Machines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._running):
            self.cut(name)

    def cut(self, name: str) -> None:
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience(60))

        leave = [*self.lab.prefix(self.hosts[name]), "ip", "link", "del", self.interface]
        subprocess.run(leave, check=False, capture_output=True)

    def public_key(self, name: str) -> str:
        """Of the key on its disk."""
        return public_key((self.disks / name / "node" / Path(TUNNEL_KEY).name).read_text())

    def pids(self) -> list[int]:
        """The first process of each machine, as the head numbers them."""
        shown = [netns.sh("ps", "--ppid", str(p.pid), "-o", "pid=") for p in self._running.values()]
        return [int(text.split()[0]) for text in shown]

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            for machine in live_machines(self.site):
                there = machine.id in self._running or "stop" in machine.state
                if not there and (self.free or machine.id in self.hosts):
                    self._boot(machine.id, machine.node)
            for name in list(self._running):
                self._show(name)

    def _show(self, name: str) -> None:
        text = (self.place / name / "console").read_text(errors="replace")
        if text and text != self._shown.get(name):
            self._shown[name] = text
            self.site.ec2.console(name, text)

    def _generation(self, name: str) -> str:
        book = ledger(self.site)
        try:
            found = [m.instance for m in book.machines() if m.instance.id == name]
        finally:
            book.close()
        return found[0].generation if found else ""

    def _boot(self, name: str, node: str) -> None:
        generation = self._told.get(name) or self._generation(name)
        if not generation:
            return
        self._told[name] = generation
        place = self.place / name
        host = self.hosts[name] if name in self.hosts else self.free.pop(0)
        place.mkdir(exist_ok=True)
        (place / "console").touch()
        (place / "authorized").write_text(self.public + "\n")
        config = configfile.load(self.site.layout.config)
        (place / "join").write_text(program_of(config, config.cloud("aws")))
        script = MACHINE.format(
            root=self.site.layout.dir, place=place, node=node, generation=generation,
            program=place / "join", disk=self.disks / name,
        )  # fmt: skip
        command = [
            *self.lab.prefix(host), "unshare", "--mount", "--uts", "--pid", "--fork",
            "--mount-proc", "--kill-child", "sh", "-c", script,
        ]  # fmt: skip
        with (place / "log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": netns.PATH},
            )  # fmt: skip
        self.hosts[name], self.nodes[name] = host, node


class Site:
    """The sandbox on the head of the lab, its hub and its machines."""

    def __init__(self, sandbox: Sandbox, lab: Lab, machines: Machines, place: Path) -> None:
        self.sandbox, self.lab, self.machines, self.place = sandbox, lab, machines, place
        network = configfile.load(sandbox.layout.config).join.network
        assert network is not None
        self.network = network
        self._hub: subprocess.Popen[bytes] | None = None

    def hub_start(self) -> None:
        config = str(self.sandbox.layout.config)
        with (self.place / "hub.log").open("ab") as log:
            self._hub = subprocess.Popen(
                [sys.executable, "-m", "slurm_elastic.cli.hub", "--config", config],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def hub_stop(self) -> None:
        if self._hub is not None:
            self._hub.terminate()
            self._hub.wait(patience(60))

    def peers(self) -> dict[str, Seen]:
        """By address, as the interface has them."""
        return dict(by_address(ask(self.network.socket, Show()).peers))

    def addresses(self) -> dict[str, str]:
        """By node, Slurm's NodeAddr of those that are up."""
        nodes = self.sandbox.nodes().values()
        return {n.name: n.address for n in nodes if n.address.startswith("10.99.")}

    def work(self, name: str) -> Path:
        return self.sandbox.layout.dir / "work" / name

    def reaches(self, host: str) -> bool:
        """Whether slurmctld's port answers a host of the lab."""
        say = f"import socket; socket.create_connection(('{INSIDE}', 6817), timeout=5)"
        done = subprocess.run(
            [*self.lab.prefix(host), sys.executable, "-c", say], capture_output=True, check=False
        )
        return done.returncode == 0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=2)
    with made.up():
        yield made


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that SlurmUser may enter."""
    with tempfile.TemporaryDirectory(prefix="se-wg-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def site(lab: Lab, place: Path, sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    secrets = place / "secrets"
    secrets.mkdir()
    public = make_key(secrets / "ssh_key")
    key = secrets / "wireguard.key"
    key.write_text(netns.sh("wg", "genkey"))
    key.chmod(0o600)
    shown = subprocess.run(
        ["wg", "pubkey"], input=key.read_bytes(), capture_output=True, check=True
    )
    (secrets / "wireguard.pub").write_bytes(shown.stdout)
    (secrets / "munge.key").write_bytes(os.urandom(128))
    for name in ("ssh_key", "munge.key"):
        (secrets / name).chmod(0o400)
        netns.sh("chown", "slurm:", str(secrets / name))
    made = sandbox(
        static_nodes=0, drop=("onprem",), never_boot="pub[1-6]", suspend_time=3600.0,
        resume_timeout=300.0, slurm_conf=(f"SlurmctldHost={os.uname().nodename}({INSIDE})", "SlurmctldPort=6817"),
        elastic={"pools": [{"name": "pub", "nodes": "pub[1-6]", "markets": ["on-demand"], "stopped": 1}], "join": {
            "head": INSIDE, "heartbeat_timeout": 900,
            "ssh": {"key": f"{secrets}/ssh_key", "munge_key": f"{secrets}/munge.key"},
            "network": {
                "endpoint": f"{HEAD}:51820", "routes": ["10.1.2.0/24"],
                "interface": f"wg{os.getpid()}", "public_key": f"{secrets}/wireguard.pub",
                "socket": f"{secrets}/hub.sock",
            },
        }},
    )  # fmt: skip
    # Read anew for each machine: the sandbox has made the cluster's only now.
    (secrets / "munge.key").write_bytes((made.layout.dir / "etc" / "munge.key").read_bytes())
    with (
        tempfile.TemporaryDirectory(prefix="se-disks-", dir="/tmp") as disks,
        Machines(made, lab, place, Path(disks), public) as machines,
    ):
        there = Site(made, lab, machines, place)
        there.hub_start()
        try:
            yield there
        finally:
            there.hub_stop()
            subprocess.run(["ip", "link", "del", there.network.interface], check=False)


@pytest.fixture(scope="module")
def joined(site: Site) -> dict[str, str]:
    """Two machines with a job behind them: by node, their hosts."""
    said = site.work("batch")
    job = site.sandbox.submit(
        "srun -N2 sh -c 'echo $SLURMD_NODENAME'", "--partition=aws", "-N2", f"--output={said}"
    )
    site.sandbox.wait_job(job, timeout=PATIENCE)
    assert sorted(said.read_text().split()) == ["pub1", "pub2"], "a step on both, of a batch job"
    machines = site.machines
    return {machines.nodes[name]: host for name, host in machines.hosts.items()}


def test_two_node_jobs_run_through_the_tunnel(site: Site, joined: dict[str, str]) -> None:
    addresses = site.addresses()
    assert set(addresses) == set(joined)
    peers = site.peers()
    assert set(peers) == set(addresses.values()), "NodeAddr is the address in the tunnel"
    assert {one.endpoint.partition(":")[0] for one in peers.values()} == {NAT}
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    assert sorted(done.stdout.split()) == ["pub1", "pub2"], "the same from the head itself"


def test_signals_reach_steps(site: Site, joined: dict[str, str]) -> None:
    ready, got = site.work("ready"), site.work("got")
    step = f"trap 'touch {got}; exit 0' USR1; touch {ready}; while :; do sleep 0.2; done"
    job = site.sandbox.submit(
        f'#!/bin/sh\nsrun -N1 -w pub2 sh -c "{step}"\n', "--partition=aws", "-N2", "-w", "pub[1-2]",
        "--output=/dev/null",
    )  # fmt: skip
    site.sandbox.wait_for(ready.exists, PATIENCE, "the step runs on another node than its srun")
    # To the job: a client of 22.05 that signals a step asks the nodes itself, by their names.
    site.sandbox.run(["scancel", "--signal=USR1", str(job)])
    site.sandbox.wait_job(job, timeout=PATIENCE)
    assert got.exists()


def test_keys_of_machines_are_nowhere_on_the_head(site: Site, joined: dict[str, str]) -> None:
    private = [
        netns.sh("nsenter", "-t", str(pid), "-m", "cat", TUNNEL_KEY).strip()
        for pid in site.machines.pids()
    ]
    assert len({*private}) == 2
    head = (site.place / "secrets" / "wireguard.key").read_text().strip()
    places = {key: _files_with(key, [site.sandbox.layout.dir, site.place]) for key in private}
    assert places == {key: [] for key in private}
    assert _files_with(head, [site.sandbox.layout.dir, site.place]) == ["wireguard.key"]
    book = ledger(site.sandbox)
    try:
        known = {one.key for one in book.tunnels()}
    finally:
        book.close()
    public = {public_key(key) for key in private}
    assert known == public, "the search would find what is there"
    assert all(_files_with(key, [site.place]) for key in public)


def _files_with(text: str, places: list[Path]) -> list[str]:
    """The names of files that have it; sockets and what is gone meanwhile are passed over."""
    wanted, found = text.encode(), []
    for path in [path for place in places for path in place.rglob("*") if path.is_file()]:
        with contextlib.suppress(FileNotFoundError):
            found += [path.name] if wanted in path.read_bytes() else []
    return found


def test_peers_are_those_of_live_machines_whatever_was_restarted(
    site: Site, joined: dict[str, str]
) -> None:
    before = set(site.peers())
    site.sandbox.daemon_kill()
    site.hub_stop()
    netns.sh("ip", "link", "del", site.network.interface)
    (site.place / "secrets" / "peers.json").unlink()
    site.hub_start()
    site.sandbox.daemon_start()
    site.sandbox.wait_for(
        lambda: _answers(site) and set(site.peers()) == before, PATIENCE, "they are back"
    )
    # Machines ask for slurmctld now and then, and shake hands anew as nobody answers.
    site.sandbox.wait_for(
        lambda: all(one.handshake for one in site.peers().values()), PATIENCE, "they speak again"
    )
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    assert sorted(done.stdout.split()) == ["pub1", "pub2"]


def _answers(site: Site) -> bool:
    try:
        site.peers()
    except HubError:
        return False
    return True


def test_a_removed_machine_is_shut_out(site: Site, joined: dict[str, str]) -> None:
    addresses = site.addresses()
    assert site.reaches(joined["pub1"])
    assert site.reaches(joined["pub2"])
    site.sandbox.run(["scontrol", "update", "nodename=pub2", "state=power_down"])
    gone = addresses["pub2"]
    site.sandbox.wait_for(lambda: gone not in site.peers(), PATIENCE, "its peer is dropped")
    assert not site.reaches(joined["pub2"]), "the machine runs still, and its packets are dropped"
    assert site.reaches(joined["pub1"])
    assert gone not in netns.sh("nft", "list", "table", "inet", TABLE)


def test_a_stopped_machine_comes_back_with_the_key_on_its_disk(
    site: Site, joined: dict[str, str]
) -> None:
    """The one that the test before has taken out: it was stopped."""
    (name,) = [n for n, node in site.machines.nodes.items() if node == "pub2"]
    there = site.sandbox.ec2.state().machines
    assert {m.state for m in there if m.id == name} <= {"stopping", "stopped"}
    key = site.machines.public_key(name)
    assert key not in {one.key for one in site.peers().values()}
    site.machines.cut(name)
    job = site.sandbox.submit("hostname", "--partition=aws", "-w", "pub2", "--output=/dev/null")
    fields = site.sandbox.wait_job(job, timeout=PATIENCE)
    assert fields["JobState"] == "COMPLETED"
    peers = site.peers()
    assert key in {one.key for one in peers.values()}
    assert len(peers) == 2
    assert site.machines.nodes[name] == "pub2", "no other machine was started"
    assert len(site.machines.nodes) == 2
