"""Recipes: packages that follow from them, and how they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.image.apt import sources_in
from slurm_elastic.image.recipe import Recipe, packages


def test_a_container_has_no_kernel_and_a_machine_has() -> None:
    assert "linux-image-cloud-amd64" in packages(Recipe(), "trixie", booted=True)
    inside = packages(Recipe(), "trixie", booted=False)
    assert {"slurmd", "munge"} <= set(inside)
    assert not {"linux-image-cloud-amd64", "cloud-init", "openssh-server"} & set(inside)


def test_the_programs_of_mounts_and_of_criu_come_with_them() -> None:
    recipe = Recipe(
        mounts=("head:/home /home nfs defaults 0 0", "u@h:/ /mnt fuse.sshfs ro 0 0"), criu=True,
        packages=("jq", "criu"),
    )  # fmt: skip
    found = packages(recipe, "trixie", booted=True)
    assert {"nfs-common", "sshfs", "criu", "jq"} <= set(found)
    assert len(found) == len(set(found))


TOLD = """\
Debian|http://one.invalid/debian/|bookworm|main
Debian|http://one.invalid/debian/|bookworm|contrib
Debian|http://one.invalid/debian/|bookworm-updates|main
Debian-Security|http://two.invalid/s/|bookworm-security|main
Node Source|http://three.invalid/|bookworm|main
Debian|http://one.invalid/debian/|trixie|main
"""


def test_packages_come_from_the_hosts_own_mirror_also_for_another_release() -> None:
    assert sources_in(TOLD, "bookworm", "bookworm")[0] == (
        "deb http://one.invalid/debian/ bookworm main contrib"
    )
    assert sources_in(TOLD, "trixie", "bookworm") == (
        "deb http://one.invalid/debian/ trixie main contrib",
        "deb http://one.invalid/debian/ trixie-updates main",
        "deb http://two.invalid/s/ trixie-security main",
    )
    assert sources_in("", "trixie", "bookworm") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("debain: trixie", "did you mean debian"),
        ("slurm: 24.11.5", "slurm"),
        ('slurm: "24"', "slurm"),
        ("packages: ['-o APT::x=y']", "packages[0]"),
        ("mounts: [head]", "expected a line of fstab"),
        ("sources: ['http://x']", "begins with 'deb '"),
        ("size: 1G", "size"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_place(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    target = tmp_path / "image.qcow2"
    assert main(["image", "build", "--recipe", str(recipe), str(target)]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert str(recipe) in complaint
    assert list(tmp_path.iterdir()) == [recipe]
