"""The network of test machines on this host: a bridge, a tap for each machine, addresses by DHCP.

It lives in a network namespace without a way out, and ends with the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.image.commands import run
from slurm_elastic.image.imds import ADDRESS as METADATA

PROGRAMS = {"dnsmasq": "dnsmasq-base", "ip": "iproute2", "unshare": "util-linux"}
BRIDGE = "br0"
HEAD = "10.77.0.1"
"""The bridge's address, at which the head answers. The bridge has the metadata service's address,
too.
"""
BITS = 24


def address(number: int) -> str:
    """Return the address of machine ``number`` (from 0)."""
    return f"10.77.0.{10 + number}"


def mac(number: int) -> str:
    """Return the MAC of the machine's network card."""
    return f"52:54:00:77:00:{number:02x}"


def tap(number: int) -> str:
    """Return the name of the tap, the host's end of the machine's network card."""
    return f"tap{number}"


def up(machines: int) -> None:
    """Create the bridge and the taps in the present network namespace; as its root."""
    for arguments in (
        ("link", "set", "lo", "up"),
        ("link", "add", BRIDGE, "type", "bridge"),
        ("address", "add", f"{HEAD}/{BITS}", "dev", BRIDGE),
        ("address", "add", f"{METADATA}/32", "dev", BRIDGE),
        ("link", "set", BRIDGE, "up"),
    ):
        run(["ip", *arguments])
    for number in range(machines):
        run(["ip", "tuntap", "add", tap(number), "mode", "tap"])
        run(["ip", "link", "set", tap(number), "master", BRIDGE, "up"])


def dhcp(machines: int, names: Mapping[str, str], work: Path) -> Sequence[str]:
    """Return the command of the DHCP and DNS server, which resolves only ``names`` (name to
    address).
    """
    command = [
        "dnsmasq", "--keep-in-foreground", "--user=root", "--conf-file=/dev/null",
        "--no-hosts", "--no-resolv", "--bind-interfaces", f"--interface={BRIDGE}",
        "--except-interface=lo", f"--dhcp-range={HEAD},static,1h", f"--dhcp-option=3,{HEAD}",
        f"--dhcp-leasefile={work}/leases", "--pid-file=", "--log-facility=-",
    ]  # fmt: skip
    command += [f"--dhcp-host={mac(n)},{address(n)}" for n in range(machines)]
    return [*command, *(f"--host-record={name},{ip}" for name, ip in names.items())]
