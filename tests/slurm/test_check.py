"""``conf check``: what it proves, what it refuses, and that nothing outside is ever contacted."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import answers, siteconf
from slurm_elastic.slurm.conf import check, dryrun, plan
from slurm_elastic.slurm.conf import isolated as isolated_program
from slurm_elastic.slurm.conf.plan import ConfPlan
from tests.slurm import site_cases

pytestmark = unless("slurmctld")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-check-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def planned(name: str, root: Path, extra: str = "") -> ConfPlan:
    conf = site_cases.copy(name, root)
    if name == "topology":
        site_cases.add_topology(conf)
    if extra:
        conf.write_text(f"{conf.read_text()}\n{extra}\n")
    return plan.make(site_cases.config(name, conf))


class Listener:
    """Stands where the site's slurmd would be, and counts who calls."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.called = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.called.set()
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.close()


@site_cases.ISOLATED
@pytest.mark.parametrize("name", site_cases.in_tiers())
def test_each_site_reads_the_same_with_the_fragment(name: str, root: Path) -> None:
    report = check.check(planned(name, root))
    assert report.full
    assert "the same with and without the fragment" in report.lines[-1]


SEEKS = 10.0
"""Seconds for a slurmctld to call its nodes; measured: 1 to 5."""


def listening_site(root: Path, listener: Listener) -> ConfPlan:
    """One node, whose slurmd is the listener."""
    conf = site_cases.copy("small", root)
    text = "\n".join(line for line in conf.read_text().split("\n") if "n[1-4]" not in line)
    conf.write_text(
        f"{text}\nNodeName=real NodeAddr=127.0.0.1 Port={listener.port} CPUs=1\n"
        "PartitionName=batch Nodes=real Default=YES\n"
    )
    return plan.make(site_cases.config("small", conf))


@site_cases.ISOLATED
def test_no_slurmd_of_the_site_is_contacted(root: Path, listener: Listener) -> None:
    one = listening_site(root, listener)
    wrapper = dryrun.isolation()
    assert wrapper
    done = dryrun.run(one.config.slurm, one.site, one.fragment, wrapper, linger=SEEKS)
    assert done.failure is None
    assert not listener.called.is_set()


def test_without_the_isolation_the_contact_is_noticed(root: Path, listener: Listener) -> None:
    one = listening_site(root, listener)
    done = dryrun.run(one.config.slurm, one.site, one.fragment, wrapper=(), linger=SEEKS)
    assert done.failure is None
    assert listener.called.is_set()


@pytest.mark.parametrize("namespaces", [isolated_program.namespaces(), ""])
def test_the_hosts_own_network_is_never_touched(namespaces: str, root: Path) -> None:
    hosts = Path("/etc/hosts").read_bytes()
    program = isolated_program.__file__
    done = subprocess.run(
        (sys.executable, "-I", program, root, "/bin/false", "/bin/false", "--outside", namespaces),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "the host's own; nothing was done" in done.stderr
    assert Path("/etc/hosts").read_bytes() == hosts


@site_cases.ISOLATED
def test_check_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory for temporary files of its own: other checks may run at the same time."""
    mine = root / "tmp"
    mine.mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(mine))
    hosts = Path("/etc/hosts").read_bytes()
    check.check(planned("small", root))
    assert list(mine.iterdir()) == []
    assert Path("/etc/hosts").read_bytes() == hosts


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_slurm_user_gets_only_the_state_directory_of_the_copy(root: Path) -> None:
    """Root goes on writing beside it: a link of SlurmUser's must not direct that."""
    one = planned("small", root)
    (root / "slurmctld").write_text(f"#!/bin/sh\nstat -c '%U %a' . state >{root}/seen\nexit 1\n")
    (root / "slurmctld").chmod(0o755)
    settings = replace(one.config.slurm, sbin_dir=str(root))
    dryrun.run(settings, one.site, one.fragment, dryrun.isolation() or ())
    assert (root / "seen").read_text().split("\n")[:2] == ["root 755", "slurm 755"]


@site_cases.ISOLATED
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmctld runs as another user for root only")
def test_the_proof_is_made_whatever_roots_umask(root: Path) -> None:
    before = os.umask(0o077)
    try:
        report = check.check(planned("small", root))
    finally:
        os.umask(before)
    assert report.full, report.lines


@site_cases.ISOLATED
def test_a_slurm_without_auth_none_gets_a_munged_of_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dryrun, "has_plugin", lambda *_: False)
    assert check.check(planned("small", root)).full


@site_cases.ISOLATED
def test_slurmd_timeout_is_read_as_slurmctld_tells_it(root: Path) -> None:
    one = planned("small", root, "SlurmdTimeout=0")
    done = dryrun.run(one.config.slurm, one.site, None, dryrun.isolation() or ())
    told = done.config["SlurmdTimeout"]
    assert told == "0 sec"
    assert answers.slurmd_timeout(f"SlurmdTimeout           = {told}") == 0


@site_cases.ISOLATED
def test_nothing_leaks_from_the_sites_defaults_into_our_nodes(root: Path) -> None:
    one = planned("private", root)
    wrapper = dryrun.isolation()
    assert wrapper
    done = dryrun.run(one.config.slurm, one.site, one.fragment, wrapper)
    node, gpu = done.nodes["op1"], done.nodes["pubgpu1"]
    assert (node["Gres"], gpu["Gres"]) == ("(null)", "gpu:1")
    assert (node["CPUTot"], node["Sockets"], node["CoresPerSocket"]) == ("2", "1", "2")
    assert "CoreSpecCount" not in node
    assert "MemSpecLimit" not in node
    assert node["AvailableFeatures"] == "onprem,hall"
    partition = done.partitions["onprem"]
    assert partition["Hidden"] == "NO"
    assert partition["MaxNodes"] == "UNLIMITED"
    assert partition["LLN"] == "NO"
    # 24.11 does not show it where, as here, no SuspendProgram is set.
    assert partition.get("SuspendTime", "600") == "600"


SIZES = (
    "Sockets=2 ThreadsPerCore=2 RealMemory=7800 State=UNKNOWN",
    "Sockets=2",
    "SocketsPerBoard=2",
    "Boards=1 SocketsPerBoard=2",
    "Boards=2 Sockets=4",
    "Boards=2",
    "CoresPerSocket=4",
    "Sockets=2 CoresPerSocket=4",
    "CPUs=16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2",
    "ThreadsPerCore=2",
    "Procs=8",
)


def with_default_sizes(root: Path, sizes: str) -> ConfPlan:
    nodes = f"NodeName=DEFAULT {sizes}\nNodeName=n[1-4] CoresPerSocket=4"
    return own_nodes(root, nodes, "n[1-4]")


@site_cases.ISOLATED
@pytest.mark.parametrize("sizes", SIZES)
def test_our_nodes_have_the_cpus_and_memory_of_their_pool(root: Path, sizes: str) -> None:
    one = with_default_sizes(root, sizes)
    done = dryrun.run(one.config.slurm, one.site, one.fragment, dryrun.isolation() or ())
    shown = {name: (node["CPUTot"], node["RealMemory"]) for name, node in done.nodes.items()}
    for pool in one.pools:
        for node in pool.nodes:
            assert shown[node] == (str(pool.cpus), str(pool.real_memory))


@site_cases.ISOLATED
def test_nodes_of_ours_with_other_sizes_than_their_pool_are_refused(root: Path) -> None:
    one = with_default_sizes(root, "Sockets=2")
    spoiled = re.sub(
        r"CoresPerSocket=\d+ ", "", one.fragment.replace("RealMemory=3840", "RealMemory=9")
    )
    with pytest.raises(ConfigError) as refused:
        check.check(replace(one, fragment=spoiled))
    text = str(refused.value)
    assert "pool spot: CPUTot of its node pub1 would be 1, expected 2" in text
    assert "pool spot: RealMemory of its node pub1 would be 9, expected 3840" in text
    assert "pub2" not in text


def test_where_namespaces_are_forbidden_the_lesser_check_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dryrun, "isolation", lambda: None)
    report = check.check(planned("small", root))
    assert not report.full
    assert report.lines == (
        "Slurm's parser reads slurm.conf with the fragment",
        "lesser check, no throw-away slurmctld: unshare may not make a network namespace here",
    )


def test_a_key_that_slurm_does_not_know_is_named_with_its_line(root: Path) -> None:
    one = planned("own-lua", root, "NoSuchOption=1")
    with pytest.raises(ConfigError, match=r"etc/slurm.conf:22: Slurm does not know NoSuch"):
        check.check(one)


@site_cases.ISOLATED
def test_a_site_that_slurmctld_itself_refuses_gets_the_lesser_check(root: Path) -> None:
    report = check.check(planned("small", root, "PartitionName=odd Nodes=nowhere"))
    assert not report.full
    assert "it does not start on slurm.conf as it is" in report.lines[-1]
    assert report.failure in report.lines[-1]
    assert report.failure


def own_nodes(root: Path, nodes: str, names: str) -> ConfPlan:
    """The small site with other nodes."""
    conf = site_cases.copy("small", root)
    text = "\n".join(line for line in conf.read_text().split("\n") if "n[1-4]" not in line)
    conf.write_text(f"{text}\n{nodes}\nPartitionName=batch Nodes={names} Default=YES\n")
    return plan.make(site_cases.config("small", conf))


@site_cases.ISOLATED
@pytest.mark.parametrize(
    "nodes",
    [
        "NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[7001-7002] CPUs=1",
        f"NodeName=n[1-2] NodeHostname={socket.gethostname()} Port=[7001-7002] CPUs=1",
        "NodeName=n1 Port=7001 CPUs=1\nNodeName=n2 CPUs=1\nNodeName=localhost Port=7003 CPUs=1",
    ],
)
def test_several_nodes_of_the_site_may_be_this_host(root: Path, nodes: str) -> None:
    assert check.check(own_nodes(root, nodes, "n[1-2]")).full


def test_a_node_that_slurm_leaves_alone_is_told_before_slurmctld_runs(root: Path) -> None:
    """slurmctld starts on such a slurm.conf as it is, and with no further node of whatever kind."""
    with pytest.raises(ConfigError, match=r"slurm.conf:14: a first node named localhost"):
        own_nodes(root, "NodeName=localhost CPUs=1", "localhost")


@site_cases.ISOLATED
def test_slurm_takes_no_second_node_after_a_first_named_localhost(root: Path) -> None:
    """The refusal is right about Slurm: slurmctld refuses a plan made without it."""
    one = own_nodes(root, "NodeName=n1 NodeHostname=localhost CPUs=1", "n1")
    lone = Path(one.site.path).read_text().replace("NodeName=n1 NodeHostname=", "NodeName=")
    Path(one.site.path).write_text(lone.replace("Nodes=n1", "Nodes=localhost"))
    site = siteconf.read(one.site.path)
    wrapper = dryrun.isolation() or ()
    assert dryrun.run(one.config.slurm, site, None, wrapper).failure is None
    refused = dryrun.run(one.config.slurm, site, one.fragment, wrapper).failure
    assert "Duplicated NodeHostName" in (refused or "")


@site_cases.ISOLATED
def test_a_change_of_the_sites_own_node_is_refused(root: Path) -> None:
    one = planned("small", root)
    spoiled = replace(one, fragment=one.fragment + "SchedulerType=sched/builtin\n")
    with pytest.raises(ConfigError, match="option SchedulerType would change from sched/backfill"):
        check.check(spoiled)


def test_topology_without_our_nodes_prints_the_lines_to_add(root: Path) -> None:
    conf = site_cases.copy("topology", root)
    with pytest.raises(ConfigError) as refused:
        check.check(plan.make(site_cases.config("topology", conf)))
    *_, aws, onprem, core = str(refused.value).splitlines()
    assert aws.strip() == site_cases.TOPOLOGY_LINES[0]
    assert onprem.strip() == site_cases.TOPOLOGY_LINES[1]
    assert core.strip().startswith(site_cases.TOPOLOGY_LINES[2])
    assert core.endswith("topology.conf:4")


def add_as_printed(path: Path, printed: str) -> None:
    """Edit topology.conf by the printed lines alone, as an admin does."""
    lines = path.read_text().splitlines()
    for line in printed.splitlines()[1:]:
        text, _, place = line.strip().partition("    # instead of ")
        if place:
            lines[int(place.rpartition(":")[2]) - 1] = ""
        lines.append(text)
    path.write_text("\n".join((*lines, "")))


@site_cases.ISOLATED
def test_slurmctld_starts_with_the_printed_lines_also_after_a_pool_grew(root: Path) -> None:
    one = planned("topology", root)
    path = Path(one.site.path).parent / "topology.conf"
    pools = [
        replace(pool, nodes=pool.nodes.replace("pub[1-8]", "pub[1-9]")) for pool in one.config.pools
    ]
    grown = plan.make(replace(one.config, pools=tuple(pools)))
    with pytest.raises(ConfigError) as refused:
        check.check(grown)
    add_as_printed(path, str(refused.value))
    assert check.check(grown).full
