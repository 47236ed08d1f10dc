"""Machines behind a router that masquerades join by a tunnel: real slurmctld, slurmd's, munged's,
sshd's, WireGuard (wireguard-go where the kernel has none) and nftables, on hosts of namespaces. The
shipped join text runs on the machines as it is; EC2 is the sandbox's, which shows their consoles.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.hub.rules import table_name
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers.base.joining import TUNNEL_KEY
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.lab_site import PATIENCE, Site, no_sshd, passes, public_key, site_on
from tests.e2e.world import ledger
from tests.netns import INSIDE, NAT, Lab

pytestmark = pytest.mark.e2e

NARROW = 1340
"""Bytes of the longest packet that a router on the way lets through."""
SILENT = r"no handshake for long: pub1 \({age}\), pub2 \({age}\)"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=2)
    with made.up():
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    pool = {"name": "pub", "nodes": "pub[1-6]", "markets": ["on-demand"], "max_stopped": 1}
    with site_on(lab, sandbox, {}, elastic={"pools": [pool]}) as there:
        yield there


@pytest.fixture(scope="module")
def joined(site: Site) -> dict[str, str]:
    """Two machines with a job behind them: by node, their hosts."""
    said = site.work("batch")
    job = site.sandbox.submit(
        "srun -N2 sh -c 'echo $SLURMD_NODENAME'", "--partition=aws", "-N2", f"--output={said}"
    )
    site.sandbox.wait_job(job, timeout=PATIENCE)
    assert sorted(said.read_text().split()) == ["pub1", "pub2"], "a step on both, of a batch job"
    return site.machines.by_node()


def test_two_node_jobs_run_through_the_tunnel(site: Site, joined: dict[str, str]) -> None:
    addresses = site.addresses()
    assert set(addresses) == set(joined)
    peers = site.peers()
    assert set(peers) == set(addresses.values()), "NodeAddr is the address in the tunnel"
    assert {one.endpoint.partition(":")[0] for one in peers.values()} == {NAT}
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    assert sorted(done.stdout.split()) == ["pub1", "pub2"], "the same from the head itself"


@pytest.mark.release
def test_signals_reach_steps(site: Site, joined: dict[str, str]) -> None:
    ready, got = site.work("ready"), site.work("got")
    step = f"trap 'touch {got}; exit 0' USR1; touch {ready}; while :; do sleep 0.2; done"
    job = site.sandbox.submit(
        f'#!/bin/sh\nsrun -N1 -w pub2 sh -c "{step}"\n', "--partition=aws", "-N2", "-w", "pub[1-2]",
        "--output=/dev/null",
    )  # fmt: skip
    site.sandbox.wait_for(ready.exists, PATIENCE, "the step runs on another node than its srun")
    # To the job: a client of 22.05 that signals a step asks the nodes itself, by their names.
    site.sandbox.run(["scancel", "--signal=USR1", str(job)])
    site.sandbox.wait_job(job, timeout=PATIENCE)
    assert got.exists()


def test_keys_of_machines_are_nowhere_on_the_head(site: Site, joined: dict[str, str]) -> None:
    private = [
        netns.sh("nsenter", "-t", str(pid), "-m", "cat", TUNNEL_KEY).strip()
        for pid in site.machines.pids()
    ]
    assert len({*private}) == 2
    head = (site.place / "secrets" / "wireguard.key").read_text().strip()
    places = {key: _files_with(key, [site.sandbox.layout.dir, site.place]) for key in private}
    assert places == {key: [] for key in private}
    assert _files_with(head, [site.sandbox.layout.dir, site.place]) == ["wireguard.key"]
    book = ledger(site.sandbox)
    try:
        known = {one.key for one in book.tunnels.all()}
    finally:
        book.close()
    public = {public_key(key) for key in private}
    assert known == public, "the search would find what is there"
    assert all(_files_with(key, [site.place]) for key in public)


def _files_with(text: str, places: list[Path]) -> list[str]:
    """The names of files that have it; sockets and what is gone meanwhile are passed over."""
    wanted, found = text.encode(), []
    for path in [path for place in places for path in place.rglob("*") if path.is_file()]:
        with contextlib.suppress(FileNotFoundError):
            found += [path.name] if wanted in path.read_bytes() else []
    return found


def test_peers_are_those_of_live_machines_whatever_was_restarted(
    site: Site, joined: dict[str, str]
) -> None:
    before = set(site.peers())
    site.sandbox.daemon_kill()
    site.hub_stop()
    netns.sh("ip", "link", "del", site.network.interface)
    (site.place / "secrets" / "peers.json").unlink()
    site.hub_start()
    site.sandbox.daemon_start()
    site.sandbox.wait_for(
        lambda: site.answers() and set(site.peers()) == before, PATIENCE, "they are back"
    )
    # Machines ask for slurmctld now and then, and shake hands anew as nobody answers.
    site.sandbox.wait_for(
        lambda: all(one.handshake for one in site.peers().values()), PATIENCE, "they speak again"
    )
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    assert sorted(done.stdout.split()) == ["pub1", "pub2"]


@pytest.mark.release
def test_the_hub_of_another_head_goes_on_where_the_address_moves_to(
    site: Site, joined: dict[str, str]
) -> None:
    """It has the same key, and is told by slurm-elasticd who lives."""
    addresses = set(site.peers())
    site.hub_stop()
    netns.sh("ip", "link", "del", site.network.interface)
    (site.place / "secrets" / "peers.json").unlink()
    with site.lab.moved() as other:
        site.hub_start(other)
        site.sandbox.wait_for(lambda: _speaks_with(site, addresses), PATIENCE, "all have come")
        for address in addresses:
            site.lab.on(other, "ping", "-c", "1", "-W", "9", address)
        site.hub_stop()
        site.lab.ip(other, "link", "del", site.network.interface)
    site.hub_start()
    site.sandbox.wait_for(lambda: _speaks_with(site, addresses), PATIENCE, "they are back")
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    assert sorted(done.stdout.split()) == ["pub1", "pub2"]


def _speaks_with(site: Site, addresses: set[str]) -> bool:
    """Whether the hub has them in, and each has shaken hands with it."""
    if not site.answers():
        return False
    peers = site.peers()
    return set(peers) == addresses and all(one.handshake for one in peers.values())


@pytest.mark.release
def test_doctor_finds_a_tunnel_well(site: Site, joined: dict[str, str]) -> None:
    found = site.doctor()
    not_ok = [f for fs in found.values() for f in fs if f.level is not FindingLevel.OK]
    # A host of tests without a way out has no route to compare the network's with.
    assert [f for f in not_ok if "Network is unreachable" not in f.observed] == []
    assert [f.observed.partition(",")[0] for f in found["tunnel"]] == ["2 machines"]
    addresses = site.addresses().values()
    assert {f.observed for f in found["MTU"]} == {
        f"{a} takes packets of 1380 bytes" for a in addresses
    }
    assert found["way to slurmctld"][0].observed.endswith(f" is {INSIDE}")
    assert "NodeAddr" not in found


@pytest.mark.release
def test_doctor_finds_the_largest_packet_where_larger_ones_are_lost(
    site: Site, joined: dict[str, str]
) -> None:
    """As behind a link whose router tells nobody that a packet was too long."""
    lab = site.lab
    lab.on("router", "nft", "add table ip narrow; add chain ip narrow through { type filter hook"
           f" forward priority 0; }}; add rule ip narrow through ip length > {NARROW} drop")  # fmt: skip
    found = site.doctor()["MTU"]
    assert {f.level for f in found} == {FindingLevel.WRONG}
    said = {int(f.observed.split()[-2]) for f in found}
    advised = {int(f.advice.split()[1].rstrip(",")) for f in found}
    assert all(NARROW - 100 < most <= NARROW - 60 for most in said), (
        "60 bytes of it are the tunnel's"
    )
    assert all(most - 4 < size <= most for most, size in zip(said, advised, strict=True))
    netns.sh("ip", "link", "set", site.network.interface, "mtu", str(min(advised)))
    for address in site.addresses().values():
        assert passes(address, min(advised))
    lab.on("router", "nft", "delete", "table", "ip", "narrow")
    netns.sh("ip", "link", "set", site.network.interface, "mtu", str(site.network.mtu))
    assert {f.level for f in site.doctor()["MTU"]} == {FindingLevel.OK}


@pytest.mark.release
def test_doctor_names_machines_that_are_silent(site: Site, joined: dict[str, str]) -> None:
    old = site.doctor(later=1000.0)["tunnel"]
    assert [f.level for f in old] == [FindingLevel.WRONG]
    assert re.fullmatch(SILENT.format(age=r"\d+m ago"), old[0].observed), old[0].observed
    site.lab.ip(joined["pub2"], "link", "set", "vrouter", "down")
    site.hub_stop()
    netns.sh("ip", "link", "del", site.network.interface)
    site.hub_start()
    site.sandbox.wait_for(lambda: site.shakes("pub1"), PATIENCE, "one is back")
    (silent,) = site.doctor()["tunnel"]
    assert (silent.level, silent.observed) == (
        FindingLevel.WRONG,
        "no handshake for long: pub2 (never)",
    )
    site.lab.ip(joined["pub2"], "link", "set", "vrouter", "up")
    site.lab.ip(joined["pub2"], "route", "replace", "default", "via", "10.0.2.1")
    site.sandbox.wait_for(lambda: site.shakes("pub2"), PATIENCE, "both are")


@pytest.fixture(scope="module")
def removed(site: Site, joined: dict[str, str]) -> str:
    """The address of pub2, whose machine Slurm has powered down: it was stopped."""
    address = site.addresses()["pub2"]
    assert site.reaches(joined["pub1"])
    assert site.reaches(joined["pub2"])
    site.sandbox.run(["scontrol", "update", "nodename=pub2", "state=power_down"])
    site.sandbox.wait_for(lambda: address not in site.peers(), PATIENCE, "its peer is dropped")
    return address


def test_a_removed_machine_is_shut_out(site: Site, joined: dict[str, str], removed: str) -> None:
    assert not site.reaches(joined["pub2"]), "the machine runs still, and its packets are dropped"
    assert site.reaches(joined["pub1"])
    assert removed not in netns.sh("nft", "list", "table", "inet", table_name(site.network))


@pytest.mark.release
@pytest.mark.usefixtures("removed")
def test_a_stopped_machine_comes_back_with_the_key_on_its_disk(site: Site) -> None:
    (name,) = [n for n, node in site.machines.nodes.items() if node == "pub2"]
    there = site.sandbox.ec2.state().machines
    assert {m.state for m in there if m.id == name} <= {"stopping", "stopped"}
    key = public_key(site.machines.tunnel_key(name))
    assert key not in {one.key for one in site.peers().values()}
    site.machines.cut(name)
    job = site.sandbox.submit("hostname", "--partition=aws", "-w", "pub2", "--output=/dev/null")
    fields = site.sandbox.wait_job(job, timeout=PATIENCE)
    assert fields["JobState"] == "COMPLETED"
    peers = site.peers()
    assert key in {one.key for one in peers.values()}
    assert len(peers) == 2
    assert site.machines.nodes[name] == "pub2", "no other machine was started"
    assert len(site.machines.nodes) == 2
