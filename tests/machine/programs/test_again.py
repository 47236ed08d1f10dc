"""Which later boots of a machine do without cloud-init, and which do not: the program as machines
have it, on a directory that is one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience

import slurm_elastic

PROGRAM = Path(slurm_elastic.__file__).parent / "machine" / "programs" / "again.sh"
UUID = "ec2c4ec4-ec4e-c4ec-4ec4-ec4ec4ec4ec4"
FILES = {
    "sys/class/dmi/id/product_uuid": f"{UUID}\n",
    "sys/class/dmi/id/product_serial": "ec2-1\n",
    "sys/class/net/eth0/device": "",
    "sys/class/net/eth0/address": "52:54:00:77:00:00\n",
    "sys/class/net/lo/address": "00:00:00:00:00:00\n",
    "sys/block/vda/device": "",
    "sys/block/vda/size": "8388608\n",
    "sys/block/loop0/size": "0\n",
    "etc/machine-id": "6a3d\n",
    "etc/cloud/cloud.cfg": "# bootcmd: none, and nothing always\ncloud_init_modules: [bootcmd]\n",
    "var/lib/cloud/data/instance-id": "i-1\n",
    "var/lib/cloud/scripts/per-boot/slurm-elastic-join": "#!/bin/sh\n",
    "var/lib/cloud/instance/boothooks/part-001": "#!/usr/bin/python3\n",
    "var/lib/cloud/instance/cloud-config.txt": "#cloud-config\nruncmd: [date]\n",
    "etc/systemd/system/sshd.service": "",
    "run/slurm-elastic/node": "pub7\n",
    "run/slurm-elastic/launch": "node=pub7\nstopped=yes\n",
}
PLACES = ("/sys/", "/etc/", "/run/", "/var/lib/", "/dev/disk/", "/usr/lib/")


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        self.result([])
        (root / "bin").mkdir()
        self.command("udevadm")
        self.kept = root / "var/lib/slurm-elastic-node"
        text = PROGRAM.read_text()
        for place in PLACES:
            text = text.replace(place, f"{root}{place}")
        self.write("run/slurm-elastic/again.sh", text)
        self.do("install", root / "run/slurm-elastic/again.sh")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def command(self, name: str) -> None:
        path = self.root / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def result(self, errors: list[str]) -> None:
        told = {"v1": {"datasource": "DataSourceEc2Local", "errors": errors}}
        self.write("run/cloud-init/result.json", json.dumps(told, indent=1))

    def do(self, word: str, program: Path | None = None) -> str:
        done = subprocess.run(
            ["sh", str(program or self.kept / "again"), word], capture_output=True, text=True,
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}"}, timeout=patience(60), check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout

    def reboot(self) -> bool:
        """Whether cloud-init is left out; /run is empty before."""
        subprocess.run(["rm", "-r", str(self.root / "run")], check=True)
        (self.root / "run").mkdir()
        self.do("boot")
        return (self.root / "run/slurm-elastic/again").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_same_machine_boots_without_cloud_init_and_knows_its_node(machine: Machine) -> None:
    assert machine.do("keep") == ""
    assert machine.reboot()
    run = machine.root / "run"
    assert (run / "slurm-elastic/node").read_text() == "pub7\n"
    assert (run / "slurm-elastic/launch").read_text() == FILES["run/slurm-elastic/launch"]
    assert (run / "cloud-init/disabled").exists(), "who waits for cloud-init waits for nothing"


def test_only_root_may_read_what_is_kept_of_the_launch(machine: Machine) -> None:
    launch = machine.root / "run/slurm-elastic/launch"
    launch.chmod(0o600)
    machine.do("keep")
    assert (machine.kept / "launch").stat().st_mode & 0o777 == 0o600
    assert machine.reboot()
    assert launch.stat().st_mode & 0o777 == 0o600


GENERATOR = "systemd/system-generators/cloud-init-generator"
IDENTIFY = "usr/lib/cloud-init/ds-identify"


@pytest.fixture
def generated(machine: Machine) -> Machine:
    """With cloud-init's generator, which runs its search for the cloud: both log that they ran."""
    for name, word in ((f"usr/lib/{GENERATOR}", "generator"), (IDENTIFY, "identify")):
        machine.write(name, f'#!/bin/sh\necho "{word} $*" >>{machine.root}/log\n')
        (machine.root / name).chmod(0o755)
    machine.do("install", machine.root / "run/slurm-elastic/again.sh")
    return machine


def _boots(machine: Machine) -> tuple[bool, str]:
    """Whether cloud-init is left out at a boot with systemd's generators; which programs ran."""
    early = machine.root / "early"
    words = [str(machine.root / "etc" / GENERATOR), "normal", str(early), "late"]
    (machine.root / "log").write_text("")
    subprocess.run(words, check=True, timeout=patience(60))
    wanted = early / "multi-user.target.wants/cloud-init.target"
    ran = (machine.root / "log").read_text()
    assert wanted.is_symlink() != (ran == f"generator normal {early} late\n")
    wanted.unlink(missing_ok=True)
    without = machine.reboot()
    return without, (machine.root / "log").read_text()


def test_who_is_known_is_not_looked_for(generated: Machine) -> None:
    generated.do("keep")
    assert _boots(generated) == (True, "")


def test_who_is_another_is_looked_for_before_cloud_init(generated: Machine) -> None:
    generated.do("keep")
    generated.write("sys/class/dmi/id/product_serial", "ec2-2")
    assert _boots(generated) == (False, "identify \n")


def test_who_is_not_written_down_is_looked_for_by_cloud_inits_generator(
    generated: Machine,
) -> None:
    without, ran = _boots(generated)
    assert not without
    assert ran.startswith("generator ")


def test_what_only_udev_finds_is_waited_for(machine: Machine) -> None:
    """Else nobody waits for udev, which takes its time at each boot."""
    machine.do("keep")
    card = machine.root / "sys/class/net/eth0/device"
    later, log = machine.root / "later", machine.root / "udevadm.log"
    udevadm = f'#!/bin/sh\necho "$1" >>{log}\n[ ! -e {later} ] || mv {later} {card}\n'
    (machine.root / "bin/udevadm").write_text(udevadm)
    assert machine.reboot()
    assert not log.exists()
    machine.do("keep")
    card.rename(later)
    assert machine.reboot()
    assert log.read_text() == "trigger\nsettle\n"


def test_a_boot_that_comes_to_no_end_is_followed_by_a_whole_one(machine: Machine) -> None:
    machine.do("keep")
    assert machine.reboot()
    assert not machine.reboot(), "nothing has told that it joined"


def test_it_goes_on_so_from_boot_to_boot(machine: Machine) -> None:
    machine.do("keep")
    for _ in range(3):
        assert machine.reboot()
        machine.do("keep")


def test_one_that_never_joined_boots_as_ever(machine: Machine) -> None:
    assert not machine.reboot()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sys/class/dmi/id/product_uuid", UUID.replace("ec2", "ec3")),
        ("sys/class/dmi/id/product_serial", "ec2-2"),
        ("sys/class/dmi/id/board_asset_tag", "i-2"),
        ("sys/class/net/eth0/address", "52:54:00:77:00:01"),
        ("sys/block/vda/size", "16777216"),
        ("dev/disk/by-label/CONTEXT", "ETH0_IP=10.0.0.9"),
        ("dev/disk/by-label/config-2", "{}"),
        ("dev/disk/by-label/cidata", "instance-id: i-2"),
        ("etc/machine-id", ""),
        ("var/lib/cloud/data/instance-id", "i-2"),
    ],
)
def test_another_machine_with_its_disk_boots_as_ever(
    machine: Machine, name: str, text: str
) -> None:
    machine.do("keep")
    machine.write(name, text)
    assert not machine.reboot()
    assert not (machine.kept / "machine").exists(), "nor any later, were it as before again"


def remove(name: str) -> Callable[[Machine], None]:
    return lambda m: (m.root / name).unlink()


def write(name: str, text: str) -> Callable[[Machine], None]:
    return lambda m: m.write(name, text)


CLOUD = "var/lib/cloud/"


@pytest.mark.parametrize(
    "happens",
    [
        remove("sys/class/dmi/id/product_uuid"),
        write("sys/class/dmi/id/product_uuid", "00000000-0000-0000-0000-000000000000"),
        write("sys/class/dmi/id/product_uuid", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"),
        write("sys/class/dmi/id/product_uuid", "03000200-0400-0500-0006-000700080009"),
        write("sys/class/dmi/id/product_uuid", "Not Settable"),
        write("sys/class/dmi/id/product_uuid", ""),
        remove("etc/machine-id"),
        remove(CLOUD + "data/instance-id"),
        remove(CLOUD + "scripts/per-boot/slurm-elastic-join"),
        write(CLOUD + "scripts/per-boot/own", "#!/bin/sh\n"),
        write(CLOUD + "instance/boothooks/part-002", "#!/bin/sh\n"),
        write(CLOUD + "instance/cloud-config.txt", "#cloud-config\nbootcmd:\n - date\n"),
        write(CLOUD + "instance/vendor-cloud-config.txt", '{"bootcmd": ["date"]}'),
        write(CLOUD + "instance/vendor2-cloud-config.txt", "updates: {network: {when: [boot]}}"),
        write("etc/cloud/cloud.cfg.d/90.cfg", "cloud_config_modules:\n - [runcmd, always]\n"),
        lambda m: m.result(["('scripts-user', RuntimeError('1 of 2 failed'))"]),
        remove("run/cloud-init/result.json"),
        write("run/cloud-init/result.json", ""),
    ],
)
def test_in_doubt_cloud_init_runs_as_ever(
    machine: Machine, happens: Callable[[Machine], None]
) -> None:
    happens(machine)
    done = subprocess.run(
        ["sh", str(machine.kept / "again"), "keep"], capture_output=True, text=True, check=False
    )
    assert not (machine.kept / "machine").exists(), done.stderr
    assert not machine.reboot()


@pytest.mark.parametrize(
    "name",
    [
        "etc/cloud/cloud.cfg.d/90.cfg",
        CLOUD + "scripts/per-boot/own",
        CLOUD + "seed/nocloud/user-data",
    ],
)
def test_what_is_changed_since_is_for_cloud_init_to_see(machine: Machine, name: str) -> None:
    machine.do("keep")
    record = machine.kept / "machine"
    os.utime(record, (record.stat().st_mtime - 60,) * 2)
    for old in ("etc/cloud", "etc/cloud/cloud.cfg", CLOUD + "scripts"):
        for path in (machine.root / old, *(machine.root / old).rglob("*")):
            os.utime(path, (record.stat().st_mtime - 60,) * 2)
    machine.write(name, "#\n")
    assert not machine.reboot()


@pytest.mark.parametrize(("shown", "joins"), [("10.0.0.7", True), ("", False)])
def test_without_an_address_it_does_not_join_and_reboots(
    machine: Machine, shown: str, *, joins: bool
) -> None:
    """Which is a whole boot then, as nothing has told that it joined."""
    machine.command("sleep")
    (machine.root / "bin/hostname").write_text(f"#!/bin/sh\necho {shown}\n")
    (machine.root / "bin/hostname").chmod(0o755)
    done = subprocess.run(
        ["sh", str(machine.kept / "again"), "online"], check=False,
        env={"PATH": f"{machine.root}/bin:{os.environ['PATH']}"}, timeout=patience(60),
    )  # fmt: skip
    assert (done.returncode == 0) is joins
    unit = (machine.root / "etc/systemd/system/slurm-elastic-join.service").read_text()
    assert "FailureAction=reboot\n" in unit


def test_its_units_are_sound_and_leave_cloud_init_alone_without_the_mark(machine: Machine) -> None:
    units = machine.root / "etc/systemd/system"
    for stage in ("cloud-config", "cloud-final", "cloud-init", "cloud-init-main",
                  "cloud-init-local", "cloud-init-network"):  # fmt: skip
        text = (units / f"{stage}.service.d/slurm-elastic.conf").read_text()
        assert text == f"[Unit]\nConditionPathExists=!{machine.root}/run/slurm-elastic/again\n"
    joins = (units / "multi-user.target.wants/slurm-elastic-join.service").read_text()
    assert f"ConditionPathExists={machine.root}/run/slurm-elastic/again\n" in joins
    looks = (units / "sysinit.target.wants/slurm-elastic-again.service").read_text()
    assert "ConditionVirtualization=vm\n" in looks, "containers of a host share what it is known by"
    assert (units / "slurm-elastic-keep.service").exists()
    login = (units / "ssh.service.d/slurm-elastic.conf").read_text()
    assert login == "[Unit]\nAfter=slurm-elastic-join.service\n", "slurmd has the processor first"
