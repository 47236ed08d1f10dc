"""A job's user puts something else in the place of its files before it comes back: CRIU opens all
of them by their paths again, with the user's rights alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, gone, needed
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]

JOB = """\
#!/usr/bin/python3
import mmap, os, time
job, run = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
place = os.path.abspath(f"place-{job}-{run}")
os.makedirs(f"{place}/sub")
for name, content, mode in (("key", "a" * 128, 0o400), ("mem", "", 0o600)):
    with open(f"{place}/{name}", "w") as file:
        file.write(content)
    os.chmod(f"{place}/{name}", mode)
opened, mapped = open(f"{place}/key", "rb"), None
KIND = "{kind}"
if KIND in ("mmap", "all"):
    mapped = mmap.mmap(opened.fileno(), 128, prot=mmap.PROT_READ)
if KIND in ("cwd", "all"):
    os.chdir(f"{place}/sub")
if KIND in ("mem", "all"):
    other = open(f"{place}/mem", "rb")
if KIND in ("mmap", "cwd", "mem"):
    opened.close()
print("start", run, flush=True)
step = 0
while not os.path.exists(f"/shared/jobs/end-{job}"):
    seen = [opened.read(4) if opened.seek(0) == 0 else b""] if not opened.closed else []
    seen += [mapped[:4]] if mapped else []
    print("step", step, *(text.decode() for text in seen), os.path.basename(os.getcwd()), flush=True)
    step += 1
    time.sleep(0.2)
"""

SECRET = "/shared/roots"
SWAPS = {
    "fd": f"rm -f PLACE/key; ln -s {SECRET}/key PLACE/key",
    "parent": f"mv PLACE PLACE.old; ln -s {SECRET} PLACE",
    "mmap": f"rm -f PLACE/key; ln -s {SECRET}/key PLACE/key",
    "cwd": f"mv PLACE PLACE.old; ln -s {SECRET} PLACE",
    # CRIU itself: the second process of the job's own numbers.
    "mem": "mv PLACE PLACE.old; ln -s /proc/2 PLACE",
}
WHY = {"mem": "has bad mode"}


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie, nodes=2) as running:
        needed(running)
        secret = running.shared / "roots"
        (secret / "sub").mkdir(parents=True)
        (secret / "key").write_text("ROOT" * 32)
        (secret / "key").chmod(0o400)
        secret.chmod(0o700)
        yield running


def saved(world: CriuWorld, kind: str) -> int:
    """A job that has an image and runs on."""
    world.resume("n1", "n2")
    job = world.sbatch(JOB.replace("{kind}", kind), "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in world.ask(job, "go")
    world.wait_more(job)
    return job


def moved(world: CriuWorld, job: int) -> None:
    world.move(job)
    world.standing(job)
    world.wait_more(job)


def held_files(world: CriuWorld, job: int) -> str:
    """All that the job's processes have open or mapped, and where they are."""
    host = world.nodes()[world.job(job)["NodeList"]]
    show = (
        f"for p in $(pgrep -f [c]ontainers/{job}/script); do"
        " [ $(stat -c %u /proc/$p) = 2000 ] || continue;"
        " readlink /proc/$p/cwd /proc/$p/exe /proc/$p/fd/*; cat /proc/$p/maps; done"
    )
    return str(host.run(["sh", "-c", show]).stdout)


def ended(world: CriuWorld, job: int) -> list[str]:
    (world.shared / "jobs" / f"end-{job}").touch()
    world.wait_job(job)
    gone(world, job)
    return world.output(job)


@pytest.mark.parametrize("kind", SWAPS)
def test_nothing_of_roots_comes_into_a_job_by_a_swapped_path(world: CriuWorld, kind: str) -> None:
    job = saved(world, kind)
    # As if other nodes had tried already, so that the job starts over at once.
    unfit = world.directory_of(job) / "unfit.json"
    unfit.write_text(json.dumps(["n7", "n8", "n9"]))
    swap = SWAPS[kind].replace("PLACE", f"/shared/jobs/place-{job}-0")
    world.head.run(["sh", "-c", swap], user="alice")
    moved(world, job)
    log = " ".join(json.loads((world.directory_of(job) / "status.json").read_text())["log"])
    assert "image 1 is not used: criu restore" in log
    assert WHY.get(kind, "Permission denied") in log
    assert "the job starts over" in log
    files = held_files(world, job)
    assert f"place-{job}-1" in files or kind in ("mmap", "cwd", "mem")
    assert SECRET not in files
    lines = ended(world, job)
    assert lines[0] == "start 1"
    assert "ROOT" not in " ".join(lines)


def test_a_job_with_all_of_that_moves_and_its_image_stays_its_own(world: CriuWorld) -> None:
    job = saved(world, "all")
    moved(world, job)
    files = held_files(world, job)
    assert all(f"/shared/jobs/place-{job}-0/{name}" in files for name in ("key", "mem", "sub"))
    image = world.directory_of(job) / "images" / "1"
    inside = f"/shared/ckpt/containers/{job}/images/1/{next(image.glob('pages-*')).name}"
    looks = world.head.run(["cat", inside], user="alice", check=False)
    assert "Permission denied" in looks.stderr
    lines = ended(world, job)
    assert lines[0] == "start 0"
    assert lines[1:] == [f"step {n} aaaa aaaa sub" for n in range(len(lines) - 1)]


APPENDS = """\
#!/usr/bin/python3
import os, time
job, step = os.environ["SLURM_JOB_ID"], 0
files = [open(f"{name}-{job}", mode) for name, mode in (("results", "a+"), ("log", "a"))]
while not os.path.exists(f"end-{job}"):
    for file in files:
        print("A", step, file=file, flush=True)
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
"""


def test_what_another_job_appended_meanwhile_is_not_lost(world: CriuWorld) -> None:
    """CRIU wants the file that the job reads, too, as long as it was; it leaves the log alone."""
    world.resume("n1", "n2")
    job = world.sbatch(APPENDS, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in world.ask(job, "go")
    results, log = (world.shared / "jobs" / f"{name}-{job}" for name in ("results", "log"))
    words = ["sh", "-c", f"cd /shared/jobs; echo B 1 >>{results.name}; echo B 1 >>{log.name}"]
    world.head.run(words, user="alice")
    world.wait_more(job)
    moved(world, job)
    ended(world, job)
    assert world.steps(job) == list(range(len(world.steps(job))))
    lines = results.read_text().splitlines()
    assert lines == [f"A {n}" for n in range(len(lines))]
    aside = results.with_name(f"{results.name}.cut-{job}-1")
    assert "B 1" in aside.read_text().splitlines()
    assert aside.stat().st_uid == 2000
    logged = log.read_text().splitlines()
    assert "B 1" in logged
    assert set(lines) <= set(logged)


AGENT = """\
#!/usr/bin/python3
import ctypes, os, time
job, step = os.environ["SLURM_JOB_ID"], 0
while not os.path.exists(f"end-{job}"):
    ctypes.CDLL(None).prctl(4, int(os.path.exists(f"plain-{job}")), 0, 0, 0)  # PR_SET_DUMPABLE
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
"""


def test_what_its_user_could_not_restore_is_not_stopped(world: CriuWorld) -> None:
    """A process that hides its memory, as ssh-agent does; once it no longer does, the job moves."""
    world.resume("n1", "n2")
    job = world.sbatch(AGENT, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    refused = world.ask(job, "stop")["error"]
    assert "is not dumpable" in refused
    world.wait_more(job)
    assert world.state_of(job) == "running"
    node = world.job(job)["NodeList"]
    syslog = world.shared / "log" / f"{node}.syslog"
    why = f"job {job}: checkpoint: no checkpoint: process script is not dumpable"
    world.wait_for(lambda: why in syslog.read_text(), "the node's journal says why")
    (world.shared / "jobs" / f"plain-{job}").touch()
    world.wait_more(job)
    assert "ok" in world.ask(job, "go")
    moved(world, job)
    ended(world, job)
    assert world.steps(job) == list(range(len(world.steps(job))))


WATCHED = """\
#!/bin/bash
exec 3>>"log-$SLURM_JOB_ID" 4<"log-$SLURM_JOB_ID"
while [ ! -e "end-$SLURM_JOB_ID" ]; do cat <&4; sleep 0.1; done >"seen-$SLURM_JOB_ID" &
for ((step = 0; ; step++)); do
    [ ! -e "end-$SLURM_JOB_ID" ] || break
    echo "A $step" >&3
    echo "step $step"
    sleep 0.2
done
wait
"""


def test_a_log_that_the_job_appends_to_and_watches_moves_with_it(world: CriuWorld) -> None:
    world.resume("n1", "n2")
    job = world.sbatch(WATCHED, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in world.ask(job, "go")
    world.wait_more(job)
    moved(world, job)
    ended(world, job)
    assert world.steps(job) == list(range(len(world.steps(job))))
    lines = (world.shared / "jobs" / f"log-{job}").read_text().splitlines()
    assert lines == [f"A {step}" for step in world.steps(job)]
