"""The network of machines on this host: a bridge, a tap for each, addresses by DHCP.

It is made in a network namespace of its own, which nothing leaves, and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.image.commands import run
from slurm_elastic.image.imds import ADDRESS as METADATA

PROGRAMS = {"dnsmasq": "dnsmasq-base", "ip": "iproute2", "unshare": "util-linux"}
BRIDGE = "br0"
HEAD = "10.77.0.1"
"""The head's address, which is the bridge's; as the cloud's metadata service is."""
BITS = 24


def address(number: int) -> str:
    """The ``number``-th machine's, from 0."""
    return f"10.77.0.{10 + number}"


def mac(number: int) -> str:
    """Its network card's."""
    return f"52:54:00:77:00:{number:02x}"


def tap(number: int) -> str:
    """Its end on this host."""
    return f"tap{number}"


def up(machines: int) -> None:
    """Bridge and taps; in the namespace that they are for, as its root."""
    for words in (
        ("link", "set", "lo", "up"),
        ("link", "add", BRIDGE, "type", "bridge"),
        ("address", "add", f"{HEAD}/{BITS}", "dev", BRIDGE),
        ("address", "add", f"{METADATA}/32", "dev", BRIDGE),
        ("link", "set", BRIDGE, "up"),
    ):
        run(["ip", *words])
    for number in range(machines):
        run(["ip", "tuntap", "add", tap(number), "mode", "tap"])
        run(["ip", "link", "set", tap(number), "master", BRIDGE, "up"])


def dhcp(machines: int, names: Mapping[str, str], work: Path) -> Sequence[str]:
    """The command that gives machines their addresses, and ``names`` by DNS, the only ones."""
    words = [
        "dnsmasq", "--keep-in-foreground", "--user=root", "--conf-file=/dev/null",
        "--no-hosts", "--no-resolv", "--bind-interfaces", f"--interface={BRIDGE}",
        "--except-interface=lo", f"--dhcp-range={HEAD},static,1h", f"--dhcp-option=3,{HEAD}",
        f"--dhcp-leasefile={work}/leases", "--pid-file=", "--log-facility=-",
    ]  # fmt: skip
    words += [f"--dhcp-host={mac(n)},{address(n)}" for n in range(machines)]
    return [*words, *(f"--host-record={name},{where}" for name, where in names.items())]
