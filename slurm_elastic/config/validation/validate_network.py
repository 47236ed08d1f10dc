"""Checks ``join.network``, alone and beside ``join.head`` and the clouds. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network

from slurm_elastic.config.decode import nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.joining import Enrol, Join, Network
from slurm_elastic.config.tunnel import uses
from slurm_elastic.policies.repair.tunnel_addresses import room_for

AT: KeyPath = ("join", "network")
_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>[1-9]\d{0,4})")
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,14}")
_MAX_PORT = 65535


def check_network(draft: Draft) -> None:
    join = draft.section("join", Join, Join())
    if join is None or join.network is None:
        return
    network = join.network
    for key in ("routes", "trusted_networks"):
        _networks(draft, key, getattr(network, key))
    if network.tunnels:
        _tunnel(draft, join, network)
    elif network.firewall is None:
        expected = "kind: wireguard, firewall: nftables, or no join.network"
        draft.problems.add((*AT, "kind"), "none without a firewall", expected)
    if network.firewall is not None and not network.trusted_networks:
        expected = (
            "the networks of the site's own nodes and login nodes, such as [10.1.0.0/16]: from"
            " elsewhere only live machines reach the head's ports"
        )
        draft.problems.add((*AT, "trusted_networks"), "none with a firewall", expected)


def _tunnel(draft: Draft, join: Join, network: Network) -> None:
    match = _ENDPOINT.fullmatch(network.endpoint or "")
    if network.head_opens:
        _opened_by_head(draft, network)
    elif match is None or int(match["port"]) > _MAX_PORT:
        actual = "no endpoint" if network.endpoint is None else shown(network.endpoint)
        expected = "the head's name or address and UDP port as machines reach them, such as"
        draft.problems.add((*AT, "endpoint"), actual, f"{expected} vpn.example.org:51820")
    if not _INTERFACE.fullmatch(network.interface):
        expected = "the name of a network interface, at most 15 letters"
        draft.problems.add((*AT, "interface"), shown(network.interface), expected)
    if join.head is None:
        draft.problems.add(AT, "'network' alone", "join.head, too: machines learn both together")
    _its_clouds(draft, network)
    subnet = _subnet(network.subnet)
    if subnet is None:
        expected = "a private network of 64 addresses or more, such as 10.99.0.0/16"
        draft.problems.add((*AT, "subnet"), shown(network.subnet), expected)
        return
    _through(draft, join, network, subnet, match["host"] if match else "")
    _room(draft, network, subnet)


def _opened_by_head(draft: Draft, network: Network) -> None:
    """Check that the head learns from consoles whom it calls, and machines need no endpoint."""
    if network.endpoint is not None:
        expected = "no endpoint: the head calls machines at their UDP port `udp_port`"
        draft.problems.add((*AT, "endpoint"), shown(network.endpoint), expected)
    if network.enrol is Enrol.ONCE:
        expected = "console: a machine that cannot reach the head cannot hand in its key"
        draft.problems.add((*AT, "enrol"), shown(network.enrol), expected)
    silent = [c.name for c in draft.clouds.values() if uses(network, c) and not c.shows_console]
    if silent and network.enrol is None:
        expected = (
            f"machine, or `clouds` without {', '.join(silent)}: the head accepts only a key that a "
            "machine's console shows, and this cloud shows no console output"
        )
        draft.problems.add((*AT, "opened_by"), shown(network.opened_by), expected)


def _through(
    draft: Draft, join: Join, network: Network, subnet: IPv4Network, endpoint: str
) -> None:
    """Check that the head is inside the tunnel for machines, and the tunnel's end outside of it."""
    inside = [subnet, *filter(None, map(_network, network.routes))]
    heads = [_address(network_inside.partition(":")[0]) for network_inside in join.heads]
    if any(
        head is not None and not any(head in network_inside for network_inside in inside)
        for head in heads
    ):
        expected = f"an address inside the tunnel: in {subnet} or join.network.routes"
        draft.problems.add(("join", "head"), shown(join.head or ""), expected)
    end = _address(endpoint)
    if end is not None and any(end in network_inside for network_inside in inside):
        expected = "an address that is not in subnet or routes: the tunnel itself goes there"
        draft.problems.add((*AT, "endpoint"), shown(network.endpoint or ""), expected)


def _its_clouds(draft: Draft, network: Network) -> None:
    told_clouds = {c.name: c for c in draft.clouds.values() if c.by_user_data}
    for n, name in enumerate(network.clouds):
        if name not in told_clouds and draft.all_whole:
            expected = "a cloud whose machines get user data: " + (
                f"one of {', '.join(told_clouds)}" if told_clouds else "there is none"
            )
            draft.problems.add(
                (*AT, "clouds", n), shown(name), expected, nearest(name, told_clouds)
            )
    silent = [c.name for c in told_clouds.values() if uses(network, c) and not c.shows_console]
    if network.enrol is Enrol.CONSOLE and silent:
        expected = f"once: {', '.join(silent)} shows no console output"
        draft.problems.add((*AT, "enrol"), shown(network.enrol), expected)
    alike = [c.name for c in told_clouds.values() if uses(network, c) and not c.tells_launch]
    if network.enrol is Enrol.ONCE and alike:
        expected = f"console: machines of {', '.join(alike)} get the same user data in all launches"
        draft.problems.add((*AT, "enrol"), shown(network.enrol), expected)


def _room(draft: Draft, network: Network, subnet: IPv4Network) -> None:
    pools = [i for i, _, cloud in draft.pools_with_clouds if uses(network, cloud)]
    counts = [len(draft.nodes.get(i, ())) for i in pools]
    if not room_for(str(subnet), counts):
        expected = f"a larger network: {sum(counts)} nodes do not fit, each pool with its own block"
        draft.problems.add((*AT, "subnet"), shown(network.subnet), expected)


def _networks(draft: Draft, key: str, values: tuple[str, ...]) -> None:
    for n, text in enumerate(values):
        if _network(text) is None and not (key == "trusted_networks" and is_network(text)):
            expected = "a network without host bits, such as 10.1.2.0/24"
            draft.problems.add((*AT, key, n), shown(text), expected)


def _subnet(text: str) -> IPv4Network | None:
    subnet = _network(text)
    return (
        subnet if subnet is not None and subnet.is_private and 8 <= subnet.prefixlen <= 26 else None
    )


def _network(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text)
    except ValueError:
        return None


def is_network(text: str) -> bool:
    """Whether the text is a network, such as 10.1.0.0/16."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _address(text: str) -> IPv4Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address if isinstance(address, IPv4Address) else None
