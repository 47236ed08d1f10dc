"""A job's output over its runs: neither lost nor doubled, and with the user's rights only."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import files, outputs
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.images import OpenFile
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT

pytestmark = ROOT
USER = 65534
PLENTY = 1 << 40
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="se-outputs-", dir="/tmp"))
    path.chmod(0o755)
    (path / "keep").mkdir(mode=0o700)
    (path / "home").mkdir()
    os.chown(path / "home", USER, USER)
    yield path
    shutil.rmtree(path)


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    os.chown(path, USER, USER)
    return str(path)


def back(
    place: Path, files: list[str], sizes: dict[str, int], *, appends: bool = True
) -> list[str]:
    """Restored from image 3."""
    written = [OpenFile(path, size, appends) for path, size in sizes.items()]
    return outputs.give_back(place / "keep", files, written, CALLER, 3)


def test_a_truncated_output_comes_back(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\nthree\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: 8})
    assert Path(out).read_bytes() == b"one\ntwo\n"


def test_only_what_is_new_is_copied(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, PLENTY)
    write(place / "home" / "out", b"XXX\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    assert (place / "keep" / "0").read_bytes() == b"one\ntwo\n"


def test_an_older_image_takes_less(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: 4})
    assert Path(out).read_bytes() == b"one\n"
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, PLENTY)
    assert (place / "keep" / "0").read_bytes() == b"one\n"


def test_what_was_written_after_the_image_is_cut(place: Path) -> None:
    """As with JobFileAppend or --open-mode=append, and for files of the job's own."""
    out = write(place / "home" / "out", b"one\ntwo\nthree\n")
    data = write(place / "home" / "data", b"123456")
    outputs.keep(place / "keep", [out], {out: 8, data: 3}, CALLER, PLENTY)
    back(place, [out], {out: 8, data: 3})
    assert Path(out).read_bytes() == b"one\ntwo\n"
    assert Path(data).read_bytes() == b"123"


def test_an_output_under_the_old_nodes_name_is_made_anew(place: Path) -> None:
    out = write(place / "home" / "out-n1", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, PLENTY)
    Path(out).unlink()
    back(place, [out], {out: 4})
    assert Path(out).read_bytes() == b"one\n"
    assert Path(out).stat().st_uid == USER


@pytest.mark.parametrize("kind", ["link", "pipe", "root's"])
def test_nothing_but_the_users_own_file_is_touched(place: Path, kind: str) -> None:
    secret = place / "secret"
    secret.write_bytes(b"root's own")
    secret.chmod(0o600)
    out = place / "home" / "out"
    match kind:
        case "link":
            out.symlink_to(secret)
        case "pipe":
            os.mkfifo(out)
        case _:
            out = secret
    with pytest.raises(RequestRefused):
        outputs.keep(place / "keep", [str(out)], {str(out): 4}, CALLER, PLENTY)
    with pytest.raises(RequestRefused):
        back(place, [str(out)], {str(out): 4})
    outputs.clear(place / "keep", [str(out)], CALLER)
    assert secret.read_bytes() == b"root's own"


def test_an_output_that_became_a_link_is_not_followed_even_to_what_its_user_may_write(
    place: Path,
) -> None:
    """As /dev/shm or a colleague's file that he may append to: it is not this job's output."""
    other = write(place / "home" / "other", b"not the job's")
    out = place / "home" / "out"
    out.symlink_to(other)
    with pytest.raises(RequestRefused):
        outputs.keep(place / "keep", [str(out)], {str(out): 4}, CALLER, PLENTY)
    with pytest.raises(RequestRefused):
        back(place, [str(out)], {str(out): 4})
    outputs.clear(place / "keep", [str(out)], CALLER)
    assert outputs.sizes([str(out)], CALLER) == {}
    assert Path(other).read_bytes() == b"not the job's"
    assert sorted(path.name for path in (place / "home").iterdir()) == ["other", "out"]


def test_a_refused_copy_takes_no_room_and_the_one_before_stays(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, 4)
    write(place / "home" / "out", b"one\ntwo\n")
    with pytest.raises(RequestRefused, match="more than 3 bytes"):
        outputs.keep(place / "keep", [out], {out: 8}, CALLER, 3)
    assert (place / "keep" / "0").read_bytes() == b"one\n"


def test_what_stands_in_a_files_holes_is_gone_when_it_is_given_back(place: Path) -> None:
    out = write(place / "home" / "out", b"")
    with open(out, "r+b") as file:
        file.seek(1 << 20)
        file.write(b"end")
    size = (1 << 20) + 3
    outputs.keep(place / "keep", [out], {out: size}, CALLER, PLENTY)
    assert (place / "keep" / "0").stat().st_blocks * 512 < 1 << 19
    write(place / "home" / "out", b"a line of another job's\n")
    back(place, [out], {out: size})
    assert Path(out).read_bytes() == bytes(1 << 20) + b"end"
    assert Path(f"{out}.cut-7-3").read_bytes() == b"a line of another job's\n"


def test_a_file_with_holes_that_we_gave_back_is_known_again(place: Path) -> None:
    out = write(place / "home" / "out", b"")
    with open(out, "r+b") as file:
        for at in (1 << 20, 3 << 20):
            file.seek(at)
            file.write(b"end")
    size = (3 << 20) + 3
    outputs.keep(place / "keep", [out], {out: size}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: size})
    back(place, [out], {out: size - 3})
    assert Path(out).stat().st_size == size - 3
    assert list((place / "home").iterdir()) == [Path(out)], "nothing of ours is put aside"


@pytest.mark.parametrize("appends", [True, False])
@pytest.mark.parametrize(
    "other", [b"w", b"slurmst", b"slurmstepd: it goes on", b"one\ntwo!and more"]
)
def test_what_others_wrote_into_an_emptied_output_is_not_taken_for_the_jobs_own(
    place: Path, other: bytes, appends: bool
) -> None:
    """On a busy machine slurmstepd says what became of the job before its launcher is so far."""
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    write(place / "home" / "out", other)
    said = back(place, [out], {out: 8}, appends=appends)
    assert Path(out).read_bytes() == b"one\ntwo\n"
    assert Path(f"{out}.cut-7-3").read_bytes() == other
    assert said == [
        f"{out}: {len(other)} bytes of others in its place, what was there is in {out}.cut-7-3",
        f"{out}: 8 bytes given back, 0 were there",
    ]


def test_an_output_that_is_longer_than_its_copy_is_the_jobs_own(place: Path) -> None:
    """No copy of its end could be made: nothing is taken from it for that."""
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, PLENTY)
    assert back(place, [out], {out: 8}) == []
    assert Path(out).read_bytes() == b"one\ntwo\n"


def test_a_copy_that_is_too_short_is_refused(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    with pytest.raises(RequestRefused, match="byte 4 of 9"):
        back(place, [out], {out: 9})


def test_our_rights_come_back(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    before = (os.geteuid(), os.getegid(), os.getgroups())
    outputs.sizes([out, "/nowhere/at/all"], CALLER)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


def test_what_others_appended_is_kept_beside(place: Path) -> None:
    """Job 7 and another of its user append to the same file."""
    file = write(place / "home" / "results.csv", b"A,1\nB,1\nB,2\nA,2\nB,3\n")
    Path(file).chmod(0o640)
    said = back(place, [], {file: 8})
    aside = Path(f"{file}.cut-7-3")
    assert said == [f"{file}: cut from 20 to 8 bytes, what was there is in {aside}"]
    assert Path(file).read_bytes() == b"A,1\nB,1\n"
    assert aside.read_bytes() == b"B,2\nA,2\nB,3\n"
    assert (aside.stat().st_uid, aside.stat().st_mode & 0o777) == (USER, 0o640)
    assert back(place, [], {file: 8}) == []
    write(Path(file), b"A,1\nB,1\nA,2\n")
    back(place, [], {file: 8})
    assert Path(f"{aside}.1").read_bytes() == b"A,2\n"
    assert aside.read_bytes() == b"B,2\nA,2\nB,3\n"


def test_nobody_else_appends_to_what_a_job_writes_at_its_own_places(place: Path) -> None:
    file = write(place / "home" / "state", b"123456")
    assert back(place, [], {file: 3}, appends=False) == [f"{file}: cut from 6 to 3 bytes"]
    assert [path.name for path in (place / "home").iterdir()] == ["state"]


@pytest.mark.parametrize("owner", [0, USER])
def test_what_cannot_be_kept_is_not_cut(place: Path, owner: int) -> None:
    """In a directory where its user may make no file."""
    file = write(place / "home" / "log", b"one\ntwo\n")
    os.chown(place / "home", owner, owner)
    (place / "home").chmod(0o555)
    with pytest.raises(RequestRefused, match="what others may have appended to it cannot be kept"):
        back(place, [], {file: 4})
    assert Path(file).read_bytes() == b"one\ntwo\n"
    assert [path.name for path in (place / "home").iterdir()] == ["log"]


def test_a_link_in_the_place_of_what_is_kept_leads_nowhere(place: Path) -> None:
    secret = place / "secret"
    secret.write_bytes(b"root's own")
    file = write(place / "home" / "log", b"one\ntwo\n")
    Path(f"{file}.cut-7-3").symlink_to(secret)
    back(place, [], {file: 4})
    assert secret.read_bytes() == b"root's own"
    assert Path(f"{file}.cut-7-3.1").read_bytes() == b"two\n"


def test_the_copies_go_back_with_the_job(place: Path) -> None:
    """Image 2 is damaged: the job continues from image 1, and writes other bytes from there."""
    out = write(place / "home" / "out", b"step1step2 OLDstep3 OLD")
    for size in (5, 23):
        outputs.keep(place / "keep", [out], {out: size}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: 5})
    outputs.cut_copies(place / "keep", [out], {out: 5})
    new = b"step1step2 NEWstep3 NEWstep4 NEW"
    write(place / "home" / "out", new)
    outputs.keep(place / "keep", [out], {out: len(new)}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: len(new)})
    assert Path(out).read_bytes() == new


def test_what_others_wrote_to_its_output_is_kept_however_it_was_opened(place: Path) -> None:
    out = write(place / "home" / "log", b"A\n")
    outputs.keep(place / "keep", [out], {out: 2}, CALLER, PLENTY)
    write(place / "home" / "log", b"A\nB\n")
    back(place, [out], {out: 2}, appends=False)
    assert Path(f"{out}.cut-7-3").read_bytes() == b"B\n"


def test_a_restore_that_failed_takes_nothing_from_the_copies(place: Path) -> None:
    """An older image was tried, too, and in vain; the newest may still come back."""
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    for size in (8, 4, 8):
        back(place, [out], {out: size})
    assert Path(out).read_bytes() == b"one\ntwo\n"
    assert [path.name for path in (place / "home").iterdir()] == ["out"]


def test_a_job_that_starts_anew_has_an_empty_output_and_its_copies_still(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    write(place / "home" / "out", b"")
    back(place, [out], {out: 4})
    assert outputs.clear(place / "keep", [out], CALLER) == []
    assert Path(out).read_bytes() == b""
    assert (place / "keep" / "0").read_bytes() == b"one\ntwo\n"
    assert [path.name for path in (place / "home").iterdir()] == ["out"]


def test_what_others_wrote_to_its_output_stays_when_it_starts_anew(place: Path) -> None:
    out = write(place / "home" / "log", b"A\n")
    outputs.keep(place / "keep", [out], {out: 2}, CALLER, PLENTY)
    write(place / "home" / "log", b"A\nB\n")
    outputs.clear(place / "keep", [out], CALLER)
    assert Path(out).read_bytes() == b""
    assert Path(f"{out}.cut-7-0").read_bytes() == b"A\nB\n"


@pytest.mark.parametrize("begins_anew", [False, True])
def test_what_is_appended_while_the_rest_is_kept_is_kept_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, begins_anew: bool
) -> None:
    """Another job goes on writing: while the tail is copied, and while the copy is synced."""
    file = write(place / "home" / "log", b"A,1\nB,1\n")
    lines = iter([b"B,2\n", b"B,3\n", b"B,4\n"])
    copy, sync = files.copy, os.fsync

    def more() -> None:
        with open(file, "ab") as other:
            other.write(next(lines, b""))

    def slow_copy(*words: int, **shift: int) -> int:
        done = copy(*words, **shift)
        more()
        return done

    def slow_sync(descriptor: int) -> None:
        sync(descriptor)
        more()

    monkeypatch.setattr(files, "copy", slow_copy)
    monkeypatch.setattr(outputs.os, "fsync", slow_sync)
    if begins_anew:
        outputs.clear(place / "keep", [file], CALLER)
    else:
        back(place, [], {file: 4})
    rest = b"B,1\nB,2\nB,3\nB,4\n"
    kept, aside = (b"", b"A,1\n" + rest) if begins_anew else (b"A,1\n", rest)
    assert Path(file).read_bytes() == kept
    assert Path(f"{file}.cut-7-{0 if begins_anew else 3}").read_bytes() == aside


def test_what_is_appended_while_it_is_compared_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    read, lines = os.pread, iter([b"B\n"])

    def slow_read(descriptor: int, size: int, at: int) -> bytes:
        found = read(descriptor, size, at)
        with open(out, "ab") as other:
            other.write(next(lines, b""))
        return found

    monkeypatch.setattr(outputs.os, "pread", slow_read)
    back(place, [out], {out: 4})
    assert Path(out).read_bytes() == b"one\n"
    assert Path(f"{out}.cut-7-3").read_bytes() == b"two\nB\n"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFIFO])
def test_a_steps_outputs_are_its_files_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    fstat = os.fstat
    with monkeypatch.context() as step:
        seen = SimpleNamespace(st_mode=kind | 0o644)
        step.setattr(outputs.os, "fstat", lambda fd: seen if fd in (1, 2) else fstat(fd))
        assert outputs.of_step(tmp_path) == []
        found = []
        for error in ("/home/out", "/home/err"):
            for name, target in (("1", "/home/out"), ("2", error)):
                (tmp_path / name).unlink(missing_ok=True)
                (tmp_path / name).symlink_to(target)
            found.append(outputs.of_step(tmp_path))
    regular = kind == stat.S_IFREG
    assert found == ([["/home/out"], ["/home/out", "/home/err"]] if regular else [[], []])


def test_all_outputs_together_take_no_more_than_they_may(place: Path) -> None:
    out, err = (write(place / "home" / name, b"12345") for name in ("out", "err"))
    before = descriptors()
    kept = place / "keep"
    with pytest.raises(RequestRefused, match="more than 4 bytes of data"):
        outputs.keep(kept, ["/not/saved", out, err], {out: 5, err: 5}, CALLER, 9)
    outputs.keep(kept, ["/not/saved", out, err], {out: 5, err: 5}, CALLER, 5)
    assert sorted(path.name for path in kept.iterdir()) == ["1", "2"]
    assert descriptors() == before


def test_what_was_done_is_said(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER, PLENTY)
    before = descriptors()
    assert back(place, [out], {out: 8}) == [], "there was nothing to do"
    write(place / "home" / "out", b"one\n")
    assert back(place, [out], {out: 8}) == [f"{out}: 8 bytes given back, 4 were there"]
    assert back(place, [out], {out: 4}) == [f"{out}: cut from 8 to 4 bytes"]
    write(place / "home" / "out", b"others\n")
    (said,) = outputs.clear(place / "keep", [out], CALLER)
    assert (
        said == f"{out}: 7 bytes of earlier runs, or of others, what was there is in {out}.cut-7-0"
    )
    assert outputs.sizes([out], CALLER) == {out: 0}
    assert descriptors() == before


def test_a_file_of_its_own_that_is_gone_is_not_made_and_an_output_is(place: Path) -> None:
    data, out = str(place / "home" / "data"), str(place / "home" / "out")
    with pytest.raises(RequestRefused, match=f"^{data}: No such file"):
        back(place, [], {data: 3})
    (place / "keep" / "0").write_bytes(b"one")
    before = os.umask(0)
    try:
        back(place, [out], {out: 3})
    finally:
        os.umask(before)
    assert Path(out).stat().st_mode & 0o777 == 0o644


def test_what_its_copies_lack_of_its_outputs_is_asked_for(place: Path) -> None:
    out, err = (write(place / "home" / name, b"x" * 20_000) for name in ("out", "err"))
    taken = Path(out).stat().st_blocks * 512
    before = descriptors()
    assert outputs.new(place / "keep", [out, "/nowhere", err], CALLER) == 2 * taken
    outputs.keep(place / "keep", [out, "/nowhere", err], {out: 20_000}, CALLER, PLENTY)
    assert outputs.new(place / "keep", [out, "/nowhere", err], CALLER) == taken
    (place / "keep" / "2").write_bytes(b"y" * 100_000)
    assert outputs.new(place / "keep", [out, "/nowhere", err], CALLER) == 0
    assert descriptors() == before


def test_a_thousand_such_files_are_enough(place: Path) -> None:
    file = write(place / "home" / "log", b"one\ntwo\n")
    Path(file).chmod(0o777)
    for name in ("", *(f".{number}" for number in range(1, 999))):
        Path(f"{file}.cut-7-3{name}").touch()
    (said,) = back(place, [], {file: 4})
    assert said.endswith(f"what was there is in {file}.cut-7-3.999")
    assert Path(f"{file}.cut-7-3.999").stat().st_mode & 0o777 == 0o666, "it is no program"
    write(place / "home" / "log", b"one\ntwo\n")
    with pytest.raises(RequestRefused, match="cannot be kept"):
        back(place, [], {file: 4})
    assert Path(file).read_bytes() == b"one\ntwo\n"


def test_what_could_not_be_kept_whole_does_not_stay(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(place / "home" / "log", b"one\ntwo\n")
    before = descriptors()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(outputs.os, "fsync", full)
        with pytest.raises(RequestRefused, match="cannot be kept: No space left on device"):
            back(place, [], {file: 4})
    assert [path.name for path in (place / "home").iterdir()] == ["log"]
    assert Path(file).read_bytes() == b"one\ntwo\n"
    assert descriptors() == before
