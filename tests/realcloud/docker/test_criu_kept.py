"""A program where it goes on: what it keeps, what it does not keep, and what is refused for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, gone, needed
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]

PINNED = """\
#!/usr/bin/python3
import os, threading, time
number, cpus = os.environ["SLURM_JOB_ID"], sorted(os.sched_getaffinity(0))

def work():
    os.sched_setaffinity(0, {cpus[0]})
    while True:
        time.sleep(0.1)
        if os.sched_getaffinity(0) != {cpus[0]}:
            print("the thread has", os.sched_getaffinity(0), flush=True)

threading.Thread(target=work, daemon=True).start()
os.sched_setaffinity(0, {cpus[1]})
step = 0
while not os.path.exists(f"end-{number}"):
    time.sleep(0.2)
    if os.sched_getaffinity(0) != {cpus[1]}:
        print("it has", os.sched_getaffinity(0), flush=True)
    print("step", step, flush=True)
    step += 1
print("finished")
"""

TEMPORARY = """\
#!/usr/bin/python3
import os, tempfile, time
number = os.environ["SLURM_JOB_ID"]
kept = tempfile.TemporaryFile()
kept.write(b"kept"); kept.flush()
place = os.open(".", os.O_RDONLY)

def name(file, path):
    os.link(f"/proc/self/fd/{file}", path, src_dir_fd=place, follow_symlinks=True)

nameless, other = (os.open(".", os.O_TMPFILE | os.O_RDWR) for _ in range(2))
os.write(nameless, b"nameless")
name(other, f"other-{number}")
os.close(other)
step = 0
while not os.path.exists(f"end-{number}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
kept.seek(0)
print(kept.read().decode(), os.pread(nameless, 9, 0).decode())
try:
    name(nameless, f"named-{number}")
except OSError as error:
    print(error.strerror)
print("finished")
"""

PLACE = """\
#!/usr/bin/python3
import os, socket, time
number = os.environ["SLURM_JOB_ID"]

def boot():
    return int(open("/proc/stat").read().partition("btime ")[2].split()[0])

def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

first, began, clock, day = socket.gethostname(), boot(), boottime(), time.time()
step = 0
while not os.path.exists(f"end-{number}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
print("another host", socket.gethostname() != first, flush=True)
print("the first run's", os.environ["SLURMD_NODENAME"] == first, os.environ.get("SLURM_RESTART_COUNT"))
waited = (time.time() - day) - (boottime() - clock)
print("waited", waited > 1.0, "and booted later by that", abs(boot() - began - waited) < 3.0)
print("finished")
"""

MUTEX = """\
#!/usr/bin/python3
import ctypes, mmap, os, time
number, libc = os.environ["SLURM_JOB_ID"], ctypes.CDLL(None)
with open(f"mutex-{number}", "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
mutex, kind = (ctypes.c_char * 64).from_buffer(shared), ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(kind)
libc.pthread_mutexattr_setpshared(kind, 1)
libc.pthread_mutexattr_setrobust(kind, 1)
libc.pthread_mutex_init(mutex, kind)

def add(name, seconds):
    locked = libc.pthread_mutex_lock(mutex)
    count = shared[100]
    time.sleep(seconds)
    shared[100] = (count + 1) % 256
    unlocked = libc.pthread_mutex_unlock(mutex)
    if locked or unlocked:
        print(name, locked, unlocked, flush=True)

if not os.fork():
    for _ in iter(lambda: os.path.exists(f"end-{number}"), True):
        add("child", 0.01)
        time.sleep(0.05)
    os._exit(0)
step = 0
while not os.path.exists(f"end-{number}"):
    add("parent", 0.5)
    time.sleep(0.02)
    print("step", step, flush=True)
    step += 1
print("finished")
"""
"""The parent holds the mutex nearly always, and the child waits for it."""

MAPPED = """\
#!/usr/bin/python3
import fcntl, mmap, os, subprocess, sys, time
number = os.environ["SLURM_JOB_ID"]
file = open(f"mapped-{number}", "w+b")
file.truncate(4096)
shared = mmap.mmap(file.fileno(), 4096)
fcntl.lockf(file, fcntl.LOCK_EX, 10, 100)
fcntl.lockf(file, fcntl.LOCK_EX, 0, 1000)
step = 0
while not os.path.exists(f"end-{number}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
TRY = '''
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    for place in (99, 100, 109, 110, 5000):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            print(place, "is free")
        except OSError:
            print(place, "is held")
'''
print(subprocess.run([sys.executable, "-c", TRY, file.name], capture_output=True, text=True).stdout)
print("finished")
"""

WRITTEN = """\
#!/usr/bin/python3
import fcntl, mmap, os, time
number = os.environ["SLURM_JOB_ID"]
file = open(f"written-{number}", "w+b")
file.truncate(4096)
shared = mmap.mmap(file.fileno(), 4096)
fcntl.lockf(file, fcntl.LOCK_EX)
step = 0
print("begins", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
while not os.path.exists(f"end-{number}"):
    shared[0] = step % 256
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
"""

SLEEPS = """\
#!/bin/bash
PREPARE
echo step 0
sleep 600
"""

TICKETS = """python3 - <<'END'
import ctypes
for name in (b"a", b"b", b"c"):
    number = ctypes.CDLL(None).syscall(248, b"user", name, b"tickets", 7, -4)  # add_key(2), @u
    print("key", number, flush=True)
END
export KRB5CCNAME=KEYRING:persistent:2000"""

VALGRIND = """mkdir valgrind; cp /bin/sleep valgrind/memcheck-amd64-linux
valgrind/memcheck-amd64-linux 600 &
sleep 1"""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: CriuWorld) -> None:
    world.all_up()


def moved(world: CriuWorld, script: str) -> list[str]:
    """The words besides its steps of a program that is moved once, and comes to its end."""
    job = world.sbatch(script, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in (saved := world.ask(job, "stop")), saved
    world.move(job)
    world.standing(job)
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    shown = world.wait_job(job, "COMPLETED")
    assert shown["Restarts"] == "1"
    assert world.steps(job) == list(range(len(world.steps(job))))
    said = [line for line in world.output(job) if not line.startswith("step ")]
    gone(world, job)
    return said


def test_threads_stay_bound_to_the_cpus_that_the_program_chose(world: CriuWorld) -> None:
    said = moved(world, PINNED)
    assert said[-1:] == ["finished"]
    assert len(said) <= 3, f"no longer than until they were bound again: {said}"


def test_a_file_without_a_name_comes_back_and_gets_none(world: CriuWorld) -> None:
    """The row of the limits on linkat(2): what Python's TemporaryFile gives works."""
    assert moved(world, TEMPORARY) == ["kept nameless", "No such file or directory", "finished"]


def test_its_environment_stays_and_the_time_of_day_goes_on(world: CriuWorld) -> None:
    """It keeps the first run's words; the time for which it waited counts by the day alone."""
    assert moved(world, PLACE) == [
        "another host True", "the first run's True None", "waited True and booted later by that True",
        "finished",
    ]  # fmt: skip


def test_a_mutex_in_a_file_stays_that_of_the_process_that_holds_it(world: CriuWorld) -> None:
    """LMDB's are such: its lock.mdb is mapped by all of its processes."""
    assert moved(world, MUTEX) == ["finished"], "nobody hears of an owner that is dead (130)"


def test_locks_on_a_file_that_is_mapped_are_held_again(world: CriuWorld) -> None:
    assert moved(world, MAPPED) == [
        "99 is free", "100 is held", "109 is held", "110 is free", "5000 is held", "", "finished",
    ]  # fmt: skip


def test_no_job_goes_back_to_before_what_it_wrote_in_a_locked_file(world: CriuWorld) -> None:
    """LMDB and sqlite (WAL) would take what is newer there for their own, and spoil it."""
    job = world.sbatch(WRITTEN, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in (saved := world.ask(job, "go")), saved
    world.wait_more(job)
    lost = world.lose(job)
    world.wait_for(lambda: "begins 1" in world.output(job), "it begins anew")
    assert any("has changed since the job" in line for line in world.launcher_said(job))
    (world.shared / "jobs" / f"end-{job}").touch()
    world.wait_job(job, "COMPLETED")
    world.start_node(lost)
    gone(world, job)


@pytest.mark.parametrize(
    ("prepare", "why"), [(TICKETS, "has its Kerberos tickets in"), (VALGRIND, "runs in valgrind")]
)
def test_what_would_not_work_elsewhere_is_refused_and_goes_on(
    world: CriuWorld, prepare: str, why: str
) -> None:
    job = world.sbatch(SLEEPS.replace("PREPARE", prepare), "-o", "out-%j")
    world.standing(job)
    world.wait_for(lambda: "step 0" in world.output(job), "it has begun")
    said = world.ask(job, "go")
    assert why in said.get("error", ""), (said, world.output(job))
    assert world.job(job)["JobState"] == "RUNNING"
    world.slurm("scancel", str(job))
    gone(world, job)
