"""``enrol: once``: machines of a cloud that shows no consoles (OpenNebula) hand their keys in by a
word of their launch, which is good for that alone, once, and no longer than the machine may boot.
Real WireGuard, nftables, slurm-elasticd and hub; whoever has come by a word tries it from another
host behind the router.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import not_installed

from slurm_elastic.config import configfile
from slurm_elastic.config.tunnel import node_addresses
from slurm_elastic.policies.repair.tunnel_addresses import ENROL_PORT
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.lab_site import PATIENCE, SLURMCTLD, Site, no_sshd, public_key, site_on
from tests.netns import HEAD, INSIDE, Lab

pytestmark = pytest.mark.e2e
pytest.importorskip("pyone", reason=not_installed("pyone"))

TUNNEL = "10.99.0.1"
"""The head's address in the tunnel."""
INITIATION = 148
"""Bytes of the first message of a handshake (WireGuard's protocol, 5.4.2)."""
LATER = 3660
"""Seconds: more than ``resume_timeout``, for which a word lives."""
ELASTIC = {
    "clouds": [{
        "name": "nebula", "provider": "opennebula", "location": "on-premises",
        "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}},
    }],
    "pools": [{
        "name": "pub", "cloud": "nebula", "nodes": "pub[1-4]", "cpus": 2, "memory": 1256,
        "real_memory": 1000, "instance_types": ["small"], "markets": ["on-demand"],
    }],
}  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=3, others=("thief",))
    with made.up():
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    with site_on(
        lab, sandbox, {}, consoles=False, elastic=ELASTIC, drop=("onprem", "aws"),
        resume_timeout=3600.0,
    ) as there:  # fmt: skip
        yield there


@pytest.fixture(scope="module")
def joined(site: Site) -> str:
    """The name of a machine with a job behind it."""
    job = site.sandbox.submit("srun hostname", "--partition=nebula", "-w", "pub1")
    site.sandbox.wait_job(job, timeout=PATIENCE)
    (name,) = site.machines.nodes
    return name


def address_of(site: Site, node: str) -> str:
    """In the tunnel."""
    return node_addresses(configfile.load(site.sandbox.layout.config))[node]


class Thief:
    """Somebody with the word of another machine, on a host of his own."""

    def __init__(self, site: Site, node: str, key: str, place: Path) -> None:
        self._site, self._key = site, place / "key"
        self._on = site.lab.prefix("thief")
        self._link = f"wt{os.getpid()}"
        self._address = address_of(site, node)
        self._use(key)
        self._sh("wireguard-go", self._link)
        self._sh("ip", "address", "add", f"{self._address}/32", "dev", self._link)
        self._sh("ip", "link", "set", self._link, "mtu", "1380", "up")
        for network in ("10.99.0.0/16", "10.1.2.0/24"):
            self._sh("ip", "route", "add", network, "dev", self._link, "src", self._address)

    def _sh(self, *command: str) -> str:
        return netns.sh(*self._on, *command)

    def _use(self, private: str) -> None:
        self._key.write_text(private)
        self._key.chmod(0o600)

    def close(self) -> None:
        self._sh("ip", "link", "del", self._link)

    def gets_through(self, private: str = "") -> bool:
        """Whether the head answers to the key; else two tries of WireGuard's came to nothing."""
        if private:
            self._use(private)
        public = (self._site.place / "secrets" / "wireguard.pub").read_text().strip()
        self._sh("wg", "set", self._link, "private-key", str(self._key), "peer", public, "remove")
        self._sh("wg", "set", self._link, "peer", public, "endpoint", f"{HEAD}:51820",
                 "persistent-keepalive", "25", "allowed-ips", "10.99.0.0/16,10.1.2.0/24")  # fmt: skip
        self._site.sandbox.wait_for(
            lambda: self._shakes() or self._sent() >= 2 * INITIATION, PATIENCE, "it has tried"
        )
        return self._shakes()

    def _shakes(self) -> bool:
        return self._sh("wg", "show", self._link, "latest-handshakes").split()[1] != "0"

    def _sent(self) -> int:
        return int(self._sh("wg", "show", self._link, "transfer").split()[2])

    def hands_in(self, key: str) -> str:
        """The desk's answer; "" where there is none, as the way that it would take is shut."""
        say = (
            f"import socket\ns = socket.create_connection(('{TUNNEL}', {ENROL_PORT}), timeout=5)\n"
            f"s.sendall(b'{key}\\n')\nprint(s.makefile().readline())"
        )
        done = subprocess.run(
            [*self._on, sys.executable, "-c", say], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def reaches(self, at: str, port: int) -> bool:
        return self._site.reaches("thief", port, at)


@pytest.fixture
def thief(site: Site, tmp_path: Path) -> Iterator[Callable[[str, str], Thief]]:
    with contextlib.ExitStack() as made:

        def come(node: str, machine: str) -> Thief:
            one = Thief(site, node, site.machines.facts(machine)["enrol_key"], tmp_path)
            made.callback(one.close)
            return one

        yield come


def waits(site: Site, node: str) -> str:
    """A machine that was bought and does not boot: its word is there to be used."""
    site.machines.held = {*site.machines.held, node}
    name = site.switched_on(node)
    at = address_of(site, node)
    site.sandbox.wait_for(lambda: at in site.peers(), PATIENCE, "it may enrol")
    assert not site.peers()[at].live
    return name


def test_a_machine_joins_by_the_word_of_its_launch(site: Site, joined: str) -> None:
    book = site.decisions("pub1")
    enrolled = [str(d.reason) for d in book if d.kind == "enrolled"]
    assert len(enrolled) == 1
    assert enrolled[0].endswith(": the machine handed it in with the enrolment key of its launch")
    printed = (site.place / joined / "console").read_text()
    assert "slurm-elastic-tunnel-key" not in printed
    (peer,) = site.peers().values()
    assert peer.live
    assert site.reaches(site.machines.hosts[joined])


def test_the_word_is_dead_after_its_use(
    site: Site, joined: str, thief: Callable[[str, str], Thief]
) -> None:
    before = site.peers().keys()
    assert not thief("pub1", joined).gets_through()
    assert site.peers().keys() == before
    assert site.reaches(site.machines.hosts[joined]), "the machine itself is not disturbed"


def test_a_word_opens_one_port_and_a_second_key_is_refused(
    site: Site, joined: str, thief: Callable[[str, str], Thief]
) -> None:
    one = thief("pub2", waits(site, "pub2"))
    private, second = (netns.sh("wg", "genkey").strip() for _ in range(2))
    assert one.gets_through()
    (other,) = site.addresses().values()
    places = [(TUNNEL, ENROL_PORT), (TUNNEL, SLURMCTLD), (INSIDE, SLURMCTLD), (other, 22)]
    assert [one.reaches(*place) for place in places] == [True, False, False, False]
    one.hands_in(public_key(private))
    assert not one.gets_through(), "the word was used"
    assert one.gets_through(private), "as the machine that its cloud has told the word"
    # The desk's port is for machines that enrol; one that has is let through to it no longer.
    assert one.hands_in(public_key(second)) in ("", "refused")
    assert not one.gets_through(second)
    keys = [peer.key for peer in site.peers().values()]
    assert public_key(private) in keys
    assert public_key(second) not in keys


@pytest.mark.release
def test_the_word_is_dead_after_its_time(
    site: Site, joined: str, thief: Callable[[str, str], Thief]
) -> None:
    machine = waits(site, "pub3")
    one = thief("pub3", machine)
    clock = site.place / "clock_off.so"
    source = Path(__file__).with_name("clock_off.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", clock, source, "-ldl"], check=True)
    at = address_of(site, "pub3")
    site.daemon_again(LD_PRELOAD=str(clock), CLOCK_OFF=str(LATER))
    site.sandbox.wait_for(lambda: at not in site.peers(), PATIENCE, "the machine is late")
    assert not one.gets_through()
    site.sandbox.wait_for(
        lambda: "pub3" not in site.machines.by_node(), PATIENCE, "the late machine is ended"
    )
    site.daemon_again()
