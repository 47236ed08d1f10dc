"""An image's file, without Debian's packages."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from needs import ROOT
from patience import eventually, patience

from slurm_elastic.image import build, disk, label, tree
from slurm_elastic.image.recipe import Recipe


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_recipe: Recipe, root: Path, *_: object, **__: object) -> str:
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "debian_version").write_text("13.1\n")
        return "24.11.5"

    monkeypatch.setattr(build, "_require", lambda _: None)
    monkeypatch.setattr(tree, "make", make)
    monkeypatch.setattr(disk, "write_raw", lambda _tree, raw, _size: raw.write_text("disk"))
    monkeypatch.setattr(disk, "to_qcow2", lambda raw, target: target.write_bytes(raw.read_bytes()))


@pytest.mark.usefixtures("nothing_made")
@pytest.mark.parametrize("name", ["a.qcow2", "a.raw"])
def test_an_image_with_a_key_in_it_is_its_owners_alone(tmp_path: Path, name: str) -> None:
    key = tmp_path / "munge.key"
    key.write_bytes(b"k" * 128)
    recipe = Recipe(debian="trixie", slurm="24.11", munge_key=str(key))
    build.build(recipe, tmp_path / name, lambda _: None)
    assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert label.read(tmp_path / name).secret
    build.build(Recipe(debian="trixie", slurm="24.11"), tmp_path / "open.raw", lambda _: None)
    assert (tmp_path / "open.raw").stat().st_mode & 0o044, "clouds' programs may read others"


BUILDER = """
import sys
from slurm_elastic.cli.main import main
from slurm_elastic.image import apt, commands
commands.ENVIRONMENT["PATH"] = f"{sys.argv[1]}:{commands.PATH}"
apt.sources = lambda *_: ()
sys.exit(main(["image", "build", sys.argv[2]]))
"""
MMDEBSTRAP = """#!/bin/sh
for word; do tree=$before before=$word; done
mkdir -p "$tree/proc" "$tree/etc"
mount -t tmpfs tmpfs "$tree/proc"
while :; do mkdir -p "$tree/etc/$((n += 1))"; done &
while [ ! -d "$tree/etc/9" ]; do :; done
echo "$tree" >"{begun}"
wait
"""


@ROOT
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_build_that_is_broken_off_leaves_no_mount_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    """After SIGKILL nobody is there who could remove files."""
    programs, place, begun = tmp_path / "bin", tmp_path / "images", tmp_path / "begun"
    programs.mkdir()
    place.mkdir()
    (programs / "mmdebstrap").write_text(MMDEBSTRAP.replace("{begun}", str(begun)))
    (programs / "mmdebstrap").chmod(0o755)
    words = [sys.executable, "-c", BUILDER, str(programs), str(place / "i.tar")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True) as builder:
        try:
            eventually(begun.exists)
            builder.send_signal(number)
            assert builder.wait(patience(60)) == (-9 if number is signal.SIGKILL else 130)
            eventually(lambda: not processes_of(builder.pid))
        finally:
            for pid in processes_of(builder.pid):
                os.kill(pid, signal.SIGKILL)
    assert str(place) not in Path("/proc/self/mountinfo").read_text()
    assert number is signal.SIGKILL or list(place.iterdir()) == []


def processes_of(session: int) -> list[int]:
    """All processes of our own session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rpartition(") ")[2].split()
            found += [int(stat.parent.name)] * (words[3] == str(session) and words[0] != "Z")
    return found
