"""A head that no machine can reach, not even by UDP (nftables): it opens the tunnels itself, to the
machines' public addresses, with the keys that their consoles show. Real slurmctld, slurmd's, munged's,
sshd's and WireGuard on a head, a router and two machines that are namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import missing

from slurm_elastic.machine.hub.wire import PeerSeen
from slurm_elastic.machine.programs.names import MARK
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.lab_site import INTERFACE, PATIENCE, SLURMCTLD, Site, no_sshd, public_key, site_on
from tests.e2e.world import ledger
from tests.netns import HEAD, INSIDE, NAT, Lab

pytestmark = pytest.mark.e2e

SHUT = f"""add table inet shut
add chain inet shut input {{ type filter hook input priority -10; }}
add rule inet shut input iifname {{ "lo", "{INTERFACE}" }} accept
add rule inet shut input ct state established,related accept
add rule inet shut input counter drop
"""
OVER_TUNNEL = f"""export UCX_NET_DEVICES={INTERFACE} UCX_TLS=tcp,self
export OMPI_MCA_btl_tcp_if_include={INTERFACE} OMPI_MCA_oob_tcp_if_include={INTERFACE}
"""
"""Both kinds of MPI choose among a machine's interfaces (docs/network.md). UCX_TLS: hosts that are
namespaces have one kernel, which UCX takes for shared memory.
"""
ELSEWHERE = "192.0.2.9"
"""The head's later address."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=2)
    with made.up():
        netns.sh("sh", "-c", f"echo '{SHUT}' | nft -f -")
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    pool = {"name": "pub", "nodes": "pub[1-6]", "markets": ["on-demand"]}
    network = {"opened_by": "head"}
    with site_on(lab, sandbox, network, elastic={"pools": [pool]}) as there:
        yield there


@pytest.fixture(scope="module")
def joined(site: Site) -> dict[str, str]:
    """Two machines with a job behind them: by node, their hosts."""
    said = site.work("batch")
    job = site.sandbox.submit(
        "srun -N2 sh -c 'echo $SLURMD_NODENAME'", "--partition=aws", "-N2", f"--output={said}"
    )
    site.sandbox.wait_job(job, timeout=PATIENCE)
    assert sorted(said.read_text().split()) == ["pub1", "pub2"]
    return site.machines.by_node()


def _public(site: Site) -> set[str]:
    """The machines' public addresses."""
    return {site.machines.public_address(name) for name in site.machines.nodes}


def _srun(site: Site) -> list[str]:
    done = site.sandbox.run(["srun", "-p", "aws", "-N2", "hostname"], user="nobody")
    return sorted(done.stdout.split())


def test_two_node_jobs_run_through_tunnels_that_the_head_opened(
    site: Site, joined: dict[str, str]
) -> None:
    peers = site.peers()
    assert set(peers) == set(site.addresses().values()), "NodeAddr is the address in the tunnel"
    assert {one.endpoint for one in peers.values()} == {f"{a}:51820" for a in _public(site)}
    assert _srun(site) == ["pub1", "pub2"], "from the head itself"


def test_nobody_else_reaches_the_head(site: Site, joined: dict[str, str]) -> None:
    for host in joined.values():
        assert not site.reaches(host, SLURMCTLD, HEAD), "past the tunnel"
        assert site.reaches(host, SLURMCTLD, INSIDE), "through the tunnel"


def test_the_head_takes_the_key_of_the_console_alone(site: Site, joined: dict[str, str]) -> None:
    keys = {public_key(site.machines.tunnel_key(name)) for name in site.machines.nodes}
    assert {one.key for one in site.peers().values()} == keys
    book = ledger(site.sandbox)
    try:
        assert {one.key for one in book.tunnels.all()} == keys
        kinds = {d.kind for node in joined for d in book.decisions.about(node)}
    finally:
        book.close()
    assert "enrolled" in kinds
    assert "not-enrolled" not in kinds


def _since(site: Site, before: dict[str, PeerSeen]) -> bool:
    """Whether each machine has sent something since."""
    if not site.answers():
        return False
    peers = site.peers()
    return set(peers) == set(before) and all(
        one.received > before[address].received or one.handshake > before[address].handshake
        for address, one in peers.items()
    )


@pytest.mark.release
def test_the_head_calls_again_after_its_hub_and_its_link_were_lost(
    site: Site, joined: dict[str, str]
) -> None:
    before = site.peers()
    site.hub_stop()
    netns.sh("ip", "link", "del", INTERFACE)
    site.hub_start()
    site.sandbox.wait_for(
        lambda: site.answers() and all(p.handshake for p in site.peers().values()),
        PATIENCE, "both answer",
    )  # fmt: skip
    assert set(site.peers()) == set(before)
    site.sandbox.wait_for(lambda: _srun(site) == ["pub1", "pub2"], PATIENCE, "a job runs")


@pytest.mark.release
def test_machines_follow_the_head_to_another_address(site: Site, joined: dict[str, str]) -> None:
    before, lab = site.peers(), site.lab
    lab.ip("head", "address", "del", f"{HEAD}/24", "dev", "vrouter")
    lab.ip("head", "address", "add", f"{ELSEWHERE}/24", "dev", "vrouter")
    for address in _public(site):
        lab.ip("head", "route", "replace", f"{address}/32", "via", NAT)
    try:
        site.sandbox.wait_for(lambda: _since(site, before), PATIENCE, "both answer there")
        assert _srun(site) == ["pub1", "pub2"]
    finally:
        lab.ip("head", "address", "add", f"{HEAD}/24", "dev", "vrouter")


def test_names_of_other_nodes_resolve_on_machines(site: Site, joined: dict[str, str]) -> None:
    own = Path("/etc/hosts").read_text()
    lines = {f"{address} {node} {MARK}" for node, address in site.addresses().items()}
    for text in site.machines.hosts_files():
        assert text.startswith(own), "what else is there stays as it was"
        assert lines <= set(text.splitlines())


@pytest.mark.release
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_mpi_runs_by_names_over_two_machines(site: Site, joined: dict[str, str], mpi: str) -> None:
    if reason := missing(f"mpicc.{mpi}", f"mpirun.{mpi}"):
        pytest.skip(reason)
    program, said = site.work(f"ring-{mpi}"), site.work(f"said-{mpi}")
    netns.sh(f"mpicc.{mpi}", "-o", str(program), str(Path(__file__).with_name("ring.c")))
    job = site.sandbox.submit(
        f"#!/bin/sh\n{OVER_TUNNEL}getent hosts pub1 pub2\nmpirun.{mpi} -n 2 {program}\n",
        "--partition=aws", "-N2", "--ntasks-per-node=1", "--time=5", f"--output={said}",
        user="nobody",
    )  # fmt: skip
    fields = site.sandbox.wait_job(job, timeout=PATIENCE)
    text = said.read_text()
    assert fields["JobState"] == "COMPLETED", text
    assert "rank 0 of 2 on pub1 heard b sum 1" in text
    assert "rank 1 of 2 on pub2 heard a sum 1" in text


@pytest.mark.release
def test_a_rebooted_machine_is_called_again(site: Site, joined: dict[str, str]) -> None:
    (name,) = [name for name, node in site.machines.nodes.items() if node == "pub2"]
    address = site.addresses()["pub2"]
    key = site.peers()[address].key
    shaken = site.peers()[address].handshake
    site.machines.cut(name)
    site.sandbox.wait_for(
        lambda: site.peers()[address].handshake > shaken, PATIENCE, "a new handshake"
    )
    assert site.peers()[address].key == key, "the one on its disk"
    site.sandbox.wait_for(lambda: site.reaches(joined["pub2"]), PATIENCE, "it reaches slurmctld")
