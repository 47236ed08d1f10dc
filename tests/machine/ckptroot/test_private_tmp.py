"""A job's own /tmp, /var/tmp and /dev/shm: what it sees there, when it has none, and how they go."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import private_tmp, tempfiles
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.private_tmp import PREFIX, PrivateTmp, sweep
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.machine.ckptroot.site import HelperSite
from slurm_elastic.machine.ckptroot.tempfiles import TempFiles

from .helpers import ROOT, aside, user_of

pytestmark = ROOT
USER = 1_000_000 + os.getpid()
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


class Node:
    """A node with one temporary directory, ``place``; the rest of it is beside that."""

    def __init__(self, top: Path) -> None:
        self.top, self.place = top, top / "tmp"
        self.place.mkdir()
        self.place.chmod(0o1777)
        (top / "script").write_text("#!/bin/sh\n")
        self.site = HelperSite(cluster="t", directory=top / "shared", key=b"", reader=(0, 0))
        self.caller, self.payload = CALLER, Payload((str(top / "script"),), {}, "/", 0o22, 0, 0, ())

    def given(self, **environment: str) -> None:
        values = {key.encode(): value.encode() for key, value in environment.items()}
        self.caller = replace(self.caller, environment=values)

    def places(self) -> PrivateTmp:
        return PrivateTmp(self.site, self.caller)

    def has(self, look: Callable[[PrivateTmp, list[str]], Any]) -> Any:
        """The view of a session that has taken its places; they go afterwards."""

        def does() -> Any:
            os.umask(0o027)
            one = self.places()
            its = one.take(self.payload)
            try:
                return look(one, its)
            finally:
                one.close()

        return aside(does)

    def is_its_own(self) -> bool:
        return bool(self.has(lambda _, its: its) == [str(self.place)])

    def names(self) -> list[str]:
        return sorted(os.listdir(self.place))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    top = Path(tempfile.mkdtemp(prefix="se-own-", dir="/tmp"))
    top.chmod(0o755)
    made = Node(top)
    monkeypatch.setattr(private_tmp, "PLACES", (str(made.place),))
    monkeypatch.setattr(private_tmp, "is_local", lambda path, _: True)
    monkeypatch.setattr(tempfiles, "others_of", lambda uid, tasks: {1})
    yield made
    shutil.rmtree(top)


def test_it_is_empty_for_all_users_and_its_alone(node: Node) -> None:
    (node.place / "neighbours").write_text("1")

    def look(_: PrivateTmp, its: list[str]) -> list[object]:
        (node.place / "mine").write_text("1")
        mode = stat.S_IMODE(node.place.stat().st_mode)
        (outside,) = Path(f"/proc/{os.getppid()}/root{node.place}").glob(f"{PREFIX}7-*")
        there = [stat.S_IMODE(outside.stat().st_mode), outside.stat().st_uid]
        return [its, sorted(os.listdir(node.place)), mode, *there]

    assert node.has(look) == [[str(node.place)], ["mine"], 0o1777, 0o700, 0]
    assert node.names() == ["neighbours"], "nothing of it stays"


def test_all_in_it_is_the_jobs_whatever_its_user_does_on_the_node(node: Node) -> None:
    image = node.top / "image"
    image.mkdir()

    def look(_: PrivateTmp, its: list[str]) -> list[str]:
        files = TempFiles(CALLER, node.top, node.top / "left.json", its)
        files.places = tuple(its)
        with as_user(user_of(USER, USER)):
            (node.place / "old").write_text("1")
            os.utime(node.place / "old", (1000, 1000))
        assert files.prepare() == {}, "it needs no TMPDIR beside"
        return list(files.own_files(()))

    assert node.has(look) == [str(node.place / "old")]


def test_a_tmpdir_of_a_prolog_and_the_sockets_of_x11_are_there_still(node: Node) -> None:
    given = node.place / "slurm" / "7"
    given.mkdir(parents=True)
    os.chown(given, USER, USER)
    (given / "data").write_text("1")
    (node.place / ".X11-unix").mkdir(mode=0o1777)
    (node.place / ".X11-unix" / "X0").write_text("")
    node.given(TMPDIR=f"{given}/", SCRATCH=str(given / "data"))

    def look(_: PrivateTmp, its: list[str]) -> list[object]:
        with as_user(user_of(USER, USER)):
            (given / "new").write_text("2")
            seen = (given / "data").read_text()
        return [its, sorted(os.listdir(node.place)), os.listdir(node.place / ".X11-unix"), seen]

    assert node.has(look) == [[str(node.place)], [".X11-unix", "slurm"], ["X0"], "1"]
    assert (given / "new").read_text() == "2"
    assert node.names() == [".X11-unix", "slurm"]


def has_a_tmpdir_by_a_link(node: Node) -> None:
    (node.top / "roots").mkdir(mode=0o700)
    (node.place / "mine").symlink_to(node.top / "roots")
    os.lchown(node.place / "mine", USER, USER)
    node.given(TMPDIR=str(node.place / "mine"))


def has_a_tmpdir_of_all(node: Node) -> None:
    (node.place / "scratch").mkdir()
    (node.place / "scratch").chmod(0o1777)
    node.given(TMPDIR=str(node.place / "scratch"))


def names_what_is_there(node: Node) -> None:
    (node.place / "input").mkdir()
    node.given(TMPDIR=str(node.place))
    (node.top / "script").write_text(f"cp {node.place}/input/a .\n")


def is_given_what_is_there(node: Node) -> None:
    (node.place / "input").mkdir()
    node.payload = replace(node.payload, argv=(*node.payload.argv, f"--in={node.place}/input"))


def has_tools_there(node: Node) -> None:
    (node.place / "venv").mkdir()
    node.given(PATH=f"/usr/bin:{node.place}/venv/bin")


def has_tickets_there(node: Node) -> None:
    (node.place / f"krb5cc_{USER}").write_text("")
    os.chown(node.place / f"krb5cc_{USER}", USER, USER)


def works_there(node: Node) -> None:
    node.payload = replace(node.payload, directory=f"{node.place}/work")


def works_in_it(node: Node) -> None:
    node.payload = replace(node.payload, directory=str(node.place))


def lives_there(node: Node) -> None:
    node.given(HOME=f"{node.place}/alice")


def starts_steps(node: Node) -> None:
    (node.top / "script").write_text("srun ./program\n")


def is_refused_by_its_site(node: Node) -> None:
    node.site = replace(node.site, tmp="node")


def finds_a_place_that_others_rename_in(node: Node) -> None:
    node.place.chmod(0o777)


@pytest.mark.parametrize(
    "why",
    [names_what_is_there, is_given_what_is_there, has_tools_there, has_tickets_there, works_there,
     works_in_it, lives_there, has_a_tmpdir_by_a_link, has_a_tmpdir_of_all, starts_steps, is_refused_by_its_site, finds_a_place_that_others_rename_in],
)  # fmt: skip
def test_a_job_that_would_miss_something_has_the_nodes(
    node: Node, why: Callable[[Node], None]
) -> None:
    assert node.is_its_own()
    why(node)
    before = node.names()
    assert not node.is_its_own()
    assert node.names() == before


def test_what_another_user_puts_there_takes_its_own_from_no_job(node: Node) -> None:
    for name in (f"krb5cc_{USER}", "input", "venv", ".X11-unix"):
        (node.place / name).mkdir()
        os.chown(node.place / name, USER + 1, USER + 1)
    (node.top / "script").write_text(f"cp {node.place}/input/a .\n")
    node.given(PATH=f"/usr/bin:{node.place}/venv/bin")
    seen = node.has(lambda _, its: [its, os.listdir(node.place)])
    assert seen == [[str(node.place)], []]


def test_what_is_in_the_way_of_an_image_there_is_nobodys_but_its(node: Node) -> None:
    """A job that was stopped and goes on where it was, beside another one of its user."""
    image = node.top / "image"
    image.mkdir()

    def look(_: PrivateTmp, its: list[str]) -> str:
        files = TempFiles(CALLER, node.top, node.top / "left.json", its)
        files.places = tuple(its)
        with as_user(user_of(USER, USER)):
            (node.place / "file").write_text("as it was saved")
        files.pack(image, 1 << 20, ())
        with as_user(user_of(USER, USER)):
            (node.place / "file").unlink()
            (node.place / "file").write_text("later")
        files.unpack(image)
        assert os.listdir(node.place) == ["file"]
        return (node.place / "file").read_text()

    assert node.has(look) == "as it was saved"


def test_what_is_not_there_or_goes_on_in_a_variable_is_not_missed(node: Node) -> None:
    (node.place / "mine-").write_text("")
    text = f"echo >{node.place}/mine-$SLURM_JOB_ID; rm {node.place}/new; ls /x{node.place}/mine-\n"
    (node.top / "script").write_text(text)
    assert node.is_its_own()


def test_one_that_slurm_has_given_is_its_own_already(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As job_container/tmpfs mounts it: BasePath/JOB/.JOB."""
    line = f"36 35 8:1 /local/7/.7 {node.place} rw - ext4 /dev/sda1 rw"
    monkeypatch.setattr(private_tmp, "mounts", lambda: line)
    (node.place / "there").write_text("")
    assert node.has(lambda _, its: [its, os.listdir(node.place)]) == [[str(node.place)], ["there"]]


def test_directories_of_users_with_such_names_are_not_opened_and_take_no_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, lstat = [], Path.lstat
    for number in range(1500):
        (node.place / f"{PREFIX}{number}").mkdir()
        os.chown(node.place / f"{PREFIX}{number}", USER, USER)
    monkeypatch.setattr(private_tmp, "locked", lambda path: pytest.fail(f"{path} is opened"))
    monkeypatch.setattr(Path, "lstat", lambda path: looked_at.append(path) or lstat(path))
    sweep(str(node.place))
    assert len(looked_at) == len(set(looked_at)) == 1000
    sweep(str(node.place))
    assert len(set(looked_at)) > 1000, "each time at others"


def test_what_killed_sessions_left_goes_and_nothing_else(node: Node) -> None:
    def is_killed() -> str:
        one = node.places()
        one.take(node.payload)
        with as_user(user_of(USER, USER)):
            (node.place / "deep" / "down").mkdir(parents=True)
        return "its directory stays"

    assert aside(is_killed)
    (left,) = node.names()
    users = node.place / f"{PREFIX}8-users"
    users.mkdir()
    os.chown(users, USER, USER)
    (node.place / f"{PREFIX}9-link").symlink_to(node.top)

    def is_alive(_: PrivateTmp, its: list[str]) -> list[str]:
        outside = f"/proc/{os.getppid()}/root{node.place}"
        sweep(outside)
        return sorted(name for name in os.listdir(outside) if name.startswith(f"{PREFIX}7-"))

    (mine,) = node.has(is_alive)
    assert mine != left, "the next session has removed it, and nobody a living one's"
    assert node.names() == [users.name, f"{PREFIX}9-link"]
