"""The hub's verbs, without ip, wg and nft."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.config.sections.joining import Firewall, Network, NetworkKind
from slurm_elastic.machine.hub import link, service
from slurm_elastic.machine.hub.service import Hub, peers_file
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, PeerSeen, Show
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer

KEY, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
LIVE = TunnelPeer(address="10.99.0.9", key=KEY)
COMING = TunnelPeer(address="10.99.0.10", key=OTHER, live=False)


class Link(link.Link):
    """Has the peers that it was told to have, and is of the kind that the test says."""

    kind = "wireguard"
    has: Sequence[TunnelPeer] = ()

    def ensure(self) -> None: ...

    def set_peers(self, peers: Sequence[TunnelPeer]) -> dict[str, str]:
        self.has = peers
        return {}

    def peers(self) -> tuple[PeerSeen, ...]:
        return tuple(PeerSeen(key=p.key, addresses=(f"{p.address}/32",)) for p in self.has)

    def _kind(self) -> str:
        return self.kind


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that nft was given."""
    given: list[str] = []
    monkeypatch.setattr(service, "run", lambda *_, text="": given.append(text) or "")
    monkeypatch.setattr(service, "make_key", lambda _: None)
    monkeypatch.setattr(service, "Link", Link)
    return given


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(endpoint="h:51820", socket=str(tmp_path / "hub.sock"))


def asked(hub: Hub, message: Apply | Show) -> HubAnswer:
    return msgspec.json.decode(hub.answer(msgspec.json.encode(message)), type=HubAnswer)


@pytest.mark.usefixtures("rules")
def test_whoever_may_only_hand_in_its_key_is_shown_as_that(network: Network) -> None:
    hub = Hub(network, "/dev/null")
    assert asked(hub, Apply(peers=(LIVE, COMING))).ok
    assert {p.key: p.live for p in asked(hub, Show()).peers} == {KEY: True, OTHER: False}
    again = Hub(network, "/dev/null")
    again.start()
    assert {p.key: p.live for p in asked(again, Show()).peers} == {KEY: True, OTHER: False}


@pytest.mark.usefixtures("rules")
def test_peers_of_an_earlier_configuration_are_not_let_in_at_a_start(network: Network) -> None:
    asked(Hub(network, "/dev/null"), Apply(peers=(LIVE,)))
    hub = Hub(replace(network, subnet="10.98.0.0/16"), "/dev/null")
    hub.start()
    assert asked(hub, Show()).peers == ()
    peers_file(network).write_text("no JSON")
    hub.start()
    assert asked(hub, Show()).peers == ()


@pytest.mark.usefixtures("rules")
def test_two_hubs_with_sockets_in_one_directory_admit_their_own_machines(tmp_path: Path) -> None:
    networks = [
        Network(kind=NetworkKind.NONE, firewall=Firewall.NFTABLES, socket=str(tmp_path / name))
        for name in ("hub.sock", "b.sock")
    ]
    addresses = ("192.0.2.7", "192.0.2.8")
    for network, address in zip(networks, addresses, strict=True):
        assert asked(Hub(network, "/dev/null"), Apply(peers=(TunnelPeer(address=address),))).ok
    for network, address in zip(networks, addresses, strict=True):
        again = Hub(network, "/dev/null")
        again.start()
        assert asked(again, Show()).plain == (address,)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("kind", NetworkKind)
def test_who_is_let_in_without_a_tunnel_is_shown(network: Network, kind: NetworkKind) -> None:
    hub = Hub(replace(network, kind=kind, firewall=Firewall.NFTABLES), "/dev/null")
    assert asked(hub, Apply(peers=(TunnelPeer(address="192.0.2.7"),))).ok
    assert asked(hub, Show()).plain == ("192.0.2.7",)


def test_an_interface_that_is_no_tunnel_is_not_shut(
    network: Network, rules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "kind", "unknown")
    with pytest.raises(HubError, match="interface: wg-se is there already, and no tunnel"):
        Hub(network, "/dev/null").start()
    assert rules == [], "the head would be cut off from its own network"


def test_the_public_key_is_for_all_to_read_and_is_never_there_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "run", lambda *words, **_: f"{words[1]}\n")
    network = Network(endpoint="h:51820", public_key=str(tmp_path / "wireguard.pub"))
    link.make_key(network)
    assert Path(network.private_key).stat().st_mode & 0o777 == 0o600
    public = Path(network.public_key)
    assert (public.read_text(), public.stat().st_mode & 0o777) == ("pubkey\n", 0o644)
    monkeypatch.setattr(os, "fchmod", _no_power)
    monkeypatch.setattr(link, "run", lambda *_, **__: "another\n")
    with pytest.raises(OSError, match="power"):
        link.make_key(network)
    assert public.read_text() == "pubkey\n"


def _no_power(*_: object) -> None:
    raise OSError("the power went")


@pytest.mark.usefixtures("rules")
def test_a_link_that_somebody_laid_is_not_followed(network: Network, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    kept = peers_file(network)
    for name in (kept.name, f".{kept.name}", f".{kept.name}.new"):
        (tmp_path / name).symlink_to(theirs)
    assert asked(Hub(network, "/dev/null"), Apply(peers=(LIVE,))).ok
    assert theirs.read_text() == "theirs"
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("rules")
def test_a_request_of_thousands_of_brackets_is_refused(network: Network) -> None:
    hub = Hub(network, "/dev/null")
    answer = msgspec.json.decode(hub.answer(b'{"x":' + b"[" * 20_000), type=HubAnswer)
    assert not answer.ok


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_the_hub_of_a_head_that_stands_by_admits_no_machine(
    network: Network, rules: list[str], kind: NetworkKind
) -> None:
    key = KEY if kind is NetworkKind.WIREGUARD else ""
    peer = TunnelPeer(address="10.99.0.9" if key else "10.7.0.9", key=key)
    acting = [""]
    network = replace(network, kind=kind, firewall=Firewall.NFTABLES)
    hub = Hub(network, "/dev/null", lambda: acting[0])
    assert asked(hub, Apply(peers=(peer,))).ok
    assert peer.address in rules[-1]
    acting[0] = "headb"
    for _ in range(2):
        hub.step_back()
    assert len(rules) == 2, "the rules change once"
    assert peer.address not in rules[-1]
    shown = asked(hub, Show())
    assert (shown.peers, shown.plain, shown.other_head) == ((), (), "headb")
    assert not asked(hub, Apply(peers=(peer,))).ok
    again = Hub(network, "/dev/null", lambda: acting[0])
    again.start()
    assert peer.address not in rules[-1]
    acting[0] = ""
    assert asked(again, Apply(peers=(peer,))).ok


def test_while_it_is_not_known_who_acts_the_hub_keeps_its_machines(
    network: Network, rules: list[str]
) -> None:
    def away() -> str:
        raise OSError("the server of ha.directory is away")

    hub = Hub(network, "/dev/null", away)
    assert asked(hub, Apply(peers=(LIVE,))).ok
    hub.step_back()
    again = Hub(network, "/dev/null", away)
    again.start()
    assert LIVE.address in rules[-1]


def test_while_slurm_conf_cannot_be_read_its_last_ports_count(
    network: Network, rules: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nSlurmctldPort=7000\n")
    hub = Hub(replace(network, head_ports=()), str(conf))
    assert asked(hub, Apply(peers=(LIVE,))).ok
    conf.unlink()
    assert asked(hub, Apply(peers=(LIVE, COMING))).ok
    assert asked(hub, Apply(peers=())).ok
    assert "dport 7000 " in rules[-1]
    assert "dport 6817 " not in rules[-1]
    assert LIVE.address not in rules[-1], "machines still leave"
    assert caplog.text.count("Slurm's ports stay as they were") == 1


def test_a_hub_that_could_not_read_slurm_conf_yet_leaves_the_rules_as_they_stand(
    network: Network, rules: list[str], tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    hub = Hub(network, str(conf))
    hub.start()
    answer = asked(hub, Apply(peers=(LIVE,)))
    assert not answer.ok
    assert answer.message.startswith("Slurm's ports are not known: ")
    assert rules == []
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nSlurmctldPort=7000\n")
    assert asked(hub, Apply(peers=(LIVE,))).ok
    assert "dport 7000 " in rules[-1]
