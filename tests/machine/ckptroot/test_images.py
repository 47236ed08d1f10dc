"""The processes that root brings back must be the job's user, and no more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.machine.ckptroot import image_access, images
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.image_access import show
from slurm_elastic.machine.ckptroot.images import OpenFile, check, stopped, writing
from slurm_elastic.machine.ckptroot.protobuf import Message
from slurm_elastic.machine.ckptroot.site import RequestRefused

from . import forged
from .helpers import ROOT

ALICE = Caller(7, 2000, 2000, "alice", (2000, 2005), {})


def test_the_users_own_tasks_pass(tmp_path: Path) -> None:
    one = forged.core(forged.creds(groups=[2000, 2005]))
    other = forged.core(forged.creds(groups=[2005, 2000]))
    assert check(forged.write(tmp_path / "image", one, other), ALICE) == (2000, 2005)


def test_tasks_with_different_groups_are_refused(tmp_path: Path) -> None:
    """The process that restores them has the rights of one user, and cannot change its groups."""
    more = forged.core(forged.creds(groups=[2000, 2005]))
    with pytest.raises(RequestRefused, match="different groups"):
        check(forged.write(tmp_path / "image", forged.core(forged.creds()), more), ALICE)


def test_the_images_are_shown_to_who_is_let_into_their_directory(tmp_path: Path) -> None:
    image = forged.write(tmp_path / "images" / "1", forged.core(forged.creds()))
    (image / "manifest.json").touch(mode=0o640)
    show(image)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (*image.iterdir(), image)}
    assert modes.pop("manifest.json") == 0o640
    assert modes.pop("1") == 0o2755
    assert set(modes.values()) == {0o644}
    assert image.parent.stat().st_mode & 0o7777 == 0o750


REFUSED: dict[str, tuple[bytes, str]] = {
    "root": (forged.creds(uid=0), "uid 0"),
    "another user": (forged.creds(uid=2001), "uid 2001"),
    "effective root": (forged.creds(euid=0), "uid 0"),
    "saved root": (forged.creds(suid=0), "uid 0"),
    "root's files": (forged.creds(fsuid=0), "uid 0"),
    "another group": (forged.creds(gid=0), "gid 0"),
    "effective group": (forged.creds(egid=42), "gid 42"),
    "shadow group": (forged.creds(groups=[2000, 42]), "group 42"),
    "a capability": (forged.creds(cap_eff=[1 << 21, 0]), "capabilities"),
    "a permitted one": (forged.creds(cap_prm=[0, 1]), "capabilities"),
    "an inherited one": (forged.creds(cap_inh=[1, 0]), "capabilities"),
    "securebits": (forged.creds(secbits=1), "securebits"),
    "uid twice, the last is root": (forged.creds() + forged.field(1, 0), "twice"),
    "a field from the future": (forged.creds() + forged.field(30, 1), "unknown field"),
    "no user at all": (b"", "uid -1"),
    "cut off": (forged.creds()[:-1], "cut off"),
}


@pytest.mark.parametrize(("creds", "why"), REFUSED.values(), ids=REFUSED)
def test_tasks_of_others_are_refused(tmp_path: Path, creds: bytes, why: str) -> None:
    good = forged.core(forged.creds())
    with pytest.raises(RequestRefused, match=why):
        check(forged.write(tmp_path / "image", good, forged.core(creds)), ALICE)


def test_a_second_set_of_credentials_is_refused(tmp_path: Path) -> None:
    two = forged.core(forged.creds(), forged.creds(uid=0))
    with pytest.raises(RequestRefused, match="not one set"):
        check(forged.write(tmp_path / "image", two), ALICE)


def test_a_zombie_has_no_credentials_and_needs_none(tmp_path: Path) -> None:
    dead = forged.image(forged.CORE, forged.field(1, 1) + forged.field(3, forged.field(1, 2)))
    check(forged.write(tmp_path / "image", forged.core(forged.creds()), dead), ALICE)


@pytest.mark.parametrize(
    "state", [b"", forged.field(1, 1), forged.field(1, 2) + forged.field(1, 1)]
)
def test_who_lives_or_may_live_needs_them(tmp_path: Path, state: bytes) -> None:
    task = forged.image(forged.CORE, forged.field(1, 1) + forged.field(3, state))
    with pytest.raises(RequestRefused, match=r"not one set|twice"):
        check(forged.write(tmp_path / "image", forged.core(forged.creds()), task), ALICE)


def test_tasks_that_somebody_had_stopped_are_told(tmp_path: Path) -> None:
    states = [forged.field(3, forged.field(1, state)) for state in (1, 3, 2, 3)]
    cores = [forged.image(forged.CORE, forged.field(1, 1) + state) for state in states]
    image = forged.write(tmp_path / "image", *cores, forged.core(forged.creds()))
    (image / "core-x.img").write_bytes(b"")
    assert stopped(image) == {1002, 1004}


def test_a_second_entry_is_refused(tmp_path: Path) -> None:
    entry = forged.core(forged.creds(uid=0))[8:]
    with pytest.raises(RequestRefused, match="2 entries"):
        check(forged.write(tmp_path / "image", forged.core(forged.creds()) + entry), ALICE)


@pytest.mark.parametrize("name", ["mountpoints-9.img", "netns-10.img", "utsns-11.img", "userns-1.img"])  # fmt: skip
def test_namespaces_and_mounts_are_refused(tmp_path: Path, name: str) -> None:
    image = forged.write(tmp_path / "image", forged.core(forged.creds()))
    (image / name).write_bytes(b"x")
    with pytest.raises(RequestRefused, match="namespaces"):
        check(image, ALICE)


def test_an_image_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no task"):
        check(forged.write(tmp_path / "image"), ALICE)


@given(content=st.binary(max_size=200))
def test_rubbish_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    image = tmp_path_factory.mktemp("image")
    header = forged.image(forged.CORE)
    forged.write(image, header + content)
    with pytest.raises(RequestRefused):
        check(image, ALICE)


def test_files_open_for_writing_are_told(tmp_path: Path) -> None:
    entries = (
        forged.file_entry("/shared/out", 0o2001, 80),
        forged.file_entry("/usr/bin/python3", 0o100000, 7),
        forged.file_entry("scratch", 0o2, 5),
        forged.file_entry("/shared/out", 0o1, 80),
        forged.file_entry("/shared/whole", 0o1, 9),
    )
    files = forged.image(forged.FILES, *entries)
    image = forged.write(tmp_path / "image", forged.core(forged.creds()), files=files)
    assert writing(image) == (
        OpenFile("/scratch", 5, appends=False),
        OpenFile("/shared/out", 80, appends=True),
        OpenFile("/shared/whole", 9, appends=False),
    )


@pytest.mark.parametrize("other", [0, 0o2, 0o1], ids=["reads", "reads and writes", "writes"])
@pytest.mark.parametrize("swapped", [False, True])
def test_what_the_job_appends_to_and_opens_otherwise_too(
    tmp_path: Path, other: int, swapped: bool
) -> None:
    """`sim >>log & tail -f log`: a reader comes back only to a file as long as it was."""
    entries = [
        forged.file_entry("/shared/log", 0o2001, None),
        forged.file_entry("/shared/log", other, 100),
        forged.file_entry("/shared/only-appended", 0o2001, None),
        forged.file_entry("/shared/only-read", 0o2000, 7),
    ]
    files = forged.image(forged.FILES, *(reversed(entries) if swapped else entries))
    image = forged.write(tmp_path / "image", forged.core(forged.creds()), files=files)
    assert writing(image) == (OpenFile("/shared/log", 100, appends=True),)


def test_an_empty_file_that_is_written_is_told_too(tmp_path: Path) -> None:
    files = forged.image(forged.FILES, forged.file_entry("/shared/empty", 0o1, 0))
    image = forged.write(tmp_path / "image", files=files)
    assert writing(image) == (OpenFile("/shared/empty", 0, appends=False),)


def reg(number: int, path: str | None) -> bytes:
    """An open file with that id."""
    name = b"" if path is None else forged.field(6, path.encode())
    one = forged.field(1, number) + forged.field(2, 0o1) + name + forged.field(8, 5)
    return forged.field(1, 1) + forged.field(2, number) + forged.field(3, one)


def test_what_does_not_come_back_by_its_path_is_no_file_to_cut(tmp_path: Path) -> None:
    """Deleted files, and those without a name."""
    files = forged.image(forged.FILES, reg(2, "/gone"), reg(3, "/there"), reg(4, None))
    image = forged.write(tmp_path / "image", files=files)
    remaps = forged.image(0x59133954, forged.field(1, 2) + forged.field(2, 3))
    (image / "remap-fpath.img").write_bytes(remaps)
    assert [one.path for one in writing(image)] == ["/there"]


MORE_REFUSED: dict[str, tuple[bytes, str]] = {
    "saved group": (forged.core(forged.creds(sgid=42)), "gid 42"),
    "group for files": (forged.core(forged.creds(fsgid=42)), "gid 42"),
    "two strange groups": (forged.core(forged.creds(groups=[2000, 43, 42])), "group 42,"),
    "the first unknown field": (
        forged.core(forged.creds() + forged.field(21, 1) + forged.field(20, 1)),
        "unknown field 20",
    ),
    "no entry": (forged.image(forged.CORE), "core-1002.img: 0 entries, expected one"),
    "an empty entry": (forged.image(forged.CORE, b""), "not one set of credentials"),
    "a length that is cut off": (forged.core(forged.creds()) + b"\0\0\0", "cut off"),
    "too short": (b"abc", "core-1002.img: not an image of this kind"),
    "of another kind": (forged.image(forged.FILES, b"x"), "not an image of this kind"),
    "two threads, one set": (
        forged.image(
            forged.CORE,
            forged.field(5, forged.field(10, forged.creds())) + forged.field(5, forged.field(1, 0)),
        ),
        "not one set of credentials",
    ),
    "a number for a message": (forged.image(forged.CORE, forged.field(5, 7)), "is no message"),
}


@pytest.mark.parametrize(("core", "why"), MORE_REFUSED.values(), ids=MORE_REFUSED)
def test_what_is_not_as_expected_is_refused_with_the_reason(
    tmp_path: Path, core: bytes, why: str
) -> None:
    with pytest.raises(RequestRefused, match=why):
        check(forged.write(tmp_path / "image", forged.core(forged.creds()), core), ALICE)


def test_all_fields_that_criu_knows_pass(tmp_path: Path) -> None:
    """And groups that are packed into one field."""
    packed = forged.field(14, forged.varint(2005) + forged.varint(2000))
    creds = forged.creds(groups=[]) + packed + b"".join(forged.field(n, 1) for n in range(15, 20))
    image = forged.write(tmp_path / "image", forged.core(creds))
    assert check(image, ALICE) == (2000, 2005)


@pytest.mark.parametrize("missing", ["inventory.img", "pstree.img"])
def test_without_inventory_or_process_tree_it_is_no_image(tmp_path: Path, missing: str) -> None:
    image = forged.write(tmp_path / "image", forged.core(forged.creds()))
    (image / missing).unlink()
    with pytest.raises(RequestRefused, match="inventory or process tree are missing"):
        check(image, ALICE)
    (image / missing).touch()
    for other in ("files.img", "core-1001.img"):
        (image / other).unlink()
    with pytest.raises(RequestRefused, match="the image has no task"):
        check(image, ALICE)


def test_more_than_256_mib_are_not_read(tmp_path: Path) -> None:
    image = forged.write(tmp_path / "image", forged.core(forged.creds()))
    os.truncate(image / "core-1001.img", (256 << 20) + 1)
    with pytest.raises(RequestRefused, match="more than 268435456"):
        check(image, ALICE)


FIELDS: dict[str, tuple[bytes, dict[int, list[int | bytes]]]] = {
    "numbers of several bytes": (
        forged.field(1, 127) + forged.field(1, 128) + forged.field(2, 1 << 14),
        {1: [127, 128], 2: [1 << 14]},
    ),
    "ten bytes": (forged.varint(8) + b"\xff" * 9 + b"\x01", {1: [(1 << 64) - 1]}),
    "eight and four": (
        forged.varint(3 << 3 | 1) + b"12345678" + forged.varint(4 << 3 | 5) + b"1234",
        {3: [b"12345678"], 4: [b"1234"]},
    ),
}


@pytest.mark.parametrize(("data", "found"), FIELDS.values(), ids=FIELDS)
def test_fields_of_all_kinds_are_read(data: bytes, found: dict[int, list[int | bytes]]) -> None:
    assert Message(data).fields == found


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (forged.varint(8) + b"\xff" * 10, "has no end"),
        (forged.varint(8) + b"\xff", "number that is cut off"),
        (forged.varint(3 << 3 | 1) + b"1234567", "field that is cut off"),
        (forged.varint(1 << 3 | 3), "unknown kind 3"),
    ],
)
def test_fields_that_cannot_be_read_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        Message(data)


def test_a_message_for_a_number_is_refused() -> None:
    with pytest.raises(RequestRefused, match="field 1 is no number"):
        Message(forged.field(1, b"x")).number(1)
    assert Message(b"").number(1) == 0


def test_no_image_is_shown_but_those_of_criu_and_dmtcp(tmp_path: Path) -> None:
    image = tmp_path / "images" / "1"
    image.mkdir(parents=True)
    for name in ("ckpt_a.dmtcp", "core-1.img", "local.data"):
        (image / name).touch(mode=0o640)
    show(image)
    modes = {path.name: path.stat().st_mode & 0o777 for path in image.iterdir()}
    assert modes == {"ckpt_a.dmtcp": 0o644, "core-1.img": 0o644, "local.data": 0o640}


# links, connections, System V IPC


def remap(number: int, by: int, kind: int) -> bytes:
    return forged.field(1, number) + forged.field(2, by) + forged.field(3, kind)


def test_the_links_that_criu_made_are_told(tmp_path: Path) -> None:
    entries = [
        forged.field(1, 1) + forged.field(3, forged.field(1, number) + forged.field(6, path))
        for number, path in ((2, b"dev/shm/sem.x"), (7, b"dev/shm/link_remap.7"), (8, b"other"))
    ]
    image = forged.write(tmp_path, files=forged.image(forged.FILES, *entries))
    assert images.links(image) == ()
    linked, ghost = remap(2, 7, 0), remap(3, 8, 1)
    (image / "remap-fpath.img").write_bytes(forged.image(0x59133954, linked, ghost))
    assert images.links(image) == ("/dev/shm/link_remap.7",)


def inet(inode: int, state: int = 1, protocol: int = 6) -> bytes:
    fields = {1: 9, 2: inode, 3: 2, 4: 1, 5: protocol, 6: state, 7: 80, 8: 4000}
    packed = b"".join(forged.field(number, value) for number, value in fields.items())
    here, there = (int.from_bytes(raw, sys.byteorder) for raw in (b"\x7f\0\0\1", b"\x7f\0\0\2"))
    return forged.field(1, 2) + forged.field(
        4, packed + forged.field(11, here) + forged.field(12, there)
    )


def test_connections_are_told_and_no_listeners(tmp_path: Path) -> None:
    entries = [inet(0xAB), inet(0xAC, state=10), inet(0xAD, protocol=17)]
    image = forged.write(tmp_path, files=forged.image(forged.FILES, *entries))
    assert not images.has_streams(image)
    with pytest.raises(FileNotFoundError):
        images.streams(image)
    fields = {1: 5, 2: 1000, 3: 300, 4: 100, 12: 20}
    entry = b"".join(forged.field(number, value) for number, value in fields.items())
    (image / "tcp-stream-ab.img").write_bytes(forged.image(0x51465506, entry) + b"\xff" * 305)
    assert images.has_streams(image)
    (found,) = images.streams(image)
    assert (found.local, found.remote) == ((b"\x7f\0\0\1", 80), (b"\x7f\0\0\2", 4000))
    assert (found.received, found.kept, found.unsent) == (1000, (1 << 32) - 200, 20)


@pytest.mark.parametrize("kind", ["var", "shm", "msg", "sem"])
def test_system_v_ipc_is_the_one_namespace_of_an_image(tmp_path: Path, kind: str) -> None:
    image = forged.write(tmp_path, forged.core(forged.creds()))
    assert not images.has_sysv(image)
    (image / f"ipcns-{kind}-9.img").touch()
    assert images.has_sysv(image)
    assert images.check(image, ALICE) == (2000,)
    (image / "ipcns-other-9.img").touch()
    with pytest.raises(RequestRefused, match="namespaces or mounts"):
        images.check(image, ALICE)


@ROOT
def test_an_image_is_its_users_only_while_he_makes_it(tmp_path: Path) -> None:
    place = tmp_path / "images" / "1.new"
    place.mkdir(parents=True)
    with image_access.handed(place, 2000) as descriptor:
        assert place.stat().st_uid == 2000
        assert place.parent.stat().st_mode & 0o777 == 0o750, "nobody else gets there"
        made = os.open("core-1.img", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=descriptor)
        os.fchown(made, 2000, 2000)
        os.close(made)
        os.symlink("/etc/passwd", place / "link")
    assert {place.stat().st_uid, (place / "core-1.img").stat().st_uid} == {0}
    assert Path("/etc/passwd").stat().st_uid == 0
    with pytest.raises(ZeroDivisionError), image_access.handed(place, 2000):
        _ = 1 // 0
    assert place.stat().st_uid == 0
