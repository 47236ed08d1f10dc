"""Who may send what, as nftables takes it; and what the hub refuses to be asked for."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.sections.joining import Firewall, Network, NetworkKind
from slurm_elastic.machine.hub.link import seen_peers
from slurm_elastic.machine.hub.ports import SlurmPorts, slurm_ports, slurmctld_ports
from slurm_elastic.machine.hub.rules import table, table_name
from slurm_elastic.machine.hub.service import admissible_peers
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer
from tests import netns

SLURM = SlurmPorts("6817", "32768-60999", has_srun_range=False)
KEY, OTHER, GOOD = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
TUNNEL = Network(endpoint="h:51820", routes=("10.1.2.0/24",))
SHUT = Network(
    kind=NetworkKind.NONE,
    firewall=Firewall.NFTABLES,
    trusted_networks=("10.1.0.0/16", "2001:db8::/32"),
)
LIVE = TunnelPeer(address="10.99.0.9", key=KEY)
OUTSIDE = TunnelPeer(address="192.0.2.7")
COMING = TunnelPeer(address="10.99.0.10", key=OTHER, live=False)


@pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")
@pytest.mark.parametrize(
    "network",
    [TUNNEL, SHUT, Network(endpoint="h:1", node_ports=(6818,), firewall=Firewall.NFTABLES,
                           trusted_networks=("10.1.0.0/16",)),
     replace(SHUT, head_ports=())],
    ids=["tunnel", "firewall", "both", "no ports"],
)  # fmt: skip
def test_nft_takes_the_table_and_takes_it_again(network: Network, tmp_path: Path) -> None:
    peers = (TunnelPeer(address="192.0.2.7"),) if not network.tunnels else (LIVE, COMING)
    (tmp_path / "rules").write_text(table(network, peers, SLURM))
    nft = f"nft -f {tmp_path}/rules"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{nft} && {nft} && nft list ruleset"],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("table inet") == 1
    assert all(p.address in done.stdout for p in peers)


@pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")
def test_the_rules_of_two_hubs_on_one_host_stand_together(tmp_path: Path) -> None:
    other = replace(TUNNEL, subnet="10.98.0.0/16", interface="wg-b", socket="/run/b/hub.sock")
    peers = (LIVE, TunnelPeer(address="10.98.0.9", key=OTHER))
    for name, network, peer in zip("ab", (TUNNEL, other), peers, strict=True):
        (tmp_path / name).write_text(table(network, (peer,), SLURM))
    loads = [f"nft -f {tmp_path}/{name}" for name in "abab"]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", " && ".join([*loads, "nft list ruleset"])],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("table inet") == 2
    for seen in ("10.99.0.9", "10.98.0.9", 'iifname "wg-se" drop', 'iifname "wg-b" drop'):
        assert seen in done.stdout


def test_the_hub_of_the_default_socket_keeps_its_table() -> None:
    """docs/install.md and docs/network.md name it."""
    assert table_name(TUNNEL) == table_name(SHUT) == "slurm_elastic_hub"


def test_who_enrols_reaches_one_port_and_the_gone_reach_none() -> None:
    text = table(TUNNEL, (LIVE, COMING), SLURM)
    assert 'iifname "wg-se" ip saddr @enrolling tcp dport 51821 accept' in text
    assert text.index("@enrolling tcp") < text.index('iifname "wg-se" drop')
    kept = [line for line in text.splitlines() if "established" in line]
    assert all("ip saddr @live" in line for line in kept), "a connection ends with its machine"
    assert "elements = { 10.99.0.9 }" in text
    assert "10.99.0.9" not in table(TUNNEL, (COMING,), SLURM)


def test_ports_are_closed_only_where_that_is_asked_for() -> None:
    assert "tcp dport 6817 drop" not in table(TUNNEL, (LIVE,), SLURM)
    assert "tcp dport 6817 drop" in table(SHUT, (), SLURM)
    assert "ip saddr @trusted accept" in table(SHUT, (), SLURM)
    assert "32768" not in table(SHUT, (), SLURM), "other programs have these ports, too"


@pytest.mark.parametrize(
    ("network", "peers", "why"),
    [
        (
            TUNNEL,
            [TunnelPeer(address="10.98.0.9", key=KEY)],
            "no address of a machine in 10.99.0.0/16",
        ),
        (TUNNEL, [TunnelPeer(address="10.99.0.1", key=KEY)], "no address of a machine"),
        (TUNNEL, [TunnelPeer(address="10.99.0.9", key="0" * 44)], "no public key"),
        # Other bits in the last character are the same bytes for b64decode, and no key for wg(8).
        (TUNNEL, [TunnelPeer(address="10.99.0.9", key=f"{KEY[:42]}F=")], "no public key"),
        (TUNNEL, [TunnelPeer(address="10.99.0.9; flush", key=KEY)], "decimal digits"),
        (TUNNEL, [TunnelPeer(address="10.99.0.9")], "has no key"),
        (TUNNEL, [LIVE, TunnelPeer(address="10.99.0.11", key=KEY)], "another machine has this"),
        (TUNNEL, [LIVE, TunnelPeer(address="10.99.0.9", key=OTHER)], "another machine has this"),
        (SHUT, [LIVE], "no address of a machine"),
    ],
)
def test_a_peer_that_may_not_be_is_left_out_alone(
    network: Network, peers: list[TunnelPeer], why: str
) -> None:
    good = TunnelPeer(address="10.99.0.77", key=GOOD) if network.tunnels else OUTSIDE
    admitted, left_out = admissible_peers(network, [*peers, good])
    assert good in admitted
    assert len(admitted) == len(peers)
    (reason,) = left_out.values()
    assert why in reason


def test_without_a_tunnel_no_address_is_one_of_it() -> None:
    peer = TunnelPeer(address="10.99.0.9")
    assert admissible_peers(SHUT, [peer]) == ((peer,), {})


def test_what_wg_shows() -> None:
    dump = f"PRIVATE\tPUBLIC\t51820\toff\n{KEY}\t(none)\t192.0.2.2:4\t10.99.0.9/32\t17\t3\t4\t25\n"
    dump += f"{OTHER}\t(none)\t(none)\t(none)\t0\t0\t0\toff\n"
    one, other = seen_peers(dump)
    assert (one.endpoint, one.addresses, one.handshake, one.received) == (
        "192.0.2.2:4", ("10.99.0.9/32",), 17, 3,
    )  # fmt: skip
    assert (other.endpoint, other.addresses) == ("", ())
    assert "PRIVATE" not in repr((one, other))


def test_machines_reach_what_they_need_of_the_head_and_nothing_else() -> None:
    rules = [line for line in table(replace(TUNNEL, head_ports=(6817, 2049)), (LIVE,), SLURM).splitlines()
             if line.strip().startswith('iifname "wg-se" ip saddr @live')]  # fmt: skip
    into = [line.partition("@live ")[2] for line in rules if "daddr" not in line]
    assert into == [
        "tcp dport 6817 accept", "tcp dport 32768-60999 accept", "tcp dport 2049 accept",
        "ct state established,related accept", "meta l4proto icmp accept",
    ]  # fmt: skip


def test_slurms_ports_are_slurm_confs(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nSlurmctldHost=h\nSlurmctldPort=7000-7003\nSrunPortRange=60001-63000\n"
    )
    assert slurm_ports(str(conf)) == ("7000-7003", "60001-63000", True)
    conf.write_text('ClusterName=c\nSlurmctldHost=h\nSlurmctldPort="x; accept"\n')
    given_out = "-".join(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert slurm_ports(str(conf)) == ("6817", given_out, False)
    with pytest.raises(ConfigError):
        slurm_ports("/nonexistent")
    assert slurmctld_ports("/nonexistent") == (6817, 6817), "before a head has a slurm.conf"


LISTEN = """\
import socket, sys, time
them = [socket.create_server((sys.argv[1], int(port))) for port in sys.argv[2:]]
print("ready", flush=True)
time.sleep(600)
"""
CONNECT = """\
import socket, sys
for word in sys.argv[2:]:
    port, _, seconds = word.partition(":")
    try:
        socket.create_connection((sys.argv[1], int(port)), float(seconds)).close()
        print(port, "open")
    except OSError:
        print(port, "closed")
"""
HEAD_AND_MACHINE = """\
set -e
ip link set lo up
unshare -n sleep 600 & machine=$!
until [ "$(readlink /proc/$machine/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
on="nsenter -t $machine -n"
ip link add wg-se type veth peer name eth0 netns $machine
ip addr add 10.99.0.1/16 dev wg-se && ip link set wg-se up
$on ip addr add 10.99.0.9/16 dev eth0 && $on ip link set eth0 up
nft -f "$DIR/rules"
python3 -c "$LISTEN" 10.99.0.1 6817 2049 40000 22 3306 51821 >"$DIR/head" & head=$!
$on python3 -c "$LISTEN" 10.99.0.9 6818 >"$DIR/machine" & there=$!
trap "kill $machine $head $there" EXIT
until [ -s "$DIR/head" ] && [ -s "$DIR/machine" ]; do sleep 0.05; done
"""
NEEDED = """\
$on python3 -c "$CONNECT" 10.99.0.1 6817:$LONG 2049:$LONG 40000:$LONG 22:2 3306:2
python3 -c "$CONNECT" 10.99.0.9 6818:$LONG
"""
ENROLS = """\
echo of the machine; $on python3 -c "$CONNECT" 10.99.0.1 51821:2
echo of the head; python3 -c "$CONNECT" 10.99.0.1 51821:2
$on ip addr del 10.99.0.9/16 dev eth0 && $on ip addr add 10.99.0.10/16 dev eth0
echo of one that comes; $on python3 -c "$CONNECT" 10.99.0.1 51821:$LONG 40000:2
"""


def _said(tmp_path: Path, network: Network, asks: str) -> list[str]:
    """By a kernel: what is called wg-se is a cable here."""
    (tmp_path / "rules").write_text(table(network, (LIVE, COMING), SLURM))
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", HEAD_AND_MACHINE + asks], capture_output=True, text=True,
        check=False, timeout=patience(120),
        env={"PATH": netns.PATH, "DIR": str(tmp_path), "LISTEN": LISTEN, "CONNECT": CONNECT,
             "LONG": str(patience(30))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")
def test_packets_of_a_machine_come_to_those_ports_alone(tmp_path: Path) -> None:
    said = _said(tmp_path, replace(TUNNEL, head_ports=(6817, 2049)), NEEDED)
    assert dict(line.split() for line in said) == {
        "6817": "open", "2049": "open", "40000": "open", "22": "closed", "3306": "closed",
        "6818": "open",
    }  # fmt: skip


@pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")
def test_where_machines_enrol_nobody_else_comes(tmp_path: Path) -> None:
    """Neither jobs of live machines nor users of the head, whose ports srun's are among."""
    assert _said(tmp_path, TUNNEL, ENROLS) == [
        "of the machine", "51821 closed", "of the head", "51821 closed",
        "of one that comes", "51821 open", "40000 closed",
    ]  # fmt: skip


STRANGER = """\
set -e
ip link set lo up
unshare -n sleep 600 & stranger=$!
until [ "$(readlink /proc/$stranger/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
on="nsenter -t $stranger -n"
ip link add eth0 type veth peer name eth0 netns $stranger
ip addr add 10.2.0.1/16 dev eth0 && ip link set eth0 up
$on ip addr add 192.0.2.7/32 dev eth0 && $on ip addr add 192.0.2.8/32 dev eth0
$on ip link set eth0 up && $on ip route add 10.2.0.0/16 dev eth0 src 192.0.2.8
ip route add 192.0.2.0/24 dev eth0
# A connection of the head's own may have a port of srun's range.
echo 61000 61999 >/proc/sys/net/ipv4/ip_local_port_range
nft -f "$DIR/rules"
python3 -c "$LISTEN" 10.2.0.1 7002 6817 61001 22 >"$DIR/head" & head=$!
$on python3 -c "$LISTEN" 192.0.2.8 6818 >"$DIR/machine" & there=$!
trap "kill $stranger $head $there" EXIT
until [ -s "$DIR/head" ] && [ -s "$DIR/machine" ]; do sleep 0.05; done
echo of an ended machine; $on python3 -c "$CONNECT" 10.2.0.1 7002:2 6817:2 61001:2 22:$LONG
echo of the head; python3 -c "$CONNECT" 192.0.2.8 6818:$LONG
$on ip route replace 10.2.0.0/16 dev eth0 src 192.0.2.7
echo of a live machine; $on python3 -c "$CONNECT" 10.2.0.1 7002:$LONG 6817:$LONG 61001:$LONG
"""


@pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")
def test_the_firewall_closes_slurms_own_ports_although_head_ports_has_others(
    tmp_path: Path,
) -> None:
    """Else a machine that was ended, or another tenant's, reaches slurmctld."""
    ports = SlurmPorts("7000-7003", "61000-62000", has_srun_range=True)
    (tmp_path / "rules").write_text(
        table(replace(SHUT, head_ports=(6817, 7002)), (OUTSIDE,), ports)
    )
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", STRANGER], capture_output=True, text=True, check=False,
        timeout=patience(120),
        env={"PATH": netns.PATH, "DIR": str(tmp_path), "LISTEN": LISTEN, "CONNECT": CONNECT,
             "LONG": str(patience(30))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "of an ended machine", "7002 closed", "6817 closed", "61001 closed", "22 open",
        "of the head", "6818 open",
        "of a live machine", "7002 open", "6817 open", "61001 open",
    ]  # fmt: skip
