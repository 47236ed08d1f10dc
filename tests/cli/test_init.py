"""``init``: five sites and a fresh one, clouds that it finds, answers, and a file that is there.

``UPDATE_GOLDEN=1`` writes the transcripts and configurations anew.
"""

from __future__ import annotations

import builtins
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import boto3
import pytest
from emulated import running_ec2, running_one
from needs import unless
from patience import patience
from providers.opennebula.bed import OneBed
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import StandIn

from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import doctor
from slurm_elastic.cli.setting_up import init
from slurm_elastic.config import SlurmSettings, cloud_kinds, configfile
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.providers import catalogues, open_provider
from slurm_elastic.setup.questions import questions
from slurm_elastic.setup.site import facts
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.conf import plan
from slurm_elastic.watch.doctor.environment import of_the_units
from tests.outside import announce, imported_from
from tests.slurm import site_cases

pytestmark = unless("slurmctld")
GOLDEN = Path(__file__).parent.parent / "golden" / "init"
SLURM_USER = "slurm"
FRESH = """\
# Debian's example (slurm-client, slurm.conf.simple), but for the nodes of its partition: with
# Nodes=ALL, which would take in ours, conf check refuses it.
ClusterName=cluster
SlurmctldHost=workstation
ProctrackType=proctrack/linuxproc
ReturnToService=2
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/var/lib/slurm/slurmd
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmUser=slurm
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
SlurmctldDebug=info
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdDebug=info
SlurmdLogFile=/var/log/slurm/slurmd.log
NodeName=server CPUs=16 RealMemory=64000
PartitionName=debug Nodes=server Default=YES MaxTime=INFINITE State=UP
"""


class Host:
    """A head node: its slurm.conf, and where the configuration goes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.of_root = False
        """Whether SlurmUser is root, who may use the sockets and files of a test's own daemons."""
        self.yaml = root / "slurm-elastic.yaml"
        (root / "home").mkdir()
        for name in [n for n in os.environ if n.startswith(("AWS_", "OS_", "ONE_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(root / "home"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setattr("slurm_elastic.providers.docker.found.SOCKET", root / "no-docker")
        monkeypatch.setattr("slurm_elastic.providers.local.found.SOCKET", root / "no-agent")
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        node = SlurmNode(name="n1", states=frozenset({"IDLE"}))
        monkeypatch.setattr(doctor, "ProbingCli", lambda _settings: FakeSlurm([node]))
        monkeypatch.setattr("slurm_elastic.providers.openstack.found.CONFIG_FILES", [])
        for cloud in ("aws", "opennebula", "openstack"):  # a busy machine's emulated one is slow
            monkeypatch.setattr(f"slurm_elastic.providers.{cloud}.found.TIMEOUT_S", patience(60))

    def site(self, name: str) -> Path:
        if name == "fresh":
            conf = self.root / "etc" / "slurm.conf"
            conf.parent.mkdir()
            conf.write_text(FRESH)
            return conf
        conf = site_cases.copy(name, self.root)
        if self.of_root:
            conf.write_text(conf.read_text().replace("SlurmUser=slurm", "SlurmUser=root"))
        return conf

    def init(self, conf: Path, *arguments: str) -> int:
        return main(["init", "--slurm-conf", str(conf), "--output", str(self.yaml), *arguments])

    def for_the_services(self, *files: Path) -> None:
        """Credentials that SlurmUser may read."""
        for file in files if os.geteuid() == 0 else ():
            shutil.chown(file, SLURM_USER)

    def run(self, *arguments: str) -> int:
        return main(["--config", str(self.yaml), *arguments])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="se-init-") as name:
        Path(name).chmod(0o755)
        yield Host(Path(name), monkeypatch)


@pytest.fixture
def conf_check() -> None:
    """The test takes ``conf check`` as it is, which starts a slurmctld."""


@pytest.fixture(autouse=True)
def _no_slurmctld(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it has nothing to complain of."""
    if "conf_check" not in request.fixturenames:
        monkeypatch.setattr("slurm_elastic.cli.setting_up.conf.run_check", lambda _args: 0)


def golden(name: str, text: str, host: Host) -> None:
    text = text.replace(str(host.root), "/SITE")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.usefixtures("conf_check")
@pytest.mark.parametrize("name", site_cases.in_tiers("fresh"))
def test_a_site_gets_a_configuration_that_checks_accept(
    name: str, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site(name)
    before = conf.read_bytes()
    code = host.init(conf, "--yes")
    told = capsys.readouterr()
    golden(f"{name}.txt", told.out, host)
    golden(f"{name}.yaml", host.yaml.read_text(), host)
    if name == "topology":
        # The tree has to name new nodes, and only the site can say where: conf check has the lines.
        assert code == 1
        lines = [line.strip() for line in told.out.splitlines() if "SwitchName=" in line]
        assert lines
        path = conf.parent / "topology.conf"
        kept = [x for x in path.read_text().splitlines() if "SwitchName=core" not in x]
        path.write_text("\n".join((*kept, *lines, "")))
    else:
        assert code == 0
    assert conf.read_bytes() == before
    assert host.run("conf", "check") == 0
    assert host.run("doctor", "--clouds") == 0
    config = configfile.load(host.yaml)
    assert all(config.who_of(c).accounts == () for c in config.clouds)


@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm may hide all nodes from other users")
def test_a_slurmctld_that_does_not_answer_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "ProbingCli", lambda _settings: FakeSlurm())
    assert host.init(host.site("small"), "--yes") == 1
    out = capsys.readouterr().out
    assert "wrong slurmctld" in out
    assert "doctor --quick   # after you have fixed its findings" in out.partition("next:")[2]


def test_without_an_option_it_is_the_slurm_conf_of_slurms_own_variable(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(host.site("small")))
    assert main(["init", "--output", str(host.yaml), "--yes"]) == 0
    assert "cluster small" in capsys.readouterr().out


@pytest.mark.usefixtures("conf_check")
def test_a_linked_slurm_conf_is_named_as_slurm_reads_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = host.site("small")
    linked = host.root / "etc" / "slurm" / "slurm.conf"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(shared)
    monkeypatch.chdir(linked.parent)
    assert host.init(Path("slurm.conf"), "--yes") == 0
    assert configfile.load(host.yaml).slurm.conf == str(linked)


@pytest.mark.usefixtures("conf_check")
def test_a_partition_of_all_nodes_is_told(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    conf = host.site("fresh")
    conf.write_text(FRESH.replace("Nodes=server", "Nodes=ALL"))
    assert host.init(conf, "--yes") == 1
    out = capsys.readouterr().out
    assert "name its nodes instead" in out
    assert "conf check       # after you have fixed the above" in out


def test_a_second_run_changes_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    before = host.yaml.read_bytes()
    capsys.readouterr()
    assert host.init(conf, "--yes") == 0
    assert "nothing is changed" in capsys.readouterr().out
    assert host.yaml.read_bytes() == before


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A person at the terminal, who gives up (ctrl-C) after these lines."""
    typed = iter(lines)

    def answer(_prompt: str = "") -> str:
        for line in typed:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", answer)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


def test_a_second_run_has_its_defaults_from_the_file(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    text = host.yaml.read_text()
    capsys.readouterr()
    # groups and cap, the longest time as it is, checkpoints
    typing(monkeypatch, "users", "4", "", "/shared/checkpoints")
    assert host.init(conf) == 0
    out = capsys.readouterr().out
    assert "only new parts are added to it, and its values are the defaults" in out
    assert f"changed {host.yaml}" in out
    config = configfile.load(host.yaml)
    assert config.who_of(config.clouds[0]).groups == ("users",)
    assert config.allow.max_time == 86400
    assert config.limits.dollars_per_hour == 4
    assert config.checkpoint.directory == "/shared/checkpoints"
    examples = ("# limits:", "    # allow:")  # values are in their places now
    kept = [line for line in text.splitlines() if not line.startswith(examples)]
    assert all(line in host.yaml.read_text().splitlines() for line in kept)
    assert not any(line.startswith(examples) for line in host.yaml.read_text().splitlines())
    typing(monkeypatch, "none", "none", "", "none")
    assert host.init(conf) == 0
    assert "(as the configuration has it)" in capsys.readouterr().out
    assert host.yaml.read_text().splitlines() == kept  # nothing of them is left over


def test_what_cannot_be_put_in_is_told_whole(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    text = host.yaml.read_text().replace(
        "allow: {max_time: 1d, partitions: [default]}",
        "allow: &w\n  partitions: [default]\n  ? max_time\n  : 1d",
    )
    host.yaml.write_text(text)
    (host.root / "answers.yaml").write_text("max_time: 2d\ncap: 9\n")
    assert host.init(conf, "--answers", str(host.root / "answers.yaml")) == 2
    told = capsys.readouterr().err
    assert "nothing is changed" in told
    assert "  allow.max_time: 2d\n  limits.dollars_per_hour: 9\n" in told
    assert host.yaml.read_text() == text


def test_ctrl_c_says_that_nothing_is_written(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, "8x16G")
    assert host.init(host.site("small")) == 130
    assert capsys.readouterr().err == "\nstopped; nothing is written\n"
    assert not host.yaml.exists()


def test_the_end_of_input_says_so_on_a_line_of_its_own(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(prompt: str = "") -> str:
        print(prompt, end="")
        raise EOFError

    monkeypatch.setattr(builtins, "input", ended)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert host.init(host.site("small")) == 2
    told = capsys.readouterr()
    assert told.out.endswith("] \n")
    assert told.err == "slurm-elastic: stopped; nothing is written\n"


def test_what_this_host_does_not_know_is_to_be_typed_twice(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    capsys.readouterr()
    typing(monkeypatch, "no-such", "no-such", "", "", "")
    assert host.init(conf) == 0
    out = capsys.readouterr().out
    assert out.count("this host has no group no-such: correct it, or type it again") == 1
    assert "note  who may use rehearsal: this host has no group no-such" in out


def test_what_is_no_text_or_no_file_is_told(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    conf = host.site("small")
    host.yaml.write_bytes(b"cluster: {name: \xff}\n")
    assert host.init(conf, "--yes") == 2
    assert "expected UTF-8 text; nothing is changed" in capsys.readouterr().err
    host.yaml.unlink()
    os.mkfifo(host.yaml)
    assert host.init(conf, "--yes") == 2
    assert "expected a file, no device and no pipe; nothing is written" in capsys.readouterr().err


def test_a_broken_file_of_profiles_is_no_cloud_that_is_not_there(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    file = host.root / "home" / ".aws" / "config"
    file.parent.mkdir()
    file.write_text("[default\nregion\n")
    assert host.init(host.site("small"), "--yes") == 2
    told = capsys.readouterr()
    assert "do first the steps of aws; nothing is written" in told.err
    assert f"file: {file}" in " ".join(told.out.split())
    assert not host.yaml.exists()


def test_credentials_that_only_the_units_file_names_are_found(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is asked of an administrator whose SlurmUser has no home."""
    file, units = host.root / "clouds.yaml", host.root / "slurm-elastic"
    file.write_text("clouds: [}\n")
    units.write_text(f"OS_CLIENT_CONFIG_FILE={file}\n")
    monkeypatch.setattr(init, "of_the_units", partial(of_the_units, units))
    assert host.init(host.site("small"), "--yes") == 2
    told = capsys.readouterr()
    assert "do first the steps of stack; nothing is written" in told.err
    assert f"projects in {file}" in " ".join(told.out.split())
    assert "OS_CLIENT_CONFIG_FILE" not in os.environ


def test_ctrl_c_in_the_checks_says_that_the_file_is_written(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("slurm_elastic.cli.setting_up.conf.run_check", stopped)
    assert host.init(host.site("small"), "--yes") == 130
    assert (
        f"stopped; {host.yaml} is written; its checks are not finished" in capsys.readouterr().err
    )
    assert host.yaml.exists()


def test_what_it_made_is_told(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.yaml = host.root / "new" / "place" / "site.yaml"
    assert host.init(host.site("small"), "--yes") == 0
    place = host.yaml.parent
    told = capsys.readouterr().out
    for line in (
        f"made directory {place.parent}", f"made directory {place}", f"wrote {host.yaml}",
        f"wrote {place}/cluster-uuid, which marks this cluster's machines",
    ):  # fmt: skip
        assert f"{line}\n" in told


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("999.1.1.1", "999.1.1.1 is no address: it has four numbers, each at most 255"),
        ("10.0.0", "10.0.0 is no address"),
        ("yes", "yes is an answer to another question"),
        ("127.0.0.1", "no machine reaches 127.0.0.1"),
        ("localhost", "on a machine, localhost is the machine itself"),
        ("head_1", "'head_1' is neither a name nor an address"),
        ("head:99999", "has no port from 1 to 65535"),
        ("http://head", "http://head is a URL"),
        ("[fe80::1]:6817", "[fe80::1]:6817 is an IPv6 address"),
        ("255.255.255.255", "no machine reaches"),
        ("169.254.1.1", "no machine reaches"),
        ("0x7f000001", "0x7f000001 is no address"),
        ("head.example.org:6817", ""),
        ("10.0.0.1", ""),
        ("none", ""),
    ],
)
def test_a_head_that_can_be_none_is_asked_again(head: str, words: str, host: Host) -> None:
    joins = Found(
        name="x", provider="x", location=Location.ON_PREMISES, what="x", usable=True, joins=True
    )
    asked = questions(facts(host.site("small")), [joins])
    accepts = next(one.accepts for one in asked if one.key == "head")
    if not words:
        assert accepts(head) == {"head": "" if head == "none" else head}
        return
    with pytest.raises(ValueError, match=re.escape(words)):
        accepts(head)


@pytest.mark.parametrize(("name", "key"), [("small", "groups"), ("accounting", "accounts")])
def test_groups_are_asked_for_where_accounts_are_whatever_anybody_types(
    name: str, key: str, host: Host
) -> None:
    public = Found(name="x", provider="x", location=Location.PUBLIC, what="x", usable=True)
    asked = {one.key: one for one in questions(facts(host.site(name)), [public])}
    assert {"groups", "accounts"} & asked.keys() == {key}
    if key == "groups":
        assert asked[key].why.startswith("no slurmdbd: an account is whatever anybody types")


OUTSIDE = """
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.fake import CLOUD as FAKE
from slurm_elastic.providers.fake.settings import FakeCloud


class LabCloud(FakeCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lab"):
    pass


def found(place):
    yield Found(
        name="theirs", provider="lab", location=Location.ON_PREMISES, what="a lab", usable=True,
        sized=True,
    )


CLOUD = CloudKind(settings=LabCloud, open=FAKE.open, found=found)
"""


def test_a_cloud_of_another_package_is_offered(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = host.root / "packages"
    folder.mkdir()
    (folder / "outside_lab.py").write_text(OUTSIDE)
    announce(folder, "slurm_elastic.providers", "lab", "outside_lab:CLOUD")
    announce(folder, "slurm_elastic.providers", "silent", "outside_silent:CLOUD")
    with imported_from(folder, monkeypatch, cloud_kinds.table.cache_clear):
        assert host.init(host.site("small"), "--yes") == 0
        assert [c.name for c in configfile.load(host.yaml).clouds] == ["theirs"]
    told = capsys.readouterr().out
    assert "silent" in told


def test_accounts_are_no_answer_where_groups_are_asked_for(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    text = host.yaml.read_text()
    (host.root / "answers.yaml").write_text("accounts: [physics]\n")
    assert host.init(conf, "--answers", str(host.root / "answers.yaml")) == 2
    assert "expected groups: at this site users may type any" in capsys.readouterr().err
    assert host.yaml.read_text() == text


ANSWERS = """\
groups: [physics, bio]
cap: 4
shape: 4x8G
max_time: 12h
head: 10.0.0.1
spot: true
"""


def test_ec2_is_found_with_image_network_types_and_prices(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.root / "ec2").mkdir()
    with running_ec2(host.root / "ec2") as ec2:
        for key, value in {
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": ec2.url,
        }.items():  # fmt: skip
            monkeypatch.setenv(key, value)
        api = boto3.client("ec2")
        api.register_image(Name="other", RootDeviceName="/dev/sda1")
        image = api.register_image(Name="slurm-24.11", RootDeviceName="/dev/sda1")["ImageId"]
        ec2.price("*", "*", 0.02)
        (host.root / "answers.yaml").write_text(ANSWERS)
        code = host.init(host.site("small"), "--answers", str(host.root / "answers.yaml"))
        out = capsys.readouterr().out
        assert code == 0, out
        assert "aws (public)" in out
        config = configfile.load(host.yaml)
        (cloud,) = config.clouds
        assert (cloud.provider, cloud.location) == ("aws", Location.PUBLIC)
        assert (cloud.image, cloud.catalogue) == (image, True)
        assert len(cloud.subnets) >= 3
        (pool,) = config.pools
        assert pool.markets == (Market.SPOT, Market.ON_DEMAND)
        assert config.who_of(cloud).groups == ("physics", "bio")
        assert config.limits.dollars_per_hour == 4
        assert config.join.head == "10.0.0.1"
        whole = catalogues.completed(configfile.read(host.yaml), time.time())
        offers = open_provider(whole.clouds[0], whole.cluster, whole).offers(
            plan.pools_of(whole)[0]
        )
        assert len({offer.instance_type for offer in offers}) == 20
        assert {offer.price for offer in offers if offer.market is Market.SPOT} == {0.02}


@pytest.mark.release
def test_an_account_with_an_image_alone_gets_the_rest_by_make(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands: the configuration that ``init`` writes, and all that it lacks."""
    (host.root / "ec2").mkdir()
    with running_ec2(host.root / "ec2") as ec2:
        for key, value in {
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": ec2.url,
        }.items():  # fmt: skip
            monkeypatch.setenv(key, value)
        api = boto3.client("ec2")
        for subnet in api.describe_subnets()["Subnets"]:
            api.delete_subnet(SubnetId=subnet["SubnetId"])
        api.register_image(Name="slurm-24.11", RootDeviceName="/dev/sda1")
        ec2.price("*", "*", 0.02)
        (host.root / "answers.yaml").write_text(ANSWERS)
        code = host.init(host.site("small"), "--answers", str(host.root / "answers.yaml"))
        assert code == 0, capsys.readouterr().out
        before = host.yaml.read_text()
        assert "subnets: {}" in before
        assert host.run("init", "--make", "--cloud", "aws", "--yes") == 0, capsys.readouterr().err
        (cloud,) = configfile.load(host.yaml).clouds
        assert len(cloud.subnets) == len(api.describe_availability_zones()["AvailabilityZones"])
        assert cloud.security_groups
        assert stat.S_IMODE((host.root / "ssh_key").stat().st_mode) == 0o600
        assert host.run("init", "--unmake", "--cloud", "aws", "--yes") == 0
        assert configfile.parse(host.yaml.read_text(), "x") == configfile.parse(before, "x")


def test_an_account_that_lacks_something_is_no_reason_for_a_rehearsal(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert host.init(host.site("small"), "--yes") == 2
    told = capsys.readouterr()
    assert "do first the steps of aws; nothing is written" in told.err
    assert "do: name its region: aws configure set" in told.out
    assert not host.yaml.exists()


def test_openstack_and_opennebula_are_found(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.root / "one").mkdir()
    with StandIn().serving() as stand_in, running_one(host.root / "one") as one:
        stack = StackBed(stand_in, host.root)
        stack.world.images = [
            {"id": "11111111-aaaa-4bbb-8ccc-111111111111", "name": "worker", "status": "active",
             "created_at": "2026-01-01T00:00:00Z"},
        ]  # fmt: skip
        bed = OneBed(one, host.root)
        host.for_the_services(bed.auth, stack.file)
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(stack.file))
        monkeypatch.setenv("ONE_AUTH", str(bed.auth))
        monkeypatch.setenv("ONE_XMLRPC", one.endpoint)
        (host.root / "answers.yaml").write_text("shape: 2x4G\nhead: none\n")
        code = host.init(host.site("small"), "--answers", str(host.root / "answers.yaml"))
        out = capsys.readouterr().out
        assert code == 0, out
        config = configfile.load(host.yaml)
        assert {c.provider for c in config.clouds} == {"openstack", "opennebula"}, out
        assert all(c.location is Location.ON_PREMISES for c in config.clouds)


def test_clouds_are_added_to_a_file_and_nothing_in_it_is_touched(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = host.site("small")
    mine = (
        f"# mine\ncluster: {{name: small}}\nslurm: {{conf: {conf}}}\nclouds:\n"
        "- name: lab   # the lab's\n  provider: fake\n  location: on-premises\n"
        "  types: {s: {cpus: 1, memory: 1G, price: 0}}\n\npools:\n"
        "- {name: lab, cloud: lab, nodes: 'lab[1-2]', cpus: 1, memory: 1G}\n# the end\n"
    )
    host.yaml.write_text(mine)
    (host.root / "one").mkdir()
    with running_one(host.root / "one") as one:
        bed = OneBed(one, host.root)
        host.for_the_services(bed.auth)
        monkeypatch.setenv("ONE_AUTH", str(bed.auth))
        monkeypatch.setenv("ONE_XMLRPC", one.endpoint)
        (host.root / "answers.yaml").write_text("shape: 2x4G\nhead: none\n")
        assert host.init(conf, "--answers", str(host.root / "answers.yaml")) == 0
    text = host.yaml.read_text()
    rest = iter(text.splitlines())
    assert all(line in rest for line in mine.splitlines()), "a line is gone or has moved"
    assert [c.name for c in configfile.load(host.yaml).clouds] == ["lab", "nebula"]


@pytest.mark.usefixtures("conf_check")
def test_questions_are_asked_until_there_is_an_answer(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    typed = iter(["big", "8x16G", "", "perhaps", "yes", "/not ok", "none"])

    def answer(prompt: str = "") -> str:
        asked.append(prompt)
        return next(typed)

    monkeypatch.setattr(builtins, "input", answer)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert host.init(host.site("small")) == 0
    golden("asked.txt", capsys.readouterr().out, host)
    pool = configfile.load(host.yaml).pools[0]
    assert (pool.cpus, pool.memory) == (8, 16384)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shape: large\n", "shape: expected cpus x memory, such as 8x32G"),
        ("colour: blue\n", "found colour, expected one of clouds, hosts, accounts"),
        ("[]\n", "expected a mapping of answers"),
        ("max_time: soon\n", "max_time: expected a time such as 12h or 2d"),
    ],
)
def test_a_wrong_answer_writes_nothing(
    host: Host, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.root / "answers.yaml").write_text(text)
    conf = host.site("small")
    assert host.init(conf, "--answers", str(host.root / "answers.yaml")) == 2
    assert words in capsys.readouterr().err
    assert not host.yaml.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone refuses files of others")
def test_a_place_of_another_user_is_refused_before_anything_is_written(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    theirs = host.root / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert host.init(host.site("small"), "--yes", "--output", str(theirs / "site.yaml")) == 2
    told = capsys.readouterr().err
    assert f"chown root {theirs}; nothing is written" in told
    assert list(theirs.iterdir()) == []


def test_where_nobody_can_be_asked(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert host.init(host.site("small")) == 2
    assert "add --yes or --answers" in capsys.readouterr().err
    assert not host.yaml.exists()


def test_a_site_without_slurm_conf(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.init(host.root / "none.conf", "--yes") == 2
    assert "none.conf" in capsys.readouterr().err


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    theirs.chmod(0o600)
    for name in (".site.yaml.new", "site.yaml"):
        (tmp_path / name).symlink_to(theirs)
    init._write(tmp_path / "site.yaml", "cluster: {}\n")
    assert (theirs.read_text(), theirs.stat().st_mode & 0o777) == ("kept", 0o600)
    assert not (tmp_path / "site.yaml").is_symlink()


def test_a_file_that_is_there_keeps_its_link_mode_and_owner(host: Host) -> None:
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    file = host.yaml.rename(host.root / "of-git.yaml")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 0, 12345)
    before = file.stat()
    host.yaml.symlink_to(file)
    answers = host.root / "answers.yaml"
    answers.write_text("cap: 7\n")
    host.init(conf, "--answers", str(answers))
    assert host.yaml.is_symlink()
    assert configfile.load(host.yaml).limits.dollars_per_hour == 7
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip


def test_an_identity_in_the_file_gets_no_other_one_beside_it(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file would be refused afterwards, and no service would start."""
    conf = host.site("small")
    assert host.init(conf, "--yes") == 0
    (host.root / "cluster-uuid").unlink()
    identity = "11111111-1111-4111-8111-111111111111"
    text = host.yaml.read_text()
    host.yaml.write_text(text.replace("cluster: {", f"cluster: {{uuid: {identity}, "))
    assert host.init(conf, "--yes") == 0
    assert "cluster-uuid" not in capsys.readouterr().err
    assert not (host.root / "cluster-uuid").exists()
    assert configfile.load(host.yaml).cluster.uuid == identity


def test_directories_are_open_to_slurm_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        created = init._write(tmp_path / "etc" / "elastic" / "site.yaml", "cluster: {}\n")
    finally:
        os.umask(before)
    assert [directory.stat().st_mode & 0o777 for directory in created] == [0o755, 0o755]


def test_a_planted_file_does_not_become_the_configuration(tmp_path: Path) -> None:
    draft = tmp_path / ".site.yaml.new"
    draft.touch()
    planted = draft.stat().st_ino
    init._write(tmp_path / "site.yaml", "cluster: {}\n")
    assert (tmp_path / "site.yaml").stat().st_ino != planted


def test_a_slurm_in_another_place_is_written_into_the_file(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("bin/scontrol", "sbin/slurmctld"):
        path = host.root / "slurm" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(f"/usr/{program}")
    usual = partial(SlurmSettings, bin_dir="/nowhere", sbin_dir="/nowhere")
    monkeypatch.setattr("slurm_elastic.setup.site.SlurmSettings", usual)
    monkeypatch.setenv("PATH", f"{host.root}/slurm/bin:{host.root}/slurm/sbin:/usr/bin:/bin")
    host.init(host.site("small"), "--yes")
    slurm = configfile.load(host.yaml).slurm
    assert (slurm.bin_dir, slurm.sbin_dir) == (f"{host.root}/slurm/bin", f"{host.root}/slurm/sbin")


def test_devices_of_the_sites_nodes_are_named_as_no_pool_gets_them(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.init(host.site("accounting"), "--yes")
    out = " ".join(capsys.readouterr().out.split())
    assert "Nodes of this site have gpu. The new pools have none: jobs that ask for it do" in out


def test_gres_is_named_without_its_count(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nNodeName=a Gres=gpu:a100:8(S:0-1),bandwidth:lustre:no_consume:4G\n"
        "NodeName=b Gres=gpu\nNodeName=c\nPartitionName=p Nodes=a,b,c\n"
    )
    assert facts(conf).gres == ("bandwidth:lustre", "gpu", "gpu:a100")
