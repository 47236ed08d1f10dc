"""An image of many files takes no more than its room, by a stand-in for CRIU; a real one is in
test_isolation.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import dump, proc

MIB = 1 << 20
WRITES = """
import errno, os, sys, time
image, pause = sys.argv[1], float(sys.argv[2])
for number in range(200):
    with open(f"{image}/{number}.img", "wb", buffering=0) as file:
        try:
            data = b"x" * (1 << 20)
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            open(f"{image}/../went-on", "x").close()  # as CRIU's victims
            sys.exit(5 if error.errno == errno.EFBIG else 6)
    time.sleep(pause if number < 20 else 10 * pause)  # who looks may be held up for a while
"""


def save(image: Path, most: int, pause: float = 0.05) -> tuple[int, bool]:
    """As nsenter(1) does it, which has CRIU as its child."""
    words = [sys.executable, "-c", WRITES, str(image), str(pause)]
    return dump.run(["/bin/sh", "-c", '"$@"; exit $?', "sh", *words], (), image, most)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image").mkdir()
    return tmp_path / "image"


def test_a_save_of_many_files_ends_once_they_are_too_much(image: Path) -> None:
    assert save(image, 10 * MIB) == (5, True)
    assert len(list(image.iterdir())) < 200
    assert (image.parent / "went-on").exists(), "it ended by itself"


def test_one_that_fits_is_left_alone(image: Path) -> None:
    assert save(image, 300 * MIB, pause=0.0) == (0, False)
    assert len(list(image.iterdir())) == 200


def test_no_file_may_have_more_than_the_room(image: Path) -> None:
    assert save(image, MIB // 2)[0] == 5
    assert {path.stat().st_size for path in image.iterdir()} == {MIB // 2}


# the looks, by a clock of the tests


class Looks:
    """``waits`` are those between the looks, of which each takes ``takes`` seconds and finds the
    next of ``sizes``; ``ended`` the processes whose files may grow no more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: float, *sizes: int) -> None:
        self.now, self.takes, self.sizes = 1000.0, takes, list(sizes)
        self.waits: list[float] = []
        self.ended: list[object] = []
        self.over = threading.Event()
        monkeypatch.setattr(dump.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(dump, "allocated", self.look)
        monkeypatch.setattr(dump, "family", lambda pid: [pid, pid + 1])
        monkeypatch.setattr(dump.resource, "prlimit", self.end)
        done: Any = SimpleNamespace(wait=self.wait)
        dump.watch(30, Path("/image"), 100, done, self.over)

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return not self.sizes

    def look(self, image: Path) -> int:
        assert image == Path("/image")
        self.now += self.takes
        size = self.sizes.pop(0)
        if size < 0:
            raise OSError
        return size

    def end(self, *what: object) -> None:
        self.ended.append(what)
        raise PermissionError


def test_an_image_that_just_fits_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, 0.0, 0, -1, 100)
    assert not looks.over.is_set()
    assert (looks.waits, looks.ended) == ([0.1] * 4, [])


def test_one_that_was_too_large_once_is_ended_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU may not have begun before."""
    looks = Looks(monkeypatch, 0.0, 101, 0, -1)
    assert looks.over.is_set()
    no_more = (resource.RLIMIT_FSIZE, (0, 0))
    assert looks.ended == [(30, *no_more), (31, *no_more)] * 3


def test_looks_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Looks(monkeypatch, 0.5, 0, 0).waits == pytest.approx([0.1, 5.0, 5.0])


def test_a_process_and_all_below_it_are_one_family() -> None:
    words = ["/bin/sh", "-c", "sh -c 'sleep 600 & echo $!; wait' & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0) as top:
        assert top.stdout is not None
        below = {int(top.stdout.readline()), int(top.stdout.readline())}
        try:
            assert set(proc.family(top.pid)) == {top.pid, *below}
        finally:
            os.killpg(top.pid, signal.SIGKILL)
    assert list(proc.family(1 << 30)) == [1 << 30]


LIMITED = """
import resource, sys
from pathlib import Path
from slurm_elastic.machine.ckptroot import dump
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
print(dump.run(["/bin/sh", "-c", "ulimit -f; trap >&2; env"], (), Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.parametrize(("most", "blocks"), [(1 << 14, 32), (1 << 20, 128)])
def test_a_limit_that_there_is_already_stands(image: Path, most: int, blocks: int) -> None:
    """In blocks of 512 bytes, as a shell has it."""
    code = LIMITED.replace("ulimit -f; trap >&2; env", f"[ $(ulimit -f) = {blocks} ]")
    done = subprocess.run(
        [sys.executable, "-c", code, str(image), str(most)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "(0, False)\n"
