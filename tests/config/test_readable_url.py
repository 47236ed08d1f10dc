"""A URL that cannot be read is a mistake at its place, for each key that has one."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.site_place import is_loopback_url

FILE = """\
cluster: {{name: demo}}
clouds:
  - {{name: c, provider: {0}}}
pools:
  - {{name: p, cloud: c, nodes: "n[1-2]", cpus: 2, memory: 3G}}
{1}
"""
TYPES = "types: {t: {cpus: 2, memory: 4G, price: 0.1}}"
AWS = f"aws, location: public, region: eu-west-1, image: ami-1, {TYPES}"
ONE = "opennebula, location: on-premises, types: {small: {template: 1, cpus: 2, memory: 4G}}"
DOCKER = f"docker, location: on-premises, image: i, network: n, {TYPES}"
LIBVIRT = f"libvirt, location: on-premises, image: i, network: n, storage_pool: s, {TYPES}"
REDFISH = f"redfish, location: on-premises, credentials_file: /c, {TYPES}"
TLS = "ca_file: /a, cert_file: /b, key_file: /c"


@pytest.mark.parametrize(
    ("cloud", "rest", "place"),
    [
        (AWS + ", endpoint: 'https://@'", "", "clouds[0] (c).endpoint"),
        (ONE + ", endpoint: 'https://@/RPC2'", "", "clouds[0] (c).endpoint"),
        (DOCKER + ", hosts: {h: {url: 'tcp://@:1', " + TLS + "}}", "", "clouds[0] (c).hosts.h.url"),
        (LIBVIRT + ", hosts: {h: {uri: 'qemu+tls://@/system'}}", "", "clouds[0] (c).hosts.h.uri"),
        (REDFISH + ", hosts: {h: 'https://@/redfish/v1/Systems/1'}", "", "clouds[0] (c).hosts.h"),
        (AWS, "checkpoint: {notices: {queue_url: 'https://@/q'}}", "checkpoint.notices.queue_url"),
        (AWS, "notify: {webhook: 'https://@/hook'}", "notify.webhook"),
    ],
    ids=["aws", "opennebula", "docker", "libvirt", "redfish", "queue", "webhook"],
)  # fmt: skip
def test_an_unreadable_url_is_a_mistake_at_its_place(cloud: str, rest: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configfile.parse(FILE.format(cloud, rest).replace("@", "[fd00::1"), "site.yaml")
    assert any(f" {place}: found " in problem for problem in caught.value.problems), (
        caught.value.problems
    )


def test_a_url_of_an_ipv6_address_is_read() -> None:
    assert is_readable_url("https://[fd00::1]:8443/x")
    assert is_readable_url("qemu+ssh://slurm@kvm1/system")
    assert is_readable_url("unix:///run/docker.sock")
    assert not is_readable_url("https://[fd00::1")
    assert not is_readable_url("https://host:port")


def test_an_unreadable_url_is_no_service_of_this_host() -> None:
    assert not is_loopback_url("http://[::1")
    assert is_loopback_url("http://[::1]:2633/RPC2")
