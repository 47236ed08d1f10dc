"""The parts of a machine's TEMPLATE that oned completes: disks, network cards, CONTEXT."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from slurm_elastic.sandbox.nebula.world import Net

_VARIABLE = re.compile(r"\$(?:USER|NETWORK|IMAGE)?\[[^\]]*\]|\$\w+")
_EMPTY_ETH = (
    "EXTERNAL",
    "IP6",
    "IP6_GATEWAY",
    "IP6_METHOD",
    "IP6_METRIC",
    "IP6_PREFIX_LENGTH",
    "IP6_ULA",
    "METHOD",
    "METRIC",
    "MTU",
    "SEARCH_DOMAIN",
    "VLAN_ID",
    "VROUTER_IP",
    "VROUTER_IP6",
    "VROUTER_MANAGEMENT",
)


def nic(
    number: int, index: int, net: Net, attributes: Mapping[str, str], address: str
) -> dict[str, str]:
    """Return a network card with its lease."""
    mac = "02:00:" + ":".join(f"{byte:02x}" for byte in ip_address(address).packed)
    return dict(attributes) | {
        "AR_ID": "0",
        "BRIDGE": "br0",
        "BRIDGE_TYPE": "linux",
        "CLUSTER_ID": "0",
        "DNS": "10.0.0.2",
        "GATEWAY": "10.0.0.1",
        "IP": address,
        "MAC": mac,
        "NAME": f"NIC{index}",
        "NETWORK": net.name,
        "NETWORK_ID": str(net.id),
        "NIC_ID": str(index),
        "SECURITY_GROUPS": "0",
        "TARGET": f"one-{number}-{index}",
        "VN_MAD": "dummy",
    }


def disk(index: int, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return a disk of an image."""
    return {
        "ALLOW_ORPHANS": "NO",
        "CLONE": "YES",
        "CLONE_TARGET": "SYSTEM",
        "CLUSTER_ID": "0",
        "DATASTORE": "dummyimg",
        "DATASTORE_ID": "100",
        "DEV_PREFIX": "sd",
        "DISK_ID": str(index),
        "DISK_SNAPSHOT_TOTAL_SIZE": "0",
        "DISK_TYPE": "FILE",
        "DRIVER": "dummy_format",
        "FORMAT": "dummy_format",
        "IMAGE": attributes.get("IMAGE", "debian12"),
        "IMAGE_ID": attributes.get("IMAGE_ID", "0"),
        "IMAGE_STATE": "2",
        "LN_TARGET": "NONE",
        "ORIGINAL_SIZE": "1024",
        "READONLY": "NO",
        "SAVE": "NO",
        "SIZE": "1024",
        "SOURCE": "dummy_path",
        "TARGET": f"sd{chr(ord('a') + index)}",
        "TM_MAD": "dummy",
        "TYPE": "FILE",
    }


def filled_context(
    attributes: Mapping[str, str], nics: Sequence[Mapping[str, str]], disks: int
) -> dict[str, str]:
    """Return a CONTEXT with variables (``$``) replaced by nothing, because the emulation has none,
    and with the facts of the network.
    """
    context = {key: _VARIABLE.sub("", value) for key, value in attributes.items()}
    if context.get("NETWORK", "").upper() == "YES":
        for index, card in enumerate(nics):
            eth = dict.fromkeys(_EMPTY_ETH, "") | {
                "DNS": card["DNS"],
                "GATEWAY": card["GATEWAY"],
                "IP": card["IP"],
                "MAC": card["MAC"],
                "MASK": "255.255.252.0",
                "NETWORK": "10.0.0.0",
            }
            context |= {f"ETH{index}_{key}": value for key, value in eth.items()}
    return context | {"DISK_ID": str(disks), "TARGET": "hda"}


def security_rules() -> list[dict[str, str]]:
    """Return the default security group, which allows all traffic in both directions."""
    return [
        {
            "PROTOCOL": "ALL",
            "RULE_TYPE": way,
            "SECURITY_GROUP_ID": "0",
            "SECURITY_GROUP_NAME": "default",
        }
        for way in ("OUTBOUND", "INBOUND")
    ]
