"""A head that opens the tunnels: which peers the hub calls, and when again."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.config.sections.joining import Network, Opener
from slurm_elastic.machine.hub import link, service
from slurm_elastic.machine.hub.link import EXPIRED_S, KEEPALIVE_S, SILENT_S, Link
from slurm_elastic.machine.hub.service import Hub, admissible_peers
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer, endpoint_of

KEY, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
CALLED = TunnelPeer(address="10.99.0.9", key=KEY, endpoint="192.0.2.9:4500")
NETWORK = Network(opened_by=Opener.HEAD, udp_port=4500, routes=("10.1.2.0/24",))


class Wg:
    """In place of wg(8): the peers that it was told to have, and the bytes that came from each."""

    def __init__(self) -> None:
        self.peers: dict[str, str] = {}
        self.received: dict[str, int] = {}
        self.refused: set[str] = set()
        self.changes: list[str] = []

    def __call__(self, *words: str, text: str | None = None) -> str:
        del text
        if words[:2] == ("wg", "show"):
            rows = [
                f"{key}\t(none)\t192.0.2.99:7777\t{allowed}\t0\t{self.received.get(key, 0)}\t0\toff"
                for key, allowed in self.peers.items()
            ]
            return "\n".join(["interface", *rows, ""])
        if self.refused.intersection(words):
            raise HubError("Key is not the correct length or format")
        for change in " ".join(words[3:]).split("peer ")[1:]:
            key, *settings = change.split()
            self.changes.append(" ".join(settings))
            if settings == ["remove"]:
                del self.peers[key]
                self.received.pop(key, None)
            else:
                self.peers[key] = settings[1]
        return ""


@pytest.fixture
def wg(monkeypatch: pytest.MonkeyPatch) -> Wg:
    made = Wg()
    monkeypatch.setattr(link, "run", made)
    return made


ADDED = f"allowed-ips 10.99.0.9/32 endpoint 192.0.2.9:4500 persistent-keepalive {KEEPALIVE_S}"


def test_a_peer_is_called_at_its_endpoint_and_again_at_a_new_one(wg: Wg) -> None:
    tunnel = Link(NETWORK)
    tunnel.set_peers([CALLED])
    tunnel.set_peers([CALLED])
    assert wg.changes == [ADDED], "a peer that is there is not disturbed"
    tunnel.set_peers([msgspec.structs.replace(CALLED, endpoint="192.0.2.7:4500")])
    assert wg.changes[1:] == [ADDED.replace("192.0.2.9", "192.0.2.7")]
    Link(NETWORK).set_peers([CALLED])
    assert wg.changes[2:] == [ADDED], "a restarted hub does not know which endpoint it has"


def test_machines_that_open_the_tunnel_have_no_endpoint(wg: Wg) -> None:
    Link(Network(endpoint="h:1")).set_peers([TunnelPeer(address="10.99.0.9", key=KEY)])
    assert wg.changes == ["allowed-ips 10.99.0.9/32"]


def test_a_silent_machine_is_called_again_and_no_other(wg: Wg) -> None:
    other = TunnelPeer(address="10.99.0.10", key=OTHER, endpoint="192.0.2.10:4500")
    tunnel = Link(NETWORK)
    tunnel.set_peers([CALLED, other])
    wg.changes.clear()
    for second in range(0, 120, 5):
        wg.received[OTHER] = second
        called = tunnel.call_silent([CALLED, other], float(second))
        assert called == ([CALLED.address] if second and second % SILENT_S == 0 else []), second
    assert set(wg.changes) == {"remove", ADDED}
    assert set(wg.peers) == {KEY, OTHER}


@pytest.mark.parametrize(
    ("network", "endpoint"),
    [
        (NETWORK, "192.0.2.9:22"),
        (NETWORK, "10.99.0.10:4500"),
        (NETWORK, "10.1.2.7:4500"),
        (NETWORK, "127.0.0.1:4500"),
        (NETWORK, "host:4500"),
        (NETWORK, "192.0.2.9:4500 private-key /etc/shadow"),
        (Network(endpoint="h:4500"), "192.0.2.9:4500"),
    ],
)
def test_no_other_place_can_be_called(network: Network, endpoint: str) -> None:
    assert admissible_peers(NETWORK, [CALLED]) == ((CALLED,), {})
    admitted, left_out = admissible_peers(
        network, [msgspec.structs.replace(CALLED, endpoint=endpoint)]
    )
    assert admitted == ()
    assert "is no UDP port of a machine outside" in left_out[CALLED.address]


def test_endpoints_of_both_versions() -> None:
    assert endpoint_of("2001:db8::9", 4500, ["10.99.0.0/16"]) == "[2001:db8::9]:4500"
    called = msgspec.structs.replace(CALLED, endpoint="[2001:db8::9]:4500")
    assert admissible_peers(NETWORK, [called]) == ((called,), {})
    assert endpoint_of("", 4500, []) == ""
    assert endpoint_of("some.name", 4500, []) == ""


def test_the_last_endpoint_stays_while_a_new_daemon_knows_none(
    wg: Wg, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "run", lambda *_, **__: "")
    monkeypatch.setattr(service, "make_key", lambda _: None)
    for name in ("ensure", "require_ours"):
        monkeypatch.setattr(Link, name, lambda _: None)
    monkeypatch.setattr(Link, "how", "kernel")
    network = msgspec.structs.replace(NETWORK, socket=str(tmp_path / "hub.sock"))
    for hub in (Hub(network, "/dev/null"), Hub(network, "/dev/null")):
        hub.start()
        for peer in (CALLED, msgspec.structs.replace(CALLED, endpoint="")):
            request = msgspec.json.encode(Apply(peers=(peer,)))
            answer = msgspec.json.decode(hub.answer(request), type=HubAnswer)
            assert answer.ok, answer.message
    assert set(wg.changes) == {ADDED}
    for now in (0.0, SILENT_S):
        hub.call_silent(now)
    assert wg.changes[-2:] == ["remove", ADDED]


def test_a_machine_that_opens_the_tunnel_and_falls_silent_is_configured_from_scratch_once(
    wg: Wg,
) -> None:
    """WireGuard refuses its calls while its clock, which was set back, is behind its last call."""
    never = TunnelPeer(address="10.99.0.10", key=OTHER)
    tunnel = Link(Network(endpoint="h:1"))
    silent = TunnelPeer(address="10.99.0.9", key=KEY)
    tunnel.set_peers([silent, never])
    wg.changes.clear()
    wg.received[KEY] = 92
    called = [second for second in range(0, 900, 5) if tunnel.call_silent([silent, never], second)]
    assert called == [EXPIRED_S]
    # The head may call it where it was last: it has the later date.
    assert wg.changes == ["remove", "allowed-ips 10.99.0.9/32 endpoint 192.0.2.99:7777"]


def test_a_peer_that_wg_refuses_keeps_no_other_out(wg: Wg) -> None:
    wg.refused = {OTHER}
    third = base64.b64encode(bytes([3]) * 32).decode()
    peers = [
        TunnelPeer(address=f"10.99.0.{20 + n}", key=key)
        for n, key in enumerate((KEY, OTHER, third))
    ]
    refused = Link(Network(endpoint="h:1")).set_peers(peers)
    assert refused == {OTHER: "Key is not the correct length or format"}
    assert set(wg.peers) == {KEY, third}
