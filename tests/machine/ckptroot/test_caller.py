"""Who has started us, and for which job."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT

# what the environment says of the job


@pytest.mark.parametrize(("text", "count"), [(b"2", 2), (b"0", 0), (b"", None), (b"-1", None)])
def test_restarts_are_those_of_the_environment(text: bytes, count: int | None) -> None:
    caller = Caller(7, 1, 1, "ann", (), {b"SLURM_RESTART_COUNT": text, b"SLURMD_NODENAME": b"n1"})
    assert (caller.restarts, caller.node) == (count, "n1")
    assert Caller(7, 1, 1, "ann", (), {}).node == ""


# who called sudo


@pytest.mark.parametrize(
    ("uid", "gid", "why"),
    [
        ("0", "65534", "jobs of root, or with its group, are not checkpointed"),
        ("65534", "0", "jobs of root, or with its group, are not checkpointed"),
        ("65534", "", "SUDO_GID is not set: start this by sudo"),
        ("4000000000", "1", "this host has no user with uid 4000000000"),
    ],
)
def test_nobody_is_served_as_root(
    monkeypatch: pytest.MonkeyPatch, uid: str, gid: str, why: str
) -> None:
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", gid)
    with pytest.raises(RequestRefused, match=f"^{why}$"):
        callers.sudo_user()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with our parent sudo as process 30."""
    monkeypatch.setattr(os, "getppid", lambda: 30)
    (tmp_path / "sudo").touch()
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "exe").symlink_to(f"{tmp_path}/sudo (deleted)")
    (tmp_path / "30" / "environ").write_bytes(b"A=1\0=x\0B\0C=\0")
    return tmp_path


def test_the_environment_is_that_of_sudo_an_upgraded_one_too(proc: Path) -> None:
    assert callers.own_environment(f"{proc}/sudo", proc) == {b"A": b"1", b"C": b""}
    with pytest.raises(RequestRefused, match=r"^not started by sudo$"):
        callers.own_environment(f"{proc}/bash", proc)
    (proc / "30" / "environ").unlink()
    with pytest.raises(
        RequestRefused, match=f"the environment of {proc}/sudo, process 30: No such file"
    ):
        callers.own_environment(f"{proc}/sudo", proc)


SUDO, SHELL, STEPD = "sudo", "bash", "stepd"


class Tree:
    """Processes in ``proc``, each with the number of its parent and what it runs."""

    def __init__(self, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = proc
        self.site = HelperSite(
            cluster="t", directory=proc, key=b"", reader=(0, 0), sudo=f"{proc}/{SUDO}",
            slurmstepd=f"{proc}/{STEPD}",
        )  # fmt: skip
        for name in ("SUDO_UID", "SUDO_GID"):
            monkeypatch.setenv(name, "65534")
        self.runs(30, 29, SUDO)  # sudo may be two processes, one of which waits for the other
        self.runs(29, 25, SUDO)
        self.runs(25, 20, SHELL)
        self.runs(20, 1, STEPD)

    def runs(self, pid: int, parent: int, program: str, uids: str = "0 0 0 0") -> None:
        place = self.proc / str(pid)
        place.mkdir(exist_ok=True)
        (place / "exe").unlink(missing_ok=True)
        (place / "exe").symlink_to(self.proc / program)
        (place / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nUid:\t{uids}\n")
        (place / "environ").write_bytes(b"A=1\0")
        (place / "cmdline").write_bytes(b"slurmstepd: [7.batch]")

    def identify(self, *, asks: bool = False) -> Caller:
        return callers.identify(self.site, asks=asks, proc=self.proc)


@pytest.fixture
def tree(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(proc, monkeypatch)


def test_whose_script_asks_has_called_sudo_as_a_child(tree: Tree) -> None:
    assert tree.identify(asks=True).job == 7
    with pytest.raises(RequestRefused, match="batch script itself"):
        tree.identify()
    tree.runs(29, 20, SUDO)
    assert tree.identify().environment == {b"A": b"1"}
    for parent, uids in ((1, "0 0 0 0"), (20, "0 65534 0 0")):
        tree.runs(29, parent, SUDO)
        tree.runs(20, 1, STEPD, uids)
        with pytest.raises(RequestRefused, match="batch script itself"):
            tree.identify()


def test_who_was_not_started_by_sudo_in_a_batch_step_is_nobody(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree.proc / "20" / "cmdline").write_bytes(b"slurmstepd: [7.0]")
    with pytest.raises(RequestRefused, match="not started in a batch step"):
        tree.identify(asks=True)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(RequestRefused, match="not started by sudo"):
        tree.identify()
    assert callers.program_of(99, tree.proc) == ""


def test_a_parent_that_changed_while_it_was_asked_about_is_believed_nothing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> list[int]:
        tree.runs(25, 21, SHELL)
        tree.runs(21, 1, STEPD)
        return []

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "getgroups", another)
        with pytest.raises(RequestRefused, match="the process that started us has ended"):
            tree.identify(asks=True)
    parents = iter([30, 30, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(RequestRefused, match="the process that started us has ended"):
        tree.identify(asks=True)


# which groups the job has


_SHOW = "#!/usr/bin/python3\nimport os; print(sorted(os.getgroups()))\n"
_IN_A_NODE = """\
mount --make-rprivate / && mount -t tmpfs -o mode=755 none /usr/local/sbin
mount -t tmpfs -o mode=755 none /etc/sudoers.d
cp "$1" /usr/local/sbin/slurm-elastic-ckpt-root && cp "$2" /etc/sudoers.d/slurm-elastic
chmod 755 /usr/local/sbin/slurm-elastic-ckpt-root && chmod 440 /etc/sudoers.d/slurm-elastic
setpriv --reuid 65534 --regid 65534 --groups 5000,5001 \\
    sudo -n /usr/local/sbin/slurm-elastic-ckpt-root ready criu
"""


@ROOT
@pytest.mark.skipif(shutil.which("sudo") is None, reason="needs sudo")
def test_sudo_passes_on_groups_of_the_job_that_the_node_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "show").write_text(_SHOW)
    rules = Path(__file__).parents[3] / "etc" / "sudoers.d-slurm-elastic"
    script = ("sh", "-e", "-c", _IN_A_NODE, "sh", str(tmp_path / "show"), str(rules))
    shown = subprocess.run(
        ("unshare", "--mount", *script), capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[5000, 5001, 65534]\n"


@pytest.mark.parametrize(("given", "groups"), [([5000, 5001], (5000, 5001)), ([0], (7, 8))])
def test_a_job_has_the_groups_of_sudo_except_roots_groups(
    monkeypatch: pytest.MonkeyPatch, given: list[int], groups: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "getgroups", lambda: given)
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [7, 8])
    assert callers.slurms_groups(callers.pwd.getpwuid(65534), 65534) == groups
