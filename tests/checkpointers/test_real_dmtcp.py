"""Jobs under a real DMTCP: what they write is, byte for byte, what they write without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import ROOT_PART
from patience import eventually

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.testing.saving import save
from tests.checkpointers.node_bed import USER
from tests.checkpointers.real_dmtcp import RealBed, unpacked

pytestmark = ROOT_PART


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="se-dmtcp-", dir="/tmp"))
    home.chmod(0o755)
    yield unpacked(home)
    shutil.rmtree(home)


@pytest.fixture
def begun(commands: Path) -> Iterator[Callable[[str], RealBed]]:
    beds: list[RealBed] = []

    def begin(script: str) -> RealBed:
        beds.append(RealBed(script, commands))
        return beds[-1]

    yield begin
    for bed in beds:
        bed.close()


def alone(script: str, home: Path) -> tuple[int, str]:
    """The script's exit code and output without DMTCP, in ``home``."""
    path = home / "script"
    path.write_text(script)
    path.chmod(0o755)
    done = subprocess.run(
        [str(path), "a", "b c"], cwd=home, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


COUNTER = """#!/bin/bash
for n in $(seq 1 160); do
    echo "line $n"
    echo "$n" >>each
    (( n % 5 )) || sleep 0.25
done
exit 3
"""
"""Not a process for each line: DMTCP 4.2.0 may end one that starts another while a save begins."""


def test_a_shell_script_that_moves_twice_writes_each_line_once(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    before = set(os.listdir("/tmp"))
    bed = begun(COUNTER)
    bed.run()
    bed.wait_for_lines(20)
    bed.move()
    bed.wait_for_lines(50)
    bed.move()
    assert bed.code() == 3
    assert (3, bed.written("out-7")) == alone(COUNTER, tmp_path)
    assert bed.written("each") == (tmp_path / "each").read_text()
    left = {path.name for path in bed.user.iterdir()}
    assert left == {"each", "out-7"}, "DMTCP leaves nothing in the job's directory"
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("dmtcp-")]


PYTHON = """#!/usr/bin/python3
import hashlib, os, time
memory = bytearray(os.urandom(16)) * 0 + bytearray(range(256)) * (20 << 12)
log, csv = open("log", "a"), open("csv", "w")
data = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
source = open("input")
for n in range(140):
    word = source.readline().strip()
    memory[n * 4096] = n
    os.pwrite(data, f"{n:08d}".encode(), 8 * n)
    back = os.pread(data, 8, 8 * (n // 2)).decode()
    print(n, word, back, file=log, flush=True)
    print(n, word, back, sep=",", file=csv, flush=True)
    print("step", n, flush=True)
    time.sleep(0.05)
print(hashlib.sha256(memory).hexdigest())
raise SystemExit(5)
"""


@pytest.mark.release
def test_a_python_program_that_moves_twice_has_its_files_and_memory(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    bed = begun(PYTHON)
    for home in (bed.user, tmp_path):
        (home / "input").write_text("".join(f"word{n}\n" for n in range(200)))
    bed.run()
    bed.wait_for_lines(15)
    bed.move()
    bed.wait_for_lines(50)
    bed.move()
    assert bed.code() == 5
    assert (5, bed.written("out-7")) == alone(PYTHON, tmp_path)
    for name in ("log", "csv", "data"):
        assert (bed.user / name).read_bytes() == (tmp_path / name).read_bytes(), name


THREADS = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_barrier_t all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static unsigned long sum, turn;
static void *work(void *number) {
    for (unsigned long step = 0; step < 140; step++) {
        pthread_barrier_wait(&all);
        pthread_mutex_lock(&lock);
        while (turn % 4 != (unsigned long)number) pthread_cond_wait(&turned, &lock);
        sum = sum * 31 + step * 4 + (unsigned long)number;
        turn++;
        if (number == 0) { printf("step %lu %lu\n", step, sum); fflush(stdout); usleep(40000); }
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
int main(void) {
    pthread_t threads[4];
    pthread_barrier_init(&all, 0, 4);
    for (long n = 0; n < 4; n++) pthread_create(threads + n, 0, work, (void *)n);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    printf("sum %lu\n", sum);
    return 6;
}
"""


@pytest.mark.release
def test_four_threads_that_wait_for_each_other_move_twice(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "threads.c").write_text(THREADS)
    script = "#!/bin/sh\nexec ./threads\n"
    bed = begun(script)
    build = ["cc", "-O1", "-pthread", "-o", str(tmp_path / "threads"), str(tmp_path / "threads.c")]
    subprocess.run(build, check=True)
    shutil.copy(tmp_path / "threads", bed.user / "threads")
    bed.run()
    bed.wait_for_lines(15)
    bed.move()
    bed.wait_for_lines(50)
    bed.move()
    assert bed.code() == 6
    assert (6, bed.written("out-7")) == alone(script, tmp_path)


PIPELINE = """#!/bin/bash
( for n in $(seq 1 150); do echo $n; (( n % 5 )) || sleep 0.25; done ) | sed -u 's/^/row /' \\
    | ( while read -r row value; do echo "$row $value"; done )
echo "codes ${PIPESTATUS[*]}"
exit 2
"""


@pytest.mark.release
def test_a_pipeline_that_moves_twice_loses_no_line(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    bed = begun(PIPELINE)
    bed.run()
    bed.wait_for_lines(15)
    bed.move()
    bed.wait_for_lines(50)
    bed.move()
    assert bed.code() == 2
    assert (2, bed.written("out-7")) == alone(PIPELINE, tmp_path)


WAITS = """#!/usr/bin/python3
import asyncio, queue, select, signal, time
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(time.monotonic()))
for n in range(14):
    begun = time.monotonic()
    select.select([], [], [], 0.3)
    try:
        queue.Queue().get(timeout=0.3)
    except queue.Empty:
        pass
    asyncio.run(asyncio.sleep(0.3))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.pause()
    took = time.monotonic() - begun
    print("early" if took < 1.09 else "round", n, flush=True)
print(len(ticks), "ticks", "in order" if ticks == sorted(ticks) else "not in order")
raise SystemExit(8)
"""


@pytest.mark.release
def test_waits_with_a_time_out_end_neither_early_nor_never(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    bed = begun(WAITS)
    bed.run()
    bed.wait_for_lines(3)
    bed.move()
    bed.wait_for_lines(6)
    bed.move()
    assert bed.code() == 8
    assert (8, bed.written("out-7")) == alone(WAITS, tmp_path)


UNLINKED = """#!/usr/bin/python3
import os, time
file = open("aside", "w+")
os.unlink("aside")
for n in range(140):
    print(n, file=file, flush=True)
    print("step", n, flush=True)
    time.sleep(0.05)
file.seek(0)
print(sum(map(int, file)))
raise SystemExit(4)
"""


@pytest.mark.release
def test_a_file_without_a_name_goes_along(begun: Callable[[str], RealBed], tmp_path: Path) -> None:
    bed = begun(UNLINKED)
    bed.run()
    bed.wait_for_lines(15)
    bed.move()
    bed.wait_for_lines(45)
    bed.move()
    assert bed.code() == 4
    assert (4, bed.written("out-7")) == alone(UNLINKED, tmp_path)


TEMPORARY = UNLINKED.replace("import os", "import tempfile").replace(
    'open("aside", "w+")\nos.unlink("aside")', 'tempfile.TemporaryFile("w+")'
)


@pytest.mark.release
def test_a_file_that_never_had_a_name_is_refused_at_the_save_and_the_job_runs_on(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    """DMTCP writes it beside the image and cannot make it again (Python's TemporaryFile)."""
    bed = begun(TEMPORARY)
    run = bed.run()
    bed.wait_for_lines(15)
    with pytest.raises(CheckpointError, match="a file that never had a name"):
        save(bed, run, stop=True)
    assert bed.code() == 4
    assert (4, bed.written("out-7")) == alone(TEMPORARY, tmp_path)


LATE = """#!/usr/bin/python3
import time
for n in range(120):
    print("step", n, flush=True)
    if n == 30:
        open("late", "w").write("content")
        file = open("late")
    time.sleep(0.05)
file.close()
raise SystemExit(4)
"""


@pytest.mark.release
@pytest.mark.parametrize("has_older", [False, True])
def test_a_job_that_does_not_come_back_goes_on_from_an_older_image_or_starts_over(
    begun: Callable[[str], RealBed], tmp_path: Path, has_older: bool
) -> None:
    """DMTCP ends a process whose file is gone, and any others would wait for it for ever."""
    script = LATE if has_older else LATE.replace("n == 30", "n == 0")
    bed = begun(script)
    run = bed.run()
    bed.wait_for_lines(2)
    first = save(bed, run)
    bed.wait(lambda: (bed.user / "late").exists(), "the file")
    second = save(bed, run, stop=True)
    (bed.user / "late").unlink()
    # As if other nodes had tried already, so that an older image is used at once.
    unfit = Path(second.path).parents[1] / "unfit.json"
    unfit.write_text('["n7", "n8", "n9"]')
    origin = bed.checkpointer.origin(bed.run(attempt=1))
    assert origin is not None
    assert origin.image == (first.number if has_older else 0)
    assert origin.why.startswith(f"image {second.number} is not used: ")
    assert bed.code() == 4
    assert (4, bed.written("out-7")) == alone(script, tmp_path)


SHARED = """#!/usr/bin/python3
import os, time
shared = open("shared", "a")
for n in range(140):
    print("ours", n, file=shared, flush=True)
    print("step", n, flush=True)
    time.sleep(0.05)
os.truncate("cut", 3)
raise SystemExit(4)
"""


@pytest.mark.release
def test_a_file_that_another_job_appends_to_loses_no_line(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    """DMTCP cuts it to its length at the image."""
    bed = begun(SHARED)
    for home in (bed.user, tmp_path):
        (home / "cut").write_text("content")
        (home / "cut").chmod(0o666)
    run = bed.run()
    bed.wait_for_lines(15)
    with Appender(bed.user / "shared") as appender:
        bed.move()
        bed.wait_for_lines(50)
        bed.move()
        appender.wait(20)
    assert bed.code() == 4
    assert (4, bed.written("out-7")) == alone(SHARED, tmp_path)
    lines = bed.written("shared").splitlines()
    assert [line for line in lines if line.startswith("ours")] == [f"ours {n}" for n in range(140)]
    theirs = [line for line in lines if line.startswith("theirs")]
    assert theirs == [f"theirs {n}" for n in range(len(theirs))]
    assert len(theirs) == appender.written
    assert bed.written("cut") == "con", "the job's own calls work again"
    assert not bed.checkpointer.hindered(run)


class Appender:
    """Another job that appends a line to ``path`` each few milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.write)

    def write(self) -> None:
        with self.path.open("a") as file:
            while not self.ended.wait(0.005):
                print("theirs", self.written, file=file, flush=True)
                self.written += 1

    def wait(self, more: int) -> None:
        until = self.written + more
        assert eventually(lambda: self.written >= until)

    def __enter__(self) -> Appender:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


@pytest.mark.release
def test_a_periodic_image_has_the_output_as_it_was(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    """The job runs on while root copies; its machine is lost later."""
    bed = begun(COUNTER)
    run = bed.run()
    bed.wait_for_lines(20)
    image = save(bed, run)
    bed.wait_for_lines(50)
    bed.jobs[7].kill()
    bed.jobs.pop(7).wait()
    origin = bed.checkpointer.origin(bed.run(attempt=1))
    assert origin is not None
    assert origin.image == image.number
    assert bed.code() == 3
    assert (3, bed.written("out-7")) == alone(COUNTER, tmp_path)


@pytest.mark.release
def test_a_job_whose_image_cannot_be_kept_runs_on_where_it_is(
    begun: Callable[[str], RealBed], tmp_path: Path
) -> None:
    """The save has ended its processes already: they come back from the user's own directory."""
    bed = begun(COUNTER)
    run = bed.run()
    bed.wait_for_lines(20)
    images = bed.home / "shared" / "t" / "7" / "images"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(images)], check=True)
    try:
        with pytest.raises(CheckpointError):
            save(bed, run, stop=True)
    finally:
        subprocess.run(["umount", "-l", str(images)], check=True)
    assert bed.code() == 3
    assert (3, bed.written("out-7")) == alone(COUNTER, tmp_path)
    assert bed.written("each") == (tmp_path / "each").read_text()
    assert os.stat(bed.user).st_uid == USER
