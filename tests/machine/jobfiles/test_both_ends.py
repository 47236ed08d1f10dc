"""Both ends of a copy as programs, the head's and the machine's, each in a mount namespace."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from needs import ROOT, unless

import slurm_elastic
from slurm_elastic.machine.jobfiles import steps

pytestmark = [ROOT, unless("unshare", "mount")]
USER = pwd.getpwnam("nobody")
NODE_DIR = Path("/var/lib/slurm-elastic-node")
WORK = Path("/mnt/work")
PACKAGE = Path(slurm_elastic.__file__).parent
SOURCES = str(PACKAGE.parent)


class Ends:
    """``head`` and ``machine`` are what each end sees as /mnt. ``mounts``: what the machine mounts
    there, a place by its path below.
    """

    def __init__(self, place: Path) -> None:
        self.head, self.machine, self.books = place / "head", place / "machine", place / "books"
        for path in (place, self.head, self.machine, self.books):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        NODE_DIR.mkdir(exist_ok=True)
        self.mounts: dict[str, Path] = {}
        self.program = ["-P", "-m", "slurm_elastic.machine.jobfiles.run"]
        self.made_at = 0
        self.directory: Path | str = WORK
        self.live: list[int] = []
        self.user, self.groups = USER, list[int]()
        for top in (self.head, self.machine):
            (top / "work").mkdir()
            own(top / "work")

    @property
    def owed(self) -> list[str]:
        """The jobs for which the machine's wipe waits."""
        place = self.books / "owed"
        assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (0, 0o755)
        return sorted(path.name for path in place.iterdir() if path.stat().st_size)

    @property
    def work(self) -> Path:
        return self.head / "work"

    def do(self, what: str, job: int = 7) -> dict[str, Any]:
        gid = self.user.pw_gid
        user = {"uid": self.user.pw_uid, "gid": gid, "groups": [gid, *self.groups]}
        self.made_at += 1
        order = {"do": what, "job": job, "restarts": 0, **user}
        order |= {"made_at": self.made_at, "live": [(number, 0) for number in (*self.live, job)]}
        order["end_wait"] = 0
        command = f"jobfiles n1 {json.dumps(order)}"
        order |= {
            "directory": str(self.directory), "exclude": [], "size_limit": 1 << 30,
            "outputs": [{"path": f"{self.directory}/out", "base": 0}],
        }  # fmt: skip
        mounts = "".join(
            f"mount --bind {place} /mnt/{path} && " for path, place in self.mounts.items()
        )
        machine = f"{mounts} mount --bind {self.books} {NODE_DIR} &&"
        to_machine, from_machine = os.pipe(), os.pipe()
        given, sink = os.pipe()
        os.write(sink, json.dumps(order).encode())
        os.close(sink)
        program = [sys.executable, *self.program]
        with (
            self.within(
                self.machine, machine, [*program, "node", command], to_machine[0], from_machine[1]
            ) as node,
            self.within(
                self.head, "", [*program, "head", str(given)], from_machine[0], to_machine[1], given
            ) as head,
        ):
            for descriptor in (*to_machine, *from_machine, given):
                os.close(descriptor)
            text = head.communicate(timeout=60)[1]
            node.wait(60)
        result: dict[str, Any] = json.loads(text)
        return result

    def within(
        self, top: Path, mounts: str, command: list[str], source: int, sink: int, *given: int
    ) -> subprocess.Popen[bytes]:
        script = f'mount --bind {top} /mnt && mount -t tmpfs run /run && {mounts} exec "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command],
            stdin=source, stdout=sink, stderr=subprocess.PIPE, cwd="/", pass_fds=given,
            env={**os.environ, "PYTHONPATH": SOURCES},
        )  # fmt: skip


def own(path: Path) -> None:
    shutil.chown(path, USER.pw_uid, USER.pw_gid)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    own(path)


def names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.fixture
def ends() -> Iterator[Ends]:
    # Not tmp_path: each start of pytest closes the directory above it to other users.
    with tempfile.TemporaryDirectory(prefix="se-ends-", dir="/tmp") as place:
        yield Ends(Path(place))


def test_files_go_and_come_back(ends: Ends) -> None:
    write(ends.work / "input", "input")
    assert ends.do("out")["ok"]
    write(ends.machine / "work" / "made", "made")
    result = ends.do("back")
    assert (result["ok"], result["files"], result["notes"]) == (True, 1, [])
    assert names(ends.work) == ["input", "made"]
    assert names(ends.machine / "work") == []


@pytest.mark.parametrize("path", ["w/../x", "w/v/../../x/.", "x/../w/../x"])
def test_slurm_finds_a_directory_whose_path_has_dots(ends: Ends, path: str) -> None:
    for name in ("w", "w/v", "x"):
        (ends.work / name).mkdir()
        own(ends.work / name)
    write(ends.work / "x" / "input", "input")
    ends.directory = f"{WORK}/{path}"
    assert ends.do("out")["ok"]
    of_slurm = f"{ends.machine}/work/{path}"  # the kernel walks this text
    assert Path(f"{of_slurm}/input").read_text() == "input"
    write(Path(f"{of_slurm}/made"), "made")
    write(Path(f"{of_slurm}/out"), "output")
    assert ends.do("back")["ok"]
    assert names(ends.work / "x") == ["input", "made", "out"]


@pytest.mark.parametrize("end", ["head", "machine"])
def test_a_job_does_not_start_where_dots_lead_through_a_link(ends: Ends, end: str) -> None:
    for name in ("far/w", "x", "far/x", "w"):
        (ends.work / name).mkdir(parents=True)
    work = ends.machine / "work"
    if end == "head":
        work = ends.work
        (work / "w").rmdir()
    else:
        (work / "far" / "w").mkdir(parents=True)
        (work / "far" / "x").mkdir()
    (work / "w").symlink_to("far/w")
    for path in (*ends.work.rglob("*"), *ends.machine.rglob("*")):
        shutil.chown(path, USER.pw_uid, USER.pw_gid)
    ends.directory = f"{WORK}/w/../x"
    result = ends.do("out")
    assert (result["ok"], result["final"]) == (False, True)
    assert result["reason"] == (
        f"{WORK}/w/../x leads through a link, and so not to {WORK}/x: submit the job with a path"
        ' without ".."'
    )


IMPATIENT = (
    "import sys; from slurm_elastic.machine.jobfiles import node, run;"
    " node.MOUNT_WAIT_S = 0.5; sys.exit(run.main(sys.argv))"
)
"""The program, which does not wait for mounts."""


@pytest.mark.parametrize("mode", [0o700, None], ids=["of another user", "of the system"])
def test_a_job_whose_directory_cannot_be_on_the_machine_is_held_at_once(
    ends: Ends, mode: int | None
) -> None:
    """Below /opt root makes no directory, and an ACL of the head is not on the machine."""
    ends.program = ["-c", IMPATIENT]
    if mode is None:
        with tempfile.TemporaryDirectory(dir="/opt") as place:
            shutil.chown(place, USER.pw_uid, USER.pw_gid)
            ends.mounts["../opt"] = ends.machine  # it belongs to root
            ends.directory = f"{place}/w"
            Path(ends.directory).mkdir()
            result = ends.do("out")
    else:
        for top in (ends.work, ends.machine / "work"):
            (top / "theirs" / "w").mkdir(parents=True)
            (top / "theirs").chmod(0o711 if top == ends.work else mode)
        ends.directory = WORK / "theirs" / "w"
        result = ends.do("out")
    assert (result["ok"], result["final"]) == (False, True)
    assert result["reason"] == (
        f"on the machine {ends.directory} cannot be made for the job's user, or not be read:"
        " submit the job from another directory"
    )


def test_a_result_that_one_end_may_not_copy_stays_on_the_machine(ends: Ends) -> None:
    data = ends.work / "data"
    data.mkdir(0o555)
    own(data)
    ends.do("out")
    machine = ends.machine / "work"
    write(machine / "data" / "result", "the job's result")
    write(machine / "secret", "made with umask 0777")
    (machine / "secret").chmod(0o200)
    result = ends.do("back")
    assert (result["ok"], result["final"]) == (False, True)
    assert result["reason"] == (
        "all came back but data/result: Permission denied; secret: Permission denied"
    )
    assert names(machine) == ["data", "data/result", "secret"]
    assert ends.owed == [], "no copy comes that the machine's wipe could wait for"


def test_jobs_that_write_one_output_keep_it_until_the_last_of_them_ends(ends: Ends) -> None:
    ends.live = [7, 8]
    ends.do("out", 7)
    ends.do("out", 8)
    output = ends.machine / "work" / "out"
    write(output, "")
    with output.open("a") as file:
        file.write("7: done\n")
        file.flush()
        assert ends.do("back", 7)["ok"]
        file.write("8: the result of eight hours\n")
    ends.live = [8]
    assert ends.do("back", 8)["ok"]
    assert (ends.work / "out").read_text() == "7: done\n8: the result of eight hours\n"
    assert names(ends.machine / "work") == []


LARGE = 64 << 20
"""Its copy takes longer than the write of a small file."""


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x" * LARGE)  # a hole would be there at once
    own(path)


def soon(work: Callable[[], object], when: Callable[[], bool]) -> threading.Thread:
    """Start a thread that works as soon as the copy has come so far."""

    def run() -> None:
        while not when():
            time.sleep(0.001)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_a_job_writes_during_the_copy_back_of_another_comes_back(ends: Ends) -> None:
    machine = ends.machine / "work"
    ends.do("out", 7)
    ends.live = [7, 8]
    ends.do("out", 8)
    write(machine / "a-of-8", "half")
    large(machine / "z-of-7")
    whole = "the whole result of 8"
    # The head has the file, and the copy of the large one has begun.
    job = soon(lambda: write(machine / "a-of-8", whole), (ends.work / "a-of-8").exists)
    assert ends.do("back", 7)["ok"]
    job.join()
    ends.live = [8]
    assert ends.do("back", 8)["ok"]
    assert (ends.work / "a-of-8").read_text() == whole
    assert names(machine) == []


def test_what_a_job_writes_during_the_copy_out_of_another_comes_back(ends: Ends) -> None:
    machine = ends.machine / "work"
    write(ends.work / "z", "of the head")
    write(ends.work / "z-changed", "of the head")
    ends.do("out", 7)
    write(ends.work / "z-changed", "of the head, later")
    large(ends.work / "a")
    ends.live = [7, 8]

    def work() -> None:
        write(machine / "z", "the results of 7")
        write(machine / "z-changed", "the results of 7")

    drafts = ".slurm-elastic-*"
    job = soon(work, lambda: next(machine.glob(drafts), None) is not None)
    assert ends.do("out", 8)["notes"] == [
        "z-changed: another job has changed it during the copy: the machine's file stays"
    ]
    job.join()
    assert ends.do("back", 7)["ok"]
    ends.live = [8]
    assert ends.do("back", 8)["ok"]
    assert (ends.work / "z").read_text() == "the results of 7"
    assert (ends.work / "z-changed.job-7").read_text() == "the results of 7"
    assert names(machine) == []


KEPT = "another job has changed it on the machine: the machine's file stays"


def two_jobs(ends: Ends, change: Callable[[Path], object]) -> list[str]:
    """Job 7 changes the directory on the machine, and job 8 starts there. Return the notes."""
    ends.do("out", 7)
    change(ends.machine / "work")
    ends.live = [7, 8]
    result = ends.do("out", 8)
    assert result["ok"], result
    notes: list[str] = result["notes"]
    return notes


def end_both(ends: Ends) -> None:
    assert ends.do("back", 7)["ok"]
    ends.live = [8]
    assert ends.do("back", 8)["ok"]
    assert names(ends.machine / "work") == []


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    os.lchown(path, USER.pw_uid, USER.pw_gid)


def test_a_file_that_a_job_has_made_of_a_link_stays(ends: Ends) -> None:
    write(ends.work / "old", "old")
    link(ends.work / "result", "old")

    def work(machine: Path) -> None:
        (machine / "result").unlink()
        write(machine / "result", "hours of work")

    assert two_jobs(ends, work) == [f"result: {KEPT}"]
    end_both(ends)
    assert (ends.work / "result").read_text() == "hours of work"


def test_a_link_that_a_job_has_set_stays(ends: Ends) -> None:
    link(ends.work / "latest", "state.1")
    assert two_jobs(ends, lambda machine: link(machine / "latest", "state.2")) == [
        f"latest: {KEPT}"
    ]
    end_both(ends)
    assert os.readlink(ends.work / "latest") == "state.2"


def test_a_file_and_a_directory_of_one_name_hold_up_no_job(ends: Ends) -> None:
    write(ends.work / "cache", "a file on the head")
    (ends.work / "data").mkdir()
    own(ends.work / "data")
    write(ends.work / "data" / "input", "input")

    def work(machine: Path) -> None:
        (machine / "cache").unlink()
        (machine / "cache").mkdir()
        own(machine / "cache")
        shutil.rmtree(machine / "data")
        write(machine / "data", "a file of the job")

    assert sorted(two_jobs(ends, work)) == [f"cache: {KEPT}", f"data: {KEPT}"]


def test_a_file_of_the_head_that_has_become_a_directory_comes(ends: Ends) -> None:
    write(ends.work / "data", "a file")

    def work(_: Path) -> None:
        (ends.work / "data").unlink()
        (ends.work / "data").mkdir()
        own(ends.work / "data")
        write(ends.work / "data" / "input", "input")

    assert two_jobs(ends, work) == []
    assert (ends.machine / "work" / "data" / "input").read_text() == "input"
    end_both(ends)


def test_a_file_that_a_job_has_made_is_not_replaced_by_the_heads(ends: Ends) -> None:
    def work(machine: Path) -> None:
        write(machine / "made", "hours of work")
        write(ends.work / "made", "on the head")

    assert two_jobs(ends, work) == [f"made: {KEPT}"]
    end_both(ends)
    assert (ends.work / "made.job-7").read_text() == "hours of work"


@pytest.mark.parametrize("is_above", [True, False])
def test_a_job_in_a_directory_below_or_above_overwrites_nothing(
    ends: Ends, *, is_above: bool
) -> None:
    (ends.work / "sub").mkdir()
    own(ends.work / "sub")
    write(ends.work / "sub" / "state", "of the head")
    write(ends.work / "sub" / "input", "of the head")
    first, second = (WORK, WORK / "sub") if is_above else (WORK / "sub", WORK)
    ends.directory = first
    ends.do("out", 7)
    state = ends.machine / "work" / "sub" / "state"
    write(state, "eight hours of job 7")
    ends.live = [7, 8]
    ends.directory = second
    result = ends.do("out", 8)
    path = "state" if is_above else "sub/state"
    assert result["notes"] == [f"{path}: {KEPT}"]
    assert state.read_text() == "eight hours of job 7"
    ends.directory = first
    assert ends.do("back", 7)["ok"]
    ends.live = [8]
    ends.directory = second
    assert ends.do("back", 8)["ok"]
    assert (ends.work / "sub" / "state").read_text() == "eight hours of job 7"
    assert names(ends.work) == ["sub", "sub/input", "sub/state"]
    assert not state.exists()


def test_an_output_that_has_gone_since_the_last_copy_is_named(ends: Ends) -> None:
    ends.do("out")
    write(ends.machine / "work" / "out", "begin")
    ends.do("outputs")
    (ends.machine / "work" / "out").unlink()
    assert ends.owed == ["7"]
    assert ends.do("back")["notes"] == [f"{WORK}/out: this output has gone from the machine"]
    assert ends.owed == []


def test_a_directory_that_cannot_be_read_stays_on_the_machine(ends: Ends) -> None:
    ends.do("out")
    closed = ends.machine / "work" / "closed"
    closed.mkdir()
    write(closed / "result", "the job's result")
    own(closed)
    closed.chmod(0o200)
    result = ends.do("back")
    assert (result["ok"], result["final"]) == (False, True)
    assert result["reason"] == "all came back but closed: Permission denied"
    assert (closed / "result").exists()


PROJECT = 4242
"""A group."""


@pytest.fixture
def project(ends: Ends) -> Path:
    """A project's directory on the head: root's, and writable for its group alone."""
    place = ends.head / "project"
    place.mkdir()
    os.chown(place, 0, PROJECT)
    place.chmod(0o2770)
    ends.directory, ends.groups = Path("/mnt/project"), [PROJECT]
    return place


def test_a_job_in_the_directory_of_its_group_can_write_there(ends: Ends, project: Path) -> None:
    write(project / "input", "input")
    result = ends.do("out")
    assert result["ok"], result
    status = (ends.machine / "project").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, PROJECT, 0o2771)
    write(ends.machine / "project" / "made", "made")
    assert ends.do("back")["ok"]
    assert names(project) == ["input", "made"]
    ends.user = pwd.getpwnam("daemon")
    assert ends.do("out", 8)["ok"], "the first user's job has ended"


def uses_of(ends: Ends) -> list[str]:
    """The runs that use their directories, by root's files."""
    place = ends.books / "uses"
    assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (0, 0o700)
    return sorted(path.name for path in place.iterdir() if path.stat().st_size)


def test_no_user_can_keep_the_jobs_of_others_out(ends: Ends, project: Path) -> None:
    """Root believes no file in a directory of a user's."""
    ends.directory = WORK
    assert ends.do("out")["ok"]
    assert uses_of(ends) == [f"{USER.pw_uid}.7.0"]
    assert ends.do("back")["ok"]
    assert uses_of(ends) == []
    (files,) = ends.books.glob("files/*")
    name = sha256(b"/mnt/project").hexdigest()[:32]
    for forged in (f"{name}.json.7.0", f"{name}.json.below.x.json.7.0"):
        write(files / forged, "")
        os.utime(files / forged, (4e9, 4e9))
    ends.user, ends.directory = pwd.getpwnam("daemon"), Path("/mnt/project")
    result = ends.do("out", 8)
    assert result["ok"], result


def test_jobs_of_two_users_do_not_share_a_directory_on_a_machine(ends: Ends, project: Path) -> None:
    """Each would take the other's changed files for the head's."""
    write(project / "input", "input")
    assert ends.do("out")["ok"]
    ends.user = pwd.getpwnam("daemon")
    ends.live = [7]
    result = ends.do("out", 8)
    assert (result["ok"], result["final"]) == (False, True)
    assert "a job of another user works on the machine in /mnt/project" in result["reason"]
    ends.live, ends.made_at = [], -1
    assert not ends.do("out", 8)["ok"], "job 7 was ordered later, so this order does not know it"


@pytest.mark.parametrize(("first", "second"), [("", "/run1/more"), ("/run1/more", "")])
def test_jobs_of_two_users_do_not_share_nested_directories_of_a_group(
    ends: Ends, project: Path, first: str, second: str
) -> None:
    """Each would take the other's changed files for the head's."""
    for name in ("run1", "run1/more", "run10"):
        (project / name).mkdir()
        os.chown(project / name, 0, PROJECT)
        (project / name).chmod(0o2770)
        write(project / name / "input", "input")
    ends.directory = Path(f"/mnt/project{first}")
    assert ends.do("out")["ok"]
    if first:
        write(ends.machine / f"project{first}/input", "of the job")
    ends.live, of_first = [7], ends.user
    ends.user, ends.directory = pwd.getpwnam("daemon"), Path(f"/mnt/project{second}")
    result = ends.do("out", 8)
    assert (result["ok"], result["final"]) == (False, True)
    assert f"works on the machine in /mnt/project{second}, or in" in result["reason"]
    if first:
        ends.directory = Path("/mnt/project/run10")
        assert ends.do("out", 9)["ok"], "this one is beside the first job's"
    ends.user, ends.directory = of_first, Path(f"/mnt/project{first}")
    assert ends.do("back")["ok"]
    ends.user, ends.directory = pwd.getpwnam("daemon"), Path(f"/mnt/project{second}")
    assert ends.do("out", 8)["ok"], "the first user's job has ended"


def test_a_job_in_a_directory_of_its_own_holds_nobody_above(ends: Ends, project: Path) -> None:
    """No job of another user can change anything there."""
    (project / "own").mkdir(0o755)
    own(project / "own")
    ends.directory = Path("/mnt/project/own")
    assert ends.do("out")["ok"]
    ends.user, ends.live, ends.directory = pwd.getpwnam("daemon"), [7], Path("/mnt/project")
    result = ends.do("out", 8)
    assert result["ok"], result
    assert uses_of(ends) == [f"{ends.user.pw_uid}.8.0", f"{USER.pw_uid}.7.0"]


def test_a_run_that_was_given_up_holds_no_job_of_another_user(ends: Ends, project: Path) -> None:
    """No copy back comes that would remove its record from the machine."""
    write(project / "input", "input")
    assert ends.do("out")["ok"]
    (record,) = ends.books.glob("files/*/*.json")
    ends.user = pwd.getpwnam("daemon")
    result = ends.do("out", 8)
    assert result["ok"], result
    assert record.exists()
    assert ends.do("back", 8)["ok"]
    assert uses_of(ends) == []


def test_a_job_does_not_start_in_a_directory_in_which_it_can_write_nothing(
    ends: Ends, project: Path
) -> None:
    """An empty directory needs no copy, so only a look at it shows that."""
    (ends.machine / "project").mkdir()  # of root, with its usual mode
    result = ends.do("out")
    assert (result["ok"], result["final"]) == (False, True)
    assert "/mnt/project belongs to uid 0 on the machine" in result["reason"]
    project.chmod(0o755)
    assert ends.do("out")["ok"], "it could not on the head"


def test_root_knows_whose_files_are_owed_without_reading_what_users_write(ends: Ends) -> None:
    write(ends.work / "input", "input")
    ends.do("out", 7)
    ends.live = [7, 8]
    ends.do("out", 8)
    assert ends.owed == ["7", "8"]
    assert {path.stat().st_uid for path in (ends.books / "owed").iterdir()} == {USER.pw_uid}
    ends.do("back", 7)
    assert ends.owed == ["8"]
    ends.live = []
    ends.do("out", 9)
    assert ends.owed == ["9"], "the head has given job 8 up"
    ends.do("back", 9)
    assert ends.owed == []


def lose_disk(ends: Ends) -> None:
    """As a diskless machine that restarts."""
    shutil.rmtree(ends.books)
    ends.books.mkdir()
    shutil.rmtree(ends.machine / "work")
    ends.machine.joinpath("work").mkdir()
    own(ends.machine / "work")


def empty_record(ends: Ends) -> None:
    """As of some file systems after a crash."""
    for record in ends.books.glob("files/*/*.json"):
        record.write_text("")


@pytest.mark.parametrize("lose", [lose_disk, empty_record])
def test_files_of_which_the_machine_has_lost_its_record_are_not_reported_as_returned(
    ends: Ends, lose: Callable[[Ends], None]
) -> None:
    write(ends.work / "input", "input")
    ends.do("out")
    write(ends.machine / "work" / "made", "the job's result")
    lose(ends)
    write(ends.machine / "work" / "out", "the rest of the output")
    assert ends.do("outputs")["ok"], "this makes no record"
    result = ends.do("back")
    assert (result["ok"], result["final"]) == (False, True)
    assert result["reason"] == "the machine has lost its record of the job's files"
    assert (ends.work / "out").read_text() == "the rest of the output"


def test_a_copy_back_whose_last_message_was_lost_is_repeated(ends: Ends) -> None:
    ends.do("out")
    for _ in range(2):
        assert ends.do("back")["ok"]


def test_a_directory_that_the_machine_mounts_from_the_head_keeps_its_files(ends: Ends) -> None:
    write(ends.work / "input", "input")
    write(ends.work / "out", "of an earlier run")
    ends.mounts["work"] = ends.work
    result = ends.do("out")
    assert (result["ok"], result["files"]) == (True, 0)
    assert uses_of(ends) == [], "jobs of other users may work there, too"
    write(ends.work / "made", "made")
    assert ends.do("back")["ok"]
    assert names(ends.work) == ["input", "made", "out"]


def test_nothing_is_written_or_removed_across_a_mount_of_the_machine(
    ends: Ends, tmp_path: Path
) -> None:
    """The project's data may be mounted below the job's directory, from any server."""
    for place in (ends.work / "data", ends.machine / "work" / "data", tmp_path / "data"):
        place.mkdir()
        own(place)
    write(ends.work / "data" / "old", "of the head")
    write(ends.work / "input", "input")
    # Another file system than the one around it: /dev/shm is always a tmpfs.
    other = Path("/dev/shm") / f"slurm-elastic-test-{os.getpid()}"
    other.mkdir()
    own(other)
    write(other / "precious", "of a server")
    ends.mounts["work/data"] = other
    try:
        result = ends.do("out")
        assert result["ok"], result
        note = "data: another file system is mounted there, which is not copied"
        assert result["notes"] == [note]
        write(ends.machine / "work" / "made", "made")
        result = ends.do("back")
        assert (result["ok"], result["notes"]) == (True, [note])
        assert names(other) == ["precious"]
    finally:
        shutil.rmtree(other)
    assert names(ends.work) == ["data", "data/old", "input", "made"]
    assert names(ends.machine / "work") == ["data"]


@pytest.mark.parametrize(("name", "is_step"), [("slurmstepd-wlm", True), ("other", False)])
def test_a_slurmstepd_that_acts_as_the_jobs_user_is_a_step(
    tmp_path: Path, name: str, *, is_step: bool
) -> None:
    """Root's slurmstepd sets its effective uid, and any program may have its title."""
    shutil.copy(os.path.realpath("/usr/bin/python3"), program := tmp_path / name)
    act = f"import os; os.seteuid({USER.pw_uid}); print(flush=True); input()"
    job = 2**31 - 7
    with subprocess.Popen(
        [f"slurmstepd: [{job}.batch]", "-c", act], executable=program, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={"PYTHONHOME": "/usr"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert steps.has_steps(job) is is_step
        process.communicate(b"\n")
    assert not steps.has_steps(job)
