"""Programs that hold more than memory and open files: a real CRIU brings them back, or it is known at
the save that it cannot. The harness is that of test_isolation.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import inventory, tempfiles
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import RequestRefused
from slurm_elastic.machine.ckptroot.tempfiles import TempFiles

from .helpers import owner
from .test_isolation import ATTACK, START, home, moved, newest, program  # noqa: F401 - fixtures

pytestmark = pytest.mark.timeout(600)

STEPS = """
step = 0
while True:
    print("step", step, look(), file=out)
    step += 1
    time.sleep(0.05)
"""

LOCKS = (
    """
import fcntl, os, sqlite3, subprocess, sys, time
out = open("out", "a", buffering=1)
whole, part = open("flock", "w"), open("fcntl", "w")
fcntl.flock(whole, fcntl.LOCK_EX)
fcntl.lockf(part, fcntl.LOCK_EX, 10, 5)
base = sqlite3.connect("base.db", isolation_level=None)
base.execute("create table t (n)")
base.execute("begin immediate")
OTHER = '''
import fcntl, sqlite3
found = []
for name, way in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):
    try:
        way(open(name, "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        found.append("free")
    except OSError:
        found.append("held")
try:
    sqlite3.connect("base.db", timeout=0).execute("begin immediate")
    found.append("free")
except sqlite3.OperationalError:
    found.append("held")
print(*found)
'''
def look():
    return subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True).stdout.strip()
"""
    + STEPS
)

GHOST = (
    """
import os, time
out = open("out", "a", buffering=1)
ghost = open("ghost", "w+b")
ghost.write(os.urandom(1) * (8 << 20))
ghost.flush()
os.unlink("ghost")
first = os.pread(ghost.fileno(), 1, 0)
def look():
    return os.pread(ghost.fileno(), 8 << 20, 0) == first * (8 << 20)
"""
    + STEPS
)

DAEMON = (
    """
import os, time
out = open("out", "a", buffering=1)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        beat = open("beat", "w", buffering=1)
        while True:
            beat.seek(0)
            beat.write(f"{time.time():.2f}")
            time.sleep(0.02)
    os._exit(0)
os.wait()
def beat():
    try:
        return open("beat").read()
    except FileNotFoundError:
        return ""
def look():
    before = beat()
    while beat() == before:
        time.sleep(0.02)
    return True
"""
    + STEPS
)


def test_locks_are_held_again_after_the_move(home: Path, program: str) -> None:  # noqa: F811
    (home / "job").write_text(LOCKS)
    # Its own children come and go: what one of them holds is not looked at.
    looked, not_looked = "tasks = method.inside.tasks()", "tasks = []"
    assert looked in ATTACK
    attack = ATTACK.replace(looked, not_looked)
    told = moved(home, program, "locks", attack=attack)
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    assert told["lines"] == [f"step {n} held held held" for n in range(len(told["lines"]))]


def test_a_large_file_that_was_deleted_is_in_the_image(home: Path, program: str) -> None:  # noqa: F811
    (home / "job").write_text(GHOST)
    told = moved(home, program, "ghost")
    assert "refused" not in told, told
    assert told["lines"] == [f"step {n} True" for n in range(len(told["lines"]))]
    assert len(told["lines"]) > told["last"]


def test_a_daemon_of_the_job_goes_on_with_it(home: Path, program: str) -> None:  # noqa: F811
    (home / "job").write_text(DAEMON)
    told = moved(home, program, "daemon")
    assert "refused" not in told, told
    assert told["lines"] == [f"step {n} True" for n in range(len(told["lines"]))]
    assert len(told["rights"]) == 2


LEASE = (
    """
import fcntl, time
out = open("out", "a", buffering=1)
open("leased", "w").close()
leased = open("leased")
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
def look():
    return fcntl.fcntl(leased, fcntl.F_GETLEASE) == fcntl.F_RDLCK
"""
    + STEPS
)


def test_a_lease_is_held_again(home: Path, program: str) -> None:  # noqa: F811
    (home / "job").write_text(LEASE)
    told = moved(home, program, "lease")
    assert "refused" not in told, told
    assert told["lines"] == [f"step {n} True" for n in range(len(told["lines"]))]
    assert len(told["lines"]) > told["last"]


SYSV = (
    """
import ctypes, time
out, libc = open("out", "a", buffering=1), ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
KEY, CREAT, PRIVATE, GETVAL, SETVAL, IPC_RMID = 0x5e, 0o1600, 0, 12, 16, 0
kept, queue, sets = libc.shmget(KEY, 1 << 20, CREAT), libc.msgget(KEY, CREAT), libc.semget(KEY, 2, CREAT)
alone = libc.shmget(PRIVATE, 4096, CREAT)
place, other = libc.shmat(kept, None, 0), libc.shmat(alone, None, 0)
libc.shmctl(alone, IPC_RMID, None)
count, more = (ctypes.c_uint.from_address(at + 2048) for at in (place, other))
libc.semctl(sets, 1, SETVAL, 7)
class Message(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_long), ("text", ctypes.c_char * 8)]
for kind in (3, 4):
    libc.msgsnd(queue, ctypes.byref(Message(kind, b"kept")), 8, 0)
def look():
    count.value += 1
    more.value += 1
    taken = Message()
    size = libc.msgrcv(queue, ctypes.byref(taken), 8, 4, 0)
    libc.msgsnd(queue, ctypes.byref(taken), 8, 0)
    return (count.value - more.value, libc.shmget(KEY, 0, 0) == kept, libc.semget(KEY, 0, 0) == sets,
            libc.semctl(sets, 1, GETVAL), size, taken.text, open("/proc/sys/kernel/msgmnb").read().strip())
"""
    + STEPS
)


def test_system_v_ipc_is_there_again_under_its_numbers(home: Path, program: str) -> None:  # noqa: F811
    """And under the node's limits, which a new namespace is without."""
    before = Path("/proc/sysvipc/shm").read_text()
    (home / "job").write_text(SYSV)
    limit = Path("/proc/sys/kernel/msgmnb")
    usual = limit.read_text()
    limit.write_text("23456")
    try:
        told = moved(home, program, "sysv")
    finally:
        limit.write_text(usual)
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    wanted = (0, True, True, 7, 8, b"kept", "23456")
    # CRIU lets the job go on a moment before it has the node's limits: a step or two may not.
    at_once = range(told["last"], told["back"] + 1)
    found = [
        line.replace("'16384'", "'23456'") if n in at_once else line
        for n, line in enumerate(told["lines"])
    ]
    assert found == [f"step {n} {wanted}" for n in range(len(found))]
    assert Path("/proc/sysvipc/shm").read_text() == before, "none of it is left on the node"


LOCAL = (
    """
import os, tempfile, time
from multiprocessing import shared_memory
out = open("out", "a", buffering=1)
place = tempfile.mkdtemp()
os.chdir(place)
kept = open("kept", "w+")
shared = shared_memory.SharedMemory(create=True, size=1 << 20)
def look():
    with open("closed", "a") as closed:
        closed.write("x")
    kept.write("y")
    kept.flush()
    kept.seek(0)
    shared.buf[7] = (shared.buf[7] + 1) % 250
    return os.path.getsize("closed") == len(kept.read()), os.getcwd() == place, shared.buf[7]
"""
    + STEPS
)
ALONE = 1_000_000 + os.getpid()
"""A user whose processes are all of this test's."""
ELSEWHERE = (
    ATTACK.replace("2000", str(ALONE))
    .replace("directory=home, key=", "directory=Path('/run'), key=")
    .replace("method.dump(image", "method.estimate_size()\nmethod.dump(image")
    .replace("method.stop()", "method.gather(image, 1 << 30)\nmethod.stop()")
    .replace("    method.restore(", "    method.put_back_files(image)\n    method.restore(")
)
"""The same, where /tmp and /dev/shm are of this node alone and the images are not."""


def test_files_of_its_node_travel_open_or_closed(home: Path, program: str) -> None:  # noqa: F811
    os.chown(home / "user", ALONE, ALONE)
    (home / "job").write_text(LOCAL)
    gone = "rm -f /dev/shm/psm_* 2>/dev/null; ls -d /tmp/slurm-elastic-7-* 2>/dev/null; true"
    told = moved(home, program, "local", swap=gone, attack=ELSEWHERE)
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    wanted = [f"step {n} (True, True, {(n + 1) % 250})" for n in range(len(told["lines"]))]
    assert told["lines"] == wanted
    (kept,) = {one for one in told["held"] if one.startswith("/dev/shm/psm_")} or {""}
    Path(kept or "/dev/shm/none").unlink(missing_ok=True)
    assert not list(Path("/tmp").glob("slurm-elastic-7-*"))


SEMAPHORE = (
    """
import multiprocessing, time
out = open("out", "a", buffering=1)
kept = multiprocessing.get_context("spawn").Semaphore(2)
def look():
    return "runs", kept.acquire(), kept.release(), kept.get_value()
"""
    + STEPS
)


def test_semaphores_by_name_are_shared_again(home: Path, program: str) -> None:  # noqa: F811
    """They were opened by a name that is gone (sem_open(3))."""
    os.chown(home / "user", ALONE, ALONE)
    (home / "job").write_text(SEMAPHORE)
    told = moved(home, program, "semaphore", swap="rm -f /dev/shm/*", attack=ELSEWHERE)
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    held = ("runs", True, None, 2)
    assert told["lines"] == [f"step {n} {held}" for n in range(len(told["lines"]))]
    assert not [one for one in told["held"] if "(deleted)" in one and "/sem." not in one]


POLLING = (
    """
import ctypes, os, threading, time
out = open("out", "a", buffering=1)
libc = ctypes.CDLL(None, use_errno=True)
ends = []
def waits():
    class Pollfd(ctypes.Structure):
        _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
    end = os.pipe()[0]
    ends.append((libc.poll(ctypes.byref(Pollfd(end, 1, 0)), 1, -1), ctypes.get_errno()))
threading.Thread(target=waits, daemon=True).start()
if os.fork() == 0:
    waits()
    os._exit(0)
def look():
    return ends, os.waitpid(-1, os.WNOHANG)[0]
"""
    + STEPS
)


def test_who_waits_by_poll_waits_on(home: Path, program: str) -> None:  # noqa: F811
    """Without a word of an interruption, which programs without signal handlers do not expect."""
    (home / "job").write_text(POLLING)
    told = moved(home, program, "poll")
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    assert told["lines"] == [f"step {n} ([], 0)" for n in range(len(told["lines"]))]


def test_who_waits_by_poll_waits_on_where_it_only_runs_on(home: Path, program: str) -> None:  # noqa: F811
    (home / "job").write_text(POLLING)
    attack = TRIED.replace("more()\ntold", "method.resume()\nmore()\ntold")
    told = moved(home, program, "poll", attack=attack)
    assert "refused" not in told, told
    assert len(told["lines"]) >= 6
    assert told["lines"] == [f"step {n} ([], 0)" for n in range(len(told["lines"]))]


CONNECTED = (
    """
import os, socket, time
out = open("out", "a", buffering=1)
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    link = socket.create_connection(server.getsockname())
    while line := link.recv(100):
        link.sendall(line.upper())
    os._exit(0)
link = server.accept()[0]
full = socket.create_connection(server.getsockname()), server.accept()[0]
full[0].setblocking(False)
sent = read = 0
def fill():
    global sent
    try:
        while sent - read < MUCH:
            sent += full[0].send(bytes((sent + n) % 251 for n in range(10000)))
    except BlockingIOError:
        pass
fill()
def look():
    global read
    link.sendall(b"ping")
    got = full[1].recv(5000)
    good = got == bytes((read + n) % 251 for n in range(len(got))) and bool(got)
    read += len(got)
    fill()
    reuse = full[1].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    return link.recv(100), good, reuse
"""
    + STEPS
)


DUMP = "method.dump(image, 60.0, 1 << 30)"
DUMP_AT_REST = "dump_at_rest()"


def test_connections_between_its_own_processes_go_on(home: Path, newest: str) -> None:  # noqa: F811
    """One of them with data that nobody has read yet."""
    (home / "job").write_text(CONNECTED.replace("MUCH", "20000"))
    told = moved(home, newest, "connected", attack=ATTACK.replace(DUMP, DUMP_AT_REST))
    assert "refused" not in told, told
    assert len(told["lines"]) > told["last"]
    seen = (b"PING", True, 1)
    assert told["lines"] == [f"step {n} {seen}" for n in range(len(told["lines"]))]


def test_they_go_on_where_the_job_only_runs_on(home: Path, newest: str) -> None:  # noqa: F811
    (home / "job").write_text(CONNECTED.replace("MUCH", "20000"))
    told = moved(
        home, newest, "tried",
        attack=TRIED.replace(DUMP, DUMP_AT_REST).replace("more()\ntold", "method.resume()\nmore()\ntold"),
    )  # fmt: skip
    assert "refused" not in told, told
    seen = (b"PING", True, 1)
    assert told["lines"] == [f"step {n} {seen}" for n in range(len(told["lines"]))]
    assert len(told["lines"]) >= 6


def test_data_that_waits_to_be_sent_is_waited_for(home: Path, newest: str) -> None:  # noqa: F811
    (home / "job").write_text(CONNECTED.replace("MUCH", "1e9"))
    checked = TRIED.replace(
        "method.dump(image, 60.0, 1 << 30)",
        "method.dump(image, 60.0, 1 << 30)\n    method.resume()",
    )
    told = moved(home, newest, "tried", attack=checked)
    assert told["refused"] == "its connections could not be saved at rest"
    seen = (b"PING", True, 1)
    assert told["lines"] == [f"step {n} {seen}" for n in range(len(told["lines"]))]


OUTSIDE = (
    """
import os, socket, time
out = open("out", "a", buffering=1)
link = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))
def look():
    return "runs"
"""
    + STEPS
)

TRIED = (
    START
    + """
told = {}
try:
    method.dump(image, 60.0, 1 << 30)
except RequestRefused as refusal:
    told["refused"] = str(refusal)
more()
told["lines"] = lines()
method.close()
os.write(said, json.dumps(told).encode())
"""
)


def test_the_words_of_a_refusal_are_understood_and_the_job_goes_on(
    home: Path,  # noqa: F811
    program: str,  # noqa: F811
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        (home / "job").write_text(OUTSIDE.replace('os.environ["PORT"]', f'"{port}"'))
        told = moved(home, program, "tried", attack=TRIED)
    assert "Connected TCP socket" in told["refused"]
    assert told["lines"] == [f"step {n} runs" for n in range(len(told["lines"]))]


# the inventory


@pytest.fixture
def task(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import fcntl, sys, time; f = open('held', 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('up', flush=True); time.sleep(600)"
    )
    one = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
    assert one.stdout is not None
    one.stdout.readline()
    yield one
    one.kill()
    one.communicate()


def test_a_locked_file_that_changed_meanwhile_is_not_gone_on_with(
    task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    found = inventory.locked_files([task.pid], owner(os.geteuid()))
    path = str(tmp_path / "held")
    assert list(found) == [path]
    inventory.check_locked(found)
    with open(path, "a") as file:
        file.write("another job's")
    with pytest.raises(RequestRefused, match="has changed since the job"):
        inventory.check_locked(found)
    os.unlink(path)
    with pytest.raises(RequestRefused, match="No such file"):
        inventory.check_locked(found)


def test_an_open_file_of_this_node_alone_is_told(
    task: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(7, 0, 0, "root", (0,), {b"TMPDIR": os.fsencode(tmp_path.parent)})
    one = TempFiles(caller, tmp_path.parent, tmp_path / "left")
    assert one.obstacle([task.pid], ()) == "", "it is where the images are"
    monkeypatch.setattr(tempfiles, "is_local", lambda *_: True)
    one = TempFiles(caller, tmp_path.parent, tmp_path / "left")
    assert "of this node alone" in one.obstacle([task.pid], ())
    found = (str(tmp_path), str(tmp_path / "held"))
    assert one.obstacle([task.pid], found) == "", "they travel"


def test_what_would_take_a_save_for_a_stop_of_its_child_is_told(tmp_path: Path) -> None:
    words = ["script", "-q", "-c", "echo up >up; sleep 600", "typescript"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as one:
        end = time.monotonic() + 60
        while not (tmp_path / "up").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        said = inventory.terminal([one.pid])
        assert inventory.terminal([os.getpid()]) == ""
        one.terminate()
    assert said.startswith("process script runs a terminal")


def test_a_process_that_left_the_tree_is_told() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        assert inventory.stray([child.pid], os.getpid(), child.pid) == ""
        said = inventory.stray([child.pid], os.getpid(), 1)
        child.kill()
    assert said.endswith("has left the job's tree, as daemons do")
