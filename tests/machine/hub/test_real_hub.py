"""The hub with nft, wg and a real interface, in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import patience

from tests import netns

pytestmark = pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")

SCRIPT = """
import json, subprocess, sys
import msgspec
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.machine.hub.service import Hub
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, Show
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer

place, peers = sys.argv[1], json.loads(sys.argv[2])
hub = Hub(Network(endpoint="h:51820", socket=f"{place}/hub.sock",
                  public_key=f"{place}/wireguard.pub"), "/dev/null")

def asked(message):
    return msgspec.json.decode(hub.answer(msgspec.json.encode(message)), type=HubAnswer)

hub.start()
key = lambda: subprocess.run(["sh", "-c", "wg genkey | wg pubkey"], capture_output=True,
                             text=True, check=True).stdout.strip()
keys = {name: key() for name in ("old", "new", "coming")}
keys["spoilt"] = keys["old"][:42] + chr(ord(keys["old"][42]) + 1) + "="
try:
    for step in peers:
        answer = asked(Apply(peers=tuple(
            TunnelPeer(address=address, key=keys[name], live=live) for address, name, live in step)))
        shown = sorted(peer.addresses[0] for peer in asked(Show()).peers)
        print(json.dumps([answer.ok, answer.left_out, shown]))
finally:
    subprocess.run(["ip", "link", "delete", "wg-se"], check=False)
"""


def admitted(place: Path, *steps: list[tuple[str, str, bool]]) -> list[Any]:
    """For each list of peers (address, name of a key, live): the answer and who is in then."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-c", SCRIPT, place, json.dumps(steps)],
        capture_output=True, text=True, check=False, timeout=patience(120),
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_bad_key_and_a_stolen_one_cost_their_machine_only(tmp_path: Path) -> None:
    old, spoilt = ("10.99.0.9", "old", True), ("10.99.0.66", "spoilt", True)
    new, coming = ("10.99.0.20", "new", True), ("10.99.0.30", "coming", False)
    thief = ("10.99.0.31", "coming", True)
    first, second, third = admitted(tmp_path, [old], [old, spoilt, new], [thief, coming, new])
    assert first == [True, {}, ["10.99.0.9/32"]]
    assert second[0]
    assert list(second[1]) == ["10.99.0.66"]
    assert second[2] == ["10.99.0.20/32", "10.99.0.9/32"]
    # The machine whose end is decided is shut out although a list has a key twice.
    twice = "another machine has this address or key"
    assert third == [True, {"10.99.0.31": twice}, ["10.99.0.20/32", "10.99.0.30/32"]]
