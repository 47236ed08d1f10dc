"""The outside of a check: what it trusts, and what it says when the inside breaks off."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.image import check, disk
from slurm_elastic.image.label import Label
from slurm_elastic.image.trial import Order

ORDER = Order(image="", cloud="none", accel="tcg", tree="", heartbeat=1.0, timeout=1.0, saves=False)


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


def test_an_image_is_looked_into_where_nobody_else_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)

    def to_raw(_image: Path, raw: Path) -> None:
        assert raw.parent.stat().st_mode & 0o077 == 0
        raw.write_text("disk")

    monkeypatch.setattr(disk, "to_raw", to_raw)
    monkeypatch.setattr(disk, "inside", lambda *_: "Inode: 1")
    about = Label(
        name="a", file="a.raw", kind="raw", os="debian", version="13", codename="trixie",
        software="slurm-24.11.5", built=0.0, secret=True,
    )  # fmt: skip
    assert all("is in the image" in text for text in check.look_into(Path("a"), about, tmp_path))
    assert list(tmp_path.iterdir()) == [], "and nothing of it stays"
