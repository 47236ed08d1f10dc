"""A new key for machines that run, over a real sshd: tried, used, and the old one used again."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machine_cases import machine_with
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.joining import CONSOLE, Join, Ssh
from slurm_elastic.controller.context import new_generation
from slurm_elastic.features.network import key_rotation
from slurm_elastic.features.network.host_keys import KnownHosts, host_key
from slurm_elastic.features.network.key_rotation import (
    SIZE,
    Rotation,
    RotationResult,
    failed,
    make_head,
    new_key,
    on_head,
    put_copy,
    secret_now,
)
from slurm_elastic.model.causes.machine_ends import NodePoweredDown
from slurm_elastic.model.cluster import Instance, InstanceState, Location, Market
from slurm_elastic.model.machine_states import Ending
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.state.ledger import Machine
from tests.patience import eventually, patience
from tests.real_sshd import Sshd, make_key

OLD, NEW = b"the key of before" * 8, b"the key from now on" * 8
AWS = AwsCloud(
    name="aws", location=Location.PUBLIC, region="r", image="ami-1",
    types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
)  # fmt: skip


def machine(
    ident: str = "i-1", *, cloud: str = "aws", address: str | None = "127.0.0.1",
    registered: float | None = 1.0, ended: float | None = None,
) -> Machine:  # fmt: skip
    now = time.time()
    one = Instance(
        id=ident, cloud=cloud, node=ident.replace("i-", "pub"), generation=new_generation(now),
        instance_type="c5", zone="z", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING,
        launched=now, address=address,
    )  # fmt: skip
    return machine_with(instance=one, pool="pub", registered=registered, ended=ended)


class Bed:
    """One host, which is all machines; ``restarted`` says how often munged was."""

    def __init__(self, path: Path) -> None:
        self.path, self.sshd = path, Sshd(path / "sshd")
        self.key = path / "machine" / "munge.key"
        self.key.parent.mkdir()
        self.key.write_bytes(OLD)
        self.copy = path / "copy" / "munge.key"
        self.copy.parent.mkdir()
        self.copy.write_bytes(OLD)
        self.copy.chmod(0o400)
        self.told = path / "restarted"

    def ssh(self, known: str = "") -> Ssh:
        return Ssh(
            key=str(self.sshd.key), munge_key=str(self.copy), port=self.sshd.port,
            host_key=known or self.sshd.host_key, target=str(self.key),
        )  # fmt: skip

    def rotation(self, *machines: Machine, known: str = "", restart: str = "") -> Rotation:
        ssh = self.ssh(known)
        config = Config(
            cluster=Cluster(name="c", uuid="u"),
            clouds=(AWS,),
            pools=(PoolSettings(name="pub", cloud="aws", nodes="pub[1-4]", cpus=2, memory=4096),),
            state_dir=str(self.path),
            join=Join(head="h", ssh=ssh),
        )
        return Rotation(config, ssh, machines, restart=restart or f"echo >>{self.told}")

    def restarted(self) -> int:
        return len(self.told.read_text().splitlines()) if self.told.exists() else 0

    def beside(self) -> list[str]:
        return sorted(p.name for p in self.key.parent.iterdir() if p != self.key)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    with made.sshd.running():
        yield made


WELL = [RotationResult("pub1", "", "i-1")]


def test_a_try_changes_nothing_and_leaves_nothing(bed: Bed) -> None:
    assert bed.rotation(machine()).try_out(lambda _: NEW) == WELL
    assert (bed.key.read_bytes(), bed.beside(), bed.restarted()) == (OLD, [], 0)


def test_a_machine_uses_the_key_it_is_given_whichever_it_has(bed: Bed) -> None:
    rotation = bed.rotation(machine())
    for times, key in enumerate([NEW, OLD, OLD], 1):
        assert rotation.make(lambda cloud, key=key: key + cloud.encode()) == WELL
        assert bed.key.read_bytes() == key + b"aws", "each cloud may have its own"
        assert (bed.beside(), bed.restarted()) == ([], times), "an earlier restart may have failed"
    assert stat.S_IMODE(bed.key.stat().st_mode) == 0o400


def test_what_has_no_key_yet_gets_none_by_a_change(bed: Bed) -> None:
    """It boots: slurm-elasticd brings it the new one."""
    bed.key.unlink()
    rotation = bed.rotation(machine(registered=None))
    assert rotation.try_out(lambda _: NEW) == rotation.make(lambda _: NEW) == WELL
    assert (bed.key.exists(), bed.restarted()) == (False, 0)


def test_a_registered_machine_without_the_file_is_an_error(bed: Bed) -> None:
    bed.key.unlink()
    rotation = bed.rotation(machine())
    for results in (rotation.try_out(lambda _: NEW), rotation.make(lambda _: NEW)):
        (one,) = failed(results)
        assert f"{bed.key} does not exist" in one.wrong
    assert (bed.key.exists(), bed.restarted()) == (False, 0)


def test_a_machine_that_cannot_restart_says_why(bed: Bed) -> None:
    rotation = bed.rotation(machine(), restart="echo no such unit >&2; exit 5")
    (one,) = failed(rotation.make(lambda _: NEW))
    assert one.node == "pub1"
    assert "exit 5: no such unit" in one.wrong


def test_of_those_away_only_the_ones_that_are_up_are_in_the_way(bed: Bed) -> None:
    away, boots = (
        machine("i-2", address="127.0.0.77"),
        machine("i-3", address="127.0.0.77", registered=None),
    )
    results = bed.rotation(machine(), away, boots).try_out(lambda _: NEW)
    assert [r.node for r in results] == ["pub1", "pub2", "pub3"]
    (one,) = failed(results)
    assert (one.node, "127.0.0.77" in one.wrong) == ("pub2", True)


def test_it_concerns_living_machines_with_an_address_of_clouds_that_take_a_key(bed: Bed) -> None:
    others = [
        machine("i-2", ended=2.0), machine("i-3", address=None), machine("i-4", cloud="gone"),
        # Its cloud refuses the end that is decided, for example by termination protection.
        replace(machine("i-5"), life=Ending(retired_at=5.0, cause=NodePoweredDown(for_s=1.0))),
    ]  # fmt: skip
    assert [m.instance.id for m in bed.rotation(machine(), *others).machines] == ["i-1"]
    assert bed.rotation(*others).try_out(lambda _: NEW) == []


def test_a_machine_of_another_host_key_gets_nothing(bed: Bed) -> None:
    (one,) = bed.rotation(machine(), known=make_key(bed.path / "other")).try_out(lambda _: NEW)
    assert "shows the host key" in one.wrong
    assert bed.beside() == []


def test_where_consoles_print_the_host_keys_the_known_ones_count(bed: Bed) -> None:
    (one,) = bed.rotation(machine(), known=CONSOLE).try_out(lambda _: NEW)
    assert "its host key is not known yet" in one.wrong
    known = KnownHosts(bed.path / "known_hosts")
    known.put("i-1", "127.0.0.1", bed.sshd.port, [host_key(bed.sshd.host_key)])
    assert bed.rotation(machine(), known=CONSOLE).try_out(lambda _: NEW) == WELL


# the head


def test_a_fresh_key_is_as_large_as_munged_takes_it() -> None:
    one, other = new_key(None), new_key(None)
    assert len(one) == len(other) == SIZE == 1024
    assert one != other


def test_a_given_key_is_read_where_nobody_else_can(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(NEW)
    path.chmod(0o400)
    assert new_key(str(path)) == NEW
    path.chmod(0o440)
    with pytest.raises(ConfigError, match=r"--key: .* may be read by others"):
        new_key(str(path))


def test_the_copy_keeps_its_owner_and_has_nothing_beside_it(bed: Bed) -> None:
    os.chown(bed.copy, 1234, 2345)
    put_copy(bed.ssh(), NEW)
    found = bed.copy.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o400)
    assert secret_now(bed.ssh()) == bed.copy.read_bytes() == NEW
    assert [p.name for p in bed.copy.parent.iterdir()] == ["munge.key"]


@pytest.mark.parametrize("key", [NEW, OLD])
def test_the_head_uses_the_key_it_is_given_whichever_it_has(bed: Bed, key: bytes) -> None:
    place = bed.path / "head"
    make_head(bed.ssh(), key, f"cp {{key}} {place}")
    assert (place.read_bytes(), bed.copy.read_bytes()) == (key, key)


def test_munges_own_file_needs_no_copy_by_the_heads_command(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = key_rotation.HEAD.replace(key_rotation.MUNGE_KEY, str(bed.copy))
    command = command.replace("systemctl restart munge.service", f"echo >>{bed.told}")
    make_head(bed.ssh(), NEW, command)
    assert (bed.copy.read_bytes(), bed.restarted()) == (NEW, 1)


def test_a_copy_that_cannot_be_written_is_a_config_error(bed: Bed) -> None:
    bed.copy.unlink()
    with pytest.raises(ConfigError, match=r"join\.ssh\.munge_key: .*: No such file"):
        put_copy(bed.ssh(), NEW)


def test_the_copy_is_on_the_disk_before_it_has_its_name(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_bytes())
        assert bed.copy.read_bytes() == OLD
        real(descriptor)

    monkeypatch.setattr(key_rotation.os, "fsync", sync)
    put_copy(bed.ssh(), NEW)
    assert synced == [NEW]


def test_the_heads_step_gets_the_path_of_the_copy(bed: Bed) -> None:
    place = bed.path / "head"
    on_head(f"cat {{key}} >{place}", bed.ssh())
    assert place.read_bytes() == OLD


def test_a_step_of_the_head_that_fails_or_does_not_end_is_told(bed: Bed) -> None:
    with pytest.raises(SlurmElasticError, match=r"exit 5: .*: no such unit"):
        on_head("echo no such unit >&2; exit 5", bed.ssh())
    with pytest.raises(SlurmElasticError, match=r"no end in 0\.2 s: sleep 60"):
        on_head("sleep 60", bed.ssh(), timeout=0.2)


def test_a_step_of_the_head_has_a_minute_and_is_told_by_the_end_of_its_words(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    real = key_rotation.run_whole

    def run(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
        times.append(timeout)
        return real(command, timeout)

    monkeypatch.setattr(key_rotation, "run_whole", run)
    script = "printf %050d 0 >&2; printf %0300d 1 >&2; exit 3"
    with pytest.raises(SlurmElasticError) as found:
        on_head(script, bed.ssh())
    assert str(found.value) == f"exit 3: {script}: {1:0300d}"
    assert times == [60.0]


def test_a_step_of_the_head_that_does_not_end_is_ended_with_all_that_it_started(bed: Bed) -> None:
    place = bed.path / "child"
    # As pdsh below a shell: the shell waits for a child that would go on without it.
    script = f"sleep 600 & echo $! >{place}.new; mv {place}.new {place}; wait"
    with pytest.raises(SlurmElasticError, match="no end in"):
        on_head(script, bed.ssh(), timeout=patience(2))
    child = Path("/proc") / place.read_text().strip()
    eventually(lambda: not child.exists() or " Z " in (child / "stat").read_text())


@pytest.mark.parametrize("size", [31, 32, 1024, 1025])
def test_a_munge_key_has_32_to_1024_bytes(tmp_path: Path, size: int) -> None:
    place = tmp_path / "key"
    place.write_bytes(b"k" * size)
    place.chmod(0o400)
    if 32 <= size <= 1024:
        assert new_key(str(place)) == b"k" * size
        return
    with pytest.raises(ConfigError, match=f"has {size} bytes, expected 32 to 1024"):
        new_key(str(place))
