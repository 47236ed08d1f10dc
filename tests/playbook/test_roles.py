"""The playbook's roles, really run: on Debians with a systemd of their own, twice, one head and two."""

from __future__ import annotations

import base64
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually

from tests.package.head import head
from tests.playbook.bed import Bed, debian, tools

pytestmark = [
    pytest.mark.release,
    pytest.mark.e2e,
    pytest.mark.skipif(bool(tools()), reason=tools()),
]
SITE = """\
ClusterName=lab
SlurmctldHost=head1(10.88.1.1)
SlurmctldHost=head2(10.88.2.2)
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldParameters=enable_configless
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=10.88.1.2 CPUs=1 RealMemory=200 State=UNKNOWN
PartitionName=batch Nodes=n1 Default=YES State=UP
"""
ELASTIC = """\
cluster: {name: lab}
allow: {groups: [users]}
clouds:
  - {name: hall, provider: local, location: on-premises}
pools:
  - {name: hall, cloud: hall, nodes: "h[1-2]", cpus: 1, memory: 1G, slurmd_port: 17000}
"""
INSTALL = """
apt-get install -qq -y --no-install-recommends slurmctld slurm-client slurm-wlm-basic-plugins munge >/dev/null
printf '%s' '{conf}' >/etc/slurm/slurm.conf
echo {key} | base64 -d >/etc/munge/munge.key
install -d -o slurm -g slurm /var/lib/slurm/slurmctld
systemctl restart munge slurmctld
"""
SERVICES = ("slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog")
KEY = bytes(range(128)) * 8
NODE = {"slurm_elastic_node": ["node"]}
HEAD = {"slurm_elastic_head": ["head1"]}
HEADS = {"slurm_elastic_head": ["head1", "head2"]}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    place = Path(tempfile.mkdtemp(prefix="se-roles-", dir="/tmp"))
    place.chmod(0o755)  # SlurmUser of the heads has a directory there
    (place / "munge.key").write_bytes(KEY)
    (place / "slurm-elastic.yaml").write_text(ELASTIC)
    made, root = Bed(place), debian(sys.executable)
    with contextlib.ExitStack() as stack:
        for name in ("head1", "head2", "node"):
            made.add(name, stack.enter_context(head(root, place, masked=())))
        made.link("head1", "node", "10.88.1")
        made.link("head1", "head2", "10.88.2")
        # slurm.conf has the address by which the node reaches the first head.
        made.machines["head2"].run("ip", "route", "add", "10.88.1.0/24", "via", "10.88.2.1")
        key = base64.b64encode(KEY).decode()
        for name in ("head1", "head2"):
            made.machines[name].shell(INSTALL.format(conf=SITE, key=key), seconds=300)
        yield made
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def variables(bed: Bed) -> dict[str, str]:
    return {
        "slurm_elastic_config": f"{bed.place}/slurm-elastic.yaml",
        "slurm_elastic_munge_key": f"{bed.place}/munge.key",
        "slurm_elastic_local": "true",
    }


def running(bed: Bed, name: str) -> list[str]:
    units = (*SERVICES, "slurm-elastic-local")
    told = bed.machines[name].run("systemctl", "is-active", *units, check=False).split()
    return [unit for unit, word in zip(units, told, strict=True) if word == "active"]


def test_a_node_has_all_that_joining_needs_and_a_second_run_changes_nothing(
    bed: Bed, variables: dict[str, str]
) -> None:
    mine = variables | {"slurm_elastic_head": "head1"}
    first, again = bed.played(NODE, mine), bed.played(NODE, mine)
    assert first["node"] > 5
    assert again["node"] == 0
    node = bed.machines["node"]
    assert node.run("systemctl", "is-enabled", "slurmd", check=False).strip() == "disabled"
    assert node.run("systemctl", "is-active", "slurmd", check=False).strip() == "inactive"
    assert node.run("stat", "-c", "%U %a", "/etc/munge/munge.key").strip() == "munge 400"
    assert node.run("/usr/local/sbin/slurm-elastic-gpu-check", "--gres", "").strip() == ""


def test_a_head_has_slurm_confs_part_and_the_services(bed: Bed, variables: dict[str, str]) -> None:
    assert bed.played(HEAD, variables)["head1"] > 10
    one = bed.machines["head1"]
    assert "NodeName=h[1-2]" in one.path("/etc/slurm/slurm-elastic.conf").read_text()
    assert running(bed, "head1") == [*SERVICES, "slurm-elastic-local"]
    assert "hall" in one.run("sinfo", "-h", "-o", "%P")


def test_a_machine_of_the_nodes_image_joins_the_head(bed: Bed) -> None:
    """As cloud-init would: who it is comes with its user data."""
    one, node = bed.machines["head1"], bed.machines["node"]
    node.shell(
        # Its slurmd wants the kind of control groups that this host has.
        "mkdir -p /run/slurm-elastic /etc/systemd/system/slurmd.service.d; echo n1 >/run/slurm-elastic/node;"
        " printf '[Service]\\nBindPaths=/run/host-cgroup:/sys/fs/cgroup\\n'"
        " >/etc/systemd/system/slurmd.service.d/host.conf; systemctl daemon-reload; systemctl restart munge slurmd"
    )
    eventually(lambda: "idle" in one.run("sinfo", "-h", "-n", "n1", "-o", "%T"), 60, node.console)
    assert one.run("srun", "-w", "n1", "hostname").strip() == "node"


def test_a_second_run_changes_nothing_and_a_second_head_has_the_same_identity_and_no_services(
    bed: Bed, variables: dict[str, str]
) -> None:
    one, other = bed.machines["head1"], bed.machines["head2"]
    both = bed.played(HEADS, variables)
    assert both["head1"] == 0
    assert both["head2"] > 10
    assert bed.played(HEADS, variables)["head2"] == 0
    assert running(bed, "head1") == [*SERVICES, "slurm-elastic-local"]
    assert running(bed, "head2") == []
    assert "enabled" not in other.run("systemctl", "is-enabled", *SERVICES, check=False).split()
    paths = ("/etc/slurm-elastic/cluster-uuid", "/etc/slurm/slurm-elastic.conf")
    for path in paths:
        assert one.path(path).read_text() == other.path(path).read_text()


def test_services_do_not_move_away_from_their_ledger(bed: Bed, variables: dict[str, str]) -> None:
    done = bed.play(HEADS, variables | {"slurm_elastic_services_host": "head2"})
    assert done.returncode != 0
    assert "found the ledger /var/lib/slurm-elastic/ledger.db on head1, expected it on head2" in (
        " ".join(done.stdout.split())
    )
    assert running(bed, "head1") == [*SERVICES, "slurm-elastic-local"]
    assert running(bed, "head2") == []


def test_a_run_that_leaves_a_head_out_is_refused(bed: Bed, variables: dict[str, str]) -> None:
    done = bed.play(HEADS, variables, "--limit", "head2")
    assert done.returncode != 0
    assert "found the services for head1 in a run of head2" in " ".join(done.stdout.split())


def test_a_head_of_another_identity_is_refused(bed: Bed, variables: dict[str, str]) -> None:
    path = bed.machines["head2"].path("/etc/slurm-elastic/cluster-uuid")
    mine = path.read_text()
    path.write_text("7f3b4c1e-9d2a-4e5b-8c6f-0a1b2c3d4e5f\n")
    done = bed.play(HEADS, variables)
    path.write_text(mine)
    assert done.returncode != 0
    told = " ".join(done.stdout.split())
    assert f"found {mine.strip()} and 7f3b4c1e-9d2a-4e5b-8c6f-0a1b2c3d4e5f on the heads" in told


def test_a_fresh_host_in_the_place_of_the_first_head_gets_the_identity_of_the_other(
    bed: Bed, variables: dict[str, str]
) -> None:
    """Its `conf install` would make a new one, with which all paid machines would be nobody's."""
    paths = [bed.machines[n].path("/etc/slurm-elastic/cluster-uuid") for n in ("head1", "head2")]
    known = paths[1].read_text()
    paths[0].unlink()
    bed.played(HEADS, variables)
    assert [path.read_text() for path in paths] == [known, known]


SHARED = "/srv/packages/slurmctld"
"""As each machine sees a directory of the bed's place."""


def test_two_heads_that_share_a_directory_run_the_services_both(
    bed: Bed, variables: dict[str, str]
) -> None:
    one, other = bed.machines["head1"], bed.machines["head2"]
    ours = f"{SHARED}/slurm-elastic"
    for machine in (one, other):
        machine.shell(
            f"systemctl stop slurmctld; install -d -o slurm -m 700 {SHARED};"
            f" sed -i 's|^StateSaveLocation=.*|StateSaveLocation={SHARED}|' /etc/slurm/slurm.conf"
        )
    for machine in (one, other):
        machine.run("systemctl", "start", "slurmctld")
    eventually(lambda: (bed.place / "slurmctld" / "heartbeat").exists(), 60, one.console)
    (bed.place / "pair.yaml").write_text(f"{ELASTIC}ha: {{directory: {ours}}}\n")
    (bed.place / "secret").write_text("s\n")
    mine = variables | {
        "slurm_elastic_config": f"{bed.place}/pair.yaml",
        "slurm_elastic_credentials": f"'[\"{bed.place}/secret\"]'",
    }
    one.shell(  # as docs/two-heads.md says of a head that has run alone
        f"systemctl stop {' '.join(SERVICES)}; runuser -u slurm -- mkdir {ours}; cd /var/lib/slurm-elastic;"
        f" for d in journal requests notices catalogue; do [ ! -e $d ] || mv -T $d {ours}/$d; done"
    )
    both = bed.played(HEADS, mine)
    assert both["head2"] > 3
    for machine in (one, other):
        assert running(bed, machine.run("hostname").strip())[:3] == list(SERVICES)
        assert machine.run("stat", "-c", "%U %a", "/etc/slurm-elastic/secret").strip() == (
            "slurm 600"
        )
    logs = ("journalctl", "-u", "slurm-elasticd", "--no-pager")
    eventually(lambda: "acting host=head1 epoch=1" in one.run(*logs), 90, one.console)
    eventually(lambda: "standing by: head1 acts" in other.run(*logs), 90, other.console)
    assert "Head: head1 acts, epoch 1; this one, head2, stands by" in other.run(
        "/usr/local/bin/slurm-elastic", "status"
    )
    again = bed.played(HEADS, mine)
    assert (again["head1"], again["head2"]) == (0, 0)


def test_another_uid_of_slurm_user_is_refused(bed: Bed, variables: dict[str, str]) -> None:
    mine = variables | {"slurm_elastic_config": f"{bed.place}/pair.yaml"}
    bed.machines["head2"].shell(
        "printf '#!/bin/sh\\necho 4321\\n' >/usr/local/bin/id; chmod 755 /usr/local/bin/id"
    )
    done = bed.play(HEADS, mine)
    bed.machines["head2"].run("rm", "/usr/local/bin/id")
    assert done.returncode != 0
    assert "found uid 4321 of slurm on head2, expected" in " ".join(done.stdout.split())
