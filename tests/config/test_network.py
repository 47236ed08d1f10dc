"""The key ``join.network``: what makes no sense is told with its place, and nothing else changes."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.joining import Enrol, Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, enrols, node_addresses

SITE = """\
cluster: {{name: alps, uuid: 7d1f0c52-8f7e-4d5d-9d5e-111111111111}}
allow: {{groups: [hpc]}}
limits: {{dollars_per_hour: 2}}
clouds:
  - {{name: aws, provider: aws, location: public, region: us-east-1, image: ami-1,
     subnets: {{us-east-1a: subnet-1}}, types: {{c5.large: {{cpus: 2, memory: 4G, price: 0.085}}}}}}
  - {{name: op, provider: local, location: on-premises}}
pools:
  - {{name: pub, cloud: aws, nodes: "pub[1-{nodes}]", cpus: 2, memory: 4G, instance_types: [c5.large]}}
  - {{name: rack, cloud: op, nodes: "rack[1-2]", cpus: 2, memory: 4G, slurmd_port: 7000}}
join:
  head: {head}
  network: {network}
"""
GOOD = "{endpoint: 'vpn.example.org:51820', routes: [10.1.2.0/24]}"


def site(network: str, head: str = "10.1.2.3", nodes: int = 4) -> str:
    return SITE.format(network=network, head=head, nodes=nodes)


def test_machines_told_by_user_data_have_a_tunnel() -> None:
    config = configfile.parse(site(GOOD), "site.yaml")
    assert clouds_with_tunnel(config) == {"aws"}
    assert set(node_addresses(config)) == {"pub1", "pub2", "pub3", "pub4"}
    network = config.join.network
    assert network is not None
    assert enrols(network, config.cloud("aws")) is Enrol.CONSOLE
    assert (network.listen_port, network.private_key) == (51820, "/etc/slurm-elastic/wireguard.key")


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("{routes: [10.1.2.0/24]}", "join.network.endpoint: found no endpoint"),
        ("{endpoint: vpn.example.org}", "join.network.endpoint: found 'vpn.example.org'"),
        ("{endpoint: 'h:51820', subnet: 10.1.0.0/14, routes: [10.1.2.0/24]}", "subnet: found"),
        ("{endpoint: 'h:51820', subnet: 8.8.0.0/16, routes: [10.1.2.0/24]}", "subnet: found"),
        ("{endpoint: 'h:51820', routes: [10.1.2.3/24]}", "routes[0]: found '10.1.2.3/24'"),
        ("{endpoint: 'h:51820'}", "join.head: found '10.1.2.3', expected an address inside"),
        ("{endpoint: '10.1.2.9:1', routes: [10.1.2.0/24]}", "endpoint: found '10.1.2.9:1'"),
        ("{endpoint: 'h:1', routes: [10.1.2.0/24], clouds: [op]}", "clouds[0]: found 'op'"),
        ("{endpoint: 'h:1', routes: [10.1.2.0/24], enrol: once}", "expected console"),
        ("{kind: none}", "kind: found none without a firewall"),
        ("{kind: none, firewall: nftables}", "trusted_networks: found none with a firewall"),
        (
            "{kind: none, firewall: nftables, trusted_networks: [any]}",
            "trusted_networks[0]: found 'any'",
        ),
        ("{kind: openvpn}", "join.network.kind: found 'openvpn', expected one of none, wireguard"),
        ("{endpoint: 'h:1', routes: [10.1.2.0/24], interface: 'a b'}", "interface: found 'a b'"),
        ("{endpoint: 'h:1', routes: [10.1.2.0/24], mtu: 100}", "mtu: found 100"),
        ("{opened_by: head, endpoint: 'h:1', routes: [10.1.2.0/24]}", "expected no endpoint"),
        ("{opened_by: head, routes: [10.1.2.0/24], enrol: once}", "cannot hand in its key"),
        ("{opened_by: both, endpoint: 'h:1'}", "opened_by: found 'both', expected one of"),
    ],
)
def test_what_makes_no_sense_is_told(network: str, why: str) -> None:
    with pytest.raises(ConfigError) as told:
        configfile.parse(site(network), "site.yaml")
    assert why in str(told.value)


def test_a_head_that_opens_the_tunnels_needs_no_endpoint() -> None:
    text = site("{opened_by: head, udp_port: 4500, routes: [10.1.2.0/24]}")
    network = configfile.parse(text, "site.yaml").join.network
    assert network is not None
    assert network.head_opens
    assert network.listen_port == 4500, "firewalls know both ends by one number"


OPENNEBULA = """{name: dark, provider: opennebula, location: on-premises,
     endpoint: 'http://one:2633/RPC2', types: {s: {cpus: 2, memory: 2048, template: 3}}}"""
LIBVIRT = """{name: dark, provider: libvirt, location: on-premises, image: debian,
     network: default, hosts: {h1: {uri: 'qemu:///system'}}, types: {s: {cpus: 2, memory: 4G}}}"""


@pytest.mark.parametrize("cloud", [OPENNEBULA, LIBVIRT], ids=["opennebula", "libvirt"])
def test_a_cloud_without_consoles_is_no_cloud_whose_machines_the_head_calls(cloud: str) -> None:
    text = site("{opened_by: head, routes: [10.1.2.0/24]}")
    text = text.replace("pools:\n", f"  - {cloud}\npools:\n")
    with pytest.raises(ConfigError) as told:
        configfile.parse(text, "site.yaml")
    assert "opened_by: found 'head', expected machine, or `clouds` without dark" in str(told.value)
    configfile.parse(text.replace("opened_by: head", "opened_by: head, clouds: [aws]"), "site.yaml")


def test_pools_need_room() -> None:
    tight = "{endpoint: 'h:1', routes: [10.1.2.0/24], subnet: 10.99.0.0/24}"
    configfile.parse(site(tight, nodes=64), "site.yaml")
    with pytest.raises(ConfigError, match="200 nodes do not fit"):
        configfile.parse(site(tight, nodes=200), "site.yaml")


def test_the_head_may_be_a_name_or_the_hub_itself() -> None:
    for head in ("head.example.org", "10.99.0.1", "10.1.2.3:6817"):
        configfile.parse(site(GOOD, head=head), "site.yaml")


def test_a_firewall_alone_has_no_tunnel() -> None:
    config = configfile.parse(
        site("{kind: none, firewall: nftables, trusted_networks: [10.1.0.0/16, 'fd00::/8']}"),
        "site.yaml",
    )
    assert clouds_with_tunnel(config) == frozenset()
    assert isinstance(config.join.network, Network)
