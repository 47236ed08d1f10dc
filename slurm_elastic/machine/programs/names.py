#!/usr/bin/python3 -I
"""Runs on each cloud machine, as root: ``names.py SETTINGS TUNNEL [HOSTS]``; keeps the names of the
cluster's other nodes in /etc/hosts, so that programs such as MPI's launchers find them by name. If
the names of all nodes can be found without it, it asks slurmctld no more.

Each of our lines ends with MARK. No other line is ever changed, and a name that another line has
gets no line of ours. The addresses are Slurm's (NodeAddr), asked from slurmctld, more rarely in a
large cluster. Addresses in the tunnel follow from TUNNEL (the settings of ``tunnel.py``; the file
may be empty), so they are there before the first job. The lines go when the program is ended.

SETTINGS is the agent's. It uses the standard library only, and any Python from 3.6 on. This text is
part of user data, whose size clouds limit: keep it short. Comments and docstrings are left out
there.
"""

import ipaddress
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, List, Set  # noqa: UP035 - the machine's Python may be an old one

MARK = "# slurm-elastic"
PERIOD_S = 30.0
"""Between two questions to slurmctld."""
BOOTING_PERIOD_S = 5.0
"""The same while a node boots, in the first YOUNG_S of a machine: the addresses of nodes that boot
with it may come late, and their job starts soon after.
"""
YOUNG_S = 600.0
PERIOD_PER_NODE_S = 0.05
"""The same for each node of the cluster: each answer has all nodes."""
PERIOD_PER_MACHINE_S = 0.5
"""The same at least, for each machine that is up: slurmctld answers two machines a second."""
MAX_JITTER = 0.25
RETRY_S = 2.0
"""The same until slurmctld has answered for the first time; each try makes it a quarter longer."""
MAX_TUNNEL_NODES = 2048
"""With more nodes than this, write only the nodes that Slurm shows as live."""
COMMAND_S = 60.0
GONE = {"POWERED_DOWN", "POWERING_DOWN", "FUTURE"}
OF_CLOUD = {"CLOUD", "DYNAMIC_NORM"}
"""Nodes that may run this program."""
_NODE = re.compile(r"^NodeName=([A-Za-z0-9._-]+) .*?\bNodeAddr=(\S+).*?\bState=(\S+)", re.M)


def expand(hostlist: str) -> List[str]:  # noqa: UP006
    """The names in a hostlist that has at most one bracket per name."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def in_tunnel(settings: Dict[str, Any]) -> Dict[str, str]:  # noqa: UP006
    """The addresses in the tunnel, by node; empty if there are too many."""
    addresses = {}
    for pool in settings.get("pools", {}).values():
        address = ipaddress.IPv4Address(pool["first"])
        addresses.update({name: str(address + n) for n, name in enumerate(expand(pool["nodes"]))})
    return addresses if len(addresses) <= MAX_TUNNEL_NODES else {}


def live_nodes(text: str) -> Dict[str, str]:  # noqa: UP006
    """The addresses of nodes with a machine, by node. ``text``: scontrol's lines."""
    return {
        name: address
        for name, address, state in _NODE.findall(text)
        if is_host(address) and not GONE & flags(state)
    }


def flags(state: str) -> Set[str]:  # noqa: UP006
    return set(re.split(r"[+*~#!%$@^-]+", state.upper()))


def period(text: str, age_s: float) -> float:
    """Return the seconds until the next question to slurmctld, without jitter. ``text``: scontrol's
    lines. ``age_s``: how long this machine is up.
    """
    states = [flags(state) for _, _, state in _NODE.findall(text)]
    is_fast = age_s < YOUNG_S and any("POWERING_UP" in state for state in states)
    machines = sum(bool(OF_CLOUD & state) and not GONE & state for state in states)
    shortest = BOOTING_PERIOD_S if is_fast else PERIOD_S
    return max(shortest + PERIOD_PER_NODE_S * len(states), PERIOD_PER_MACHINE_S * machines)


def are_known(text: str, fixed: Iterable[str]) -> bool:
    """Whether all nodes but the ``fixed`` are found by name, as in DNS, and with Slurm's address if
    they have a machine. ``text``: scontrol's lines.
    """
    live, names = live_nodes(text), {name for name, _, _ in _NODE.findall(text)} - set(fixed)
    if len(names) > MAX_TUNNEL_NODES:
        return False
    used_addresses: Set[str] = set()  # noqa: UP006
    for name in sorted(names):
        try:
            addresses = {str(row[4][0]) for row in socket.getaddrinfo(name, None)}
        except OSError:
            return False
        # A DNS may have one address for all names that it does not know.
        if used_addresses & addresses or (name in live and live[name] not in addresses):
            return False
        used_addresses |= addresses
    return True


def is_host(text: str) -> bool:
    """Whether the text is the address of a host. Nodes without a machine may have a name or, from
    us, an address of a multicast network that leads nowhere.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_loopback or address.is_unspecified)


def own_lines(lines: List[str]) -> List[str]:  # noqa: UP006
    """The lines that we have written."""
    return [line for line in lines if line.rstrip().endswith(MARK)]


def with_names(text: str, addresses: Dict[str, str]) -> str:  # noqa: UP006
    """The text of a hosts file with a line for each name, in place of our earlier lines."""
    lines = text.splitlines(True)
    our_lines = set(own_lines(lines))
    site_lines = [line for line in lines if line not in our_lines]
    site_names = {name for line in site_lines for name in line.partition("#")[0].split()[1:]}
    if site_lines and not site_lines[-1].endswith("\n"):
        site_lines[-1] += "\n"
    return "".join(site_lines) + "".join(
        "%s %s %s\n" % (addresses[name], name, MARK)  # noqa: UP031
        for name in sorted(addresses)
        if name not in site_names
    )


def write(path: str, text: str) -> None:
    """Replace the file, atomically if it can be renamed, and keep its mode, owner and labels."""
    path = os.path.realpath(path)
    draft = path + ".slurm-elastic"
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if os.path.exists(path):
        shutil.copystat(path, draft)
        status = os.stat(path)
        os.chown(draft, status.st_uid, status.st_gid)
    try:
        os.replace(draft, path)
    except OSError:
        # A container's hosts file is a mount, which cannot be replaced.
        os.unlink(draft)
        with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.truncate()


class HostsFile:
    """The hosts file with our lines. ``fixed``: addresses that do not come from slurmctld."""

    def __init__(self, path: str, node: str, fixed: Dict[str, str]) -> None:  # noqa: UP006
        self.path = path
        self.fixed = dict(fixed)
        # The line of the machine's own name, which join.sh has written.
        entries = [line.split() for line in own_lines(self.read().splitlines())]
        self.fixed.update({e[1]: e[0] for e in entries if e[1] == node and node not in fixed})

    def read(self) -> str:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def put(self, live: Dict[str, str]) -> None:  # noqa: UP006
        """Write these addresses and the fixed ones, if that changes the file."""
        addresses = dict(self.fixed)
        addresses.update(live)
        before = self.read()
        after = with_names(before, addresses)
        if after != before:
            write(self.path, after)

    def clear(self) -> None:
        """Remove all our lines from the file."""
        before = self.read()
        after = with_names(before, {})
        if after != before:
            write(self.path, after)


def ask(scontrol: str) -> str:
    """The nodes of slurmctld; OSError if it does not answer."""
    try:
        result = subprocess.run(  # noqa: UP022 - the machine's Python may be an old one
            [scontrol, "--oneliner", "show", "nodes"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=COMMAND_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError("scontrol: no answer in %.0f s" % COMMAND_S) from None  # noqa: UP031
    if result.returncode:
        raise OSError("scontrol: " + result.stderr.decode(errors="replace").strip()[-300:])
    return str(result.stdout.decode(errors="replace"))


def say(text: str) -> None:
    """Log the text, with printable characters only."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write("slurm-elastic-names: %s\n" % text)  # noqa: UP031
    sys.stderr.flush()


def follow(hosts: HostsFile, settings: Dict[str, str]) -> None:  # noqa: UP006
    """Keep the file until the machine ends."""
    marks = (settings.get("key_mark") or "").split()
    scontrol = settings.get("scontrol") or "scontrol"
    reported, pause = "", RETRY_S
    live: Dict[str, str] = {}  # noqa: UP006
    started, is_first = time.monotonic(), True
    while True:
        try:
            hosts.put(live)
            # slurmctld answers only after the munge key has come; do not hold up the boot.
            if all(os.path.exists(mark) for mark in marks):
                text = ask(scontrol)
                # Before our lines are there, which would be found, too.
                if is_first and are_known(text, {*hosts.fixed, settings["node"]}):
                    break
                is_first = False
                live, pause = live_nodes(text), period(text, time.monotonic() - started)
                hosts.put(live)
            reported = ""
        except OSError as error:
            # The last addresses stay while slurmctld does not answer.
            if str(error) != reported:
                say(str(error))
            reported = str(error)
            pause = max(pause, min(1.25 * pause, PERIOD_S))
        # Machines that booted together must not ask together.
        time.sleep(pause * (1 + MAX_JITTER * random.random()))  # noqa: S311 - no secret
    say("all names are known, no question to slurmctld is needed")
    while True:
        time.sleep(3600)


def read(path: str) -> Dict[str, str]:  # noqa: UP006
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").partition("=") for line in file if "=" in line]
    return {key.strip(): value.strip() for key, _, value in lines}


def main(argv: List[str]) -> int:  # noqa: UP006
    """Run until SIGTERM."""
    settings = read(argv[1])
    with open(argv[2], encoding="utf-8") as file:
        tunnel = json.loads(file.read().strip() or "{}")
    hosts = HostsFile((argv[3:] or ["/etc/hosts"])[0], settings["node"], in_tunnel(tunnel))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        follow(hosts, settings)
    finally:
        hosts.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
