"""An image of many files takes no more than its room, by a stand-in for CRIU; a real one is in
test_isolation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_elastic.ckptroot import dumping

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
    time.sleep(pause)
"""


def dump(image: Path, most: int, pause: float = 0.05) -> tuple[int, bool]:
    """As nsenter(1) does it, which has CRIU as its child."""
    words = [sys.executable, "-c", WRITES, str(image), str(pause)]
    return dumping.run(["/bin/sh", "-c", '"$@"; exit $?', "sh", *words], (), image, most)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image").mkdir()
    return tmp_path / "image"


def test_a_save_of_many_files_ends_once_they_are_too_much(image: Path) -> None:
    assert dump(image, 10 * MIB) == (5, True)
    assert len(list(image.iterdir())) < 200
    assert (image.parent / "went-on").exists(), "it ended by itself"


def test_one_that_fits_is_left_alone(image: Path) -> None:
    assert dump(image, 300 * MIB, pause=0.0) == (0, False)
    assert len(list(image.iterdir())) == 200


def test_no_file_may_have_more_than_the_room(image: Path) -> None:
    assert dump(image, MIB // 2)[0] == 5
    assert {path.stat().st_size for path in image.iterdir()} == {MIB // 2}
