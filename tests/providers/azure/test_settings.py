"""Mistakes in the settings of an Azure cloud: one sentence with the line each."""

from __future__ import annotations

import shlex
import string
from urllib.parse import unquote

import pytest
from providers.azure.bed import KEY, SUBNET, AzureBed

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile

IDENTITY = (
    "/subscriptions/s/resourceGroups/net/providers/Microsoft.ManagedIdentity"
    "/userAssignedIdentities/machines"
)
GOOD = f"""\
cluster: {{name: site, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}}
allow: {{accounts: [physics]}}
clouds:
  - name: az
    provider: azure
    location: public
    subscription: 11111111-2222-3333-4444-555555555555
    resource_group: machines
    region: westeurope
    zones: ["1"]
    image: debian:debian-12:12-gen2:latest
    subnet: {SUBNET}
    ssh_public_key: {KEY}
    types: {{Standard_D2s_v5: {{cpus: 2, memory: 8G, price: 0.1, spot_price: 0.02}}}}
pools:
  - {{name: azp, cloud: az, nodes: "az[1-4]", cpus: 2, memory: 7G, instance_types: [Standard_D2s_v5],
     markets: [spot, on-demand]}}
"""


def test_a_good_file_is_good() -> None:
    (cloud,) = configfile.parse(GOOD, "site.yaml").clouds
    assert cloud.known_zones == ("1",)
    assert cloud.stop_command.endswith("end delete https://management.azure.com")
    assert "168.63.129.16" in cloud.metadata.addresses


def test_a_machine_ends_itself_by_the_identity_that_may_do_so(bed: AzureBed) -> None:
    """Policies of a subscription may give each machine a second identity, without the right."""
    identity = IDENTITY.replace("resourceGroups/net", "resourceGroups/net(é)")
    command = shlex.split(bed.settings(machine_identity=identity).stop_command)
    assert command[-4:-1] == ["end", "delete", bed.emulator.url]
    assert unquote(command[-1]) == identity
    assert set(command[-1]) <= set(string.ascii_letters + string.digits + "/%.-_")


def test_jobs_may_not_use_the_identity_that_ends_machines() -> None:
    """A job that reaches the metadata service has each right of each identity of its machine."""
    own = f"    machine_identity: {IDENTITY}\n    types:"
    with_identity = GOOD.replace("    types:", own)
    opened = "join: {head: head.example.org, metadata_for_jobs: true}\n"
    configfile.parse(with_identity, "site.yaml")
    configfile.parse(opened + GOOD, "site.yaml")
    with pytest.raises(ConfigError, match="each job could end each machine") as caught:
        configfile.parse(opened + with_identity, "site.yaml")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("11111111-2222-3333-4444-555555555555", "my-subscription", "a subscription's id"),
        ("resource_group: machines", "resource_group: a/b", "the name of a resource group"),
        ("region: westeurope", "region: West Europe", "a region's short name"),
        ('zones: ["1"]', 'zones: ["4"]', "one of 1, 2, 3"),
        ("image: debian:debian-12:12-gen2:latest", "image: debian-12", "publisher:offer:sku:version"),
        (SUBNET, "nodes", "the resource id of a subnet"),
        (KEY, "ssh-rsa abc", "a line of a .pub file"),
        (KEY, "-----BEGIN OPENSSH PRIVATE KEY-----", "a line of a .pub file"),
        ('nodes: "az[1-4]"', 'nodes: "az_[1-4]"', "because machines get nodes' names"),
        ('nodes: "az[1-4]"', f'nodes: "{"n" * 60}[1-4]"', "at most 53 characters"),
        ("memory: 7G,", "memory: 7G, image: {name: 'x*'},", "images of provider azure"),
        ("memory: 7G,", "memory: 7G, machine: {root_disk: {iops: 3}},", "only size, type, kms_key"),
        ("memory: 7G,", "memory: 7G, machine: {root_disk: {kms_key: k}},", "disk encryption set"),
        ("memory: 7G,", "memory: 7G, machine: {rdma: true},", "provider azure"),
        ("    types:", "    endpoint: management\n    types:", "a URL such as https://HOST"),
        ("    types:", "    price_endpoint: https://h/api/retail/prices\n    types:",
         "a URL such as https://prices.azure.com"),
        ("    types:", "    security_group: sg\n    types:", "a network security group"),
        ("    types:", "    machine_identity: me\n    types:", "a user-assigned managed identity"),
        ("    types:", "    launch_wait: 2h\n    types:", "resume_timeout"),
        ("    types:", "    tennant: x\n    types:", "tennant"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line(old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        configfile.parse(GOOD.replace(old, new), "site.yaml")
    assert words in str(caught.value)
    assert all(problem.startswith("site.yaml:") for problem in caught.value.problems)


def test_two_clouds_of_one_group_share_their_place(bed: AzureBed) -> None:
    one = bed.settings()
    assert one.shares_place(bed.settings(resource_group=one.resource_group.upper()))
    assert not one.shares_place(bed.settings(resource_group="another"))
