"""Whoever has taken over SlurmUser gets nothing of root's by links in the state directory: commands
of root write there with the rights of SlurmUser.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from status_cases import busy_ledger

from slurm_elastic.base.account import account, acting_as, acting_in
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes import thread_rights
from slurm_elastic.cli.main import main
from slurm_elastic.cli.services import ckptman, daemon
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.store.journal import Journal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has what SlurmUser lacks")
USER = "nobody"
ORDERS = (
    ["pause", "onprem", "--reason", "work"],
    ["resume", "cluster"],
    ["limit", "cluster", "nodes", "3"],
    ["drain", "rack"],
    ["replace", "rack"],
    ["migrate", "onprem", "--to", "aws"],
    ["clear", "rack"],
    ["ckpt", "notice", "op1"],
    ["status"],
    ["metrics", "--no-slurm"],
    ["journal", "verify"],
    ["journal", "export", "{root}/export.jsonl"],
    ["journal", "import", "{root}/given.jsonl", "--older"],
)
CONTENT = b"# root's\n"


class Head:
    """A head of one: ``state`` is ``USER``'s, ``file`` and ``directory`` are root's."""

    def __init__(self, root: Path) -> None:
        self.root, self.state, self.sound = root, root / "state", root / "sound"
        self.file, self.directory = root / "root.bashrc", root / "root.d"
        self.file.write_bytes(CONTENT)
        self.directory.mkdir()
        (root / "slurm.conf").write_text("")
        self.yaml = root / "slurm-elastic.yaml"
        self.yaml.write_text(f"""
cluster: {{name: c, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}}
state_dir: {self.state}
slurm: {{conf: {root}/slurm.conf, user: {USER}, bin_dir: {root}/none}}
clouds:
  - {{name: onprem, provider: local, location: on-premises, socket: {root}/sock}}
  - {{name: aws, provider: local, location: on-premises, socket: {root}/sock2}}
pools:
  - {{name: rack, cloud: onprem, nodes: "op[1-2]", cpus: 1, memory: 1000, slurmd_port: 7000}}
  - {{name: burst, cloud: aws, nodes: "aw[1-2]", cpus: 1, memory: 1000, slurmd_port: 7010}}
""")
        self._make()
        assert self.run("journal", "export", f"{root}/given.jsonl") == 0
        self.state.rename(self.sound)

    def _make(self) -> None:
        self.state.mkdir(mode=0o700)
        os.chown(self.state, account(USER).pw_uid, account(USER).pw_gid)
        with acting_as(USER):
            busy_ledger(self.state / "ledger.db").close()
            CheckpointState(self.state / FILE).close()
            for name in (DROPS, "requests", "catalogue"):
                (self.state / name).mkdir()
            for name in ("daemon.lock", "ckptman.lock"):
                (self.state / name).touch(0o600)

    def begin(self) -> None:
        """The state directory is as it was at first."""
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.copytree(self.sound, self.state)
        for path in (self.state, *self.state.rglob("*")):
            os.chown(path, account(USER).pw_uid, account(USER).pw_gid)

    def entries(self) -> list[Path]:
        """All files and directories of the state directory, relative to it."""
        beside = [Path(f"{name}{end}") for name in ("ledger.db", FILE) for end in ("-wal", "-shm")]
        return [*beside, *(one.relative_to(self.sound) for one in self.sound.rglob("*"))]

    def link(self, entry: Path) -> None:
        """Put a link to what is root's in the place of that entry."""
        place = self.state / entry
        is_directory = place.is_dir()
        shutil.rmtree(place) if is_directory else place.unlink(missing_ok=True)
        place.symlink_to(self.directory if is_directory else self.file)

    def run(self, *words: str) -> int:
        """The exit code of a command of root's."""
        return main([*(word.format(root=self.root) for word in words), "--config", str(self.yaml)])

    def require_untouched(self) -> None:
        seen = self.file.stat()
        assert self.file.read_bytes() == CONTENT
        assert (seen.st_uid, seen.st_mode & 0o777) == (0, 0o644)
        seen = self.directory.stat()
        assert list(self.directory.iterdir()) == []
        assert (seen.st_uid, seen.st_mode & 0o777) == (0, 0o755)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    root = Path(tempfile.mkdtemp(prefix="se-links-", dir="/tmp"))
    root.chmod(0o755)
    yield Head(root)
    shutil.rmtree(root)


@pytest.mark.parametrize("words", ORDERS, ids=" ".join)
def test_an_order_of_root_changes_nothing_by_a_link(head: Head, words: Sequence[str]) -> None:
    for entry in head.entries():
        head.begin()
        head.link(entry)
        head.run(*words)
        head.require_untouched()


def test_an_order_of_root_appends_to_no_file_that_a_forged_journal_leads_to(head: Head) -> None:
    head.begin()
    assert head.run("pause", "onprem") == 0
    journal = Journal(head.state / "journal", "ledger")
    with acting_as(USER), journal.locked(1.0):
        at = journal.applied()
        place = at.position._replace(offset=len(CONTENT))
        head.link(journal.path(place.segment).relative_to(head.state))
        journal.note(msgspec.structs.replace(at, position=place))
    journal.close()
    head.run("resume", "onprem")
    head.require_untouched()


@pytest.mark.parametrize("words", ORDERS, ids=" ".join)
def test_what_commands_of_root_leave_is_slurm_users(head: Head, words: Sequence[str]) -> None:
    head.begin()
    head.run(*words)
    owner = account(USER).pw_uid
    others = [one for one in head.state.rglob("*") if one.lstat().st_uid != owner]
    assert others == []


@pytest.mark.parametrize("service", [daemon, ckptman])
def test_a_service_that_root_starts_in_slurm_users_directory_writes_nothing_there(
    head: Head, service: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    head.begin()
    before = sorted(head.state.rglob("*"))
    assert service.main(["--config", str(head.yaml)]) == 2
    said = capsys.readouterr().err
    assert "runs as root, and others than root may write in" in said
    assert f"as {USER}, as its unit does" in said
    assert sorted(head.state.rglob("*")) == before


def test_only_the_thread_that_acts_as_slurm_user_and_those_it_starts_have_its_rights(
    head: Head,
) -> None:
    """Another thread may start a program for a third user meanwhile, which only root can."""
    uid = account(USER).pw_uid
    with acting_in([head.state], USER), ThreadPoolExecutor(1) as started:
        assert (os.geteuid(), started.submit(os.geteuid).result()) == (uid, uid)
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_a_program_of_a_third_user_starts_while_another_thread_acts_as_slurm_user(
    head: Head,
) -> None:
    acting, done = threading.Event(), threading.Event()

    def act() -> None:
        with acting_in([head.state], USER):
            acting.set()
            done.wait(30)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        assert acting.wait(30)
        printed = subprocess.run(
            ["id", "-u"], user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert printed.stdout == "65534\n"
    finally:
        done.set()
        thread.join()


def test_root_that_cannot_take_on_slurm_users_rights_does_nothing(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(uid: int) -> None:
        if uid:
            raise PermissionError(1, "Operation not permitted")

    head.begin()
    monkeypatch.setattr(thread_rights, "set_effective_uid", refused)
    assert head.run("clear", "rack") == 1
    assert os.getegid() == 0
    assert "root cannot take on the rights of uid" in capsys.readouterr().err


def test_root_keeps_away_on_a_processor_whose_system_calls_are_unknown(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head.begin()
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert head.run("clear", "rack") == 1
    assert (os.geteuid(), os.getegid()) == (0, 0)
    assert "no system calls are known for the processor vax" in capsys.readouterr().err


def test_where_this_host_has_no_such_account_the_directory_says_whose_rights(head: Head) -> None:
    with acting_in([head.state], "se-no-such-user"):
        assert os.geteuid() == account(USER).pw_uid
    with acting_in([head.directory], "se-no-such-user"):
        assert os.geteuid() == 0
    with (
        pytest.raises(SlurmElasticError, match="this host has no user se-no-such-user"),
        acting_in([head.root / "none"], "se-no-such-user"),
    ):
        pass
