"""What a node refuses to save is told to users in words of ours, by the real CRIU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.policies.checkpoint.unsavable import obstacle
from tests.machine.ckptroot.test_isolation import home, moved, newest, program  # noqa: F401 - fixtures
from tests.machine.ckptroot.test_limits import job
from tests.machine.ckptroot.test_savable import TRIED

pytestmark = pytest.mark.timeout(600)

DEVICE = "kept = os.open('device', os.O_RDONLY)"
NAMED = """
kept = os.open(".", os.O_TMPFILE | os.O_RDWR)
place = os.open(".", os.O_RDONLY)
os.link(f"/proc/self/fd/{kept}", "named", src_dir_fd=place, follow_symlinks=True)
"""
RING = "assert libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0  # io_uring_setup(2)"
QUEUE = "assert libc.mq_open(b'/limits', os.O_CREAT | os.O_RDWR, 0o600, None) >= 0"
WATCHES = "watch = libc.inotify_init(); assert libc.inotify_add_watch(watch, b'watched', 2) >= 0"
NO_HANDLES = """
os.makedirs(home / "user" / "watched")
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", home / "user" / "watched"], check=True)
for name in ("below", "above", "work"):
    (home / "user" / "watched" / name).mkdir()
place = str(home / "user" / "watched")
layers = f"lowerdir={place}/below,upperdir={place}/above,workdir={place}/work"
subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", place], check=True)
"""
DEVICES = ("/dev/fuse", "/dev/loop-control")
"""Such as every host has."""
REFUSED = {
    "device": (DEVICE, "a device open"),
    "named": (NAMED, "a deleted file"),
    "io_uring": (RING, "io_uring"),
    "queue": (QUEUE, "message queue"),
    "watches": (WATCHES, "inotify"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_save_is_refused_in_words_that_are_understood(
    home: Path,  # noqa: F811
    program: str,  # noqa: F811
    kind: str,
) -> None:
    does, why = REFUSED[kind]
    (home / "job").write_text(job(does, "'runs'"))
    attack = TRIED
    if kind == "device":
        (number, *_) = [os.stat(path).st_rdev for path in DEVICES if os.path.exists(path)]
        os.mknod(home / "user" / "device", 0o20644, number)
    if kind == "watches":
        attack = TRIED.replace("method = criu", NO_HANDLES + "method = criu")
    told = moved(home, program, kind, attack=attack)
    found = obstacle(f"job 7: no checkpoint: {told['refused']}")
    assert found is not None
    assert why in str(found)
    assert told["lines"] == [f"step {n} runs" for n in range(len(told["lines"]))]
