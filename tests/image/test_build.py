"""An image's file, without Debian's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

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
