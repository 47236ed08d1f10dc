"""Images built and booted: a machine joins a slurmctld of its release, works, and ends itself.

A boot takes a minute of processor time without KVM. So these are for ``scripts/test --machines``, and for
every run where KVM starts guests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.image import label
from slurm_elastic.image.apt import host_release
from slurm_elastic.image.build import head_release

pytestmark = pytest.mark.machines

CHECK = ("image", "check", "--heartbeat", "150", "--timeout", "2400")


def test_an_image_of_this_release_becomes_a_node_of_each_cloud(
    own_image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EC2's way is gone by the image of another release below."""
    assert label.read(own_image).slurm == head_release()
    for cloud in ("openstack", "opennebula"):
        code = main([*CHECK, "--as", cloud, str(own_image)])
        said = capsys.readouterr().out
        assert code == 0, said
        assert "powered itself off" in said


def test_an_image_of_another_release_is_built_with_additions_and_becomes_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debian, slurm = ("trixie", "24.11") if head_release() != "24.11" else ("bookworm", "22.05")
    recipe, image = tmp_path / "recipe.yaml", tmp_path / "image.qcow2"
    additions = 'users: [nobody]\nrun: ["touch /etc/of-this-site"]\n'
    criu = "criu: true\n" if debian == "trixie" else ""
    recipe.write_text(f'debian: {debian}\nslurm: "{slurm}"\n{additions}{criu}')
    assert main(["image", "build", "--recipe", str(recipe), str(image)]) == 0
    assert (label.read(image).slurm, label.read(image).codename) == (slurm, debian)
    code = main([*CHECK, str(image)])
    said = capsys.readouterr().out
    assert code == 0, said
    assert f" {slurm}." in said
    assert "powered itself off" in said
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_release_that_the_distribution_lacks_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f'debian: {host_release()}\nslurm: "99.05"\n')
    assert main(["image", "build", "--recipe", str(recipe), str(tmp_path / "i.tar")]) == 1
    assert "the head 99.05: name another release" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [recipe]
