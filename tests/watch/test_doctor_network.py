"""``doctor``: nodes at one address, a tunnel that is silent, packets that do not fit."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
import pytest
from ledger_cases import T0

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.tunnel import node_addresses
from slurm_elastic.machine.hub.wire import HubAnswer, PeerSeen
from slurm_elastic.machine.local.listening import RootServer
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import clouds, network
from slurm_elastic.watch.doctor.network import examine, moved_addresses

SITE = """\
cluster: {{name: alps, uuid: 7d1f0c52-8f7e-4d5d-9d5e-111111111111}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf}}
allow: {{groups: [hpc]}}
limits: {{dollars_per_hour: 2}}
clouds:
  - {{name: aws, provider: aws, location: public, region: us-east-1, image: ami-1,
     subnets: {{us-east-1a: subnet-1}}, types: {{c5.large: {{cpus: 2, memory: 4G, price: 0.085}}}}}}
pools:
  - {{name: pub, cloud: aws, nodes: "pub[1-4]", cpus: 2, memory: 4G, instance_types: [c5.large]}}
"""
NETWORK = """\
join:
  head: 10.1.2.3
  network: {{endpoint: "192.0.2.1:51820", routes: [10.1.2.0/24], socket: {state}/hub.sock}}
"""
SHUT = """\
join:
  head: 10.1.0.1
  network: {{kind: none, firewall: nftables, trusted_networks: [10.1.0.0/16], socket: {state}/hub.sock}}
"""
KEYS = [base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]


def site(path: Path, text: str) -> Config:
    path.chmod(0o700)
    return configfile.parse(text.format(state=path), "site.yaml")


def slurm(**addresses: str) -> FakeSlurm:
    """Nodes that are up at these addresses, each with a port of its own, as some sites have it."""
    up = frozenset({"IDLE", "CLOUD"})
    return FakeSlurm(
        nodes=[
            SlurmNode(name=name, states=up, address=address, port=7000 + n)
            for n, (name, address) in enumerate(addresses.items())
        ]
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    for n, node in enumerate(("pub1", "pub2")):
        one = Instance(
            id=f"i-{node}", cloud="aws", node=node, generation="g1", instance_type="c5.large",
            zone="z", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=T0,
        )  # fmt: skip
        made.machines.adopt(one, "pub", T0)
        address = f"10.99.0.{8 + n}"
        made.tunnels.enrol(
            Tunnel(generation="g1", node=node, address=address, key=KEYS[n], since=T0)
        )
        made.machines.record_registration("aws", [one.id], T0)
    yield made
    made.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[list[PeerSeen]]:
    """A hub that shows what the test says."""
    peers: list[PeerSeen] = []

    def answer(line: bytes) -> bytes:
        assert msgspec.json.decode(line) == {"op": "show"}
        return msgspec.json.encode(HubAnswer(ok=True, peers=tuple(peers), how="kernel"))

    server = RootServer(tmp_path / "hub.sock", {os.getuid()}, answer)
    server.start()
    yield peers
    server.close()


def seen(n: int, age: float = 20.0) -> PeerSeen:
    handshake = int(T0 - age) if age else 0
    return PeerSeen(key=KEYS[n], addresses=(f"10.99.0.{8 + n}/32",), handshake=handshake)


def wrong(findings: Iterator[Finding]) -> dict[str, str]:
    return {f.subject: f.observed for f in findings if f.level is FindingLevel.WRONG}


def test_two_nodes_at_one_address_are_behind_one_router(tmp_path: Path) -> None:
    config = site(tmp_path, SITE)
    found = list(examine(config, slurm(pub1="192.0.2.2", pub2="192.0.2.2", pub3="10.0.0.7"), T0))
    (one,) = found
    assert (one.subject, one.level) == ("NodeAddr", FindingLevel.WRONG)
    assert one.observed == "Slurm has pub[1-2] all at 192.0.2.2"
    assert "join.network" in one.advice
    assert list(examine(config, slurm(pub1="10.0.0.5", pub2="10.0.0.6"), T0)) == []
    assert list(examine(config, slurm(pub1="127.0.0.1", pub2="127.0.0.1"), T0)) == [], "one host"


def test_a_node_that_registers_past_the_tunnel_is_told(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]
) -> None:
    hub += [seen(0), seen(1)]
    config = site(tmp_path, SITE + NETWORK)
    told = wrong(
        examine(config, slurm(pub1="10.0.1.2", pub2="10.99.0.9"), T0, lambda *_: True, lambda _: "")
    )
    assert told == {"NodeAddr": "Slurm has pub1 at 10.0.1.2, its machine is 10.99.0.8"}


def test_a_tunnel_that_is_well(tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]) -> None:
    hub += [seen(0), seen(1, 90.0)]
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=alps(10.1.2.3)\n")
    config = site(tmp_path, SITE + NETWORK)
    found = list(
        examine(
            config, slurm(pub1="10.99.0.8", pub2="10.99.0.9"), T0, lambda *_: True, lambda _: ""
        )
    )
    assert {f.level for f in found} == {FindingLevel.OK}
    said = {f.subject: f.observed for f in found}
    assert said["tunnel"] == "2 machines, the oldest handshake 1m 30s ago"
    assert said["way to slurmctld"] == "SlurmctldHost alps is 10.1.2.3"
    assert said["slurm-elastic-hub"] == "answers; it routes packets with kernel"


def test_the_hub_of_a_head_that_stands_by_lacks_no_handshake(
    tmp_path: Path, ledger: Ledger
) -> None:
    answer = msgspec.json.encode(HubAnswer(ok=True, how="kernel", other_head="headb"))
    server = RootServer(tmp_path / "hub.sock", {os.getuid()}, lambda _: answer)
    server.start()
    try:
        config = site(tmp_path, SITE + NETWORK)
        found = {f.subject: f for f in examine(config, slurm(pub1="10.99.0.8"), T0)}
    finally:
        server.close()
    assert found["slurm-elastic-hub"].observed == "answers; it has no machine, headb acts"
    assert "tunnel" not in found


def test_machines_that_are_silent_are_named(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]
) -> None:
    hub += [seen(0, 400.0)]
    config = site(tmp_path, SITE + NETWORK)
    told = wrong(examine(config, slurm(), T0, lambda *_: True, lambda _: ""))
    assert told == {"tunnel": "no handshake for long: pub1 (6m 40s ago), pub2 (never)"}


def test_machines_that_the_head_calls_in_vain_are_named(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]
) -> None:
    called = Instance(
        id="i-pub3", cloud="aws", node="pub3", generation="g1", instance_type="c5.large",
        zone="z", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=T0 - 600.0,
    )  # fmt: skip
    ledger.machines.adopt(called, "pub", T0)  # it has not registered
    tunnel = Tunnel(generation="g1", node="pub3", address="10.99.0.10", key=KEYS[0][::-1], since=T0)
    ledger.tunnels.enrol(tunnel)
    silent = PeerSeen(key=tunnel.key, addresses=("10.99.0.10/32",))
    hub += [seen(0), seen(1), silent]
    opened = NETWORK.replace('endpoint: "192.0.2.1:51820"', "opened_by: head")
    found = list(examine(site(tmp_path, SITE + opened), slurm(), T0, lambda *_: True, lambda _: ""))
    assert wrong(iter(found)) == {"tunnel": "no handshake for long: pub3 (never)"}
    (one,) = [f for f in found if f.subject == "tunnel"]
    assert "security groups let the head's UDP in, port 51820?" in one.advice
    by_machines = examine(
        site(tmp_path, SITE + NETWORK), slurm(), T0, lambda *_: True, lambda _: ""
    )
    assert wrong(by_machines) == {}, "it boots, and calls when it is up"


def test_nodes_whose_addresses_in_the_tunnel_other_machines_have_are_named(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]
) -> None:
    config = site(tmp_path, SITE + NETWORK)
    addresses = node_addresses(config)
    assert moved_addresses(config) == "", "the machines at other addresses are in no node's way"
    ledger.tunnels.end(ledger.tunnels.all())
    own, moved = (
        Tunnel(generation="g2", node=node, address=addresses[of], key=key, since=T0)
        for node, of, key in (("pub3", "pub3", KEYS[0]), ("pub2", "pub1", KEYS[1]))
    )
    ledger.tunnels.enrol(own)
    assert moved_addresses(config) == ""
    ledger.tunnels.enrol(moved)
    text = (
        "pub1: no new machine until the machines of pub2 have ended, which have the addresses of"
        " these nodes in the tunnel"
    )
    assert moved_addresses(config) == text
    found = examine(config, slurm(), T0, lambda *_: True, lambda _: "")
    assert [f.observed for f in found if f.subject == "addresses in the tunnel"] == [text]


def test_the_largest_packet_is_found(tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]) -> None:
    hub += [seen(0), seen(1)]
    config = site(tmp_path, SITE + NETWORK)
    findings = list(examine(config, slurm(), T0, lambda _, size: size <= 1320))
    told = [f for f in findings if f.subject == "MTU"]
    assert {f.level for f in told} == {FindingLevel.WRONG}
    assert all("join.network.mtu: 13" in f.advice for f in told)
    assert wrong(examine(config, slurm(), T0, lambda *_: False)) == {}, (
        "no answer to ping says nothing"
    )


def test_a_ping_that_hangs_has_not_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ping").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "ping").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(network, "_PING_TIMEOUT_S", 0.2)
    assert not network._passes("192.0.2.1", 1380)


def test_slurmctld_outside_of_the_tunnel_is_told(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen]
) -> None:
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=alps(192.0.2.1)\n")
    config = site(tmp_path, SITE + NETWORK)
    told = wrong(examine(config, slurm(), T0, lambda *_: True, lambda _: ""))
    assert told["way to slurmctld"] == "SlurmctldHost alps is 192.0.2.1"


MOUNT = """\
  mounts: [{{path: /home, from: "10.1.2.9:/home"}}]
"""


@pytest.mark.parametrize(("mounts", "level"), [("", "note"), (MOUNT, "wrong")])
def test_a_head_that_does_not_forward_answers_of_other_hosts_is_told(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen], mounts: str, level: str
) -> None:
    """Machines whose NFS server lies behind the head would start no slurmd."""
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=alps(10.1.2.3)\n")
    config = site(tmp_path, SITE + NETWORK + mounts)
    found = list(examine(config, slurm(), T0, lambda *_: True, lambda _: "site0"))
    (one,) = (f for f in found if f.subject == "routes")
    assert one.level.value == level
    assert "no host of 10.1.2.0/24 but this head" in one.observed
    assert "net/ipv4/conf/site0/forwarding=1" in one.advice
    assert ("10.1.2.9" in one.expected) is (level == "wrong")


def test_an_interface_that_does_not_forward_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"10.1.2.1": "lo", "10.1.2.2": "site0"}
    monkeypatch.setattr(network, "run", lambda *words: f'[{{"dev": "{ways[words[-1]]}"}}]')
    monkeypatch.setattr(network, "SYSCTL", tmp_path)
    forwarding = tmp_path / "site0" / "forwarding"
    forwarding.parent.mkdir()
    forwarding.write_text("0\n")
    assert network._shut_interface(IPv4Network("10.1.2.0/24")) == "site0"
    assert network._shut_interface(IPv4Network("10.1.2.1/32")) == "", "the head itself"
    forwarding.write_text("1\n")
    assert network._shut_interface(IPv4Network("10.1.2.0/24")) == ""


@pytest.mark.parametrize(
    ("conf", "count"),
    [
        ("SlurmctldHost=a(10.1.0.1)\nSlurmctldHost=b(10.8.0.2)\n", 1),
        ("SlurmctldHost=a(10.1.0.1)\nSlurmctldHost=b(10.1.0.2)\n", 0),
        ("SlurmctldHost=a(10.8.0.1)\n", 0),
    ],
)
def test_a_firewall_that_shuts_out_the_other_head_is_told(
    tmp_path: Path, ledger: Ledger, hub: list[PeerSeen], conf: str, count: int
) -> None:
    (tmp_path / "slurm.conf").write_text(conf)
    config = site(tmp_path, SITE + SHUT)
    told = wrong(examine(config, slurm(), T0, lambda *_: True))
    assert [text for subject, text in told.items() if subject == "firewall"] == [
        "SlurmctldHost b, 10.8.0.2, is outside of join.network.trusted_networks"
    ][:count]


def test_a_hub_that_is_away_is_told(tmp_path: Path, ledger: Ledger) -> None:
    config = site(tmp_path, SITE + NETWORK)
    told = wrong(examine(config, slurm(), T0, lambda *_: True, lambda _: ""))
    assert "does not answer" in told["slurm-elastic-hub"]


class Groups(FakeProvider):
    """A cloud whose security groups let UDP in as the test says."""

    def __init__(self, answer: bool | ProviderError | None) -> None:
        self.answer = answer

    def lets_udp_in(self, port: int) -> bool | None:
        assert port == 4500
        if isinstance(self.answer, ProviderError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        (True, FindingLevel.OK, "a security group lets port 4500 in"),
        (False, FindingLevel.WRONG, "no security group lets port 4500 in"),
        (None, FindingLevel.NOTE, "names no security group"),
        (AuthError("aws", "Denied", "not you"), FindingLevel.NOTE, "not checked: "),
    ],
)
def test_the_way_of_tunnels_that_the_head_opens_is_looked_at(
    tmp_path: Path, answer: bool | ProviderError | None, level: FindingLevel, words: str
) -> None:
    opened = NETWORK.replace('endpoint: "192.0.2.1:51820"', "opened_by: head, udp_port: 4500")
    config = site(tmp_path, SITE + opened)
    (found,) = clouds._udp(Groups(answer), config, config.cloud("aws"))
    assert found.level is level
    assert words in found.observed
    config = site(tmp_path, SITE + NETWORK)
    assert list(clouds._udp(Groups(answer), config, config.cloud("aws"))) == []
