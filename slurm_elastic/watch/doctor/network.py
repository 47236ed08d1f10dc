"""The network between machines and the head: nodes at wrong addresses, and the tunnel."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_address, ip_network
from itertools import islice
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief, counted
from slurm_elastic.config import Config
from slurm_elastic.config.mounting import mounts_of
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, node_addresses
from slurm_elastic.machine.hub.link import SYSCTL, by_address, run
from slurm_elastic.machine.hub.wire import HubDeniedError, HubError, PeerSeen, Show, ask
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase
from slurm_elastic.policies.repair.peers import taken_addresses
from slurm_elastic.slurm.conf import plan
from slurm_elastic.state.ledger import Ledger, Machine

MAX_HANDSHAKE_AGE_S = 180.0  # a live machine makes a handshake more often than this
MAX_PROBED = 3  # machines that get packets of full size
MIN_PACKET_BYTES = 576
_PING_TIMEOUT_S = 20.0  # for three packets
_HEADER_BYTES = 28  # IPv4 and ICMP headers, which ping(8) does not count
_HOST = re.compile(
    r"^\s*(?:SlurmctldHost|ControlMachine)\s*=\s*([^\s(#]+)(?:\(([^)\s]+)\))?", re.I | re.M
)
NAT = (
    "machines behind one router register with its address, and a job on them cannot be launched: "
    f"join.network opens a tunnel for them, or give them a route to the head ({page('network')})"
)
Passes = Callable[[str, int], bool]
"""``passes(address, size)``: whether a packet of so many bytes comes back unfragmented."""
ShutInterface = Callable[[IPv4Network], str]
"""``shut_interface(route)``: this host's interface to the other hosts of the network if the kernel
does not forward the packets that come from there, else "".
"""


def examine(
    config: Config,
    slurm: Slurm,
    now: float,
    passes: Passes | None = None,
    shut_interface: ShutInterface | None = None,
) -> Iterator[Finding]:
    """Yield all findings; none if Slurm does not answer, which another check reports.

    If the ledger cannot be read (another check reports that), the machines are not checked.
    """
    try:
        nodes = slurm.nodes()
    except SlurmError:
        return
    machines = _machines(config)
    yield from _addresses(config, nodes, machines)
    network = config.join.network
    if network is None:
        return
    if network.firewall is not None:
        yield from _closed_to_head(config, network)
    if network.tunnels:
        yield from _way_to_head(config, network)
        yield from _way_through_head(config, network, shut_interface or _shut_interface)
        if text := moved_addresses(config):
            yield Finding.note(
                "addresses in the tunnel",
                text,
                expected="no machine at the address of another node",
                advice="wait, or drain those machines' nodes. Nodes that are added or removed at"
                " the end of a pool move no other address",
            )
    yield from _hub(config, network, machines, now, passes or _passes)


def moved_addresses(config: Config) -> str:
    """Return which nodes get no machine because other nodes' machines have their addresses in the
    tunnel; "" if there are none, or the ledger cannot be read, which another check reports.
    """
    addresses = node_addresses(config)
    if not addresses:
        return ""
    try:
        path = config.state / "ledger.db"
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            holders = taken_addresses(addresses, ledger.tunnels.all())
    except (sqlite3.Error, OSError, SlurmElasticError):
        return ""
    if not holders:
        return ""
    nodes, others = sorted(holders), sorted({t.node for t in holders.values()})
    return (
        f"{compress(nodes)}: no new machine until the machines of {compress(others)} have ended,"
        " which have the addresses of these nodes in the tunnel"
    )


def _machines(config: Config) -> Sequence[Machine]:
    try:
        path = config.state / "ledger.db"
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            return [m for m in ledger.machines.live() if m.is_wanted]
    except (sqlite3.Error, OSError, SlurmElasticError):
        return ()


def _addresses(
    config: Config, nodes: Mapping[str, SlurmNode], machines: Iterable[Machine]
) -> Iterator[Finding]:
    """Check that no two nodes have one address: each machine of a cloud is a host of its own."""
    clouds_by_user_data = {c.name for c in config.clouds if c.by_user_data}
    cloud_of = {
        n: p.cloud for p in plan.pools_of(config) if p.cloud in clouds_by_user_data for n in p.nodes
    }
    # Without user data (docker, local) nodes of one host may share its address.
    up = [node for name, node in nodes.items() if name in cloud_of and _has_own_address(node)]
    names_by_address: dict[str, list[str]] = {}
    for node in up:
        names_by_address.setdefault(node.address, []).append(node.name)
    for address, names in names_by_address.items():
        if len(names) > 1:
            text = f"Slurm has {compress(names)} all at {address}"
            expected = "an address for each node: its machine's own"
            yield Finding.wrong("NodeAddr", text, expected=expected, advice=NAT)
    machine_address = {m.instance.node: m.instance.address for m in machines}
    tunnels = clouds_with_tunnel(config)
    for node in up:
        own_address = machine_address.get(node.name)
        if own_address and node.address != own_address and len(names_by_address[node.address]) == 1:
            yield _elsewhere(node, own_address, in_tunnel=cloud_of[node.name] in tunnels)


def _has_own_address(node: SlurmNode) -> bool:
    """Return whether the node is up at an address that was set in slurmctld."""
    is_set = node.address not in ("", node.name) and not node.address.startswith("127.")
    return is_set and phase(node) is Phase.UP and not is_down(node)


def _elsewhere(node: SlurmNode, own_address: str, *, in_tunnel: bool) -> Finding:
    text = f"Slurm has {node.name} at {node.address}, its machine is {own_address}"
    if not in_tunnel:  # a router that gives each machine an address does not hide them
        expected = "the machine's own address, or one that leads only to it"
        return Finding.note("NodeAddr", text, expected=expected, advice=NAT)
    expected = "the machine's own address in the tunnel"
    advice = "is SlurmctldHost's address in join.network.routes?"
    return Finding.wrong("NodeAddr", text, expected=expected, advice=advice)


def _way_to_head(config: Config, network: Network) -> Iterator[Finding]:
    """Check that slurmd reaches slurmctld through the tunnel.

    slurmd connects to the addresses in slurm.conf, so these must lie in the tunnel's networks.
    """
    networks = [IPv4Network(text) for text in network.inside]
    for name, address in _heads(config):
        finding_text = f"SlurmctldHost {name} is {address}"
        if any(ip_address(address) in subnet for subnet in networks):
            yield Finding.ok("way to slurmctld", finding_text)
            continue
        yield Finding.wrong(
            "way to slurmctld",
            finding_text,
            expected=f"an address in {', '.join(map(str, networks))}",
            advice="SlurmctldHost=NAME(ADDRESS) inside, or more join.network.routes",
        )


def _heads(config: Config) -> Iterator[tuple[str, str]]:
    """The names and addresses of slurm.conf's SlurmctldHost lines, without unknown names."""
    with contextlib.suppress(OSError):
        conf_text = Path(config.slurm.conf).read_text(encoding="utf-8", errors="replace")
        for name, address in _HOST.findall(conf_text):
            head_address = _resolved(address or name)
            if head_address is not None:
                yield name, head_address


def _closed_to_head(config: Config, network: Network) -> Iterator[Finding]:
    """Check that the firewall lets the heads of a pair reach each other's slurmctld."""
    heads = list(_heads(config))
    networks = [ip_network(text) for text in network.trusted_networks]
    for name, address in heads if len(heads) > 1 else ():
        if any(ip_address(address) in trusted for trusted in networks):
            continue
        yield Finding.wrong(
            "firewall",
            f"SlurmctldHost {name}, {address}, is outside of join.network.trusted_networks",
            expected="both heads in them: else neither reaches the other's slurmctld, and control "
            "cannot be given back",
            advice=f"add {address}/32 to join.network.trusted_networks, on both heads",
        )


def _way_through_head(
    config: Config, network: Network, shut_interface: ShutInterface
) -> Iterator[Finding]:
    """Check that answers of the site's other hosts come back to machines through this head."""
    tunnels = clouds_with_tunnel(config)
    clouds = [cloud for cloud in config.clouds if cloud.name in tunnels]
    servers = {mount.server for cloud in clouds for mount in mounts_of(config, cloud)}
    addresses = {address for server in servers if (address := _resolved(server)) is not None}
    heads = {address for _, address in _heads(config)}
    for route in map(IPv4Network, network.routes):
        try:
            interface = shut_interface(route)
        except (HubError, OSError, ValueError) as error:
            yield Finding.note("routes", f"{route} is not checked: {error}")
            continue
        if not interface:
            continue
        needed = sorted(a for a in addresses - heads if ip_address(a) in route)
        report = Finding.wrong if needed else Finding.note
        yield report(
            "routes",
            f"packets from {interface} are not forwarded: machines reach no host of {route} but "
            "this head",
            expected=f"machines mount from {', '.join(needed)}" if needed
            else "enough if they need no other host there",
            advice=f"sysctl net/ipv4/conf/{interface}/forwarding=1, the same in /etc/sysctl.d, and "
            f"a route to {network.subnet} by this head on those hosts ({page('network')})",
        )  # fmt: skip


def _shut_interface(route: IPv4Network) -> str:
    """See ``ShutInterface``. Of three addresses at most two are this host's own."""
    for address in islice(route.hosts(), 3):
        (entry,) = json.loads(run("ip", "-json", "route", "get", str(address)))
        interface = str(entry.get("dev", "lo"))
        if interface != "lo":
            is_shut = (SYSCTL / interface / "forwarding").read_text().strip() == "0"
            return interface if is_shut else ""
    return ""


def _resolved(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except OSError:
        return None


def _hub(
    config: Config, network: Network, machines: Sequence[Machine], now: float, passes: Passes
) -> Iterator[Finding]:
    try:
        answer = ask(network.socket, Show(), timeout=5.0)
    except HubError as error:
        denied = isinstance(error, HubDeniedError)
        yield Finding(
            subject="slurm-elastic-hub",
            level=FindingLevel.NOTE if denied else FindingLevel.WRONG,
            observed=str(error),
            expected="an answer: without it no machine is let in or out",
            advice=f"run this as root or {config.slurm.user}" if denied
            else service_remedies.start_or_log("slurm-elastic-hub"),
        )  # fmt: skip
        return
    if answer.other_head:
        text = f"answers; it has no machine, {answer.other_head} acts"
        yield Finding.ok("slurm-elastic-hub", text)
        return
    if not network.tunnels:
        yield Finding.ok("slurm-elastic-hub", "answers")
        return
    yield Finding.ok("slurm-elastic-hub", f"answers; it routes packets with {answer.how}")
    peers = by_address(answer.peers)
    yield from _handshakes(config, network, peers, machines, now)
    fresh = [a for a, p in peers.items() if p.handshake >= now - MAX_HANDSHAKE_AGE_S]
    yield from _sizes(network, sorted(fresh)[:MAX_PROBED], passes)


def _handshakes(
    config: Config,
    network: Network,
    peers: Mapping[str, PeerSeen],
    machines: Sequence[Machine],
    now: float,
) -> Iterator[Finding]:
    tunnels, silent, oldest, fresh_count = clouds_with_tunnel(config), [], 0.0, 0
    for machine in sorted(machines, key=lambda machine: machine.instance.node):
        instance = machine.instance
        peer = peers.get(instance.address or "")
        # If a firewall keeps the head's UDP from the machine, the machine never registers.
        is_called = network.head_opens and peer is not None
        is_old = now - instance.launched > MAX_HANDSHAKE_AGE_S
        is_expected = machine.registered_at is not None or (is_called and is_old)
        if instance.cloud not in tunnels or not is_expected:
            continue
        age = now - peer.handshake if peer is not None and peer.handshake else None
        if age is None or age > MAX_HANDSHAKE_AGE_S:
            silent.append(f"{instance.node} ({'never' if age is None else f'{brief(age)} ago'})")
        else:
            fresh_count, oldest = fresh_count + 1, max(oldest, age)
    if silent:
        yield Finding.wrong(
            "tunnel",
            f"no handshake for long: {', '.join(silent[:5])}{', ...' if silent[5:] else ''}",
            expected=f"one in the last {brief(MAX_HANDSHAKE_AGE_S)}",
            advice=f"is the machine up, and do its security groups let the head's UDP in, "
            f"port {network.udp_port}?"
            if network.head_opens
            else "is the machine up, and UDP open between it and join.network.endpoint?",
        )
    elif fresh_count:
        text = (
            f"{counted(fresh_count, 'machine')}, the oldest handshake {brief(max(oldest, 0.0))} ago"
        )
        yield Finding.ok("tunnel", text)


def _sizes(network: Network, addresses: Iterable[str], passes: Passes) -> Iterator[Finding]:
    """Check with packets of the tunnel's MTU that none are lost: otherwise connections hang at a
    long message.
    """
    for address in addresses:
        try:
            if not passes(address, MIN_PACKET_BYTES):
                continue  # the machine may not answer ping at all
            largest = _largest(address, network.mtu, passes)
        except OSError as error:
            yield Finding.note("MTU", f"not probed: {error}", advice="apt install iputils-ping")
            return
        text = f"{address} takes packets of {largest} bytes"
        if largest >= network.mtu:
            yield Finding.ok("MTU", text)
            continue
        yield Finding.wrong(
            "MTU",
            text,
            expected=f"join.network.mtu, {network.mtu}",
            advice=f"join.network.mtu: {largest // 4 * 4}, then restart "
            "slurm-elastic-hub and slurm-elasticd; machines have it from their launch on",
        )


def _largest(address: str, max_size: int, passes: Passes) -> int:
    """Return the largest packet size that comes back, at least MIN_PACKET_BYTES."""
    if passes(address, max_size):
        return max_size
    # By halves: each try takes seconds if the packets are lost.
    low, high = MIN_PACKET_BYTES, max_size
    while high - low > 4:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(address, middle) else (low, middle)
    return low


def _passes(address: str, size: int) -> bool:
    """Ask ping(8), which must not fragment. Raises OSError if there is no ping."""
    try:
        result = subprocess.run(
            ["ping", "-q", "-n", "-M", "do", "-c", "3", "-i", "0.2", "-W", "1",
             "-s", str(size - _HEADER_BYTES), address],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_PING_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0
