#!/usr/bin/python3 -I
"""Runs on each cloud machine, as root: ``tunnel.py SETTINGS FACTS``; opens the tunnel to the head.

The machine makes its own key, which never leaves it. It prints the public key on the console, where
the head reads it through the cloud's API. Alternatively, user data contains a key that allows only
enrolment (``enrol_key``, or ``enrol``, from which the key is derived). The machine then sends its
public key through the tunnel itself, once. Until the head answers, each try configures the peer
from scratch, because WireGuard by itself would wait for seconds between two handshakes.

SETTINGS is JSON, FACTS has the machine's ``key=value`` lines. It uses the standard library only,
and any Python from 3.6 on; ip(8) and wg(8), and wireguard-go if the kernel has no WireGuard. This
text is part of user data, whose size clouds limit: keep it short. Comments and docstrings are left
out there.
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

TRY_S = 1.0
"""Between two tries while the head does not answer."""
CHECK_S = 15.0
"""Between two checks of a tunnel that works."""
STALE_S = 180.0
"""Time without a byte from the head after which the tunnel counts as down. A tunnel that works has
a new handshake every two minutes.
"""
KEEPALIVE_S = 25
CALLED_KEEPALIVE_S = 10
"""The same if the head opens the tunnel. After 30 s of silence the head calls again."""
PRINT_S = 60.0
"""Until the key is printed again, if the head does not answer."""
CONNECT_S = 3.0
"""Time-out to connect to the head's enrolment port."""
ANSWER_S = 0.5
"""Time-out of the head's answer to the line."""
RESEND_S = 10.0
"""Until a key is sent again, if the head does not answer to it."""


def run(*command: str, **options: Any) -> str:  # noqa: ANN401
    """The output of a command; OSError if it fails."""
    result = subprocess.run(  # noqa: UP022 - the machine's Python may be an old one
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=30, **options
    )
    if result.returncode:
        error = result.stderr.decode(errors="replace").strip()
        raise OSError("%s: exit %d: %s" % (" ".join(command[:4]), result.returncode, error))  # noqa: UP031
    return str(result.stdout.decode())


def expand(hostlist: str) -> List[str]:  # noqa: UP006
    """The names in a hostlist that has at most one bracket per name."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def own_address(settings: Dict[str, Any], facts: Dict[str, str]) -> str:  # noqa: UP006
    """The node's address: its place in its pool's block of addresses."""
    pool = settings["pools"][facts["pool"]]
    place = expand(pool["nodes"]).index(facts["node"])
    return str(ipaddress.IPv4Address(pool["first"]) + place)


def enrolment_key(secret: str, node: str) -> str:
    """The private key by which this node's machine enrols, from the launch's secret."""
    key = bytearray(hmac.new(secret.encode(), node.encode(), hashlib.sha256).digest())
    key[0] &= 248
    key[31] = key[31] & 127 | 64
    return base64.b64encode(bytes(key)).decode()


class TunnelInterface:
    """The interface and its one peer, the head."""

    def __init__(self, settings: Dict[str, Any], facts: Dict[str, str]) -> None:  # noqa: UP006
        self.settings = settings
        self.facts = facts
        self.name = str(settings["interface"])
        self.key = str(settings["key"])
        self.address = own_address(settings, facts)
        secret = facts.get("enrol")
        self.enrol_key = facts.get("enrol_key") or (
            enrolment_key(secret, facts["node"]) if secret else ""
        )
        self.public = ""
        self.printed_at = float("-inf")
        # The head may know the key from an earlier boot.
        self.sent_at = time.monotonic() if os.path.exists(self.key) else float("-inf")
        self.is_arranged = False
        self.listened_at = float("-inf")
        self.received = 0
        self.heard_at = float("-inf")

    def look(self) -> bool:
        """Do one round. Return whether the head answers."""
        if not self.public:
            self.public = self.own_key()
            if not self.enrol_key:  # first: it takes the head a while to read it
                self.announce()
        if not self.is_there():
            self.make()
            self.is_arranged = False
        if not self.is_arranged:
            self.arrange()
        if self.is_up():
            return True
        if self.enrol_key:
            if time.monotonic() - self.sent_at > RESEND_S:
                self.hand_in()
        elif time.monotonic() - self.printed_at > PRINT_S:
            self.announce()
        self.seek()
        return self.wait(TRY_S)

    def seek(self) -> None:
        """Call the head, or be ready for its call."""
        if not self.settings.get("port"):
            self.connect(self.key)
        elif time.monotonic() - self.listened_at > STALE_S:
            # WireGuard refuses calls that are older than the last call. Forget the last call, in
            # case the head's clock was set back.
            self.listen()

    def listen(self) -> None:
        """Wait for the head's call. Only the head's key is answered."""
        head = self.settings["public_key"]
        self.received = 0  # of a peer that is configured from scratch
        run(
            "wg", "set", self.name, "listen-port", str(self.settings["port"]),
            "private-key", self.key, "peer", head, "remove",
        )  # fmt: skip
        run(
            "wg", "set", self.name, "peer", head,
            "persistent-keepalive", str(CALLED_KEEPALIVE_S),
            "allowed-ips", ",".join(self.settings["networks"]),
        )  # fmt: skip
        self.listened_at = time.monotonic()

    def own_key(self) -> str:
        """The public key. The private key is made on the machine's first boot."""
        if not os.path.exists(self.key):
            os.makedirs(os.path.dirname(self.key), exist_ok=True)
            text = run("wg", "genkey")
            self.write(self.key, text)
        with open(self.key) as file:
            return run("wg", "pubkey", input=file.read().encode()).strip()

    def write(self, path: str, text: str) -> None:
        """Write a file atomically that only root may read."""
        draft = path + ".new"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(draft, path)

    def is_there(self) -> bool:
        """Whether the interface exists. An interface of wireguard-go ends with its process."""
        return any(
            line.split()[1:2] == [self.name + ":"]
            for line in run("ip", "-oneline", "link", "show").splitlines()
        )

    def make(self) -> None:
        """Create the interface, in the kernel if it can."""
        try:
            run("ip", "link", "add", "dev", self.name, "type", "wireguard")
        except OSError as error:
            say("the kernel has no WireGuard, starting wireguard-go: %s" % error)  # noqa: UP031
            subprocess.call(
                ["wireguard-go", self.name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def arrange(self) -> None:
        """Set address and routes; repeatable, because an earlier try may have failed half-way."""
        mtu = str(self.settings["mtu"])
        run("ip", "address", "replace", self.address + "/32", "dev", self.name)
        run("ip", "link", "set", "dev", self.name, "mtu", mtu, "up")
        for network in self.settings["networks"]:
            run("ip", "route", "replace", network, "dev", self.name, "src", self.address)
        if self.settings.get("port"):
            self.listen()
        self.is_arranged = True

    def connect(self, key: str) -> None:
        """Configure the peer from scratch, because the head's name may have a new address.

        ``key``: file of the private key.
        """
        head = self.settings["public_key"]
        self.received = 0  # of a peer that is configured from scratch
        run("wg", "set", self.name, "private-key", key, "peer", head, "remove")
        run(
            "wg", "set", self.name, "peer", head, "endpoint", self.settings["endpoint"],
            "persistent-keepalive", str(KEEPALIVE_S),
            "allowed-ips", ",".join(self.settings["networks"]),
        )  # fmt: skip

    def is_up(self) -> bool:
        """Whether the head has sent something lately."""
        # Not by the time of the handshake: the machine's clock may be set back after it.
        fields = run("wg", "show", self.name, "transfer").split()
        received = int(fields[1]) if len(fields) == 3 else 0
        if received != self.received:
            self.received = received
            self.heard_at = time.monotonic()
        return received > 0 and time.monotonic() - self.heard_at < STALE_S

    def wait(self, seconds: float) -> bool:
        """Whether the head answers within ``seconds``."""
        until = time.monotonic() + seconds
        while not self.is_up():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def announce(self) -> None:
        """Print the public key on the console."""
        fields = (self.facts["generation"], self.facts["node"], self.public)
        line = "slurm-elastic-tunnel-key %s %s %s\n" % fields  # noqa: UP031
        self.printed_at = time.monotonic()
        sys.stdout.write(line)
        sys.stdout.flush()
        try:
            with open(self.settings["console"], "a") as console:
                console.write(line)
        except OSError as error:
            say("the key cannot be printed on the console: %s" % error)  # noqa: UP031

    def hand_in(self) -> None:
        """Send our public key to the head, using the key that allows only this. A head that accepts
        it answers to our own key from then on.
        """
        path = self.key + ".enrol"
        self.write(path, self.enrol_key)
        try:
            self.connect(path)
            if self.wait(TRY_S):
                answer = self.ask(self.public)
                self.sent_at = time.monotonic()
                say("sent the key to the head, its answer: " + (answer or "none yet"))
        except OSError as error:
            say("cannot send the key to the head: %s" % error)  # noqa: UP031
        finally:
            os.unlink(path)

    def ask(self, line: str) -> str:
        """The head's answer, or "". After accepting the key, the head no longer answers this
        connection.
        """
        address = (self.settings["head"], int(self.settings["enrol_port"]))
        with socket.create_connection(address, timeout=CONNECT_S) as connection:
            connection.sendall(line.encode() + b"\n")
            connection.settimeout(ANSWER_S)
            try:
                return connection.makefile().readline().strip()
            except socket.timeout:  # noqa: UP041 - the machine's Python may be an old one
                return ""


def say(text: str) -> None:
    """Log the text, with printable characters only."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write("slurm-elastic-tunnel: %s\n" % text)  # noqa: UP031
    sys.stderr.flush()


def read(path: str) -> Dict[str, str]:  # noqa: UP006
    """The machine's facts, quoted as for sh."""
    with open(path, encoding="utf-8") as file:
        lines = [line.partition("=") for line in file if "=" in line]
    return {key.strip(): "".join(shlex.split(value)) for key, _, value in lines}


def main(argv: List[str]) -> int:  # noqa: UP006
    """Run until the machine ends."""
    with open(argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    tunnel = TunnelInterface(settings, read(argv[2]))
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
        time.sleep(CHECK_S if up else 0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
