"""The munge key comes to fresh machines by SSH: over a real sshd, and only to the right one."""

from __future__ import annotations

import errno
import logging
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.joining import CONSOLE, Join, Ssh
from slurm_elastic.controller import munge_keys
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.munge_keys import (
    HostKey,
    KnownHosts,
    MungeKeys,
    PushError,
    Target,
    host_key,
    printed_keys,
)
from slurm_elastic.errors import ConfigError, TransientError
from slurm_elastic.ledger import Ledger
from slurm_elastic.model import Instance, InstanceState, Location, Market
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm import keyset
from slurm_elastic.slurm.fake import FakeSlurm
from slurm_elastic.testing.in_memory import Inline
from tests.real_sshd import Sshd, make_key

pytestmark = pytest.mark.usefixtures("guarded")

SECRET = b"0123456789abcdef-the-munge-key-of-a-test" * 4
AWS = AwsCloud(
    name="aws", location=Location.PUBLIC, region="r", image="ami-1",
    types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
)  # fmt: skip


def printed(line: str) -> str:
    return (
        "[   20.1] cloud-init[700]: ok\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n"
        f"{line}\r\nssh-rsa {'A' * 80}= root@ip-10\r\n-----END SSH HOST KEY KEYS-----\r\nlogin:"
    )


class Cloud(FakeProvider):
    """Shows what the test says that its machines have printed."""

    def __init__(self) -> None:
        self.name = "aws"
        self.printed: dict[str, str] = {}
        self.asked: list[str] = []

    def console(self, instance: str) -> str:
        self.asked.append(instance)
        if instance not in self.printed:
            raise TransientError("aws", "Busy", "not yet")
        return self.printed[instance]


class Bed:
    """A site whose machines are all the one sshd of this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sshd = Sshd(path / "sshd")
        self.target = path / "etc" / "munge.key"
        self.target.parent.mkdir()
        self.mark = path / "run" / "munge-key"
        (path / "munge.key").write_bytes(SECRET)
        (path / "munge.key").chmod(0o400)
        self.cloud = Cloud()
        self.ledger = Ledger(path / "ledger.db")
        self.keys: MungeKeys | None = None
        self.now = time.time()

    def open(self, known: str = CONSOLE, **ssh: object) -> MungeKeys:
        values = {
            "key": str(self.sshd.key), "munge_key": str(self.path / "munge.key"),
            "port": self.sshd.port, "host_key": known, "target": str(self.target), **ssh,
        }  # fmt: skip
        config = Config(
            cluster=Cluster(name="c", uuid="u"),
            clouds=(AWS,),
            pools=(PoolSettings(name="pub", cloud="aws", nodes="pub[1-4]", cpus=2, memory=4096),),
            state_dir=str(self.path),
            join=Join(head="h", ssh=Ssh(**values)),  # type: ignore[arg-type]
        )
        self.site = Site.of(config, FakeSlurm(), self.ledger, {"aws": self.cloud}, lambda: self.now)
        assert config.join.ssh is not None
        self.keys = MungeKeys(self.site, config.join.ssh, mark=str(self.mark), pause=0.2)
        return self.keys

    def machine(self, ident: str = "i-1", node: str = "pub1", cloud: str = "aws") -> None:
        one = Instance(
            id=ident, cloud=cloud, node=node, generation=new_generation(self.now),
            instance_type="c5", zone="z", market=Market.SPOT, price=0.1,
            state=InstanceState.RUNNING, launched=self.now, address="127.0.0.1",
        )  # fmt: skip
        self.ledger.adopt(one, "pub", self.now)

    def until(self, condition: Callable[[], object]) -> None:
        assert self.keys is not None
        deadline = time.monotonic() + patience(90)
        while not condition():
            assert time.monotonic() < deadline, self.kinds()
            self.keys._next = float("-inf")
            self.keys.tick()
            time.sleep(0.02)

    def kinds(self, node: str = "pub1") -> list[str]:
        return [d.kind for d in self.ledger.decisions(node)]

    def close(self) -> None:
        if self.keys is not None:
            self.keys.close()
        self.ledger.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


def test_a_machine_that_shows_its_printed_key_gets_the_munge_key(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bed.open()
    bed.machine()
    bed.cloud.printed["i-1"] = printed(bed.sshd.host_key)
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())
        assert _openssh(bed, "true") == 0, "an admin's ssh takes the same file"
    assert bed.target.read_bytes() == SECRET
    found = bed.target.stat()
    assert stat.S_IMODE(found.st_mode) == 0o400
    assert found.st_uid == pwd.getpwnam("munge").pw_uid
    assert bed.mark.exists()
    assert [p.name for p in bed.target.parent.iterdir()] == ["munge.key"]
    told = caplog.text + bed.sshd.log
    told += " ".join(d.reason for d in bed.ledger.decisions("pub1"))
    told += (bed.path / "known_hosts").read_text()
    assert SECRET[:16].decode() not in told
    assert _openssh(bed, "true") == 255, "nothing listens any more"
    kind, text = bed.sshd.host_key.split()[:2]
    assert (
        f"[127.0.0.1]:{bed.sshd.port} {kind} {text} i-1\n" in (bed.path / "known_hosts").read_text()
    )


def test_with_auth_slurm_a_machine_gets_its_clouds_keys_as_root(bed: Bed) -> None:
    keys = keyset.of_slurm_key(SECRET).renewed(["aws", "other"], bed.now, ends=9e9, overlap=60)
    head = bed.path / "slurm.jwks"
    head.write_bytes(keys.encoded())
    head.chmod(0o600)
    bed.open(known=bed.sshd.host_key, munge_key=None, slurm_keys=str(head))
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())
    brought = keyset.read(bed.target)
    assert brought == keys.for_cloud("aws", bed.now)
    assert "other" not in {key.cloud for key in brought.keys}
    found = bed.target.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o400, 0, 0)
    assert bed.mark.exists()


def _openssh(bed: Bed, command: str) -> int:
    options = (
        f"UserKnownHostsFile={bed.path}/known_hosts", "StrictHostKeyChecking=yes", "BatchMode=yes"
    )  # fmt: skip
    told = [word for option in options for word in ("-o", option)]
    where = ["-F", "none", "-i", str(bed.sshd.key), "-p", str(bed.sshd.port)]
    done = subprocess.run(
        ["ssh", *where, *told, "root@127.0.0.1", command],
        capture_output=True,
        timeout=patience(60),
        check=False,
    )
    return done.returncode


def test_one_that_shows_another_key_gets_nothing_and_is_told_loudly(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.open(known=make_key(bed.path / "other"))
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: "key-refused" in bed.kinds())
        (refused,) = bed.ledger.decisions("pub1")
        assert "wrong host key, nothing was sent: 127.0.0.1 shows the host key" in refused.reason
        assert [r.levelname for r in caplog.records] == ["ERROR"]
        assert not bed.target.exists()
        assert not bed.mark.exists()
        assert "Accepted publickey" not in bed.sshd.log


def test_a_machine_with_other_kinds_of_keys_than_were_printed_is_a_wrong_one(bed: Bed) -> None:
    bed.open()
    bed.machine()
    bed.cloud.printed["i-1"] = printed(make_key(bed.path / "rsa", "rsa"))
    with bed.sshd.running():
        bed.until(lambda: "key-refused" in bed.kinds())
        assert "Accepted publickey" not in bed.sshd.log
    assert not bed.target.exists()
    assert not bed.mark.exists()


def test_a_machine_is_tried_until_it_has_booted(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    assert bed.keys is not None
    bed.until(lambda: bed.keys._complaints)  # type: ignore[union-attr]
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())


def test_a_machine_that_boots_is_left_in_peace_between_two_tries(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def nobody_there(target: Target, *_: object) -> None:
        tries.append(target.address)
        raise PushError("Connection refused")

    monkeypatch.setattr(munge_keys, "push", nobody_there)
    bed.open(known=bed.sshd.host_key)
    clock = [100.0]
    site = replace(bed.site, monotonic=lambda: clock[0])
    ssh = bed.site.config.join.ssh
    assert ssh is not None
    keys = MungeKeys(site, ssh, mark=str(bed.mark), worker=Inline(), pause=5.0)
    bed.machine()

    def begun(until: float) -> int:
        while clock[0] < until:
            keys.tick()
            clock[0] += 1.0
        return len(tries)

    assert begun(107.0) == 1, "the answer is seen at 102 s, and the next try is due five later"
    assert begun(109.0) == 2


def test_what_goes_wrong_in_an_unknown_way_is_told_and_tried_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody thought of that")

    with monkeypatch.context() as patched:
        patched.setattr(munge_keys, "push", broken)
        bed.open(known=bed.sshd.host_key)
        bed.machine()
        bed.until(lambda: "a try fails in an unknown way id=i-1" in caplog.text)
        assert "nobody thought of that" in caplog.text
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())


def test_what_is_no_public_key_is_refused_with_its_words() -> None:
    with pytest.raises(ValueError, match="'hello there' is no public key"):
        host_key("hello there")


def test_machines_of_a_cloud_that_left_the_configuration_get_no_key(bed: Bed) -> None:
    keys = bed.open(known=bed.sshd.host_key)
    bed.machine(cloud="gone")
    keys.tick()
    assert (keys._running, bed.kinds()) == ({}, [])


def test_it_waits_until_the_console_has_the_key(bed: Bed) -> None:
    bed.open()
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: len(bed.cloud.asked) >= 2)
        bed.cloud.printed["i-1"] = "booting"
        bed.until(lambda: len(bed.cloud.asked) >= 4)
        assert not bed.target.exists()
        bed.cloud.printed["i-1"] = printed(bed.sshd.host_key)
        bed.until(lambda: "key-brought" in bed.kinds())


def test_after_its_time_to_boot_a_machine_is_given_up(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.until(lambda: bed.keys._complaints)  # type: ignore[union-attr]
    bed.now += 10_000
    bed.until(lambda: bed.kinds() == ["key-failed"])
    assert bed.keys is not None
    assert bed.keys._running == {}, "nothing is tried any more"
    assert "127.0.0.1" in bed.ledger.decisions("pub1")[0].reason


def test_a_machine_that_is_up_or_going_is_left_alone(bed: Bed) -> None:
    keys = bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.ledger.suspending("aws", ["i-1"], "idle", bed.now)
    keys.tick()
    assert keys._running == {}


def test_a_node_that_registers_after_a_lost_answer_has_its_key(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.until(lambda: bed.keys._complaints)  # type: ignore[union-attr]
    bed.ledger.registered("aws", ["i-1"], bed.now)
    bed.until(lambda: bed.kinds() == ["key-brought"])
    assert "its node has registered; the last try told: 127.0.0.1" in (
        bed.ledger.decisions("pub1")[0].reason
    )


def test_a_node_that_registers_without_our_doing_is_none_of_ours(bed: Bed) -> None:
    keys = bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.ledger.registered("aws", ["i-1"], bed.now)
    keys.tick()
    assert (keys._running, bed.kinds()) == ({}, [])


def test_a_new_machine_at_an_old_address_is_known_by_its_own_key(bed: Bed) -> None:
    keys = bed.open()
    bed.machine("i-old")
    bed.cloud.printed["i-old"] = printed(make_key(bed.path / "old"))
    with bed.sshd.running():
        bed.until(lambda: "key-refused" in bed.kinds())
        bed.ledger.ended("aws", ["i-old"], "gone", bed.now)
        bed.machine("i-new", "pub2")
        bed.cloud.printed["i-new"] = printed(bed.sshd.host_key)
        bed.until(lambda: "key-brought" in bed.kinds("pub2"))
    assert set(keys._known.machines) == {"i-new"}
    bed.ledger.ended("aws", ["i-new"], "gone", bed.now)
    bed.until(lambda: not keys._known.machines)
    assert (bed.path / "known_hosts").read_text() == ""


def test_a_command_that_fails_over_there_is_tried_again(bed: Bed) -> None:
    bed.target.parent.rmdir()
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: "exit 1" in str(bed.keys._complaints))  # type: ignore[union-attr]
        bed.target.parent.mkdir()
        bed.until(lambda: "key-brought" in bed.kinds())


@pytest.mark.parametrize(
    ("name", "content", "mode", "message"),
    [
        ("key", None, 0o644, r"join.ssh.key: .* may be read by others; chmod 0400"),
        ("key", b"no key", 0o600, r"is no private key of kind ed25519, ecdsa or rsa"),
        ("munge_key", None, 0o440, r"join.ssh.munge_key: .* may be read by others"),
        ("munge_key", b"short", 0o400, r"has 5 bytes, expected 32 to 1024"),
        ("munge_key", b"", 0, r"cannot be read: No such file"),
        ("slurm_keys", b"{}", 0o400, r"join.ssh.slurm_keys: .*: Object missing required field"),
        ("slurm_keys", b"{}", 0o404, r"join.ssh.slurm_keys: .* may be read by others"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_config_error(
    bed: Bed, name: str, content: bytes | None, mode: int, message: str
) -> None:
    real = bed.sshd.key if name == "key" else bed.path / "munge.key"
    path = bed.path / "copy"
    if mode:
        path.write_bytes(real.read_bytes() if content is None else content)
        path.chmod(mode)
    other = {"munge_key": None} if name == "slurm_keys" else {}
    with pytest.raises(ConfigError, match=message):
        bed.open(known=bed.sshd.host_key, **other, **{name: str(path)})


def test_the_last_boots_keys_count() -> None:
    first, last = (f"ssh-ed25519 {letter * 68}" for letter in "AB")
    text = printed(first) + printed(last)
    assert printed_keys(text)[0] == host_key(last)
    assert printed_keys("-----BEGIN SSH HOST KEY KEYS-----\n" + first) == ()


def test_known_hosts_that_cannot_be_written_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known_hosts"
    known = KnownHosts(path)
    keys = (HostKey("ssh-ed25519", "A" * 68),)
    known.put("i-1", "10.0.0.1", 22, keys)
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "chmod", full)
    with pytest.raises(OSError, match="No space left"):
        known.put("i-2", "10.0.0.2", 22, keys)
    assert [p.name for p in tmp_path.iterdir()] == ["known_hosts"]
    assert path.read_text() == before


def test_known_hosts_survive_a_restart_and_odd_lines(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    keys = (HostKey("ssh-ed25519", "A" * 68), HostKey("ssh-rsa", "B" * 80))
    KnownHosts(path).put("i-1", "10.0.0.1", 22, keys)
    path.write_text(path.read_text() + "\n# a comment\nnonsense\n")
    again = KnownHosts(path)
    assert again.keys("i-1", "10.0.0.1", 22) == keys
    assert again.keys("i-1", "10.0.0.2", 22) == ()
    assert again.keys("i-2", "10.0.0.1", 22) == ()
    again.put("i-2", "10.0.0.1", 22, keys[:1])
    assert again.machines == {"i-2": "10.0.0.1"}
