"""Hosts that are network namespaces: a head, and machines behind a router that masquerades (nft).

The thread that makes a ``Lab`` is the head from then on: all that it starts is there. Needs root,
iproute2, nftables, and for a tunnel wireguard-tools with the kernel's WireGuard or wireguard-go.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from needs import missing
from patience import patience

CLONE_NEWNET = 0x40000000
PROGRAMS = ("ip", "nft", "wg", "wireguard-go")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEAD = "192.0.2.1"
"""The head's address as the world has it."""
INSIDE = "10.1.2.3"
"""Its address inside its own site, which nobody routes to from elsewhere."""
NAT = "192.0.2.2"
"""The router's address on the head's side: all machines come from there."""
NAT2 = "192.0.2.3"
"""The router's address on the side of another head, which has taken over ``HEAD``."""
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    if os.getuid() != 0:
        return "network namespaces are root's"
    if reason := missing(*PROGRAMS):
        return reason
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun for wireguard-go"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", "nft add table inet probe"],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    return f"no namespaces with nftables here: {probe.stderr.strip()}" if probe.returncode else None


def sh(*command: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patience(60),
        env={"PATH": PATH}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Lab:
    """``machines`` hosts m1, m2, ... and ``others`` at 10.0.N.2, which reach the head through the
    router alone.
    """

    def __init__(self, machines: int, others: Sequence[str] = ()) -> None:
        self.machines = [f"m{n}" for n in range(1, machines + 1)]
        self._hosts = [*self.machines, *others]
        self._own = ["head", "router", *self._hosts]

    def name(self, host: str) -> str:
        """The name of a host's namespace."""
        return f"se{os.getpid()}-{host}"

    def ip(self, host: str, *words: str) -> str:
        """ip(8) on a host."""
        return sh("ip", "-n", self.name(host), *words)

    def on(self, host: str, *command: str) -> str:
        """A command on a host."""
        return sh(*self.prefix(host), *command)

    def prefix(self, host: str) -> list[str]:
        """The words before a command that is to run there."""
        # Not by ip(8), which hides /sys/fs/cgroup from slurmd.
        return ["nsenter", f"--net=/run/netns/{self.name(host)}"]

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """The hosts are there, and this thread is the head."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            for host in self._own:
                sh("ip", "netns", "add", self.name(host))
                self.ip(host, "link", "set", "lo", "up")
            self._cable("head", f"{HEAD}/24", "router", f"{NAT}/24")
            self.ip("head", "address", "add", f"{INSIDE}/32", "dev", "lo")
            for n, host in enumerate(self._hosts, 1):
                self._cable("router", f"10.0.{n}.1/24", host, f"10.0.{n}.2/24")
                self.ip(host, "route", "add", "default", "via", f"10.0.{n}.1")
            self.on("router", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
            self.on("router", "nft", "add table ip nat; add chain ip nat out { type nat hook"
                    f" postrouting priority 100; }}; add rule ip nat out ip daddr {HEAD} masquerade")  # fmt: skip
            _enter(f"/run/netns/{self.name('head')}")
            yield
        finally:
            _enter(before)
            os.close(before)
            for host in self._own:
                subprocess.run(
                    ["ip", "netns", "del", self.name(host)], check=False, capture_output=True
                )

    @contextlib.contextmanager
    def moved(self) -> Iterator[str]:
        """Another host, by its name, has the head's address as the world has it."""
        host = "head2"
        try:
            sh("ip", "netns", "add", self.name(host))
            self.ip(host, "link", "set", "lo", "up")
            self._cable(host, f"{HEAD}/24", "router", f"{NAT2}/24")
            self.ip("router", "route", "replace", f"{HEAD}/32", "dev", f"v{host}")
            yield host
        finally:
            sh("ip", "netns", "del", self.name(host))

    def settle(self, host: str, address: str) -> None:
        """The host has that address, too, and the head and it have a route to each other: it reaches
        the head at ``INSIDE`` from there, and no router hides it.
        """
        n = self._hosts.index(host) + 1
        self.ip(host, "address", "replace", f"{address}/32", "dev", "vrouter")
        self.ip(host, "route", "replace", "default", "via", f"10.0.{n}.1", "src", address)
        self.ip("router", "route", "replace", f"{address}/32", "via", f"10.0.{n}.2")
        self.ip("router", "route", "replace", f"{INSIDE}/32", "via", HEAD)
        self.ip("head", "route", "replace", f"{address}/32", "via", NAT)

    def publish(self, host: str, public: str) -> None:
        """The router leads the public address to the host, as a cloud's gateway does, and the head
        has a route to the router for it.
        """
        n = self._hosts.index(host) + 1
        for words in (
            "add table ip public",
            "add map ip public places { type ipv4_addr : ipv4_addr; }",
            "add chain ip public in { type nat hook prerouting priority -100; }",
            "flush chain ip public in",
            "add rule ip public in dnat to ip daddr map @places",
            f"add element ip public places {{ {public} : 10.0.{n}.2 }}",
        ):
            self.on("router", "nft", words)
        self.ip("head", "route", "replace", f"{public}/32", "via", NAT)

    def _cable(self, one: str, its: str, other: str, theirs: str) -> None:
        near, far = f"v{other}"[:15], f"v{one}"[:15]
        self.ip(one, "link", "add", near, "type", "veth", "peer", "name", far,
                "netns", self.name(other))  # fmt: skip
        for host, link, address in ((one, near, its), (other, far, theirs)):
            self.ip(host, "address", "add", address, "dev", link)
            self.ip(host, "link", "set", link, "up")


def _enter(place: str | int) -> None:
    handle = os.open(place, os.O_RDONLY) if isinstance(place, str) else place
    try:
        if _libc.setns(handle, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {place}")
    finally:
        if isinstance(place, str):
            os.close(handle)
