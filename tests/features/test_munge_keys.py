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
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from msgspec import structs
from patience import patience

from slurm_elastic.base.errors import ConfigError, TransientError
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.joining import CONSOLE, Join, Ssh
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.features.network import munge_keys, ssh_file
from slurm_elastic.features.network.host_keys import HostKey, KnownHosts, host_key, printed_keys
from slurm_elastic.features.network.munge_keys import PERIOD_S, MungeKeys
from slurm_elastic.features.network.ssh_file import FileTarget, PushError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Location, Market, Offer
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.joining import KEY_MARK
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.state.ledger import Launch, Ledger
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
        self.clock = self.now = time.time()

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
        site = Site.of(config, FakeSlurm(), self.ledger, {"aws": self.cloud}, lambda: self.now)
        self.site = replace(site, monotonic=lambda: self.clock)
        assert config.join.ssh is not None
        self.ssh = config.join.ssh
        self.keys = MungeKeys(self.site, self.ssh, mark=str(self.mark), pause=0.2)
        return self.keys

    def machine(self, ident: str = "i-1", node: str = "pub1", cloud: str = "aws") -> None:
        one = Instance(
            id=ident, cloud=cloud, node=node, generation=new_generation(self.now),
            instance_type="c5", zone="z", market=Market.SPOT, price=0.1,
            state=InstanceState.RUNNING, launched=self.now, address="127.0.0.1",
        )  # fmt: skip
        self.ledger.machines.adopt(one, "pub", self.now)

    def start(self, ident: str) -> None:
        """A stopped machine, for its node."""
        (machine,) = (m for m in self.ledger.stops.machines() if m.instance.id == ident)
        row = Launch(
            generation=new_generation(self.now), request="r-1", pool=machine.pool, cloud="aws",
            nodes=(machine.instance.node,), jobs=(), created=self.now,
            offer=Offer(
                cloud="aws", instance_type="c5", zone="z", market=Market.SPOT, price=0.1,
                cpus=2, memory=4096, location=Location.PUBLIC,
            ),
        )  # fmt: skip
        assert self.ledger.stops.record_start(row, machine, self.now)

    def until(self, condition: Callable[[], object]) -> None:
        assert self.keys is not None
        deadline = time.monotonic() + patience(90)
        while not condition():
            assert time.monotonic() < deadline, self.kinds()
            self.clock += PERIOD_S
            self.keys.tick()
            time.sleep(0.02)

    def kinds(self, node: str = "pub1") -> list[str]:
        return [d.kind for d in self.ledger.decisions.about(node)]

    def known_machines(self) -> set[str]:
        """Whose host keys are in the file."""
        return set(KnownHosts(self.path / "known_hosts").machines)

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
    told += " ".join(str(d.reason) for d in bed.ledger.decisions.about("pub1"))
    told += (bed.path / "known_hosts").read_text()
    assert SECRET[:16].decode() not in told
    assert _openssh(bed, "true") == 255, "nothing listens any more"
    kind, text = bed.sshd.host_key.split()[:2]
    assert (
        f"[127.0.0.1]:{bed.sshd.port} {kind} {text} i-1\n" in (bed.path / "known_hosts").read_text()
    )


def test_a_booting_machine_gets_a_secret_that_was_changed_since(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its munged has read the old one already. A machine with the same secret restarts nothing."""
    restarted = bed.path / "restarted"
    monkeypatch.setattr(munge_keys, "restart_of", lambda _: f"echo >>{restarted}")
    secret = bed.path / "munge.key"
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: bed.kinds().count("key-brought") == 1)
        bed.open(known=bed.sshd.host_key)  # the daemon starts again, and brings it once more
        bed.until(lambda: bed.kinds().count("key-brought") == 2)
        assert not restarted.exists()
        secret.chmod(0o600)
        secret.write_bytes(SECRET + b"new")
        secret.chmod(0o400)
        bed.until(lambda: bed.kinds().count("key-brought") == 3)
    assert bed.target.read_bytes() == SECRET + b"new"
    assert restarted.read_text() == "\n"


def test_a_restart_that_fails_comes_again(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second try finds the new secret in its place, but munged still has the old one."""
    restarted = bed.path / "restarted"
    fails_once = f"echo >>{restarted}; [ $(wc -l <{restarted}) -gt 1 ]"
    monkeypatch.setattr(munge_keys, "restart_of", lambda _: fails_once)
    secret = bed.path / "munge.key"
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: bed.kinds().count("key-brought") == 1)
        secret.chmod(0o600)
        secret.write_bytes(SECRET + b"new")
        secret.chmod(0o400)
        bed.until(lambda: bed.kinds().count("key-brought") == 2)
    assert restarted.read_text() == "\n\n"
    assert not bed.target.with_name(f"{bed.target.name}.restart").exists()


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
        (refused,) = bed.ledger.decisions.about("pub1")
        assert "wrong host key, nothing was sent: 127.0.0.1 shows the host key" in str(
            refused.reason
        )
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
    bed.until(lambda: bed.keys._failures._reports)  # type: ignore[union-attr]
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())


def test_a_machine_that_boots_is_left_in_peace_between_two_tries(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def nobody_there(target: FileTarget, *_: object) -> None:
        tries.append(target.address)
        raise PushError("Connection refused")

    monkeypatch.setattr(munge_keys, "push", nobody_there)
    bed.open(known=bed.sshd.host_key)
    clock = [100.0]
    site = replace(bed.site, monotonic=lambda: clock[0])
    keys = MungeKeys(site, bed.ssh, mark=str(bed.mark), worker=Inline(), pause=5.0)
    bed.machine()

    def begun(until: float) -> int:
        while clock[0] < until:
            keys.tick()
            clock[0] += 1.0
        return len(tries)

    assert begun(107.0) == 1, "the answer is seen at 102 s, and the next try is due five later"
    assert begun(109.0) == 2


class Pushes:
    """In place of SSH: what it was asked for, and what is wrong."""

    def __init__(self, bed: Bed, monkeypatch: pytest.MonkeyPatch, **ssh: object) -> None:
        self.targets: list[FileTarget] = []
        self.wrong: Exception | None = None
        monkeypatch.setattr(munge_keys, "push", self)
        bed.open(known=bed.sshd.host_key, **ssh)
        self.clock = 100.0
        site = replace(bed.site, monotonic=lambda: self.clock)
        self.keys = MungeKeys(site, bed.ssh, worker=Inline())

    def __call__(self, target: FileTarget, *_: object) -> None:
        self.targets.append(target)
        if self.wrong is not None:
            raise self.wrong

    def tick(self, clock: float) -> int:
        self.clock = clock
        self.keys.tick()
        return len(self.targets)


def test_a_try_goes_to_the_place_and_takes_twenty_seconds_at_most(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pushes = Pushes(bed, monkeypatch, user="admin")
    bed.machine()
    pushes.tick(100.0)
    assert pushes.targets == [
        FileTarget(
            address="127.0.0.1", port=bed.sshd.port, user="admin", path=str(bed.target),
            owner="munge:munge", mark=KEY_MARK, timeout=20.0,
        )
    ]  # fmt: skip
    assert "munge key brought id=i-1 node=pub1 address=127.0.0.1" in caplog.text
    assert [pushes.tick(clock) for clock in (110.0, 120.0)] == [1, 1], "it has its key"


def test_the_next_try_is_due_five_seconds_after_the_answer(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    pushes.wrong = PushError("Connection refused")
    bed.machine()
    assert [pushes.tick(clock) for clock in (100.0, 101.9, 102.0, 104.5, 107.0)] == [1, 1, 1, 1, 2]


def test_each_complaint_is_told_once_and_only_a_wrong_key_loudly(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pushes = Pushes(bed, monkeypatch)
    pushes.wrong = PushError("Connection refused")
    bed.machine()
    for clock in range(100, 150, 5):
        pushes.tick(float(clock))
    pushes.wrong = ssh_file.WrongHostKeyError("127.0.0.1 shows the host key x")
    for clock in range(150, 200, 5):
        pushes.tick(float(clock))
    start = "munge key not brought yet id=i-1 node=pub1 reason="
    assert [(r.levelname, r.getMessage().removeprefix(start)) for r in caplog.records] == [
        ("INFO", "Connection refused"),
        ("ERROR", "wrong host key, nothing was sent: 127.0.0.1 shows the host key x"),
    ]
    assert bed.kinds() == ["key-refused"]


@pytest.mark.parametrize(("late", "tries"), [(0.0, 1), (0.5, 0)])
def test_a_try_begins_no_later_than_two_seconds_before_the_machine_is_given_up(
    bed: Bed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    late: float,
    tries: int,
) -> None:
    bed.now = float(int(bed.now))
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    timeout = bed.site.config.resume_timeout(bed.site.config.cloud("aws"))
    bed.now += given_up_after(timeout) - 2.0 + late
    assert pushes.tick(100.0) == tries
    if not tries:
        told = "munge key not brought, too late id=i-1 node=pub1 reason=it was never tried"
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("ERROR", told)]
        assert str(bed.ledger.decisions.about("pub1")[0].reason) == "i-1: it was never tried"
        pushes.tick(110.0)
        assert len(caplog.records) == 1, "told once"


def test_of_machines_that_are_gone_no_complaint_is_kept(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    pushes.wrong = PushError("Connection refused")
    bed.machine()
    bed.machine("i-2", "pub2")
    pushes.tick(100.0)
    pushes.tick(102.0)
    bed.ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), bed.now)
    pushes.tick(104.0)
    assert pushes.keys._failures._reports.keys() == {"i-2"}
    bed.machine()
    assert pushes.tick(106.0) == 3, "as if it had never been tried"


def test_a_stopped_machine_that_starts_gets_its_key_anew(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that the key is there goes with the machine's power (KEY_MARK is below /run)."""
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    assert [pushes.tick(clock) for clock in (100.0, 102.0)] == [1, 1]
    bed.ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), bed.now)
    bed.ledger.stops.record_stopped("aws", {"i-1": 0.0}, bed.now)
    pushes.tick(104.0)
    assert bed.known_machines() == {"i-1"}
    bed.start("i-1")
    assert pushes.tick(106.0) == 2


def test_that_a_node_has_registered_after_all_is_told_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pushes = Pushes(bed, monkeypatch)
    pushes.wrong = PushError("Connection refused")
    bed.machine()
    pushes.tick(100.0)
    bed.ledger.machines.record_registration("aws", ["i-1"], bed.now)
    for clock in (102.0, 104.0, 106.0):
        pushes.tick(clock)
    told = "munge key: the node has registered id=i-1 node=pub1 last=Connection refused"
    assert [r.getMessage() for r in caplog.records].count(told) == 1
    assert bed.kinds() == ["key-brought"]
    assert len(pushes.targets) == 1


def test_a_machine_without_an_address_is_not_tried_yet(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    (known,) = bed.ledger.machines.live()
    bed.ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), bed.now)
    bed.ledger.machines.adopt(
        structs.replace(known.instance, id="i-2", address=None), "pub", bed.now
    )
    assert pushes.tick(100.0) == 0
    assert bed.kinds() == []


class Busy(Executor):
    """Whose threads are all at work: nothing that it gets ends; how it was told to end."""

    class Begun(Future[Any]):
        def exception(self, timeout: float | None = None) -> None:
            raise AssertionError(f"waited for, {timeout}")

    def __init__(self) -> None:
        self.count = 0
        self.ended: list[dict[str, bool]] = []

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.count += 1
        return self.Begun()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.ended.append({"wait": wait, "cancel_futures": cancel_futures})


def test_a_try_that_runs_is_neither_waited_for_nor_begun_again(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    worker = Busy()
    keys = MungeKeys(bed.site, bed.ssh, worker=worker)
    bed.machine()
    for _ in range(3):
        bed.clock += PERIOD_S
        keys.tick()
    assert worker.count == 1


def test_closing_waits_for_the_tries_that_run_and_begins_no_other(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    worker = Busy()
    MungeKeys(bed.site, bed.ssh, worker=worker).close()
    assert worker.ended == [{"wait": True, "cancel_futures": True}]


@pytest.mark.parametrize(
    ("generation", "age", "tries"),
    [("", 0.0, 1), ("", 10_000.0, 1), ("another's", 0.0, 1), ("another's", 10_000.0, 0)],
)
def test_a_machines_time_begins_with_its_launch_row_or_where_that_tells_none_with_its_cloud(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, generation: str, age: float, tries: int
) -> None:
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    (known,) = bed.ledger.machines.live()
    bed.ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), bed.now)
    one = structs.replace(
        known.instance, id="i-2", launched=bed.now - age,
        generation=generation or known.instance.generation,
    )  # fmt: skip
    bed.ledger.machines.adopt(one, "pub", bed.now)
    assert pushes.tick(100.0) == tries


def test_a_machine_with_a_wrong_key_is_tried_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    pushes.wrong = ssh_file.WrongHostKeyError("127.0.0.1 shows the host key x")
    bed.machine()
    assert [pushes.tick(clock) for clock in (100.0, 102.0, 107.0)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("port", "name"), [(21, "[10.0.0.1]:21"), (22, "10.0.0.1"), (23, "[10.0.0.1]:23")]
)
def test_a_connection_goes_by_our_key_alone_and_is_bounded_in_bytes_and_time(
    monkeypatch: pytest.MonkeyPatch, port: int, name: str
) -> None:
    budgets: list[tuple[int, float]] = []
    told: list[dict[str, object]] = []

    def budget(most: int, seconds: float) -> str:
        budgets.append((most, seconds))
        return "the budget"

    def connected(client: paramiko.SSHClient, address: str, **how: object) -> None:
        told.append({"address": address, "known": list(client.get_host_keys().keys()), **how})
        raise paramiko.SSHException("that is enough")

    link = Shell()
    monkeypatch.setattr(ssh_file, "ReadBudget", budget)
    monkeypatch.setattr(ssh_file.bounded, "connect", lambda *_: link)
    monkeypatch.setattr(paramiko.SSHClient, "connect", connected)
    theirs = host_key(f"ssh-rsa {paramiko.RSAKey.generate(1024).get_base64()}")
    with pytest.raises(PushError, match="SSHException: that is enough"):
        ssh_file.push(target(port=port, user="admin"), None, [theirs], b"")  # type: ignore[arg-type]
    assert budgets == [(1024 * 1024, 7.0)]
    times = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), 7.0)
    assert told == [
        {
            "address": "10.0.0.1", "known": [name], "port": port, "username": "admin",
            "pkey": None, "sock": link, "allow_agent": False, "look_for_keys": False, **times,
        }
    ]  # fmt: skip
    assert link.closed


class Shell:
    """In place of a connection: the command that it was to run, and how it ends."""

    def __init__(self, code: int = 0, said: bytes = b"", *, hangs: bool = False) -> None:
        self.commands: list[tuple[str, float]] = []
        self.sent, self.ended = b"", False
        self.failure, self.closed = "", False
        self._code, self._said, self._hangs = code, said, hangs
        self.channel = self

    def exec_command(self, command: str, timeout: float) -> tuple[Shell, Shell, Shell]:
        self.commands.append((command, timeout))
        return self, self, self

    def write(self, text: bytes) -> None:
        self.sent += text

    def shutdown_write(self) -> None:
        self.ended = True

    def read(self) -> bytes:
        if self._hangs:
            raise TimeoutError
        return self._said

    def recv_exit_status(self) -> int:
        return self._code

    def close(self) -> None:
        self.closed = True


def target(**fields: object) -> FileTarget:
    values = {
        "address": "10.0.0.1", "port": 22, "user": "root", "path": "/etc/munge/munge.key",
        "owner": "munge:munge", "mark": "/run/x/mark", "timeout": 7.0,
    }  # fmt: skip
    return FileTarget(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "command"), [("root", "sh -c 'a b'"), ("admin", "sudo -n sh -c 'a b'")]
)
def test_who_is_not_root_becomes_root(user: str, command: str) -> None:
    shell = Shell()
    ssh_file.run(shell, target(user=user), "a b", b"text")  # type: ignore[arg-type]
    assert shell.commands == [(command, 7.0)]
    assert (shell.sent, shell.ended) == (b"text", True)


def test_a_command_that_fails_is_told_by_the_end_of_its_words() -> None:
    shell = Shell(3, b"x" * 50 + b"y" * 300 + b"\n")
    with pytest.raises(PushError) as found:
        ssh_file.run(shell, target(), "true", b"")  # type: ignore[arg-type]
    assert str(found.value) == f"10.0.0.1: exit 3: {'y' * 300}"


def test_a_command_that_does_not_end_is_told_with_its_time() -> None:
    with pytest.raises(PushError, match=r"10\.0\.0\.1: no end in 7 s"):
        ssh_file.run(Shell(hangs=True), target(), "true", b"")  # type: ignore[arg-type]


def test_a_machine_whose_keys_are_all_garbled_is_not_asked() -> None:
    garbled = (HostKey("ssh-ed25519", "A" * 68), HostKey("ssh-rsa", "B" * 81))
    with pytest.raises(PushError, match="its host key is not known yet"):
        ssh_file.push(target(), None, garbled, b"")  # type: ignore[arg-type]


def test_what_goes_wrong_in_an_unknown_way_is_told_and_tried_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody thought of that")

    with monkeypatch.context() as patched:
        patched.setattr(munge_keys, "push", broken)
        bed.open(known=bed.sshd.host_key)
        bed.machine()
        bed.until(lambda: "munge key to i-1 failed: RuntimeError" in caplog.text)
        assert "nobody thought of that" in caplog.text
    with bed.sshd.running():
        bed.until(lambda: "key-brought" in bed.kinds())


def test_what_is_no_public_key_is_refused_with_its_words() -> None:
    with pytest.raises(ValueError, match="'hello there' is no public key"):
        host_key("hello there")
    with pytest.raises(ValueError, match=f"^'{'x' * 40}' is no public key"):
        host_key("x" * 50)


def test_machines_of_a_cloud_that_left_the_configuration_get_no_key(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    bed.machine(cloud="gone")
    assert (pushes.tick(100.0), bed.kinds()) == (0, [])


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


def test_after_its_time_to_boot_a_machine_is_given_up(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.until(lambda: bed.keys._failures._reports)  # type: ignore[union-attr]
    bed.now += 10_000
    bed.until(lambda: bed.kinds() == ["key-failed"])
    tries: list[object] = []
    monkeypatch.setattr(munge_keys, "push", lambda *of: tries.append(of))
    assert bed.keys is not None
    for _ in range(3):
        bed.clock += PERIOD_S
        bed.keys.tick()
    bed.keys.close()
    assert tries == [], "nothing is tried any more"
    assert "127.0.0.1" in str(bed.ledger.decisions.about("pub1")[0].reason)


def test_a_machine_that_is_up_or_going_is_left_alone(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    bed.ledger.machines.record_ending("aws", ["i-1"], Quoted(text="idle"), bed.now)
    assert pushes.tick(100.0) == 0


def test_a_node_that_registers_after_a_lost_answer_has_its_key(bed: Bed) -> None:
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    bed.until(lambda: bed.keys._failures._reports)  # type: ignore[union-attr]
    bed.ledger.machines.record_registration("aws", ["i-1"], bed.now)
    bed.until(lambda: bed.kinds() == ["key-brought"])
    assert "its node has registered; the last try failed: 127.0.0.1" in (
        str(bed.ledger.decisions.about("pub1")[0].reason)
    )


def test_a_node_that_registers_without_our_doing_is_none_of_ours(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = Pushes(bed, monkeypatch)
    bed.machine()
    bed.ledger.machines.record_registration("aws", ["i-1"], bed.now)
    assert (pushes.tick(100.0), bed.kinds()) == (0, [])


def test_a_new_machine_at_an_old_address_is_known_by_its_own_key(bed: Bed) -> None:
    bed.open()
    bed.machine("i-old")
    bed.cloud.printed["i-old"] = printed(make_key(bed.path / "old"))
    with bed.sshd.running():
        bed.until(lambda: "key-refused" in bed.kinds())
        bed.ledger.machines.record_end("aws", ["i-old"], Quoted(text="gone"), bed.now)
        bed.machine("i-new", "pub2")
        bed.cloud.printed["i-new"] = printed(bed.sshd.host_key)
        bed.until(lambda: "key-brought" in bed.kinds("pub2"))
    assert bed.known_machines() == {"i-new"}
    bed.ledger.machines.record_end("aws", ["i-new"], Quoted(text="gone"), bed.now)
    bed.until(lambda: not bed.known_machines())
    assert (bed.path / "known_hosts").read_text() == ""


def test_a_command_that_fails_over_there_is_tried_again(bed: Bed) -> None:
    bed.target.parent.rmdir()
    bed.open(known=bed.sshd.host_key)
    bed.machine()
    with bed.sshd.running():
        bed.until(lambda: "exit 1" in str(bed.keys._failures._reports))  # type: ignore[union-attr]
        bed.target.parent.mkdir()
        bed.until(lambda: "key-brought" in bed.kinds())


@pytest.mark.parametrize(
    ("name", "content", "mode", "message"),
    [
        ("key", None, 0o644, r"join.ssh.key: .* may be read by others \(mode 0644\); chmod 600"),
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


def test_of_a_console_the_end_is_read_and_of_its_keys_sixteen() -> None:
    begin, end = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
    lines = [f"ssh-ed25519 {n:068d}" for n in range(20)]
    block = "\n".join((begin, *lines, end))
    assert printed_keys(block) == tuple(host_key(line) for line in lines[:16])
    room = 256 * 1024 - len(block)
    assert len(printed_keys(block + "." * room)) == 16
    assert printed_keys(block + "." * (room + 1)) == ()


def test_known_hosts_are_as_openssh_writes_them_and_for_all_to_read(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path / "known_hosts")
    keys = (HostKey("ssh-ed25519", "A" * 68),)
    known.put("i-2", "10.0.0.2", 2222, keys)
    known.put("i-1", "10.0.0.1", 22, keys)
    assert (tmp_path / "known_hosts").read_text() == (
        f"10.0.0.1 ssh-ed25519 {'A' * 68} i-1\n[10.0.0.2]:2222 ssh-ed25519 {'A' * 68} i-2\n"
    )
    assert stat.S_IMODE((tmp_path / "known_hosts").stat().st_mode) == 0o644
    assert known.keys("i-2", "10.0.0.2", 2222) == keys
    assert known.keys("i-2", "10.0.0.2", 22) == ()


def test_known_hosts_are_written_only_where_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KnownHosts(tmp_path / "known_hosts")
    keys = (HostKey("ssh-ed25519", "A" * 68),)
    for number in (1, 2):
        known.put(f"i-{number}", f"10.0.0.{number}", 22, keys)
    written: list[int] = []
    monkeypatch.setattr(known, "_write", lambda: written.append(1))
    known.keep(["i-1", "i-2", "i-3"])
    assert written == []
    known.keep(["i-1"])
    assert (known.machines, written) == ({"i-1": "10.0.0.1"}, [1])


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

    monkeypatch.setattr(os, "fsync", full)
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
