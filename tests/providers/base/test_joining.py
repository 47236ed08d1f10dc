"""The text that machines run to become nodes, and what it does on a machine without systemd."""

from __future__ import annotations

import ast
import base64
import gzip
import os
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import needs
import pages
import pytest
import yaml
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings
from slurm_elastic.config.basics import metadata_service
from slurm_elastic.config.basics.metadata_service import MetadataService
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.sections.copying import CopySettings, Data
from slurm_elastic.config.sections.joining import CloudInit, Join, Mount, Network, Ssh
from slurm_elastic.machine.programs import tunnel
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.aws import requests
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.joining import (
    TUNNEL_MARK,
    facts_of,
    own_facts,
    program_of,
    wiping,
)
from slurm_elastic.providers.base.user_data import read_parts
from slurm_elastic.providers.libvirt import machine as libvirt_machine
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtHost, LibvirtType
from slurm_elastic.providers.opennebula.requests import extra_template, merged
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud

UUID = "7d1f0c52-8f7e-4d5d-9d5e-111111111111"
AWS = AwsCloud(
    name="aws",
    location=Location.PUBLIC,
    region="us-east-1",
    image="ami-1",
    types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
)
POOL = PoolSettings(name="pub", cloud="aws", nodes="pub[1-4]", cpus=2, memory=4096)


SSH = Ssh(key="/etc/slurm/id")


def config(**join: object) -> Config:
    return Config(
        cluster=Cluster(name="site", uuid=UUID),
        clouds=(AWS,),
        pools=(POOL,),
        join=Join(**join),  # type: ignore[arg-type]
    )


def template(path: Path, text: str) -> Config:
    path.write_text(text)
    path.chmod(0o644)
    return config(head="head", template=str(path))


def test_without_a_head_machines_are_told_nothing() -> None:
    assert program_of(config(), AWS) == ""


def test_machines_of_two_heads_are_told_both() -> None:
    told = config(head="head1:6817,head2")
    assert told.join.heads == ("head1:6817", "head2")
    assert program_of(told, AWS).count("--conf-server head1:6817,head2") == 1


@pytest.mark.parametrize(
    ("port", "servers"),
    [
        ("6817", "head1,head2:7100"), ("7000", "head1:7000,head2:7100"),
        ("7000-7003", "head1:7000,head2:7100"),
    ],
)  # fmt: skip
def test_slurmd_asks_the_port_of_slurm_conf(port: str, servers: str, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=c\nSlurmctldHost=h\nSlurmctldPort={port}\n")
    site = replace(config(head="head1,head2:7100"), slurm=SlurmSettings(conf=str(conf)))
    text = program_of(site, AWS)
    assert re.findall(r"--conf-server ([^\s\"]+)", text) == [servers]


def test_a_machine_knows_how_long_it_keeps_copied_files() -> None:
    copying = replace(config(head="head.example.org"), copy=CopySettings(back_within=1800.0))
    assert "owed=\n" in program_of(copying, AWS)
    assert "owed=1800\n" in program_of(copying, replace(AWS, data=Data.COPY))


def test_the_shipped_text_has_head_agent_and_times() -> None:
    text = program_of(config(head="head.example.org:6817", heartbeat_timeout=1200.0), AWS)
    assert text.startswith("#!/bin/sh\n")
    assert "--conf-server head.example.org:6817" in text
    assert "heartbeat_timeout=1200\n" in text
    assert "class Switch" in text
    assert "metadata=ec2 http://169.254.169.254/latest/\n" in text
    assert "key_mark=\n" in text
    assert "@{" not in text
    subprocess.run(["sh", "-n", "-c", text], check=True)


def test_the_agent_asks_the_metadata_service_whatever_the_endpoint_of_the_api_is() -> None:
    """A private one of Amazon's, or of an EC2 that is another one's: its machines are told there, too."""
    near = replace(AWS, endpoint="https://vpce-1.ec2.us-east-1.vpce.amazonaws.com")
    assert "metadata=ec2 http://169.254.169.254/latest/\n" in program_of(config(head="head"), near)


class OtherCloud(AwsCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="other"):
    """A cloud with another metadata service."""

    service: str

    @property
    def metadata(self) -> MetadataService:
        return getattr(metadata_service, self.service)


@pytest.mark.parametrize(
    ("service", "setting", "reader"),
    [
        ("GCE", "gce http://169.254.169.254/computeMetadata/v1/", "GceMetadata"),
        ("AZURE", "azure http://169.254.169.254/metadata/", "AzureMetadata"),
        ("EC2", "ec2 http://169.254.169.254/latest/", "Ec2Metadata"),
        ("NO_WARNINGS", "", None),
    ],
)
def test_the_agent_has_only_what_reads_its_own_clouds_warnings(
    service: str, setting: str, reader: str | None
) -> None:
    cloud = OtherCloud(
        name="aws", location=Location.PUBLIC, region="r", image="i", service=service,
        types=AWS.types,
    )  # fmt: skip
    text = program_of(config(head="head"), cloud)
    assert f"\nmetadata={setting}\n" in text
    assert re.findall(r"class (\w+)\(Metadata\)", text) == ([reader] if reader else [])
    program = text.partition("<<'SLURM_ELASTIC_AGENT'\n")[2].partition("\nSLURM_ELASTIC_AGENT")[0]
    made: dict[str, Any] = {"__name__": "agent"}
    exec(compile(ast.parse(program, feature_version=(3, 6)), "agent", "exec"), made)
    source = made["metadata_of"](setting)
    assert (source and type(source).__name__) == reader


def test_a_cloud_in_which_a_shutdown_goes_on_costing_has_a_stop_command_of_its_own() -> None:
    class Costly(AwsCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="costly"):
        @property
        def stop_command(self) -> str:
            return metadata_service.azure_stop_command()

    cloud = Costly(name="aws", location=Location.PUBLIC, region="r", image="i", types=AWS.types)
    site = config(head="head", stop_command="poweroff")
    own = "python3 -I /run/slurm-elastic/agent.py /run/slurm-elastic/agent end delete"
    assert f"\nstop_command={own} https://management.azure.com\n" in program_of(site, cloud)
    assert "\nstop_command=poweroff\n" in program_of(site, AWS)


@pytest.mark.parametrize(("clouds", "there"), [((), True), (("aws",), True), (("one",), False)])
def test_only_machines_that_are_to_open_a_tunnel_wait_for_it(
    tmp_path: Path, clouds: tuple[str, ...], *, there: bool
) -> None:
    public = tmp_path / "wireguard.pub"
    public.write_text(base64.b64encode(bytes(32)).decode())
    network = Network(endpoint="h:51820", clouds=clouds, public_key=str(public))
    given = config(head="10.99.0.1", network=network)
    given = replace(given, clouds=(AWS, replace(AWS, name="one")))
    assert (TUNNEL_MARK in program_of(given, AWS)) is there


def test_no_secret_is_in_the_text(tmp_path: Path) -> None:
    key = tmp_path / "munge.key"
    key.write_bytes(b"S" * 128)
    text = program_of(
        config(head="head", ssh=Ssh(key=str(tmp_path / "id"), munge_key=str(key))), AWS
    )
    assert "SSSS" not in text
    assert "key_mark=/var/lib/slurm-elastic-node/munge-key\n" in text


def test_a_sites_template_replaces_it(tmp_path: Path) -> None:
    found = template(
        tmp_path / "own", '#!/bin/sh\necho @{head} @{cloud} $x ${y} "$@" a@b @@{head}\n'
    )
    assert program_of(found, AWS) == '#!/bin/sh\necho head aws $x ${y} "$@" a@b @{head}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\n@{haed}\n", r"has the placeholder @\{haed\}, expected one of @\{agent\}, "),
        ("#!/bin/sh\n@{}\n", r"has the placeholder @\{\}, expected one of"),
        ("echo\n", "begins with none of cloud-init's #cloud-config"),
    ],
)
def test_a_wrong_template_is_a_config_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        program_of(template(tmp_path / "own", text), AWS)


def test_a_template_that_others_may_write_is_refused(tmp_path: Path) -> None:
    found = template(tmp_path / "own", "#!/bin/sh\n")
    (tmp_path / "own").chmod(0o666)
    with pytest.raises(ConfigError, match=r"join.template: .* chmod go-w"):
        open_provider(AWS, found.cluster, found)
    with pytest.raises(ConfigError, match=r"join.template cannot be read"):
        program_of(config(head="h", template=str(tmp_path / "none")), AWS)


def test_every_cloud_with_user_data_gives_it_to_its_machines(tmp_path: Path) -> None:
    site = tmp_path / "user-data"
    site.write_text("#!/bin/sh\necho site\n")
    common: dict[str, Any] = {"location": Location.ON_PREMISES, "user_data": str(site)}
    clouds: tuple[CloudSettings, ...] = (
        replace(AWS, user_data=str(site)),
        OpenNebulaCloud(
            name="one", endpoint="http://127.0.0.1:9/RPC2",
            types={"s": OneTemplate(cpus=1, memory=1, template=1)}, **common,
        ),
        OpenStackCloud(
            name="stack", cloud="x", image="i", types={"s": Flavor(cpus=1, memory=1)}, **common
        ),
    )  # fmt: skip
    whole = replace(config(head="head"), clouds=clouds)
    for cloud in clouds:
        provider: Any = open_provider(cloud, whole.cluster, whole)
        joining, own = provider._parts
        assert joining == program_of(whole, cloud)
        assert own == site.read_text()
        plain: Any = open_provider(cloud, whole.cluster)
        assert plain._parts == (own,)


def test_it_fits_ec2_with_a_thousand_nodes(tmp_path: Path) -> None:
    site = tmp_path / "user-data"
    site.write_text("#cloud-config\npackages: [htop]\n")
    parts = read_parts(str(site), "aws", program_of(config(head="h"), AWS), requests.USER_DATA)
    names = tuple(f"pub{n}" for n in range(1, 1001))
    pool = Pool(name="pub", cloud="aws", nodes=names, cpus=2, real_memory=1, max_age=3600.0)
    offer = Offer(
        cloud="aws", location=Location.PUBLIC, instance_type="c5", zone="us-east-1a",
        market=Market.SPOT, price=0.1, cpus=2, memory=4096,
    )  # fmt: skip
    request = requests.run_instances(
        AWS, Cluster(name="c", uuid=UUID),
        LaunchSpec(generation="g1", pool=pool, nodes=names, offer=offer), names,
        number=0, parts=parts,
    )  # fmt: skip
    data = request["UserData"]
    assert isinstance(data, bytes)
    assert len(data) <= requests.USER_DATA.max_bytes
    text = gzip.decompress(data).decode()
    order = ["cloud-boothook", "'max_age': '3600'", "class Switch", "packages: [htop]"]
    assert sorted(order, key=text.index) == order


def launched(**pool: object) -> LaunchSpec:
    """A launch of a pool of one node."""
    small = Pool(name="pub", cloud="aws", nodes=("pub1",), cpus=2, real_memory=1)
    offer = Offer(
        cloud="aws", location=Location.PUBLIC, instance_type="c5", zone="z",
        market=Market.ON_DEMAND, price=0.1, cpus=2, memory=4096,
    )  # fmt: skip
    return LaunchSpec(generation="g1", pool=replace(small, **pool), nodes=small.nodes, offer=offer)


def test_machines_are_told_the_devices_that_their_node_shall_have() -> None:
    """For a check of theirs, in a form that sh takes without quotes."""
    cluster = Cluster(name="c", uuid=UUID)
    assert "gres" not in facts_of(cluster, launched())
    both = launched(gres={"gpu:a100_3g.20gb": 2, "fpga": 1})
    assert facts_of(cluster, both)["gres"] == "gpu:a100_3g.20gb:2,fpga:1"


@pytest.mark.parametrize(("stopped", "told"), [(0, None), (2, "yes"), (3, "yes")])
def test_machines_are_told_whether_they_may_be_stopped_but_not_how_many_are(
    stopped: int, told: str | None
) -> None:
    """Another number makes no other machine of them."""
    facts = facts_of(Cluster(name="c", uuid=UUID), launched(stopped=stopped))
    assert facts.get("stopped") == told


def test_opennebula_runs_it_before_the_sites_program_and_gives_it_to_cloud_init() -> None:
    join = program_of(config(head="h"), AWS)
    context = merged({}, {"node": "n1"}, [join, "#!/bin/sh\necho site\n"])
    assert "USER_DATA" not in context
    script = base64.b64decode(context["START_SCRIPT_BASE64"]).decode()
    assert script.count("SLURM_ELASTIC_PROGRAM'") == 2
    context = merged({}, {"node": "n1"}, [join, "#cloud-config\n{}\n"])
    document = base64.b64decode(context["USER_DATA"]).decode()
    assert document.index("class Switch") < document.index("#cloud-config")


class Machine:
    """A directory as a machine: its /run, and a PATH with commands that only write down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run"
        self.bin = path / "bin"
        self.log = path / "log"
        self.run.mkdir()
        self.bin.mkdir()
        (self.run / "node").write_text("pub7\n")
        (self.run / "launch").write_text("cluster=site\ngeneration=g1\nmax_age=3600\nnode=pub7\n")
        for name in ("hostname", "setsid", "systemctl"):
            self.command(name)
        self.command("hostnamectl", 1)
        self.command("getent", 2)
        self.hosts = path / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")

    def command(self, name: str, code: int = 0) -> None:
        (self.bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\nexit {code}\n')
        (self.bin / name).chmod(0o755)

    def text(self, *, max_stopped: int = 0, **join: object) -> str:
        site = config(head="head:6817", **join)
        site = replace(site, pools=(replace(POOL, max_stopped=max_stopped),))
        text = program_of(site, AWS)
        text = text.replace("/run/slurm-elastic", str(self.run))
        text = text.replace("/etc/hosts", str(self.hosts))
        text = text.replace("/var/lib/cloud/scripts", str(self.path))
        text = text.replace("/var/lib/slurm-elastic-node", str(self.path / "kept"))
        text = text.replace("/etc/systemd/system", str(self.path / "units"))
        return text.replace("/run/systemd", str(self.path / "systemd"))

    def join(self) -> None:
        text = self.text()
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=patience(60))

    def ran(self, wanted: str) -> list[str]:
        deadline = time.monotonic() + patience(60)
        while not self.log.exists() or wanted not in self.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self.log.read_text().splitlines()


def test_a_machine_without_systemd_gets_settings_and_agent(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.join()
    ran = machine.ran("setsid")
    assert "hostname pub7" in ran
    agent = f"setsid python3 -I {machine.run}/agent.py {machine.run}/agent"
    tunnel = f"{machine.run}/tunnel.json"
    assert agent in ran
    names = f"setsid python3 -I {machine.run}/names.py {machine.run}/agent {tunnel}"
    assert names in machine.ran("names.py")
    lines = (machine.run / "agent").read_text().splitlines()
    assert {"node=pub7", "max_age=3600", "heartbeat_timeout=900"} <= set(lines)
    assert f"start_command=/bin/sh {machine.run}/start" in lines
    assert "slurmd -b -N pub7 --conf-server head:6817" in (machine.run / "start").read_text()
    machine.join()  # as one-context after cloud-init does
    assert machine.ran("setsid").count(agent) == 1


def test_a_machine_whose_name_nobody_knows_knows_it_itself(tmp_path: Path) -> None:
    """sudo asks for it before it runs anything: a dead name server costs it half a minute."""
    machine = Machine(tmp_path)
    (machine.bin / "hostname").write_text("#!/bin/sh\necho 10.0.0.7 fd00::7\n")
    machine.join()
    assert machine.hosts.read_text() == "127.0.0.1 localhost\n10.0.0.7 pub7 # slurm-elastic\n"


def test_a_machine_whose_name_is_known_leaves_that_to_who_knows_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.command("getent")
    machine.join()
    assert machine.hosts.read_text() == "127.0.0.1 localhost\n"


def test_cloud_init_runs_it_at_later_boots_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "per-boot").mkdir()
    script = tmp_path / "part-001"
    script.write_text(machine.text())
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(script)], check=True, env=environment, timeout=patience(60))
    kept = tmp_path / "per-boot" / "slurm-elastic-join"
    assert kept.read_text() == machine.text()
    for path in machine.run.iterdir():  # /run is empty after a reboot, but for the provider's part
        if path.name not in ("node", "launch"):
            path.rmdir() if path.is_dir() else path.unlink()
    subprocess.run(["sh", str(kept)], check=True, env=environment, timeout=patience(60))
    assert (machine.run / "agent").exists()
    assert kept.read_text() == machine.text()


def test_a_machine_with_systemd_has_slurmd_told_by_a_drop_in(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    machine.join()
    drop_in = tmp_path / "systemd" / "system" / "slurmd.service.d" / "slurm-elastic.conf"
    assert drop_in.read_text().splitlines() == [
        "[Unit]", "ConditionPathExists=", "[Service]", f"EnvironmentFile=-{machine.run}/slurmd",
        # Else a machine that boots while slurmctld is away never joins (Debian's unit has none).
        "Restart=on-failure", "RestartSec=5",
    ]  # fmt: skip
    options = "SLURMD_OPTIONS=-N pub7 --conf-server head:6817\n"
    assert (machine.run / "slurmd").read_text() == options
    ran = machine.ran("systemd-run")
    assert "systemctl daemon-reload" in ran
    assert "restart munge.service" in (machine.run / "start").read_text()


@pytest.mark.parametrize(
    ("container", "argument", "code", "first", "later"),
    [
        (False, "", 0, "", ""),
        (False, "-b", 0, "-b", ""),
        (False, "-b", 1, "-b", "-b"),
        (True, "", 0, "-b", ""),
    ],
)
def test_slurmd_reports_its_start_as_a_boot_only_if_it_must(
    tmp_path: Path, argument: str, code: int, first: str, later: str, *, container: bool
) -> None:
    """After a start with -b a reconfigure could set the node DOWN; a later one with -b always does."""
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    if container:
        (tmp_path / "systemd" / "container").touch()
    machine.join()
    assert f"boot_command=/bin/sh {machine.run}/start -b\n" in (machine.run / "agent").read_text()
    options = machine.run / "slurmd"
    (machine.bin / "systemctl").write_text(
        f'#!/bin/sh\n[ "$2" != slurmd.service ] || {{ cat {options} >>{machine.log}; exit {code}; }}\n'
    )
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    start = ["sh", str(machine.run / "start"), *argument.split()]
    assert subprocess.run(start, env=environment, check=False).returncode == code
    words = ["-N", "pub7", "--conf-server", "head:6817"]
    read = [machine.log.read_text().splitlines()[-1], options.read_text()]
    assert [text.partition("=")[2].split() for text in read] == [
        [*first.split(), *words], [*later.split(), *words]
    ]  # fmt: skip


def test_the_pages_own_text_for_machines_without_a_head_starts_slurmd_as_joining_does(
    tmp_path: Path,
) -> None:
    text = pages.shown("docs/joining.md", "systemctl restart slurmd.service").text
    machine = Machine(tmp_path)
    text = text.replace("/run/slurm-elastic", str(machine.run))
    text = text.replace("/run/systemd", str(tmp_path / "systemd"))
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=patience(60))
    assert machine.ran("restart")[-2:] == [
        "systemctl daemon-reload",
        "systemctl restart slurmd.service",
    ]
    options = (machine.run / "slurmd").read_text()
    assert options == "SLURMD_OPTIONS=-N pub7 --conf-server head.example.org\n"
    machine.command("systemd-run")
    drop_in = tmp_path / "systemd" / "system" / "slurmd.service.d" / "slurm-elastic.conf"
    lines = drop_in.read_text()
    machine.join()
    assert drop_in.read_text() == lines


def test_the_playbooks_image_reports_no_boot_at_each_start_of_slurmd() -> None:
    """An image starts slurmd by itself only without join.head."""
    unit = (pages.ROOT / "ansible" / "roles" / "node" / "templates" / "slurmd.conf.j2").read_text()
    (options,) = re.findall(r'echo "SLURMD_OPTIONS=(.*)" >', unit)
    assert "-b" not in shlex.split(options)
    assert "Restart=on-failure" in unit


def test_the_playbooks_image_leaves_the_start_of_slurmd_to_joining() -> None:
    """Else jobs run without mounts, without the check, and with the metadata service open."""
    tasks = pages.ROOT / "ansible" / "roles" / "node" / "tasks" / "main.yml"
    service = "ansible.builtin.systemd"
    (slurmd,) = (task[service] for task in yaml.safe_load(tasks.read_text()) if service in task)
    assert slurmd["name"] == "slurmd"
    assert slurmd["enabled"] == "{{ slurm_elastic_start_slurmd | default(false) | bool }}"
    assert slurmd["state"] == "stopped"


def test_a_slurmd_that_does_not_start_is_left_to_the_agent_alone(tmp_path: Path) -> None:
    """systemd's own restart may bring slurmd up with -b, and the agent's next start then ends the
    jobs of a node that is up.
    """
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    machine.join()
    (machine.bin / "systemctl").write_text(
        f'#!/bin/sh\necho "systemctl $*" >>{machine.log}\n[ "$1 $2" != "restart slurmd.service" ]\n'
    )
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    start = ["sh", str(machine.run / "start")]
    assert subprocess.run(start, env=environment, check=False).returncode == 1
    assert machine.log.read_text().splitlines()[-2:] == [
        "systemctl restart slurmd.service", "systemctl stop slurmd.service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stopped", "join", "there"),
    [
        ("stopped=yes", {}, True),
        ("stopped=yes", {"cloud_init": CloudInit.EACH_BOOT}, False),
        ("", {}, False),
    ],
)
def test_a_machine_that_may_be_stopped_is_written_down_once_slurmd_runs(
    tmp_path: Path, stopped: str, join: dict[str, Any], *, there: bool
) -> None:
    """So that it boots without cloud-init (test_again.py)."""
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    for name in ("systemd/system", "units", "per-boot"):
        (tmp_path / name).mkdir(parents=True)
    with (machine.run / "launch").open("a") as facts:
        facts.write(stopped + "\n")
    script = tmp_path / "part-001"
    script.write_text(machine.text(max_stopped=1 if stopped else 0, **join))
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(script)], check=True, env=environment, timeout=patience(60))
    assert (tmp_path / "kept" / "again").exists() is there
    assert (tmp_path / "units" / "slurm-elastic-join.service").exists() is there
    subprocess.run(["sh", str(machine.run / "start")], check=True, env=environment)
    ran = machine.log.read_text().splitlines()
    last = "systemctl --no-block start slurm-elastic-keep.service"
    assert (ran[-1] == last) is there
    assert "systemctl restart slurmd.service" in ran


@pytest.mark.parametrize(
    ("kept", "settings", "early", "munge"),
    [
        (True, {}, True, "start"),
        (False, {}, False, "restart"),
        (True, {"check": "true"}, False, "start"),
        (True, {"ssh": None}, False, "restart"),
    ],
)
def test_slurmd_waits_neither_for_the_agent_nor_for_munge_where_the_key_is_of_an_earlier_boot(
    tmp_path: Path, kept: bool, settings: dict[str, object], early: bool, munge: str
) -> None:
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    if kept:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "munge-key").touch()
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    text = machine.text(**{"ssh": SSH, **settings})
    subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=patience(60))
    ran = machine.ran("systemd-run")
    begun = ["systemctl start munge.service", "systemctl restart slurmd.service"]
    assert [line for line in ran if line in begun] == (begun if early else [])
    assert (machine.run / "agent.started").exists() is early
    if early:
        (agent,) = (n for n, line in enumerate(ran) if "unit=slurm-elastic-agent" in line)
        assert ran.index(begun[-1]) < agent
    assert f"|| systemctl {munge} munge.service" in (machine.run / "start").read_text()


def test_a_machine_whose_slurm_keys_are_at_another_place_starts_no_munge(tmp_path: Path) -> None:
    """Munge without a key does not start, and then slurmd would not start either."""
    machine, target = Machine(tmp_path), tmp_path / "slurm keys"
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    machine.command("systemd-run")
    ssh = Ssh(key="/root/key", slurm_keys="/etc/slurm/keys", target=str(target))
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    for program in (["-c", machine.text(ssh=ssh)], [str(machine.run / "start")]):
        target.touch()
        subprocess.run(["sh", *program], check=True, env=environment, timeout=patience(60))
    ran = machine.ran("systemctl restart slurmd.service")
    assert not [line for line in ran if "munge" in line]


@pytest.mark.parametrize(
    ("join", "bounded"),
    [
        ({}, True),
        ({"check": "true"}, False),
        ({"mounts": (Mount(path="/home", source="head:/home"),)}, False),
        ({"wipe": ("/scratch",)}, False),
    ],
)
def test_an_agent_that_mounts_wipes_or_checks_does_not_run_within_the_bounds_of_the_images_unit(
    tmp_path: Path, join: dict[str, Any], *, bounded: bool
) -> None:
    """They are children of the agent. In its unit they could mount nothing and see no GPU."""
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "slurm-elastic-agent.service").touch()
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    text = machine.text(**join)
    subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=patience(60))
    ran = machine.ran("unit=slurm-elastic-names")
    started = "systemctl --no-block start slurm-elastic-agent.service"
    assert (started in ran) is bounded
    units = re.findall(r"--unit=(slurm-elastic-agent\S*)", "\n".join(ran))
    assert units == ([] if bounded else ["slurm-elastic-agent-root"])


def test_a_slurmd_that_systemd_knows_with_our_drop_in_needs_no_reload(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    known = tmp_path / "systemd/system/slurmd.service.d/slurm-elastic.conf"
    (machine.bin / "systemctl").write_text(
        f'#!/bin/sh\necho "systemctl $*" >>{machine.log}\n'
        f'[ "$1" != show ] || echo /other/drop-in.conf {known}\n'
    )
    machine.join()
    assert "systemctl daemon-reload" not in machine.ran("systemd-run")


# mounts


HOME = Mount(path="/home", source="head:/home")


def test_a_machine_with_mounts_makes_them_before_slurmd_starts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.command("systemd-run")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "munge-key").touch()
    environment = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}
    text = machine.text(ssh=SSH, mounts=(HOME,))
    subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=patience(60))
    assert "systemctl restart slurmd.service" not in machine.ran("systemd-run")
    settings = (machine.run / "agent").read_text().splitlines()
    assert f"prepare=/bin/sh {machine.run}/prepare" in settings
    lines = (machine.run / "prepare").read_text().splitlines()
    assert "/home head:/home hard,timeo=150,nosuid,nodev,_netdev yes" in lines
    start = (machine.run / "start").read_text()
    assert "SLURM_CONF_SERVER=head:6817 python3" in start
    assert start.index("agent check") < start.index("restart slurmd")


def test_with_all_of_join_it_fits_ec2(tmp_path: Path) -> None:
    (tmp_path / "wireguard.pub").write_text("k" * 44)
    network = Network(
        endpoint="vpn.example.org:51820", routes=("10.1.2.0/24",),
        public_key=str(tmp_path / "wireguard.pub"),
    )  # fmt: skip
    site = config(
        head="head", network=network, mounts=(HOME,), wipe=("/scratch",), check="x", ssh=SSH
    )
    (part,) = read_parts(None, "aws", program_of(site, AWS), requests.USER_DATA)
    assert len(gzip.compress(part.encode())) <= 0.8 * requests.USER_DATA.max_bytes


def test_a_machine_without_mounts_runs_no_program_for_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.join()
    assert "prepare=" not in (machine.run / "agent").read_text()


def test_a_template_that_would_start_slurmd_without_the_mounts_is_refused(tmp_path: Path) -> None:
    site = template(tmp_path / "template", "#!/bin/sh\nslurmd\n")
    site = replace(site, join=replace(site.join, mounts=(HOME,)))
    with pytest.raises(ConfigError, match=r"has no @\{prepare\}: see join.mounts"):
        program_of(site, AWS)


# the gate


def test_the_gate_is_part_of_the_text_where_the_site_has_one() -> None:
    plain = program_of(config(head="head"), AWS)
    assert "\ncheck=\n" in plain
    assert "Epilog on cloud machines" not in plain
    text = program_of(config(head="head", check="node-check -q", wipe=("/scratch", "/my tmp")), AWS)
    assert "\ncheck=node-check -q\ncheck_timeout=60\n" in text
    assert '\nDIRECTORIES = ["/scratch", "/my tmp"]\n' in text
    assert "\nCOPY_TIMEOUT_S = 660\n" in text, "copy.back_within and a minute"
    subprocess.run(["sh", "-n", "-c", text], check=True)


class Node:
    """A directory that is wiped, and a squeue that says which jobs the user has there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.said = ""
        self.slurmctld_wait_s, self.copy_timeout_s = 0, 60
        self.owed = place / "owed"
        self.scratch = place / "scra tch"
        self.scratch.mkdir(mode=0o777)
        self.scratch.chmod(0o1777)
        self.empties(str(self.scratch), "/nonexistent")
        self.says("")

    def empties(self, *directories: str) -> None:
        program = self.place / "wipe"
        wait = f"SLURMCTLD_WAIT_S = {self.slurmctld_wait_s}"
        text = wiping(directories, 600.0).replace("SLURMCTLD_WAIT_S = 300", wait)
        assert wait in text
        assert '"/var/lib/slurm-elastic-node/owed"' in text
        text = text.replace('"/var/lib/slurm-elastic-node/owed"', f'"{self.owed}"')
        text = text.replace("COPY_TIMEOUT_S = 660", f"COPY_TIMEOUT_S = {self.copy_timeout_s}")
        assert f"COPY_TIMEOUT_S = {self.copy_timeout_s}" in text
        program.write_text(text)
        program.chmod(0o755)

    def says(self, jobs: str, code: int = 0) -> None:
        """As the real one, it shows jobs in exactly these states if it is asked for some states."""
        squeue = self.place / "squeue"
        squeue.write_text(
            f"""#!/bin/sh
: >{self.place}/asked
states=$(printf '%s\\n' "$@" | sed -n 's/^--states=//p')
printf '{jobs}' | while read -r number state; do
  case ",$states," in ,,|*,"$state",*) echo "$number $state" ;; esac
done
exit {code}
"""
        )
        squeue.chmod(0o755)

    def leave(self, name: str, uid: int) -> Path:
        path = self.scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
        for one in (path, path.parent):
            if one != self.scratch:
                os.chown(one, uid, uid, follow_symlinks=False)
        return path

    def wipe(self, uid: int, job: int = 7, *before: str) -> int:
        env = {
            "PATH": f"{self.place}:/usr/bin:/bin", "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_ID": str(job), "SLURMD_NODENAME": "pub1",
        }  # fmt: skip
        done = subprocess.run(
            [*before, self.place / "wipe"], env=env, check=False, stderr=subprocess.PIPE, text=True
        )
        self.said = done.stderr
        return done.returncode


ALICE, BOB = 61001, 61002


@needs.ROOT
def test_all_that_a_user_left_goes_and_nobody_elses(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mine = [node.leave(name, ALICE) for name in ("a", ".hidden", "deep/er/b", "new\nline")]
    os.chown(node.scratch / "deep", ALICE, ALICE)
    kept = tmp_path / "kept"
    kept.write_text("x")
    (node.scratch / "link").symlink_to(kept)
    os.chown(node.scratch / "link", ALICE, ALICE, follow_symlinks=False)
    others = node.leave("bob", BOB)
    assert node.wipe(ALICE) == 0
    assert not any(path.exists() for path in mine)
    assert sorted(p.name for p in node.scratch.iterdir()) == ["bob"]
    assert others.exists()
    assert kept.exists()


@needs.ROOT
def test_what_is_in_use_stays_and_what_cannot_be_told_or_removed_fails(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mine = node.leave("a", ALICE)
    node.says("7 COMPLETING\\n8 RUNNING\\n")
    assert node.wipe(ALICE, job=7) == 0
    assert mine.exists(), "job 8 of the same user runs here"
    node.says("", code=1)
    assert node.wipe(ALICE) == 1, "slurmctld does not say: the node is drained"
    assert mine.exists()
    node.says("")
    node.leave("dir/of-alice", ALICE)
    node.leave("dir/of-bob", BOB)
    os.chown(node.scratch / "dir", ALICE, ALICE)
    assert node.wipe(ALICE) == 1, "a directory that has another's file"
    assert not mine.exists()
    assert (node.scratch / "dir/of-bob").exists()
    assert node.wipe(0) == 0


@needs.ROOT
@pytest.mark.parametrize(
    ("state", "is_kept"),
    [("CONFIGURING", True), ("SUSPENDED", True), ("SIGNALING", True), ("COMPLETING", False)],
)
def test_a_job_that_has_not_ended_keeps_its_files(
    tmp_path: Path, state: str, is_kept: bool
) -> None:
    """A job waits CONFIGURING for its files and for its other nodes. Of two jobs that end at once
    the later one wipes.
    """
    node = Node(tmp_path)
    mine = node.leave("a", ALICE)
    node.says(f"7 COMPLETING\\n8 {state}\\n")
    assert node.wipe(ALICE, job=7) == 0
    assert mine.exists() is is_kept


@needs.ROOT
@pytest.mark.parametrize(
    ("later", "kept"), [("8 RUNNING", ["next", "old"]), ("8 COMPLETING", []), ("", [])]
)
def test_a_job_that_starts_during_the_removal_keeps_its_files(
    tmp_path: Path, later: str, kept: list[str]
) -> None:
    """It makes its files right after squeue's first answer. If it has ended too by the second one,
    they are removed with the rest.
    """
    node = Node(tmp_path)
    mine, early = node.leave("old/a", ALICE), node.scratch / "old/early"
    (tmp_path / "squeue").write_text(
        "#!/bin/sh\necho 7 COMPLETING\n"
        f"if [ -e '{tmp_path}/asked' ]; then echo '{later}'; exit; fi\n"
        f"cd '{node.scratch}' && mkdir next && touch next/b old/early '{tmp_path}/asked'\n"
        f"chown {ALICE} next next/b old/early\n"
    )
    assert (node.wipe(ALICE), node.said) == (0, "")
    assert not mine.exists()
    assert sorted(path.name for path in node.scratch.iterdir()) == kept
    assert (early.exists(), (node.scratch / "next/b").exists()) == (bool(kept), bool(kept))


@needs.ROOT
def test_files_of_a_job_that_ends_at_the_same_moment_go_back_first(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mine = node.leave("a", ALICE)
    node.owed.mkdir()
    for job, owner, text in (("7", ALICE, ""), ("8", ALICE, "x"), ("9", BOB, "x")):
        (node.owed / job).write_text(text)
        os.chown(node.owed / job, owner, owner)
    begun = threading.Thread(target=node.wipe, args=(ALICE,))
    begun.start()
    eventually(lambda: (tmp_path / "asked").exists())
    assert mine.exists()
    (node.owed / "8").write_text("")
    begun.join(60)
    assert not mine.exists()


@needs.ROOT
def test_files_that_never_go_back_are_waited_for_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.copy_timeout_s = 0
    node.empties(str(node.scratch))
    mine = node.leave("a", ALICE)
    node.owed.mkdir()
    (node.owed / "8").write_text("x")
    os.chown(node.owed / "8", ALICE, ALICE)
    assert (node.wipe(ALICE), node.said) == (0, "")
    assert not mine.exists()
    assert list(node.owed.iterdir()) == []


@needs.ROOT
def test_a_node_is_not_drained_because_slurmctld_was_away_for_a_moment(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.slurmctld_wait_s = 60
    node.empties(str(node.scratch))
    mine, tried = node.leave("a", ALICE), tmp_path / "tried"
    (tmp_path / "squeue").write_text(
        f"#!/bin/sh\n[ -e '{tried}' ] || {{ : >'{tried}'; exit 1; }}\n"
    )
    assert (node.wipe(ALICE), node.said) == (0, "")
    assert not mine.exists()


@needs.ROOT
def test_a_scratch_that_is_a_link_is_emptied_where_it_leads(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mine = [node.leave(name, ALICE) for name in ("a", "b")]
    (tmp_path / "link").symlink_to(node.scratch)
    node.empties(str(tmp_path / "link"))
    assert (node.wipe(ALICE), node.said) == (0, "")
    assert not any(path.exists() for path in mine)


@needs.ROOT
@pytest.mark.parametrize("place", ["/home", "/etc/ssl"])
def test_a_scratch_that_leads_to_what_the_machine_needs_is_not_emptied(
    tmp_path: Path, place: str
) -> None:
    """In a mount namespace of its own: what would be emptied there is the test's."""
    node = Node(tmp_path)
    mine = node.leave("a", ALICE)
    (tmp_path / "link").symlink_to(place)
    node.empties(str(tmp_path / "link"))
    script = f'mount --bind "{node.scratch}" {place} && exec "$@"'
    assert node.wipe(ALICE, 7, "unshare", "--mount", "sh", "-c", script, "sh") == 1
    assert f"link, which is {place}, is a directory that the machine or its users need" in node.said
    assert mine.exists()


@needs.ROOT
def test_a_mount_below_scratch_is_told_unless_it_is_named_itself(tmp_path: Path) -> None:
    node = Node(tmp_path)
    inner, left = node.scratch / "nvme", tmp_path / "left"
    inner.mkdir()
    script = (
        f'mount -t tmpfs tmpfs "{inner}" && touch "{inner}/a" && chown {ALICE} "{inner}/a" && "$@"\n'
        f'code=$?; ls "{inner}" >"{left}"; exit $code'
    )
    inside = ("unshare", "--mount", "sh", "-c", script, "sh")
    assert node.wipe(ALICE, 7, *inside) == 1
    assert f"{inner} is mounted below {node.scratch}: join.wipe does not name it" in node.said
    assert left.read_text() == "a\n"
    node.empties(str(node.scratch), str(inner))
    assert (node.wipe(ALICE, 7, *inside), node.said) == (0, "")
    assert left.read_text() == ""


@needs.ROOT
@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "virtiofs"])
def test_a_scratch_that_other_machines_may_have_is_not_emptied(tmp_path: Path, kind: str) -> None:
    """No network is needed: the kernel's word for the mount is what matters."""
    node = Node(tmp_path)
    mine = node.leave("a", ALICE)
    told = f"{tmp_path}/mounts"
    script = (
        f'sed "s/ - [^ ]* / - {kind} /" /proc/$$/mountinfo >"{told}" && '
        f'mount --bind "{told}" /proc/$$/mountinfo && exec "$@"'
    )
    assert node.wipe(ALICE, 7, "unshare", "--mount", "sh", "-c", script, "sh") == 1
    assert f"{node.scratch} is on {kind}, which other machines may have, too" in node.said
    assert mine.exists()


@needs.ROOT
def test_a_scratch_that_is_a_file_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "file").write_text("")
    node.empties(str(tmp_path / "file"))
    assert node.wipe(ALICE) == 1
    assert "file: Not a directory" in node.said


def test_the_program_runs_on_machines_whose_python_is_an_old_one() -> None:
    ast.parse(wiping(["/scratch"], 600.0), feature_version=(3, 6))


def test_a_machine_that_is_told_its_own_facts_cannot_enrol_as_another() -> None:
    """No other's key follows of its own; all do of the launch's word."""
    spec = replace(launched(), nodes=("pub1", "pub2"), enrol="word-of-the-launch")
    one, other = (own_facts(Cluster(name="site"), spec, node) for node in spec.nodes)
    assert (one["node"], other["node"]) == ("pub1", "pub2")
    assert one["enrol_key"] == tunnel.enrolment_key("word-of-the-launch", "pub1")
    assert one["enrol_key"] != other["enrol_key"]
    assert "word-of-the-launch" not in "".join(one.values())
    assert "enrol_key" not in own_facts(Cluster(name="site"), replace(spec, enrol=""), "pub1")


def test_no_machine_of_opennebula_is_told_the_word_of_its_launch() -> None:
    spec = replace(launched(), enrol="word-of-the-launch")
    kind = OneTemplate(cpus=2, memory=4096, template=1)
    made = extra_template(
        Cluster(name="c", uuid=UUID), spec, "pub1", kind, {}, None, ["#!/bin/sh\n"]
    )
    context = made["TEMPLATE"]["CONTEXT"]
    assert isinstance(context, dict)
    start = base64.b64decode(context["START_SCRIPT_BASE64"]).decode()
    data = base64.b64decode(context.get("USER_DATA", "")).decode()
    assert "word-of-the-launch" not in f"{context}{start}{data}"
    key = tunnel.enrolment_key("word-of-the-launch", "pub1")
    assert context["SLURM_ELASTIC_ENROL_KEY"] == key
    assert f"enrol_key={key}\n" in start


def test_no_machine_of_libvirt_is_told_the_word_of_its_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(libvirt_machine, "seed", lambda *parts: told.append(str(parts)) or b"")
    settings = LibvirtCloud(
        name="lab", location=Location.ON_PREMISES, hosts={"a": LibvirtHost(uri="qemu:///system")},
        image="a", types={"small": LibvirtType(cpus=2, memory=4096)},
    )  # fmt: skip
    spec = replace(launched(), nodes=("pub1", "pub2"), enrol="word-of-the-launch")
    cluster = Cluster(name="c", uuid=UUID)
    for node in spec.nodes:
        libvirt_machine.DomainPlan(
            settings=settings, cluster=cluster, spec=spec, node=node,
            kind=settings.types["small"], text="", parts=(),
        ).seed()  # fmt: skip
    assert not [text for text in told if "word-of-the-launch" in text]
    keys = [tunnel.enrolment_key("word-of-the-launch", node) for node in spec.nodes]
    assert [[key in text for key in keys] for text in told] == [[True, False], [False, True]]
