"""A real CRIU brings back the user's own and nothing else, with the user's rights alone.

Namespaces of our own, no container: a session's method saves a job, its user puts something else in
the place of its files, and another session brings it back. The same on real Slurm is in
tests/realcloud/docker/test_criu_rights.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot.proc import status_of

from .helpers import ROOT

pytestmark = [ROOT, pytest.mark.timeout(600)]

JOB = """
import mmap, os, sys, time
kind, place = sys.argv[1], os.path.abspath("place")
os.makedirs(f"{place}/sub")
for name, content, mode in (("key", "a" * 128, 0o400), ("mem", "", 0o600)):
    with open(f"{place}/{name}", "w") as file:
        file.write(content)
    os.chmod(f"{place}/{name}", mode)
out = open("out", "a", buffering=1)
opened, mapped = open(f"{place}/key", "rb"), None
if kind in ("mmap", "all"):
    mapped = mmap.mmap(opened.fileno(), 128, prot=mmap.PROT_READ)
if kind in ("cwd", "all"):
    os.chdir(f"{place}/sub")
if kind in ("mem", "all"):
    other = open(f"{place}/mem", "rb")
if kind in ("mmap", "cwd", "mem"):
    opened.close()
step = 0
while True:
    seen = [opened.read(4) if opened.seek(0) == 0 else b""] if not opened.closed else []
    seen += [mapped[:4]] if mapped else []
    print("step", step, *(text.decode() for text in seen), file=out)
    step += 1
    time.sleep(0.05)
"""

MANY = """
import ctypes, mmap, os, select, signal, socket, subprocess, threading, time
out, libc = open("out", "a", buffering=1), ctypes.CDLL(None)
unix = socket.socket(socket.AF_UNIX)
unix.bind("sock")
unix.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("sock")
os.mkfifo("fifo")
ghost = open("ghost", "w+b")
ghost.write(b"g" * 1000)
ghost.flush()
os.unlink("ghost")
poll, watch, memory = select.epoll(), libc.inotify_init(), os.memfd_create("m")
read, write = os.pipe()
poll.register(read, select.EPOLLIN)
libc.inotify_add_watch(watch, b".", 2)
os.write(memory, b"x" * 4096)
threading.Thread(target=lambda: time.sleep(1e6), daemon=True).start()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1000)
# CRIU restores a terminal under its old number. Low numbers are taken by whoever opens one meanwhile.
*low, terminal = [os.openpty() for _ in range(24)]
for pair in low:
    os.close(pair[0])
    os.close(pair[1])
keep = [
    unix.accept(), socket.socketpair(), os.open("fifo", os.O_RDWR), os.eventfd(0), libc.timerfd_create(1, 0),
    libc.signalfd(-1, ctypes.byref(ctypes.c_ulong(1 << 9)), 8), mmap.mmap(-1, 1 << 20), terminal,
    os.open(".", os.O_DIRECTORY), os.open(".", os.O_PATH), open("/proc/self/status"),
    subprocess.Popen(["/bin/sleep", "100000"]), subprocess.Popen(["/bin/sleep", "100000"], start_new_session=True),
]
step = 0
while True:
    print("step", step, file=out)
    step += 1
    time.sleep(0.05)
"""

START = """
import json, os, subprocess, sys, time
from pathlib import Path
from slurm_elastic.machine.ckptroot import criu, manifest
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.proc import status_of
from slurm_elastic.machine.ckptroot.site import RequestRefused, HelperSite
home, program, kind, swap = Path(sys.argv[1]), *sys.argv[2:5]
for own in ("/run", "/dev/shm"):  # as on a host: CRIU's cache, and nobody else's semaphores
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", own], check=True)
site = HelperSite(cluster="t", directory=home, key=b"k" * 64, reader=(0, 0), criu=program, scratch=home / "run",
            slurmstepd="/none")
environment = {b"PATH": b"/usr/bin:/bin"}
caller = Caller(7, 2000, 2000, "alice", (2000,), environment)
payload = Payload(argv=("/usr/bin/python3", str(home / "job"), kind), environment=environment,
                  directory=str(home / "user"), umask=0o22, uid=2000, gid=2000, groups=(2000,))
said = os.dup(1)
null = os.open("/dev/null", os.O_RDWR)
for number in range(2):
    os.dup2(null, number)

def lines():
    try:
        return (home / "user" / "out").read_text().splitlines()
    except OSError:
        return []

def more():
    before, end = len(lines()), time.monotonic() + 120
    while len(lines()) < before + 3:
        assert time.monotonic() < end, "no steps"
        time.sleep(0.02)

method = criu.Criu(site, caller, payload)
method.start()
more()
image = home / "images" / "1"
image.mkdir(parents=True)

def dump_at_rest(place=image):
    for left in reversed(range(20)):  # as a service tries again what passes by itself
        try:
            return method.dump(place, 60.0, 1 << 30)
        except RequestRefused as refusal:
            if not left or "at rest" not in str(refusal):
                raise
        more()
        for path in place.iterdir():
            path.unlink()
"""

ATTACK = (
    START
    + """
method.dump(image, 60.0, 1 << 30)
method.stop()
pid = method.pid
method.close()
last = len(lines())
subprocess.run(["/bin/sh", "-c", swap], check=True, cwd=home / "user", user=2000, group=2000, extra_groups=[])
sealed = manifest.ImageManifest(cluster="t", job=7, label="7", attempt=0, number=1, method="criu", uid=2000,
    gid=2000, node="", taken=0.0, seconds=0.0, pid=pid, versions={}, files=manifest.digests(image), writing={})
method = criu.Criu(site, caller, payload)
told = {"last": last}
try:
    method.restore(image, sealed)
    told["back"] = len(lines())
    more()
    tasks = method.inside.tasks()
    held = [os.readlink(f"/proc/{task}/{entry}") for task in tasks for entry in ("cwd", "exe")]
    held += [os.readlink(one) for task in tasks for one in Path(f"/proc/{task}/fd").iterdir()]
    held += [Path(f"/proc/{task}/maps").read_text() for task in tasks]
    fields = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb")
    told |= {"held": held, "rights": [[status_of(task)[name] for name in fields] for task in tasks]}
    told["inside"] = method.pid
except RequestRefused as refusal:
    told["refused"] = str(refusal)
told["lines"] = lines()
method.close()
os.write(said, json.dumps(told).encode())
"""
)

NO_ROOM = (
    START
    + """
told = {}
try:
    method.dump(image, 60.0, 65536)
except RequestRefused as refusal:
    told["refused"] = str(refusal)
more()
told |= {"lines": lines(), "longest": max(path.stat().st_size for path in image.iterdir())}
method.close()
os.write(said, json.dumps(told).encode())
"""
)

MANY_FILES = """
import os, sys, time
out = open("out", "a", buffering=1)
for n in range(100):
    if os.fork() == 0:
        filled = os.urandom(12 << 20)
        time.sleep(1e6)
step = 0
while True:
    print("step", step, file=out)
    step += 1
    time.sleep(0.05)
"""

LITTLE_ROOM = (
    START.replace(
        "more()\n", "more()\nwhile method.estimate_size() < 1200 << 20:\n    time.sleep(0.1)\n"
    )
    + """
from slurm_elastic.machine.ckptroot import dump
from slurm_elastic.machine.ckptroot.quota import allocated
dump.CHECK_EVERY_S = 0.02
told = {}
try:
    method.dump(image, 60.0, 64 << 20)
except RequestRefused as refusal:
    told["refused"] = str(refusal)
more()
told |= {"lines": lines(), "taken": allocated(image), "tasks": len(method.inside.tasks())}
method.close()
os.write(said, json.dumps(told).encode())
"""
)


@pytest.fixture(scope="module")
def program() -> str:
    return _criu("trixie")


@pytest.fixture(scope="module")
def newest() -> str:
    return _criu("forky")


def _criu(release: str) -> str:
    script = Path(__file__).with_name("criu4")
    done = subprocess.run(
        [script, release], capture_output=True, text=True, check=False, timeout=500
    )
    if done.returncode != 0:
        pytest.skip(f"no CRIU 4: {done.stderr.strip()[-300:]}")
    found = done.stdout.strip()
    checks = subprocess.run([found, "check"], capture_output=True, text=True, check=False)
    if checks.returncode != 0:
        pytest.skip(f"CRIU does not work on this kernel: {checks.stderr.strip()[-300:]}")
    return found


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="se-isolation-", dir="/tmp"))
    path.chmod(0o755)
    (path / "user").mkdir()
    os.chown(path / "user", 2000, 2000)
    (path / "job").write_text(JOB)
    secret = path / "roots"
    (secret / "sub").mkdir(parents=True)
    (secret / "key").write_text("ROOT" * 32)
    (secret / "key").chmod(0o400)
    secret.chmod(0o700)
    yield path
    shutil.rmtree(path)


def moved(
    home: Path, program: str, kind: str, swap: str = "true", attack: str = ATTACK
) -> dict[str, Any]:
    """The outcome of a job whose user does ``swap`` between its image and its restore."""
    wrapper = (
        home / "criu"
    )  # bash -p: else it gives up root's rights where the real user is another
    note = f'[ "$1" != dump ] || grep CapEff /proc/self/status >{home}/rights'
    wrapper.write_text(f'#!/bin/bash -p\n{note}\nexec {program} "$@"\n')
    wrapper.chmod(0o755)
    program = str(wrapper)
    enter = ["unshare", "--mount", "--fork"]
    words = [*enter, sys.executable, "-c", attack, str(home), program, kind, swap]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_job_comes_back_as_it_was_with_its_users_rights_and_no_others(
    home: Path, program: str
) -> None:
    told = moved(home, program, "all")
    assert told["lines"] == [f"step {n} aaaa aaaa" for n in range(len(told["lines"]))]
    assert len(told["lines"]) > told["last"]
    ids, nothing = ["2000\t2000\t2000\t2000"] * 2, ["0" * 16] * 4
    assert told["rights"] == [[*ids, "2000", *nothing]]
    assert told["inside"] > 1000
    for name in ("key", "mem", "sub"):
        assert any(f"{home}/user/place/{name}" in one for one in told["held"])
    image = home / "images" / "1"
    for path in (image, *image.iterdir()):
        assert path.stat().st_uid == 0
        assert path.stat().st_mode & 0o022 == 0
    assert image.parent.stat().st_mode & 0o007 == 0  # the way to them is closed


def test_a_job_that_holds_much_of_what_a_program_can_comes_back(home: Path, program: str) -> None:
    (home / "job").write_text(MANY)
    told = moved(home, program, "many")
    assert "refused" not in told
    assert told["lines"] == [f"step {n}" for n in range(len(told["lines"]))]
    assert len(told["rights"]) == 3


def test_criu_saves_with_few_capabilities(home: Path, program: str) -> None:
    """It reads what a job's processes hold: who misleads it is not to have all that root may do."""
    moved(home, program, "fd")
    rights = int((home / "rights").read_text().split()[1], 16)
    own = int(status_of(os.getpid())["CapEff"], 16)
    few = {"DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "KILL": 5, "NET_ADMIN": 12, "SYS_PTRACE": 19,
           "SYS_RESOURCE": 24}  # fmt: skip
    restores = 40 if own >> 40 & 1 else 21  # CHECKPOINT_RESTORE, which SYS_ADMIN had in it before
    assert rights == own & sum(1 << number for number in (*few.values(), restores))


def test_a_save_that_finds_no_room_ends_there_and_the_job_goes_on(home: Path, program: str) -> None:
    """No file may have more than 64 KiB; its memory is megabytes."""
    told = moved(home, program, "fd", attack=NO_ROOM)
    assert told["refused"].startswith("criu dump: exit ")
    assert told["longest"] <= 65536
    assert told["lines"] == [f"step {n} aaaa" for n in range(len(told["lines"]))]


def test_a_save_of_many_files_takes_no_more_than_its_room(home: Path, program: str) -> None:
    """None has more than 13 MiB, and all together would have 1200."""
    if not int(status_of(os.getpid())["CapEff"], 16) >> 24 & 1:
        pytest.skip("without CAP_SYS_RESOURCE root sets no limit of a process of another real user")
    (home / "job").write_text(MANY_FILES)
    told = moved(home, program, "many", attack=LITTLE_ROOM)
    assert told["refused"] == "no room: the image would have more than 64 MiB"
    assert 64 << 20 < told["taken"] < 1200 << 20
    assert told["lines"] == [f"step {n}" for n in range(len(told["lines"]))]
    assert told["tasks"] == 101


SWAPS = {
    "fd": "rm -f place/key; ln -s SECRET/key place/key",
    "parent": "mv place old; ln -s SECRET place",
    "mmap": "rm -f place/key; ln -s SECRET/key place/key",
    "cwd": "mv place old; ln -s SECRET place",
    "mem": "mv place old; ln -s /proc/2 place",
}


@pytest.mark.parametrize("kind", SWAPS)
def test_nothing_of_roots_comes_into_a_job_by_a_swapped_path(
    home: Path, program: str, kind: str
) -> None:
    """``mem``: the memory of CRIU itself, the second process of the job's own numbers."""
    told = moved(home, program, kind, SWAPS[kind].replace("SECRET", f"{home}/roots"))
    why = "has bad mode" if kind == "mem" else "Permission denied"
    assert "criu restore" in told["refused"]
    assert why in told["refused"]
    assert len(told["lines"]) == told["last"]
    assert "ROOT" not in " ".join(told["lines"])
