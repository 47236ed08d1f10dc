"""How each cloud tells a new machine its identity.

The requests come from our own providers, with the shipped text for joining.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, configfile, domain_pools
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer
from slurm_elastic.providers.aws import requests as ec2
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.joining import facts_of, program_of
from slurm_elastic.providers.opennebula import requests as opennebula
from slurm_elastic.providers.openstack import requests as openstack
from slurm_elastic.providers.openstack.settings import OpenStackCloud

NODE = "check1"
_INSTANCE = "i-0c4ec4ec4ec4ec4ec"
_UUID = "ec2c4ec4-ec4e-c4ec-4ec4-ec4ec4ec4ec4"
_CONFIG = """\
cluster: {{name: check, uuid: 5a3d1c52-5a1e-4d0c-8f0e-3c1b6f9d2e47}}
clouds:
  - name: check
    {cloud}
pools:
  - {{name: check, cloud: check, nodes: {node}, cpus: 1, memory: 768, instance_types: [check],
     max_stopped: 1}}
timings: {{resume_timeout: {boot:.0f}}}
join:
  head: {head}
  heartbeat_timeout: {heartbeat:.0f}s
  ssh: {{key: {key}, munge_key: {munge}, user: debian, host_key: {host_key}}}
"""
_CLOUDS = {
    "ec2": """provider: aws
    location: public
    region: us-east-1
    image: ami-0c4ec4ec4ec4ec4ec
    zones: [us-east-1a]
    types: {check: {cpus: 1, memory: 768, price: 0.01}}""",
    "openstack": """provider: openstack
    location: on-premises
    cloud: check
    image: check
    config_drive: true
    types: {check: {cpus: 1, memory: 768}}""",
    "opennebula": """provider: opennebula
    location: on-premises
    endpoint: http://127.0.0.1:2633/RPC2
    pending_timeout: 5
    types: {check: {template: 0, cpus: 1, memory: 768}}""",
}
_PLACEHOLDER_HOST_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
"""OpenNebula shows no console, so its configuration must name a host key. The check reads the real
one from the console.
"""


class Card(Struct, frozen=True, kw_only=True):
    """The machine's network card: addresses, MAC, and the prefix length ``bits``."""

    address: str
    gateway: str
    bits: int
    mac: str


class MachineIdentity(Struct, frozen=True, kw_only=True):
    """The data by which a machine learns who it is.

    ``answers``: of the metadata service, by path. ``files``: on a drive with the label ``volume``.
    ``smbios``: fields of its firmware. ``user_data`` is contained in ``answers`` or ``files``.
    """

    user_data: bytes
    answers: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    volume: str = ""
    smbios: str = ""


def configuration(cloud: str, head: str, heartbeat: float, key: Path, munge: Path) -> Config:
    """Return a configuration of one cloud with one node; ``cloud`` is one of ``KINDS``."""
    text = _CONFIG.format(
        cloud=_CLOUDS[cloud], node=NODE, head=head, heartbeat=heartbeat, boot=heartbeat / 2,
        key=key, munge=munge,
        host_key=_PLACEHOLDER_HOST_KEY if cloud == "opennebula" else "console",
    )  # fmt: skip
    return configfile.parse(text, "the check's configuration")


def of_ec2(config: Config, card: Card, public_key: str) -> MachineIdentity:
    """The identity of a machine of EC2: IMDSv2, with the key pair of its launch."""
    (cloud,) = config.clouds
    request = ec2.run_instances(
        cast(AwsCloud, cloud), config.cluster, _launch(config, "us-east-1a"), (NODE,), number=0,
        parts=(program_of(config, cloud),),
    )  # fmt: skip
    data = request["UserData"]
    assert isinstance(data, bytes)  # noqa: S101 - as the provider makes it
    interface = f"network/interfaces/macs/{card.mac}"
    answers = {
        "instance-id": _INSTANCE,
        "ami-id": cast(AwsCloud, cloud).image,
        "ami-launch-index": "0",
        "instance-type": "check",
        "hostname": f"ip-{card.address.replace('.', '-')}",
        "local-hostname": f"ip-{card.address.replace('.', '-')}",
        "local-ipv4": card.address,
        "placement/availability-zone": "us-east-1a",
        "public-keys/": "0=check",
        "public-keys/0/openssh-key": public_key,
        f"{interface}/device-number": "0",
        f"{interface}/local-ipv4s": card.address,
        f"{interface}/mac": card.mac,
        **identity_document(_INSTANCE, "us-east-1"),
        "user-data": base64.b64encode(data).decode(),
    }
    smbios = f"type=1,manufacturer=Amazon EC2,uuid={_UUID},serial={_UUID}"
    return MachineIdentity(user_data=data, answers=answers, smbios=smbios)


def identity_document(instance: str, region: str) -> dict[str, str]:
    """Return EC2's instance identity document. cloud-init retries until it can read one."""
    document = {"instanceId": instance, "region": region, "availabilityZone": f"{region}a"}
    return {"dynamic/instance-identity/document": json.dumps(document)}


def of_openstack(config: Config, _card: Card, public_key: str) -> MachineIdentity:
    """The identity of a machine of OpenStack with a config drive."""
    (cloud,) = config.clouds
    assert isinstance(cloud, OpenStackCloud)  # noqa: S101 - the configuration above
    body = openstack.body(
        cloud, config.cluster, _launch(config, "nova"), 0, (NODE,), flavor="check", image="check",
        networks="auto", parts=(program_of(config, cloud),),
    )  # fmt: skip
    server = body["server"]
    assert isinstance(server, dict)  # noqa: S101 - as the provider makes it
    data = base64.b64decode(server["user_data"])
    metadata = {
        "uuid": _UUID,
        "name": server["name"],
        "hostname": NODE,
        "launch_index": 0,
        "meta": server["metadata"],
        "public_keys": {"check": public_key},
    }
    directory = "openstack/latest"
    files = {
        f"{directory}/meta_data.json": json.dumps(metadata).encode(),
        f"{directory}/user_data": data,
    }
    smbios = "type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova"
    return MachineIdentity(user_data=data, files=files, volume="config-2", smbios=smbios)


def of_opennebula(config: Config, card: Card, public_key: str) -> MachineIdentity:
    """The identity of a machine of OpenNebula: CONTEXT, for an image with cloud-init. The site's
    own part is a cloud-init file, too.
    """
    (cloud,) = config.clouds
    facts = facts_of(config.cluster, _launch(config, "")) | {"node": NODE}
    mask = (0xFFFFFFFF << (32 - card.bits)) & 0xFFFFFFFF
    template = {
        "SSH_PUBLIC_KEY": public_key,
        "NETWORK": "YES",
        "ETH0_MAC": card.mac,
        "ETH0_IP": card.address,
        "ETH0_MASK": ".".join(str(byte) for byte in mask.to_bytes(4, "big")),
        "ETH0_GATEWAY": card.gateway,
        "ETH0_DNS": card.gateway,
    }
    context = opennebula.merged(template, facts, (program_of(config, cloud), "#cloud-config\n"))
    lines = "".join(f"{key}={shlex.quote(value)}\n" for key, value in sorted(context.items()))
    data = base64.b64decode(context["USER_DATA"])
    files = {"context.sh": f"# Context variables generated by OpenNebula\n{lines}".encode()}
    return MachineIdentity(user_data=data, files=files, volume="CONTEXT")


KINDS: Mapping[str, Callable[[Config, Card, str], MachineIdentity]] = {
    "ec2": of_ec2,
    "openstack": of_openstack,
    "opennebula": of_opennebula,
}
"""By cloud: the function that makes a machine's identity."""


def _launch(config: Config, zone: str) -> LaunchSpec:
    (pool,) = domain_pools(config, expand)
    offer = Offer(
        cloud="check", location=config.clouds[0].location or Location.PUBLIC, zone=zone,
        instance_type="check", market=Market.ON_DEMAND, price=0.01, cpus=1, memory=768,
    )  # fmt: skip
    return LaunchSpec(generation="check-1", pool=pool, nodes=(NODE,), offer=offer)
