"""The nodes of a job, and the address at which the job's other nodes reach this one."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .job_state import JobState, environment
from .site import HelperSite, RequestRefused

_ASK_TIMEOUT_S = 20.0
_PORT = 9
"""Of a UDP socket that sends nothing: only the kernel's choice of our address counts."""
_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class JobNode:
    """A node of the job: its name in Slurm, and its address (IPv4)."""

    name: str
    address: str


@dataclass(frozen=True)
class JobNodes:
    """The nodes of a job that has several: ``first`` is this node, with the address at which the
    ``others`` reach it.
    """

    first: JobNode
    others: tuple[JobNode, ...]

    @property
    def are_one_host(self) -> bool:
        """Whether all nodes are slurmds of one host."""
        return self.first.address.startswith("127.")

    @property
    def names(self) -> list[str]:
        """The names of all nodes, beginning with the first."""
        return [node.name for node in (self.first, *self.others)]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the other nodes."""
        return sorted({node.address for node in self.others})


def of_job(site: HelperSite, state: JobState) -> JobNodes | None:
    """Return the nodes of the job; None if it has only one node. RequestRefused if slurmctld does
    not say which nodes they are.
    """
    if state.node_count < 2:
        return None
    nodes = list(_asked(site, state.nodes))
    first = next((node for node in nodes if node.name == state.batch_host), None)
    if first is None or len(nodes) != state.node_count:
        raise RequestRefused(f"slurmctld does not say which nodes {state.nodes} are")
    others = tuple(node for node in nodes if node != first)
    return JobNodes(JobNode(first.name, own_address(others[0].address)), others)


def _asked(site: HelperSite, names: str) -> Sequence[JobNode]:
    command = [site.scontrol, "-o", "show", "node", names]
    try:
        done = subprocess.run(
            command, env=environment(site), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestRefused(f"{site.scontrol}: {error}") from error
    nodes = []
    for line in done.stdout.splitlines():
        name = re.match(r"NodeName=(\S+) ", line)
        address = re.search(r" NodeAddr=(\S+) ", line)
        if name and address:
            nodes.append(JobNode(name[1], _resolved(address[1])))
    return nodes


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError as error:
        raise RequestRefused(f"{address} has no IPv4 address: {error.strerror}") from error


def own_address(other: str) -> str:
    """Return the address with which this host sends to ``other``, which reaches us at it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, _PORT))
        except OSError as error:
            raise RequestRefused(f"no route to {other}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Return the name of the network interface with that address; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
