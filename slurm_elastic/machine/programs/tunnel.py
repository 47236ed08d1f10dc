#!/usr/bin/python3 -I
"""Runs on each cloud machine, as root: ``tunnel.py SETTINGS FACTS``; opens the tunnel to the head.

The machine makes its own key, which never leaves it. It prints the public part on the console,
where the head reads it by the cloud's own means. Or, if user data has a key that is good for
nothing else (``enrol_key``, or ``enrol``, from which it is derived), the machine hands in its
public key through the tunnel itself, once. Until the head answers, each try begins anew, as
WireGuard by itself would wait for seconds between two.

SETTINGS is JSON, FACTS has the machine's ``key=value`` lines. It uses the standard library only,
and any Python from 3.6 on; ip(8) and wg(8), and wireguard-go if the kernel has no WireGuard.
"""

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List  # noqa: UP035 - the machine's Python may be an old one

TRY = 1.0
"""Seconds between two tries while the head does not answer."""
LOOK = 15.0
"""Seconds between two looks at a tunnel that works."""
STALE = 180.0
"""Seconds since the last handshake after which the tunnel counts as down: both ends send now and
then, so there would have been another.
"""
KEEPALIVE = 25
PRINT = 60.0
"""Seconds after which the key is printed again, until the head has it."""
REACH = 3.0
"""Seconds in which the head's port for enrolment must be reached."""
ANSWER = 0.5
"""Seconds that the head has for an answer to the line."""
AGAIN = 10.0
"""Seconds until a key is handed in again if the head does not answer to it."""


def run(*command: str, **more: Any) -> str:  # noqa: ANN401
    """The output of a command; raises if it fails."""
    done = subprocess.run(  # noqa: UP022 - the machine's Python may be an old one
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=30, **more
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise OSError("%s: exit %d: %s" % (" ".join(command[:4]), done.returncode, said))  # noqa: UP031
    return str(done.stdout.decode())


def expand(hostlist: str) -> List[str]:  # noqa: UP006
    """The names in a hostlist that has at most one bracket in each name."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def own_address(settings: Dict[str, Any], facts: Dict[str, str]) -> str:  # noqa: UP006
    """The address of this machine's node: its place in its pool's block of addresses."""
    pool = settings["pools"][facts["pool"]]
    place = expand(pool["nodes"]).index(facts["node"])
    return str(ipaddress.IPv4Address(pool["first"]) + place)


def enrolment_key(launch: str, node: str) -> str:
    """The private key with which this node's machine enrols, derived from what its
    launch was told.
    """
    raw = bytearray(hmac.new(launch.encode(), node.encode(), hashlib.sha256).digest())
    raw[0] &= 248
    raw[31] = raw[31] & 127 | 64
    return base64.b64encode(bytes(raw)).decode()


class Tunnel:
    """The interface and its one peer, the head."""

    def __init__(self, settings: Dict[str, Any], facts: Dict[str, str]) -> None:  # noqa: UP006
        self.settings = settings
        self.facts = facts
        self.name = str(settings["interface"])
        self.key = str(settings["key"])
        self.address = own_address(settings, facts)
        word = facts.get("enrol")
        self.enrols = facts.get("enrol_key") or (enrolment_key(word, facts["node"]) if word else "")
        self.public = ""
        self.printed = float("-inf")
        # The head may know the key already, from an earlier boot.
        self.handed = time.monotonic() if os.path.exists(self.key) else float("-inf")
        self.arranged = False

    def look(self) -> bool:
        """One look at the tunnel; whether the head answers."""
        if not self.public:
            self.public = self.own_key()
            if not self.enrols:  # first of all, as it takes the head a while to read it
                self.announce()
        if not self.is_there():
            self.make()
            self.arranged = False
        if not self.arranged:
            self.arrange()
        if self.is_up():
            return True
        if self.enrols:
            if time.monotonic() - self.handed > AGAIN:
                self.hand_in()
        elif time.monotonic() - self.printed > PRINT:
            self.announce()
        self.connect(self.key)
        return self.wait(TRY)

    def own_key(self) -> str:
        """The public key; the private one is made on the machine's first boot."""
        if not os.path.exists(self.key):
            os.makedirs(os.path.dirname(self.key), exist_ok=True)
            text = run("wg", "genkey")
            self.write(self.key, text)
        with open(self.key) as file:
            return run("wg", "pubkey", input=file.read().encode()).strip()

    def write(self, path: str, text: str) -> None:
        """Write a file that only root may read, whole or not at all."""
        draft = path + ".new"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(draft, path)

    def is_there(self) -> bool:
        """Whether the interface exists. wireguard-go's ends with its program."""
        return any(
            line.split()[1:2] == [self.name + ":"]
            for line in run("ip", "-oneline", "link", "show").splitlines()
        )

    def make(self) -> None:
        """Make the interface, by the kernel if it can."""
        try:
            run("ip", "link", "add", "dev", self.name, "type", "wireguard")
        except OSError as why:
            say("no WireGuard in the kernel, wireguard-go takes its place: %s" % why)  # noqa: UP031
            subprocess.call(
                ["wireguard-go", self.name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def arrange(self) -> None:
        """Set address and routes. If that broke off, in an earlier process, too, it
        is done again.
        """
        mtu = str(self.settings["mtu"])
        run("ip", "address", "replace", self.address + "/32", "dev", self.name)
        run("ip", "link", "set", "dev", self.name, "mtu", mtu, "up")
        for network in self.settings["networks"]:
            run("ip", "route", "replace", network, "dev", self.name, "src", self.address)
        self.arranged = True

    def connect(self, key: str) -> None:
        """Try anew with the private key in that file, as the head's name may have another address
        by now.
        """
        head = self.settings["public_key"]
        run("wg", "set", self.name, "private-key", key, "peer", head, "remove")
        run(
            "wg", "set", self.name, "peer", head, "endpoint", self.settings["endpoint"],
            "persistent-keepalive", str(KEEPALIVE),
            "allowed-ips", ",".join(self.settings["networks"]),
        )  # fmt: skip

    def is_up(self) -> bool:
        """Whether there was a handshake not long ago."""
        lines = run("wg", "show", self.name, "latest-handshakes").split()
        return len(lines) == 2 and time.time() - float(lines[1]) < STALE

    def wait(self, seconds: float) -> bool:
        """Whether the head answers within that time."""
        until = time.monotonic() + seconds
        while not self.is_up():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def announce(self) -> None:
        """Print the public key on the console, for whoever may read that."""
        words = (self.facts["generation"], self.facts["node"], self.public)
        line = "slurm-elastic-tunnel-key %s %s %s\n" % words  # noqa: UP031
        self.printed = time.monotonic()
        sys.stdout.write(line)
        sys.stdout.flush()
        try:
            with open(self.settings["console"], "a") as console:
                console.write(line)
        except OSError as why:
            say("the key cannot be printed on the console: %s" % why)  # noqa: UP031

    def hand_in(self) -> None:
        """Give the head our public key, using the key that is good only for that. Once the head has
        accepted it, it answers to our own key.
        """
        path = self.key + ".enrol"
        self.write(path, self.enrols)
        try:
            self.connect(path)
            if self.wait(TRY):
                said = self.ask(self.public)
                self.handed = time.monotonic()
                say("the head was given the key, and says: " + (said or "nothing yet"))
        except OSError as why:
            say("the key is not handed in: %s" % why)  # noqa: UP031
        finally:
            os.unlink(path)

    def ask(self, line: str) -> str:
        """The head's answer to a line; "" if none comes soon. A head that accepts the key answers
        to that from then on, and so no longer to this connection.
        """
        place = (self.settings["head"], int(self.settings["enrol_port"]))
        with socket.create_connection(place, timeout=REACH) as connection:
            connection.sendall(line.encode() + b"\n")
            connection.settimeout(ANSWER)
            try:
                return connection.makefile().readline().strip()
            except socket.timeout:  # noqa: UP041 - the machine's Python may be an old one
                return ""


def say(text: str) -> None:
    """Write to the journal, in printable characters only."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write("slurm-elastic-tunnel: %s\n" % text)  # noqa: UP031
    sys.stderr.flush()


def read(path: str) -> Dict[str, str]:  # noqa: UP006
    """The facts that the machine was told, read as sh would."""
    with open(path, encoding="utf-8") as file:
        lines = [line.partition("=") for line in file if "=" in line]
    return {key.strip(): "".join(shlex.split(value)) for key, _, value in lines}


def main(argv: List[str]) -> int:  # noqa: UP006
    """For ever: the tunnel is looked after as long as the machine is there."""
    with open(argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    tunnel = Tunnel(settings, read(argv[2]))
    while True:
        up = False
        try:
            up = tunnel.look()
        except Exception as error:  # noqa: BLE001 - without it the machine is of no use
            say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
        if up and not os.path.exists(settings["mark"]):
            say("the tunnel is up, as " + tunnel.address)
            with open(settings["mark"], "w"):
                pass
        time.sleep(LOOK if up else 0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
