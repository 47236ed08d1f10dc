"""Whom a file belongs to, and all that leads to it, is looked at in one way by whoever goes by it."""

from __future__ import annotations

import ast
import grp
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import ROOT

import slurm_elastic
from slurm_elastic.base import trust

NOBODY = 65534
PACKAGE = Path(slurm_elastic.__file__).parent


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of ours below /tmp, with a file."""
    path = Path(tempfile.mkdtemp(prefix="se-trust-", dir="/tmp"))
    path.chmod(0o755)
    (path / "dir").mkdir(mode=0o755)
    (path / "dir" / "file").touch(mode=0o644)
    yield path
    shutil.rmtree(path)


def flaw(place: Path, name: str = "dir/file", *, private: bool = False) -> str | None:
    return trust.flaw(place / name, trust.roots(), private=private)


def test_a_file_of_ours_is_sound(place: Path) -> None:
    assert flaw(place) is None
    (place / "link").symlink_to("dir/../dir/file")
    assert flaw(place, "link") is None


def opened(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).chmod(0o777 if name == "dir" else 0o666)


def given(name: str) -> Callable[[Path], None]:
    return lambda place: os.chown(place / name, NOBODY, NOBODY, follow_symlinks=False)


def linked(place: Path) -> None:
    (place / "dir" / "file").rename(place / "other")
    (place / "dir" / "file").symlink_to(place / "other")
    os.chown(place / "dir" / "file", NOBODY, NOBODY, follow_symlinks=False)


def led_elsewhere(place: Path) -> None:
    (place / "theirs").mkdir()
    (place / "dir" / "file").rename(place / "theirs" / "file")
    (place / "dir" / "file").symlink_to("../theirs/file")
    os.chown(place / "theirs", NOBODY, NOBODY)


@ROOT
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (opened("dir/file"), "/dir/file may be written by others (mode 0666); chmod go-w {it}"),
        (opened("dir"), "/dir may be written by others (mode 0777); chmod go-w {it}"),
        (given("dir/file"), "/dir/file belongs to nobody, not to root; chown root {it}"),
        (given("dir"), "/dir belongs to nobody, not to root; chown root {it}"),
        (linked, "/dir/file belongs to nobody, not to root; chown root {it}"),
        (led_elsewhere, "/theirs belongs to nobody, not to root; chown root {it}"),
    ],
    ids=["file open", "directory open", "file", "directory", "link", "where a link leads"],
)
def test_what_another_could_have_written_is_not(
    place: Path, change: Callable[[Path], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    change(place)
    assert flaw(place) == f"{place}{why}".format(it=f"{place}{why.split()[0]}")


def test_what_others_may_read_is_no_secret(place: Path) -> None:
    assert flaw(place, private=True) == (
        f"{place}/dir/file may be read by others (mode 0644); chmod 600 {place}/dir/file"
    )
    (place / "dir" / "file").chmod(0o600)
    assert flaw(place, private=True) is None


@ROOT
def test_the_repair_of_a_secret_leaves_it_readable_to_the_services(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(trust, "_slurm_user", {1})
    given("dir/file")(place)
    words = f"{place}/dir/file belongs to nobody, not to root or daemon; chown daemon"
    assert trust.flaw(place / "dir" / "file", trust.ours(), private=True) == (
        f"{words} {place}/dir/file"
    )


@ROOT
def test_root_goes_by_files_of_whom_it_is_told_to_and_of_who_used_sudo(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(trust, "_slurm_user", set())
    os.chown(place / "dir" / "file", NOBODY, NOBODY)
    path = place / "dir" / "file"
    assert trust.flaw(path, trust.ours()) is not None
    trust.trust_slurm_user(NOBODY)
    assert trust.flaw(path, trust.ours()) is None
    assert trust.flaw(path, trust.roots()) is not None, "credentials alone"
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert trust.flaw(path, trust.roots()) is None


@ROOT
@pytest.mark.parametrize(
    ("members", "first", "sound"),
    [([], [], True), (["site"], [], True), (["guest"], [], False), ([], ["guest"], False)],
    ids=["nobody else", "the owner", "a member", "another user's first group"],
)
def test_a_group_may_write_that_is_its_owners_alone(
    place: Path, members: list[str], first: list[str], sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 54321

    def user(name: str, uid: int, gid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    site = user("site", number, number)
    guests = [user("guest", number + 1, number if "guest" in first else number + 1)]
    group = grp.struct_group(("site", "x", number, members))
    monkeypatch.setattr(pwd, "getpwuid", {number: site, 0: user("root", 0, 0)}.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: [site, *guests])
    monkeypatch.setattr(grp, "getgrgid", {number: group}.__getitem__)
    file = place / "dir" / "file"
    os.chown(file, number, number)
    file.chmod(0o664)
    assert (trust.flaw(file, {number}) is None) is sound


def test_a_descriptor_is_gone_by_as_what_it_is(place: Path) -> None:
    with (place / "dir" / "file").open() as file:
        assert trust.flaw(f"/dev/fd/{file.fileno()}", trust.roots()) is None
    read, write = os.pipe()
    assert trust.flaw(f"/proc/self/fd/{read}", trust.roots(), private=True) is None
    os.close(read)
    os.close(write)


@ROOT
@pytest.mark.parametrize("below", ["", "/../dir", "/link", "/away"])
def test_what_is_below_a_descriptor_is_looked_at_too(
    place: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    (place / "dir" / "link").symlink_to("../dir")
    (place / "dir" / "away").symlink_to(place / "dir")
    number = os.open(place / "dir", os.O_RDONLY)
    try:
        file = f"/proc/self/fd/{number}{below}/file"
        assert trust.flaw(file, trust.roots()) is None
        given("dir/file")(place)
        assert "belongs to nobody" in str(trust.flaw(file, trust.roots()))
        assert "belongs to nobody" in str(
            trust.flaw(f"/proc/self/root{place}/dir/file", trust.roots())
        )
    finally:
        os.close(number)


def test_links_without_end_are_an_error(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        flaw(place, "a")


OTHER_WAYS = {
    "base/trust.py": "the one way",
    "checkpointers/save_signs.py": "files of a job's user, opened and then looked at",
    "config/configfile.py": "the mode and owner of the configuration, for its new text",
    "ckptman/sources.py": "files that anybody may drop, opened and then looked at",
    "machine/ckptroot/": "files of users among root's: each is opened and then looked at",
    "watch/doctor/head.py": "tells of the state directory",
    "machine/jobfiles/": "files of users: each is opened without links, and then looked at",
    "machine/programs/": "run on machines: the standard library alone",
    "sandbox/": "its own directory (require_own)",
    "slurm/conf/install.py": "the state directory, and modes of files that it changes",
    "slurm/conf/plan.py": "modes of files that it writes",
    "slurm/conf/transaction.py": "modes and owners of files that it changes",
    "state/statedir.py": "closes the state directory to others",
    "base/ownfile.py": "files of a directory of ours, opened and then looked at",
    "base/writing.py": "the owner of a directory, for files in it",
    "features/network/key_rotation.py": "the owner of a file, for its next one",
    "checkpointers/node_helper_client.py": "a regular file, whoever's",
    "base/processes/unixsocket.py": "a socket, whoever's",
}
"""Modules (a trailing slash: all below) that look at owners and modes otherwise, with the reason."""


def test_owners_and_modes_are_judged_in_one_way() -> None:
    found, used = set(), set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        nodes = ast.walk(ast.parse(path.read_text()))
        if any(isinstance(n, ast.Attribute) and n.attr in ("st_uid", "st_mode") for n in nodes):
            ways = [w for w in OTHER_WAYS if name == w or (w[-1] == "/" and name.startswith(w))]
            used.update(ways)
            found |= set() if ways else {name}
    assert not found, "slurm_elastic.base.trust is the way; or OTHER_WAYS says why not"
    assert used == set(OTHER_WAYS), "a way that nobody takes any more"
