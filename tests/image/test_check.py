"""The outside of a check: what it trusts, and what it says when the inside breaks off."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import ROOT

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli.main import main
from slurm_elastic.image import check, disk
from slurm_elastic.image.label import Label
from slurm_elastic.image.trial import TrialOrder

ORDER = TrialOrder(
    image="", cloud="none", accel="tcg", tree="", heartbeat=1.0, timeout=1.0, saves=False
)

ABOUT = Label(
    name="a", file="a.raw", kind="raw", os="debian", version="13", codename="trixie",
    software="slurm-24.11.5", built=0.0, secret=True,
)  # fmt: skip


def test_nothing_of_the_callers_directory_is_run_and_a_trial_that_breaks_off_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "slurm_elastic" / "image"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").touch()
    (package / "trial.py").write_text("print('somebody else runs as root')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "NAMESPACES", ())
    said: list[str] = []
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(SlurmElasticError, match=r"the check broke off: .*KeyError: 'none'"):
        check._boot(work, ORDER, said.append)
    assert said == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_broken_off_clears_up_as_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cleared: list[bool] = []

    def runs(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleared.append(True)

    monkeypatch.setattr(check, "check", runs)
    assert main(["image", "check", "a.raw"]) == 130
    assert cleared == [True]


def test_an_image_is_looked_into_where_nobody_else_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)

    def to_raw(_image: Path, raw: Path) -> None:
        assert raw.parent.stat().st_mode & 0o077 == 0
        raw.write_text("disk")

    monkeypatch.setattr(disk, "to_raw", to_raw)
    monkeypatch.setattr(disk, "inside", lambda *_: "Inode: 1")
    assert all("is in the image" in text for text in check.look_into(Path("a"), ABOUT, tmp_path))
    assert list(tmp_path.iterdir()) == [], "and nothing of it stays"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As a tree of ours is, as far as the check looks into it."""
    made = tmp_path / "root"
    for name in ("usr/sbin/slurmd", "usr/sbin/munged", "usr/bin/cloud-init", "usr/sbin/sshd",
                 "etc/machine-id", "root/.profile", "home/a", "var/lib/dbus/a", "var/lib/systemd/a",
                 "opt/a", "srv/a", "boot/a", "usr/local/a", "vmlinuz"):  # fmt: skip
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch()
    (made / "var/lib/dbus/machine-id").symlink_to("/etc/machine-id")
    return made


def complaints(tree: Path, *, secret: bool = False) -> list[str]:
    raw, work = tree.with_name("raw"), tree.with_name("work")
    work.mkdir()
    disk.write_raw(tree, raw, 64)
    return check.look_into(raw, replace(ABOUT, secret=secret), work)


@ROOT
@pytest.mark.skipif(not (disk.GRUB / "boot.img").exists(), reason="needs grub-pc-bin")
def test_an_image_of_no_machine_has_no_complaint(tree: Path) -> None:
    (tree / "etc/machine-id").write_text("uninitialized\n")
    assert complaints(tree) == []


@ROOT
@pytest.mark.skipif(not (disk.GRUB / "boot.img").exists(), reason="needs grub-pc-bin")
def test_what_is_of_one_machine_and_what_starts_too_early_is_told(tree: Path) -> None:
    wants = "etc/systemd/system/multi-user.target.wants"
    (tree / wants).mkdir(parents=True)
    (tree / wants / "munge.service").symlink_to("/lib/systemd/system/munge.service")
    (tree / "var/lib/systemd/random-seed").write_bytes(b"r" * 32)
    (tree / "etc/machine-id").write_text(f"{'6a' * 16}\n")
    (tree / "var/lib/dbus/machine-id").unlink()
    (tree / "var/lib/dbus/machine-id").write_text("6a" * 16)
    of_one = ["/var/lib/systemd/random-seed is in the image",
              "/etc/machine-id has an id, which each machine is to make itself",
              "/var/lib/dbus/machine-id has an id, which each machine is to make itself"]  # fmt: skip
    assert complaints(tree) == [of_one[0], f"/{wants}/munge.service is in the image", *of_one[1:]]
    tree.with_name("work").rmdir()
    assert complaints(tree, secret=True) == of_one, "with its key munged may start"


def test_what_is_kept_is_written_through_no_link(tmp_path: Path) -> None:
    """The directory may be one in which others write."""
    work, place, theirs = tmp_path / "work", tmp_path / "kept", tmp_path / "theirs"
    (work / "state").mkdir(parents=True)
    place.mkdir()
    for name in ("console", "trial.out", "state/slurmctld.log"):
        (work / name).write_text("ours")
        (place / Path(name).name).symlink_to(theirs)
    theirs.write_text("theirs")
    check._keep(work, place)
    assert theirs.read_text() == "theirs"
    assert {path.name: path.read_text() for path in place.iterdir()} == {
        "console": "ours", "trial.out": "ours", "slurmctld.log": "ours",
    }  # fmt: skip
