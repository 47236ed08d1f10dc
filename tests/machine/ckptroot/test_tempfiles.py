"""Files in a node's temporary directories travel with a job's image, as they were, and no others'."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import inventory, mounts, proc, tempfiles, walk
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import RequestRefused
from slurm_elastic.machine.ckptroot.tempfiles import TempFiles

from .helpers import ROOT

pytestmark = ROOT
USER = 1_000_000 + os.getpid()  # whose processes are all of this test's
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The node's temporary directory; the image is beside it."""
    top = Path(tempfile.mkdtemp(prefix="se-tempfiles-", dir="/tmp"))
    top.chmod(0o755)
    found = top / "tmp"
    found.mkdir()
    found.chmod(0o1777)
    (top / "image").mkdir()
    monkeypatch.setattr(tempfiles, "PLACES", (str(found),))
    monkeypatch.setattr(tempfiles, "is_local", lambda path, _: path.startswith(str(found)))
    yield found
    shutil.rmtree(top)


def new(place: Path, caller: Caller = CALLER) -> TempFiles:
    return TempFiles(caller, place.parent, place.parent / "left.json")


def as_user(code: str, place: Path) -> None:
    words = [sys.executable, "-c", f"import os\n{code}"]
    subprocess.run(words, check=True, cwd=place, user=USER, group=USER, extra_groups=[])


MAKE = """
os.makedirs("a/b"); os.chmod("a", 0o710)
open("a/b/text", "w").write("closed\\n"); os.chmod("a/b/text", 0o640); os.utime("a/b/text", (1000, 1000))
os.symlink("b/text", "a/link"); os.mkfifo("a/pipe", 0o620); os.link("a/b/text", "a/second")
with open("a/sparse", "wb") as f: f.write(b"x"); f.seek(1 << 30); f.write(b"y")
"""


def seen(place: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in sorted(place.rglob("*")):
        one = path.lstat()
        what = os.readlink(path) if path.is_symlink() else one.st_nlink if path.is_file() else 0
        found[str(path.relative_to(place))] = (one.st_mode, one.st_uid, one.st_size, what)
    return {path: one for path, one in found.items() if not stat.S_ISDIR(int(str(one[0])))}


def test_all_kinds_of_files_are_on_the_other_node_as_they_were(place: Path) -> None:
    (place / "roots").write_text("another's")
    one = new(place)
    as_user(MAKE, place)
    one.pack(place.parent / "image", 1 << 20, ())
    assert (place.parent / "image" / tempfiles.DATA).stat().st_blocks * 512 < 1 << 20
    before = seen(place)
    subprocess.run(["rm", "-r", place / "a"], check=True)
    new(place).unpack(place.parent / "image")
    assert seen(place) == before
    assert (place / "a" / "b" / "text").read_text() == "closed\n"
    assert (place / "a" / "b" / "text").stat().st_mtime == 1000
    assert os.path.samefile(place / "a" / "b" / "text", place / "a" / "second")
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o710


@pytest.mark.parametrize("mode", [0o500, 0o555])
def test_what_is_in_a_directory_that_its_owner_may_not_write_is_there_again(
    place: Path, mode: int
) -> None:
    one, image = new(place), place.parent / "image"
    as_user(f"os.makedirs('a/b'); open('a/b/in', 'w').write('1'); os.chmod('a/b', {mode})", place)
    one.pack(image, 1 << 20, ())
    for there in (place / "a", None):  # on another node, and on the same one
        if there:
            shutil.rmtree(there)
        new(place).unpack(image)
        assert stat.S_IMODE((place / "a" / "b").stat().st_mode) == mode
        assert (place / "a" / "b" / "in").read_text() == "1"


def test_a_directory_whose_files_cannot_be_seen_is_a_reason_to_refuse(place: Path) -> None:
    one = new(place)
    as_user("os.mkdir('a'); open('a/in', 'w').write('1'); os.chmod('a', 0o300)", place)
    with pytest.raises(
        RequestRefused, match="/a cannot be looked through with the rights of its user"
    ):
        one.own_files(())


def test_what_was_on_the_node_already_is_the_jobs_at_its_next_save(place: Path) -> None:
    one, image = new(place), place.parent / "image"
    as_user(MAKE, place)
    one.pack(image, 1 << 20, ())
    before = set(one.own_files(()))
    one.leave()
    time.sleep(0.1)
    again = new(place)
    again.since = time.time_ns() - 50_000_000  # files' clock ticks more slowly
    again.unpack(image)
    assert set(again.own_files(())) == before


def test_a_file_where_a_directory_was_is_set_aside(place: Path) -> None:
    one, image = new(place), place.parent / "image"
    as_user("os.mkdir('what')", place)
    one.pack(image, 1 << 20, ())
    as_user("os.rmdir('what'); open('what', 'w').write('new')", place)
    new(place).unpack(image)
    assert (place / "what").is_dir()
    assert [path.read_text() for path in place.glob("what.before-7.*")] == ["new"]


def test_an_older_image_takes_the_place_of_one_that_was_not_used(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    """Its files are in nobody's way, those with two names neither."""
    one = new(place)
    own = os.fsdecode(one.prepare()[b"TMPDIR"])
    images = [place.parent / name for name in ("older", "newer")]
    for image in images:
        image.mkdir()
        as_user(
            f"os.chdir({own!r}); open('a', 'w').write('{image.name}');"
            " os.path.exists('b') or os.link('a', 'b')",
            place,
        )
        one.pack(image, 1 << 20, ())
    one.leave()
    again = new(place)
    for image in reversed(images):
        again.unpack(image)
    assert Path(own, "b").read_text() == "older"
    assert list(Path(own).glob("*.before-*")) == []


def test_of_an_image_that_is_not_used_nothing_stays_but_what_was_changed(place: Path) -> None:
    one, image = new(place), place.parent / "image"
    as_user(MAKE, place)
    as_user("os.mkdir('kept'); open('kept/changed', 'w').write('1'); open('there', 'w')", place)
    one.pack(image, 1 << 20, ())
    for gone in ("a", "kept"):
        shutil.rmtree(place / gone)
    again = new(place)
    again.unpack(image)
    as_user("open('kept/changed', 'w').write('another')", place)
    again.withdraw()
    assert {str(path.relative_to(place)) for path in place.rglob("*")} == {
        "kept", "kept/changed", "there",
    }  # fmt: skip


def test_a_place_of_all_users_is_nobodys_tmpdir(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    (scratch := place / "scratch").mkdir()
    scratch.chmod(0o1777)
    as_user("open('scratch/before', 'w').write('another job has it')", place)
    caller = replace(CALLER, environment={b"TMPDIR": os.fsencode(scratch)})
    one = new(place, caller)
    one.since = time.time_ns()
    given = Path(os.fsdecode(one.prepare()[b"TMPDIR"]))
    assert given.parent == scratch
    assert set(one.own_files(())) == {str(given)}


MOUNTS = r"""
22 1 0:20 /root / rw - btrfs /dev/vda2 rw,subvol=/root
23 22 0:21 / /tmp rw - nfs4 server:/tmp rw
24 22 0:22 / /tmp rw shared:1 - tmpfs tmpfs rw
25 22 0:23 / /home\040of/all rw - nfs4 server:/home rw
""".strip()


@pytest.mark.parametrize(("path", "kind"), [("/tmp/a", "tmpfs"), ("/tmp", "tmpfs"),
                         ("/tmpfiles", "btrfs"), ("/home of/all/x", "nfs4"), ("/", "btrfs")])  # fmt: skip
def test_a_file_system_is_that_of_the_last_mount_above(path: str, kind: str) -> None:
    assert mounts.file_system(path, MOUNTS) == kind


def test_what_the_job_left_itself_is_replaced_and_anothers_is_set_aside(place: Path) -> None:
    one, image = new(place), place.parent / "image"
    as_user("open('mine', 'w').write('new'); open('other', 'w').write('new')", place)
    one.pack(image, 1 << 20, ())
    as_user("open('mine', 'w').write('old'); open('other', 'w').write('old')", place)
    (image.parent / "later").mkdir()
    one.pack(image.parent / "later", 1 << 20, ())
    one.leave()
    as_user("open('other', 'w').write('changed')", place)
    new(place).unpack(image)
    assert (place / "mine").read_text() == "new"
    assert (place / "other").read_text() == "new"
    assert [path.read_text() for path in place.glob("*.before-7.*")] == ["changed"]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of the user's on the node."""
    with subprocess.Popen(["/bin/sleep", "600"], user=USER, group=USER, extra_groups=[]) as one:
        yield one
        one.kill()


def test_beside_other_processes_of_its_user_only_its_own_travels(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    one = new(place)
    given = one.prepare()
    own = Path(os.fsdecode(given[b"TMPDIR"]))
    as_user(f"open('{own}/closed', 'w').write('mine')", place)
    assert set(one.own_files(())) == {str(own), f"{own}/closed"}
    as_user("open('whose', 'w').write('?')", place)
    with pytest.raises(RequestRefused, match="may be its own or that of another process"):
        one.own_files(())
    assert str(place / "whose") in one.own_files((other.pid,)), "no other process is left"
    one.discard()
    assert not own.exists()


def test_what_the_job_has_begun_a_moment_ago_is_no_other_process(place: Path) -> None:
    """As a shell does with each command: it is in no list that was made before."""
    words = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        "sleep 600 & echo up; sleep 600",
    ]
    one = new(place)
    as_user("open('closed', 'w').write('mine')", place)
    with subprocess.Popen(
        [
            "setpriv",
            "--inh-caps=+sys_admin",
            "--ambient-caps=+sys_admin",
            f"--reuid={USER}",
            *words,
        ],
        stdout=subprocess.PIPE,
    ) as outer:
        try:
            assert outer.stdout is not None
            assert outer.stdout.readline() == b"up\n"
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
            assert str(place / "closed") in one.own_files((outer.pid, int(children)))
            with pytest.raises(RequestRefused, match="may be its own or that of another process"):
                one.own_files((int(children),))
        finally:
            outer.kill()


def test_a_tmpdir_that_the_job_has_is_its_own_whatever_its_age(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    as_user("os.mkdir('own'); open('own/early', 'w').write('1')", place)
    caller = replace(CALLER, environment={b"TMPDIR": os.fsencode(place / "own")})
    one = new(place, caller)
    one.since += int(3600e9)
    assert one.prepare() == {}
    assert set(one.own_files(())) == {str(place / "own"), str(place / "own" / "early")}


def test_all_is_its_own_where_it_has_a_place_to_itself(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    as_user("open('early', 'w').write('1')", place)
    one = TempFiles(CALLER, place.parent, place.parent / "left.json", (str(place),))
    one.since += int(3600e9)
    assert set(one.own_files(())) == {str(place / "early")}


def test_too_much_is_refused_with_the_amount(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = new(place)
    as_user("open('big', 'wb').write(b'x' * (3 << 20))", place)
    monkeypatch.setattr(tempfiles, "MAX_DATA_BYTES", 2 << 20)
    with pytest.raises(
        RequestRefused, match=r"it has 3 MiB of files in .*, 2 MiB at most travel with it"
    ):
        one.own_files(())


def test_nothing_of_another_user_is_touched_on_the_way_back(place: Path) -> None:
    """A link in the way leads nowhere: root's file keeps what it has."""
    one, image = new(place), place.parent / "image"
    as_user(
        "open('file', 'w').write('data'); os.mkdir('dir'); open('dir/in', 'w').write('1')", place
    )
    one.pack(image, 1 << 20, ())
    secret = place.parent / "secret"
    secret.mkdir()
    (secret / "in").write_text("root's")
    (place / "file").unlink()
    (place / "file").symlink_to(secret / "in")
    subprocess.run(["rm", "-r", place / "dir"], check=True)
    (place / "dir").symlink_to(secret)
    with pytest.raises(RequestRefused):
        new(place).unpack(image)
    assert (secret / "in").read_text() == "root's"


ANOTHER = USER + 500_000


def fill(directory: Path, owner: int, count: int) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(count):
        one = directory / f"{owner}.{number}"
        one.touch()
        os.chown(one, owner, owner)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user may fill the directory with more than ten files."""
    monkeypatch.setattr(walk, "MAX_ENTRIES", 10)


@pytest.mark.usefixtures("few")
def test_another_users_files_keep_nobody_from_a_save(place: Path) -> None:
    one = new(place)
    fill(place, ANOTHER, 50)
    for name in ("crowd", *(f"deep{n}" for n in range(20))):
        fill(place / name, ANOTHER, 20)
        os.chown(place / name, ANOTHER, ANOTHER)
    as_user("os.mkdir('mine'); open('mine/a', 'w').write('1')", place)
    assert set(one.own_files(())) == {str(place / "mine"), str(place / "mine" / "a")}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("owner", [USER, ANOTHER], ids=["its own", "another"])
def test_too_many_files_where_it_has_its_own_are_a_reason_to_refuse(
    place: Path, owner: int
) -> None:
    """The search gives up at so many, and may not have found all of the user's own."""
    one = new(place)
    (place / "shared").mkdir()
    fill(place / "shared", USER, 1)
    os.chown(place / "shared", owner, owner)
    assert str(place / "shared" / f"{USER}.0") in one.own_files(())
    fill(place / "shared" / "deep", owner, 20)  # seen after its own, in whatever order names come
    os.chown(place / "shared" / "deep", owner, owner)
    with pytest.raises(
        RequestRefused, match=f"more than 10 files are in directories of uid {owner} in"
    ):
        one.own_files(())


HUNG = """
import ctypes, os, stat, sys
from pathlib import Path
from slurm_elastic.machine.ckptroot import mounts, tempfiles
from slurm_elastic.machine.ckptroot.caller import Caller
place, uid = Path(sys.argv[1]), int(sys.argv[2])
tempfiles.PLACES = (str(place),)
one = tempfiles.TempFiles(Caller(job=7, uid=uid, gid=uid, user="x", groups=(uid,), environment={}),
                      Path("/proc"), place.parent / "left.json")
assert one.places, "the directory of this test is none of this node"
(place / "own").touch()
os.chown(place / "own", uid, uid)
(place / "hung").mkdir()
device = os.open("/dev/fuse", os.O_RDWR)  # nobody ever answers
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
if ctypes.CDLL(None).mount(b"hung", bytes(place / "hung"), b"fuse", 6, options.encode()) != 0:
    sys.exit(77)
assert not mounts.is_local(str(place / "hung" / "x"), Path("/proc"))
print(sorted(one.own_files(())))
"""


def test_a_file_system_that_hangs_is_passed_by(place: Path) -> None:
    words = ["unshare", "--mount", sys.executable, "-c", HUNG, str(place), str(USER)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 77:
        pytest.skip("this host has no FUSE")
    assert done.stdout.strip() == str([str(place / "own")]), done.stderr


def test_mount_points_are_known_by_another_name_of_the_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev")
    place = f"{tmp_path}/link"
    seen = {path for path, _ in walk.Walk(USER).below(place, os.stat(place))}
    assert f"{place}/null" in seen
    assert f"{place}/pts" not in seen, "another file system"


# bounds, as docs/checkpoint-criu.md has them


def seen_as(number: int, blocks: int = 0, mode: int = stat.S_IFREG | 0o600) -> os.stat_result:
    """A file of the user's of just now."""
    ten = (mode, number, 1, 1, USER, USER, 0, 0, 0, 0)
    now = time.time_ns() + int(1e12)
    more = {"st_blocks": blocks, "st_ctime_ns": now, "st_mtime_ns": now}
    return os.stat_result(ten, more)


@pytest.fixture
def walked(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, os.stat_result]]:
    """The files that a walk finds there; a test adds to them."""
    found: list[tuple[str, os.stat_result]] = []
    walk_there = SimpleNamespace(below=lambda path, _: iter(found if path == str(place) else ()))
    monkeypatch.setattr(tempfiles, "Walk", lambda uid: walk_there)
    monkeypatch.setattr(tempfiles, "others_of", lambda uid, tasks: set())
    return found


def test_ten_thousand_files_travel_and_no_more(
    place: Path, walked: list[tuple[str, os.stat_result]]
) -> None:
    one = new(place)
    walked.extend((f"{place}/{n}", seen_as(n)) for n in range(10_000))
    assert len(one.own_files(())) == 10_000
    walked.append((f"{place}/more", seen_as(10_000)))
    said = f"^it has 10001 files in {place}, 10000 at most travel with it$"
    with pytest.raises(RequestRefused, match=said):
        one.own_files(())


def test_all_places_of_what_is_too_much_are_named_and_no_others(
    place: Path, walked: list[tuple[str, os.stat_result]]
) -> None:
    one = new(place)
    one.places = (str(place), "/dev/shm", "/var/tmp")
    blocks = (256 << 20) // 512
    walked += [(f"{place}/big", seen_as(1, blocks)), ("/dev/shm/more", seen_as(2, 1))]
    with pytest.raises(RequestRefused, match=f"of files in {place} and /dev/shm, 256 MiB"):
        one.own_files(())


def test_256_mib_travel_and_no_more(place: Path, walked: list[tuple[str, os.stat_result]]) -> None:
    one = new(place)
    blocks = (256 << 20) // 512
    walked.append((f"{place}/big", seen_as(1, blocks)))
    one.own_files(())
    walked.append((f"{place}/more", seen_as(2, 1)))
    with pytest.raises(
        RequestRefused, match=f"256 MiB of files in {place}, 256 MiB at most travel"
    ):
        one.own_files(())


@pytest.mark.parametrize(("mode", "fine"), [(0o500, True), (0o100, False), (0o400, False)])
def test_a_directory_that_its_user_may_not_list_or_enter_is_told(
    place: Path, walked: list[tuple[str, os.stat_result]], mode: int, fine: bool
) -> None:
    walked.append((f"{place}/dir", seen_as(1, mode=stat.S_IFDIR | mode)))
    if fine:
        assert len(new(place).own_files(())) == 1
    else:
        with pytest.raises(RequestRefused, match="dir cannot be looked through"):
            new(place).own_files(())


def test_sockets_others_files_and_older_ones_stay(
    place: Path, walked: list[tuple[str, os.stat_result]]
) -> None:
    one = new(place)
    one.since = seen_as(1).st_ctime_ns
    walked.append((f"{place}/socket", seen_as(1, mode=stat.S_IFSOCK | 0o600)))
    walked.append((f"{place}/others", os.stat("/")))
    walked.append((f"{place}/new", seen_as(2)))
    exact = seen_as(3)
    walked.append((f"{place}/exact", exact))
    one.since = exact.st_ctime_ns
    assert set(one.own_files(())) == {f"{place}/exact"}


def test_names_that_are_too_long_together_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, image = new(place), place.parent / "image"
    as_user("open('file', 'w').write('1')", place)
    one.pack(image, 1 << 20, ())
    size = (image / tempfiles.INDEX).stat().st_size
    assert {stat.S_IMODE(path.stat().st_mode) for path in image.iterdir()} == {0o640}
    for most, fits in ((size, True), (size - 1, False)):
        monkeypatch.setattr(tempfiles, "MAX_INDEX_BYTES", most)
        (other := place.parent / str(most)).mkdir()
        if fits:
            one.pack(other, 1 << 20, ())
        else:
            with pytest.raises(RequestRefused, match=r"the names of its files .* are too long"):
                one.pack(other, 1 << 20, ())


def test_nothing_is_left_open(place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    one, image = new(place), place.parent / "image"
    as_user("open('file', 'w').write('1')", place)
    one.pack(image, 1 << 20, ())
    one.leave()
    new(place).unpack(image)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_job_without_files_has_nothing_to_travel(place: Path) -> None:
    image = place.parent / "image"
    new(place).pack(image, 1 << 20, ())
    assert list(image.iterdir()) == []
    new(place).unpack(image)


# a TMPDIR of its own


def test_a_tmpdir_is_its_users_alone_and_goes_with_the_job(place: Path) -> None:
    one = new(place)
    own = Path(os.fsdecode(one.prepare()[b"TMPDIR"]))
    assert own.name.startswith("slurm-elastic-7-")
    found = own.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (USER, 0o700)
    as_user(f"open('{own}/file', 'w').write('1')", place)
    one.pack(place.parent / "image", 1 << 20, ())
    one.leave()
    assert not own.exists()
    record = json.loads((place.parent / "left.json").read_text())
    assert set(record) == {str(own), f"{own}/file"}


def test_where_none_can_be_made_there_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o755)
    assert new(place).prepare() == {}
    place.chmod(0o1777)
    caller = replace(CALLER, environment={b"TMPDIR": b"/shared/tmp"})
    assert new(place, caller).prepare() == {}, "it is on all nodes"
    monkeypatch.setattr(tempfiles, "is_local", lambda path, _: False)
    assert new(place).prepare() == {}


def test_a_node_has_what_is_below_its_places_and_not_beside(place: Path) -> None:
    one = new(place)
    assert one.holds(f"{place}/a")
    assert not one.holds(str(place))
    assert not one.holds(f"{place}s/a")
    own = os.fsdecode(one.prepare()[b"TMPDIR"])
    as_user(f"open('{own}/a', 'w'); open('{own}er', 'w')", place)
    one.since = time.time_ns() + 10**12
    assert set(one.own_files(())) == {own, f"{own}/a"}


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000])
def test_a_record_that_cannot_be_read_is_none(place: Path, content: str) -> None:
    one, image = new(place), place.parent / "image"
    as_user("open('file', 'w').write('1')", place)
    one.pack(image, 1 << 20, ())
    (place / "file").unlink()
    (place.parent / "left.json").write_text(content)
    new(place).unpack(image)
    assert (place / "file").read_text() == "1"


def test_another_process_may_be_at_work_on_what_is_in_the_way(
    place: Path, other: subprocess.Popen[bytes]
) -> None:
    as_user("open('file', 'w').write('1')", place)
    with pytest.raises(
        RequestRefused, match=f"file is there already, and may be of process {other.pid}$"
    ):
        new(place).make_way(str(place / "file"))
    assert other.pid in proc.others_of(USER, ())
    assert other.pid not in proc.others_of(USER, (other.pid,))
    new(place).make_way(str(place / "nothing"))


def test_what_is_set_aside_has_the_next_free_name_of_a_thousand(place: Path) -> None:
    as_user(
        "[open(f'file.before-7.{n}', 'w') for n in range(999)]; open('file', 'w').write('new')",
        place,
    )
    new(place).make_way(str(place / "file"))
    assert (place / "file.before-7.999").read_text() == "new"
    (place / "file").touch()
    with pytest.raises(RequestRefused, match=r"file is there already$"):
        new(place).make_way(str(place / "file"))


@pytest.mark.parametrize("kind", ["shared", "nfs4", "ext4", "gone"])
def test_only_file_systems_of_the_node_itself_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "x").mkdir()
    path = tmp_path / ("none" if kind == "gone" else "x")
    other = Path("/proc") if kind != "shared" else tmp_path
    types = iter(["ext4", "nfs4"] if kind == "nfs4" else ["ext4", "ext4"])
    monkeypatch.setattr(mounts, "file_system", lambda path, _: next(types))
    assert mounts.is_local(str(path), other) is (kind == "ext4")


def test_what_tasks_have_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with open(tmp_path / "held", "w") as file:
        found = inventory.used([os.getpid(), 1 << 30])
        seen = os.fstat(file.fileno())
    here = os.stat(".")
    assert {(seen.st_dev, seen.st_ino), (here.st_dev, here.st_ino)} <= found


def test_the_places_of_a_look_have_no_bound_and_others_200000(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert walk.MAX_ENTRIES == 200_000
    monkeypatch.setattr(walk, "MAX_ENTRIES", 2)
    look = walk.Walk(USER)
    assert [look.has_turn(ANOTHER, "/tmp") for _ in range(3)] == [True, True, False]
    look.used.add(ANOTHER)
    with pytest.raises(
        RequestRefused, match=f"more than 2 files are in directories of uid {ANOTHER}"
    ):
        look.has_turn(ANOTHER, "/tmp")
    assert [look.has_turn(0, "/tmp") for _ in range(3)] == [True] * 3
    assert [look.has_turn(USER, "/tmp") for _ in range(2)] == [True, True]
    with pytest.raises(RequestRefused, match=f"of uid {USER} in /tmp"):
        look.has_turn(USER, "/tmp")


# names that are lent


def test_a_file_that_is_in_use_by_a_name_that_is_gone_and_has_another_is_found(place: Path) -> None:
    one = new(place)
    as_user("open('sem.kept', 'w').write('x')", place)
    kept = (place / "sem.kept").stat()
    gone = {f"{place}/sem.first": (kept.st_dev, kept.st_ino)}
    assert one.has_renamed(gone, ())
    assert not one.has_renamed({"/elsewhere/x": (kept.st_dev, kept.st_ino)}, ())
    assert not one.has_renamed({f"{place}/sem.first": (kept.st_dev, 1)}, ()), "it has no other name"
    assert not one.has_renamed({}, ())


def test_lent_names_travel_and_go_here_and_there(place: Path) -> None:
    one, image = new(place), place.parent / "image"
    as_user("open('sem.kept', 'w').write('x'); os.link('sem.kept', 'link_remap.7')", place)
    one.lend([f"{place}/link_remap.7"])
    one.pack(image, 1 << 20, ())
    one.take_back()
    assert [path.name for path in place.iterdir()] == ["sem.kept"]
    one.leave()
    other = new(place)
    other.unpack(image)
    first, second = (place / name for name in ("sem.kept", "link_remap.7"))
    assert first.samefile(second)
    other.take_back()
    assert [path.name for path in place.iterdir()] == ["sem.kept"], "it was in nobody's way"


def test_a_name_outside_of_this_node_is_not_lent(place: Path) -> None:
    one = new(place)
    as_user("open('sem.kept', 'w').write('x'); os.link('sem.kept', 'link_remap.7')", place)
    with pytest.raises(RequestRefused, match=r"link remap .*: /shared/link_remap.8$"):
        one.lend([f"{place}/link_remap.7", "/shared/link_remap.8"])
    assert [path.name for path in place.iterdir()] == ["sem.kept"]
