"""Process 1 of a job's own process numbers: what it starts, passes on, ends and brings back."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_elastic.machine.ckptroot import clock, job_init
from slurm_elastic.machine.ckptroot.job_init import FIRST_PID
from slurm_elastic.machine.ckptroot.payload import Payload

from .helpers import PATIENCE, ROOT, eventually

pytestmark = ROOT

USER = pwd.getpwnam("daemon")
GROUPS = (60, 100)


class Bed:
    """A job whose script writes into ``place``, a directory that its user may enter."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.way: socket.socket | None = None
        self.middle = 0

    def payload(self, script: str, program: str = "/bin/sh") -> Payload:
        return Payload(
            argv=(program, "-c", script),
            environment={b"PATH": b"/usr/bin:/bin", b"WORD": b"two words"},
            directory=str(self.place), umask=0o027, uid=USER.pw_uid, gid=USER.pw_gid, groups=GROUPS,
        )  # fmt: skip

    def open(self, script: str) -> None:
        self.way, self.middle = job_init.start(self.payload(script))
        assert self.said().keys() == {"init"}

    def tell(self, do: str, **more: object) -> None:
        assert self.way is not None
        job_init.send(self.way, {"do": do, **more})

    def said(self) -> dict[str, Any]:
        assert self.way is not None
        found = job_init.receive(self.way, PATIENCE)
        assert found is not None
        return found

    def start(self, script: str) -> int:
        """The pid that it has for itself."""
        self.open(script)
        self.tell("start")
        return int(self.said()["pid"])

    def wrote(self, name: str) -> str:
        path = self.place / name
        eventually(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text().strip()

    def close(self) -> None:
        if self.way is not None:
            self.way.close()
        if self.middle:
            os.waitpid(self.middle, 0)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="se-init-") as name:
        place = Path(name)
        place.chmod(0o700)
        os.chown(place, USER.pw_uid, USER.pw_gid)
        made = Bed(place)
        yield made
        made.close()


# starting


def test_the_program_is_the_users_in_all_it_is(bed: Bed) -> None:
    number = bed.start(
        "{ echo $$ $(id -u) $(id -g) $(id -G); umask; pwd; echo $WORD;"
        " ps -o sid= -p $$; grep SigBlk /proc/self/status; (ls /proc/$$/fd >open); } >facts; sleep 0.1"
    )
    assert number > FIRST_PID, "the lower ones are process 1's and CRIU's"
    assert bed.said() == {"ended": 0}
    facts = bed.wrote("facts").splitlines()
    assert facts[0].split() == [
        str(number), str(USER.pw_uid), str(USER.pw_gid), str(USER.pw_gid), *map(str, GROUPS),
    ]  # fmt: skip
    assert int(facts[1], 8) == 0o027
    assert facts[2:4] == [str(bed.place), "two words"]
    assert facts[-2].strip() == str(number), "it leads a session"
    assert int(facts[-1].split()[1], 16) == 0, "no signal is blocked"
    assert len(bed.wrote("open").split()) <= 4, "nothing of ours is open"
    assert stat.S_IMODE((bed.place / "facts").stat().st_mode) == 0o640


def test_its_processes_are_all_that_it_sees(bed: Bed) -> None:
    bed.start(
        "ls -d /proc/[0-9]* | wc -l >seen; cat /proc/1/cmdline >/dev/null; ps -e | wc -l >>seen"
    )
    assert bed.said() == {"ended": 0}
    assert all(int(count) < 10 for count in bed.wrote("seen").split())


@pytest.mark.parametrize(("script", "status"), [
    ("exit 7", 7 << 8), ("kill -USR1 $$; sleep 60", int(signal.SIGUSR1)),
])  # fmt: skip
def test_its_end_is_told_as_it_was(bed: Bed, script: str, status: int) -> None:
    bed.start(script)
    assert bed.said() == {"ended": status}


def test_what_its_children_leave_behind_stays_below_it(bed: Bed) -> None:
    number = bed.start("sh -c 'sleep 1000 & echo $! >child'; echo ready >ready; sleep 1000")
    bed.wrote("ready")
    child = bed.wrote("child")
    assert bed.way is not None
    bed.tell("signal", number=0)
    found = subprocess.run(
        ["nsenter", "-t", str(bed.middle), "-m", "grep", "PPid", f"/proc/{child}/status"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["PPid:", str(number)]


# while it runs


def test_a_signal_reaches_the_first_process_and_after_its_end_nobody(bed: Bed) -> None:
    bed.start("trap 'echo got >signal' USR1; echo ready >ready; while :; do sleep 0.05; done")
    bed.wrote("ready")
    bed.tell("signal", number=int(signal.SIGUSR1))
    assert bed.wrote("signal") == "got"
    bed.tell("signal", number=int(signal.SIGKILL))
    assert bed.said() == {"ended": int(signal.SIGKILL)}
    bed.tell("signal", number=int(signal.SIGTERM))
    bed.tell("kill")
    assert bed.said() == {"killed": True}, "process 1 itself is well"


def test_stopped_ones_go_on(bed: Bed) -> None:
    bed.start("kill -STOP $$; echo on >on; sleep 1000")
    eventually(lambda: "T" in _processes(bed, "stat"))
    bed.tell("continue", but=[])
    assert bed.wrote("on") == "on"


def test_killed_all_of_it_is_gone_and_its_end_is_no_news(bed: Bed) -> None:
    bed.start("setsid sleep 1000 & echo ready >ready; sleep 1000")
    bed.wrote("ready")
    bed.tell("kill")
    assert bed.said() == {"killed": True}
    assert "sleep" not in _processes(bed)
    assert bed.way is not None
    assert job_init.receive(bed.way, 0.2) is None


def _processes(bed: Bed, column: str = "comm") -> str:
    """A column of ps, for the processes in the job's own PID namespace."""
    own = f"--pid=/proc/{bed.middle}/ns/pid_for_children"
    found = subprocess.run(
        ["nsenter", "-t", str(bed.middle), "-m", own, "ps", "-e", "-o", f"{column}="],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout


@pytest.mark.parametrize("how", ["the session goes", "the middle one is killed"])
def test_nothing_outlives_its_session(bed: Bed, how: str) -> None:
    bed.start("trap '' HUP TERM; exec 9>alive; flock 9; echo ready >ready; sleep 1000")
    bed.wrote("ready")
    held = ["flock", "--nonblock", str(bed.place / "alive"), "true"]
    assert subprocess.run(held, check=False).returncode == 1
    assert bed.way is not None
    if how == "the session goes":
        bed.way.close()
    else:
        os.kill(bed.middle, signal.SIGKILL)
    eventually(lambda: subprocess.run(held, check=False).returncode == 0)
    if how == "the middle one is killed":
        assert bed.said() == {"gone": True}


# bringing back


def restore(bed: Bed, script: str, pid: int, sysv: bool = False) -> dict[str, Any]:
    """By a stand-in for CRIU."""
    images = bed.place / "images"
    images.mkdir(exist_ok=True)
    (images / "core.img").touch()
    command = ["/bin/sh", "-c", script]
    log = str(bed.place / "log")
    bed.tell(
        "restore", images=str(images), log=log, command=command, pid=pid, sysv=sysv, clocks=None
    )
    return bed.said()


def test_what_criu_brings_back_is_the_job_again(bed: Bed) -> None:
    number = bed.start("trap 'exit 3' TERM; echo ready >ready; while :; do sleep 0.05; done")
    bed.wrote("ready")
    said = restore(bed, "ls /proc/self/fd/0/ >&2; env >&2", number)
    assert said == {"pid": number, "clocks": clock.offsets()}
    log = (bed.place / "log").read_text()
    assert "core.img" in log, "the images are its standard input"
    assert "WORD" not in log, "nothing of the user's environment is told to a program of root's"
    assert stat.S_IMODE((bed.place / "log").stat().st_mode) == 0o600
    bed.tell("signal", number=int(signal.SIGTERM))
    assert bed.said() == {"ended": 3 << 8}


def test_the_limits_of_system_v_ipc_are_the_nodes_again(bed: Bed) -> None:
    """CRIU's writes to the limits are lost: only root may set them. All else is what it was."""
    limits = ["kernel/shmmni", "fs/mqueue/msg_max"]
    read = f"cd /proc/sys; cat {' '.join(limits)} kernel/ostype fs/nr_open"
    number = bed.start(
        f"echo ready >ready; until [ -e go ]; do sleep 0.05; done; ({read}) >part; mv part after; sleep 1000"
    )
    bed.wrote("ready")
    script = (
        f"exec >&2; cd /proc/sys; for name in {' '.join(limits)}; do setpriv --reuid {USER.pw_uid}"
        ' --regid 1 --clear-groups sh -c "echo 1 >$name" || exit 9; done; cat kernel/ostype'
    )
    assert restore(bed, script, number, sysv=True)["pid"] == number
    (bed.place / "go").touch()
    own = [Path("/proc/sys", name).read_text().strip() for name in limits]
    more = [Path("/proc/sys", name).read_text().strip() for name in ("kernel/ostype", "fs/nr_open")]
    assert bed.wrote("after").split() == [*own, *more]
    assert more[0] in (bed.place / "log").read_text()


def test_a_job_that_is_killed_leaves_no_system_v_ipc(bed: Bed) -> None:
    """It may be brought back here, which makes what it had once more."""
    make = "import ctypes; print(ctypes.CDLL(None).shmget(7, 1 << 20, 0o1600))"
    bed.start(
        f"/usr/bin/python3 -c '{make}' >made; cat /proc/sysvipc/shm >part; mv part kept; sleep 1000"
    )
    assert bed.wrote("made") == "0"
    assert len(bed.wrote("kept").splitlines()) == 2
    bed.tell("kill")
    assert bed.said() == {"killed": True}
    restore(bed, "cat /proc/sysvipc/shm >&2", 1)
    assert len((bed.place / "log").read_text().splitlines()) == 1, "the names of the columns alone"


def test_a_criu_that_fails_leaves_nothing_behind(bed: Bed) -> None:
    number = bed.start("echo ready >ready; sleep 1000")
    bed.wrote("ready")
    assert restore(bed, "sleep 1000 & exit 5", number) == {"failed": "criu restore: exit 5"}
    assert "sleep" not in _processes(bed)


def test_nor_does_one_that_brought_nothing_back(bed: Bed) -> None:
    bed.open("exit 0")
    said = restore(bed, "exit 0", 4321)
    assert said == {"failed": "criu restore: No child processes"}


def test_images_or_a_log_that_are_links_are_refused(bed: Bed) -> None:
    bed.open("exit 0")
    (bed.place / "elsewhere").mkdir()
    (bed.place / "images").symlink_to("elsewhere")
    (bed.place / "log").symlink_to("elsewhere/file")
    images = {"images": str(bed.place / "images"), "log": str(bed.place / "plain")}
    log = {"images": str(bed.place / "elsewhere"), "log": str(bed.place / "log")}
    for order in (images, log):
        bed.tell("restore", command=["/bin/true"], pid=1, sysv=False, clocks=None, **order)
        assert "criu restore: " in bed.said()["failed"]
    assert not (bed.place / "elsewhere" / "file").exists()


@pytest.fixture
def _many_open() -> Iterator[None]:
    """Descriptors that a program inherits, up to numbers above 256."""
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
    for descriptor in opened:
        os.set_inheritable(descriptor, True)
    yield
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.usefixtures("_many_open")
def test_the_memory_of_criu_is_nobodys_to_open_and_it_has_nothing_of_ours(bed: Bed) -> None:
    number = bed.start("sleep 1000")
    script = (
        "exec >&2; for file in /proc/$$/mem /proc/$$/task/$$/mem; do stat -L -c %t:%T $file; done;"
        " ls -m /proc/$$/fd; grep SigBlk /proc/self/status"
    )
    assert restore(bed, script, number)["pid"] == number
    first, second, opened, blocked, *_ = (bed.place / "log").read_text().splitlines()
    assert [first, second] == ["1:3", "1:3"], "/dev/null stands there"
    assert opened == "0, 1, 2"
    assert blocked.startswith("SigBlk:")


# what it cannot do


def test_a_program_that_is_not_there_ends_as_in_a_shell(bed: Bed) -> None:
    for program, code, why in (
        ("/no/such/program", 127, "No such file or directory"),
        (str(bed.place), 126, "Permission denied"),
    ):
        script = f"""
from slurm_elastic.machine.ckptroot.payload import Payload, become
become({bed.payload("", program)!r})
"""
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        said = f"slurm-elastic: the job's script: {program}: {why}\n"
        assert (done.returncode, done.stderr) == (code, said)


# its standard streams


def reopened(bed: Bed, meanwhile: str = "pass", mode: str = "wb") -> str:
    """The content of a process's output file after the process has opened it anew."""
    program = f"""
import os, sys
from pathlib import Path
from slurm_elastic.machine.ckptroot.payload import Payload, reopen_standard
place = Path({str(bed.place)!r})
os.write(1, b"before ")
{meanwhile}
before = os.open("/proc/self/fd/1", os.O_PATH)
reopen_standard(Payload(argv=(), environment={{}}, directory="/", umask=0, uid={USER.pw_uid}, gid={USER.pw_gid}, groups=()))
os.write(1, b"after")
os.write(2, b" error")
"""
    path = bed.place / "out"
    with path.open(mode) as out:
        os.fchown(out.fileno(), USER.pw_uid, USER.pw_gid)
        subprocess.run([sys.executable, "-c", program], stdout=out, stderr=out, check=True)
    return path.read_text()


def test_a_file_goes_on_where_it_was(bed: Bed) -> None:
    assert reopened(bed) == "before after error", "both streams have one place in it"
    assert reopened(bed, mode="ab") == "before after error" * 2


def test_what_is_another_file_by_now_stays_as_it_is(bed: Bed) -> None:
    swap = '(place / "out").rename(place / "old"); (place / "out").write_text("of another")'
    assert reopened(bed, swap) == "of another"
    assert (bed.place / "old").read_text() == "before after error"


def test_what_its_user_may_not_open_stays_as_it_is(bed: Bed) -> None:
    assert reopened(bed, 'os.chown(place / "out", 0, 0); os.chmod(place / "out", 0o600)') == (
        "before after error"
    )


# what fails at its begin


@pytest.mark.parametrize("what", ["unshare_processes", "mount_own_proc"])
def test_a_job_that_can_have_no_numbers_of_its_own_is_told(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails() -> None:
        raise OSError(1, f"{what}: Operation not permitted")

    monkeypatch.setattr(job_init, what, fails)
    bed.way, bed.middle = job_init.start(bed.payload("exit 0"))
    said = [bed.said(), bed.said()]
    assert {"failed": f"[Errno 1] {what}: Operation not permitted"} in said
    if what == "unshare_processes":
        assert said[1] == {"gone": True}


def test_both_processes_are_killed_with_their_parents(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(job_init, "die_with_parent", lambda: os.write(write, b"."))
    bed.start("exit 0")
    assert bed.said() == {"ended": 0}
    os.close(write)
    assert os.read(read, 9) == b".."
    os.close(read)


def test_an_end_wakes_it_at_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look by itself in an hour here."""
    ours, select = os.getpid(), job_init.select.select

    def patient(*given: Any) -> object:
        *ways, timeout = given
        return select(*ways, 3600 if timeout and os.getpid() != ours else timeout)

    monkeypatch.setattr(job_init, "select", SimpleNamespace(select=patient))
    bed.start("sleep 0.1; exit 4")
    assert bed.said() == {"ended": 4 << 8}


# its messages


def test_messages_come_whole_and_in_order_and_their_end_is_one() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            assert job_init.receive(ours, 0) is None
            for number in (1, 2):
                job_init.send(theirs, {"pid": number, "x": "y" * 30_000})
            assert job_init.receive(ours, 0) == {"pid": 1, "x": "y" * 30_000}
            assert job_init.receive(ours, PATIENCE) == {"pid": 2, "x": "y" * 30_000}
        assert job_init.receive(ours, PATIENCE) == {"gone": True}
        job_init.send(ours, {"do": "kill"})


class Numbers:
    """Process 1 without a process: ``ends`` are those that have ended, ``sent`` what it said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[tuple[int, int]] = []
        self.sent: list[dict[str, Any]] = []
        self.signalled: list[tuple[int, int]] = []
        self.left: bool | None = True
        monkeypatch.setattr(job_init, "send", lambda way, message: self.sent.append(message))
        monkeypatch.setattr(job_init.os, "waitpid", self.waitpid)
        monkeypatch.setattr(job_init.os, "kill", lambda *what: self.signalled.append(what))
        self.one: Any = job_init.JobInit(cast("Any", None), cast("Any", None), {}, {})

    def waitpid(self, pid: int, how: int) -> tuple[int, int]:
        if self.ends:
            return self.ends.pop(0)
        if how == os.WNOHANG and self.left:
            return 0, 0
        raise ChildProcessError


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    return Numbers(monkeypatch)


def test_a_payload_has_clocks_of_its_own(bed: Bed) -> None:
    bed.open("readlink /proc/self/ns/time >clocks")
    bed.tell("start")
    assert bed.said()["clocks"] == clock.offsets(), "they say at first what the node's say"
    assert bed.said() == {"ended": 0}
    assert bed.wrote("clocks") != os.readlink("/proc/self/ns/time")


@pytest.mark.parametrize("saved", [None, {"monotonic": 1, "boottime": 1}])
def test_without_clocks_of_its_own_what_is_begun_runs_and_what_was_saved_does_not(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch, saved: dict[str, int] | None
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(job_init.clock, "begin", denied)
    monkeypatch.setattr(job_init, "restore", lambda order: None)
    numbers.one.obey({"do": "restore", "pid": 1001, "sysv": False, "clocks": saved})
    why = "Operation not permitted"
    if saved:
        assert numbers.sent == [{"failed": f"criu restore: its clocks cannot continue here: {why}"}]
    else:
        assert numbers.sent == [{"pid": 1001, "clockless": why}]


@pytest.mark.parametrize("left", [False, True])
def test_all_that_ended_are_reaped_and_only_the_payloads_end_is_told_once(
    numbers: Numbers, left: bool
) -> None:
    numbers.left = left
    numbers.one.child = 1001
    numbers.ends = [(1002, 1), (1001, 256), (1003, 2)]
    numbers.one.reap()
    assert (numbers.ends, numbers.sent) == ([], [{"ended": 256}])
    numbers.ends = [(1001, 0)]  # the number of another one by now
    numbers.one.reap()
    numbers.one.obey({"do": "signal", "number": 15})
    assert (numbers.sent, numbers.signalled) == ([{"ended": 256}], [])


def test_all_are_killed_and_reaped(numbers: Numbers) -> None:
    numbers.one.child = 1001
    numbers.ends = [(1001, 9), (1002, 9)]
    numbers.one.obey({"do": "kill"})
    assert numbers.signalled == [(-1, signal.SIGKILL)]
    assert (numbers.ends, numbers.sent, numbers.one.child) == ([], [{"killed": True}], 0)


def test_all_go_on_but_those_that_are_to_stay(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_init.os, "listdir", lambda _: ["1", "1001", "1002", "1003", "stat"])
    monkeypatch.setattr(job_init.os, "getpid", lambda: 1)
    numbers.one.child = 1001
    numbers.one.obey({"do": "continue", "but": [1002]})
    assert numbers.signalled == [(1001, signal.SIGCONT), (1003, signal.SIGCONT)]
    assert (numbers.sent, numbers.one.child) == ([], 1001)


def test_a_restore_that_fails_ends_what_there_is_and_says_only_why(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(order: dict[str, Any]) -> None:
        raise OSError("exit 5")

    monkeypatch.setattr(job_init, "restore", fails)
    numbers.one.obey({"do": "restore", "pid": 1001, "clocks": None})
    assert numbers.signalled == [(-1, signal.SIGKILL)]
    assert numbers.sent == [{"failed": "criu restore: exit 5"}]


def test_a_number_that_cannot_be_chosen_is_a_start_that_failed(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(job_init, "open", closed, raising=False)
    numbers.one.obey({"do": "start"})
    assert numbers.sent == [{"failed": "ns_last_pid: Permission denied"}]
    assert numbers.one.child == 0


@pytest.mark.parametrize("wrong", [OSError("no room"), RuntimeError("a defect"), None])
def test_it_never_comes_back_to_what_forked_it(
    monkeypatch: pytest.MonkeyPatch, wrong: Exception | None
) -> None:
    class Exited(BaseException):
        """In place of the end of the process."""

    def ends(_: int) -> None:
        raise Exited

    def act(*_: object) -> None:
        if wrong is not None:
            raise wrong

    monkeypatch.setattr(job_init.os, "_exit", ends)
    for name in ("reopen_standard", "die_with_parent", "mount_own_proc"):
        monkeypatch.setattr(job_init, name, lambda *_: None)
    monkeypatch.setattr(job_init.JobInit, "loop", act)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(Exited):
        job_init.JobInit(theirs, cast("Payload", None), {}, {}).serve()


@pytest.mark.parametrize("tasks", [10, 9_500, 40_000])
def test_a_message_about_any_number_of_tasks_arrives_whole(tasks: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        order = {"do": "continue", "but": list(range(10_000, 10_000 + tasks))}
        job_init.send(ours, order)
        assert job_init.receive(theirs, 1.0) == order
        assert job_init.receive(theirs, 0.0) is None
        ours.close()
        assert job_init.receive(theirs, 1.0) == {"gone": True}
