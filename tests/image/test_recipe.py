"""Recipes: packages that follow from them, and how they are refused."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli.main import main
from slurm_elastic.image.apt import sources, sources_in
from slurm_elastic.image.commands import ENVIRONMENT, run
from slurm_elastic.image.recipe import Recipe, packages, problems


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


@pytest.mark.parametrize("where", ["/../outside", "/..", "/home/../../x", "home"])
def test_what_is_mounted_has_its_place_in_the_image(where: str) -> None:
    (told,) = problems(Recipe(mounts=(f"h:/ {where} nfs 0",)))
    assert told.startswith(f"mounts[0]: found 'h:/ {where} nfs 0', expected a line of fstab")
    assert problems(Recipe(mounts=("h:/ /..a/b..c nfs 0",))) == []


TOLD = """\
Debian|bookworm|http://one.invalid/debian/|bookworm|main
Debian|bookworm|http://one.invalid/debian/|bookworm|contrib
Debian|bookworm-updates|http://one.invalid/debian/|oldstable-updates|main
Debian-Security|bookworm-security|http://two.invalid/s/|bookworm-security|main
Debian Backports|bookworm-backports|http://one.invalid/debian/|bookworm-backports|main
Node Source|bookworm|http://three.invalid/|bookworm|main
Debian|trixie|http://one.invalid/debian/|trixie|main
"""


def test_packages_come_from_the_hosts_own_mirror_also_for_another_release() -> None:
    assert sources_in(TOLD, "bookworm", "bookworm")[0] == (
        "deb http://one.invalid/debian/ bookworm main contrib"
    )
    assert sources_in(TOLD, "trixie", "bookworm") == (
        "deb http://one.invalid/debian/ trixie main contrib",
        "deb http://one.invalid/debian/ trixie-updates main",
        "deb http://two.invalid/s/ trixie-security main",
        "deb http://one.invalid/debian/ trixie-backports main",
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


class Mirror:
    """Directories as archives of Debian's, and an apt that knows these alone."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.lists = place / "lists"
        (place / "parts").mkdir()
        sources = "".join(
            f"deb [trusted=yes] file://{place}/{name} {suite} main\n"
            for name, suite in (("debian", "bookworm"), ("security", "bookworm-security"))
        )
        (place / "sources.list").write_text(sources)
        (place / "apt.conf").write_text(
            f'Dir::State::Lists "{self.lists}"; Dir::Etc::SourceList "{place}/sources.list";\n'
            f'Dir::Etc::SourceParts "{place}/parts"; Dir::Cache "{place}/cache";\n'
            'Acquire::Languages "none"; APT::Sandbox::User "root";\n'
        )
        monkeypatch.setitem(ENVIRONMENT, "APT_CONFIG", str(place / "apt.conf"))

    def archive(self, name: str, suite: str, label: str) -> None:
        release = self.place / name / "dists" / suite
        packages = release / "main" / "binary-amd64" / "Packages"
        packages.parent.mkdir(parents=True)
        text = "Package: a\nVersion: 1\nArchitecture: all\nFilename: a.deb\nSize: 1\n\n"
        packages.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (release / "Release").write_text(
            f"Origin: Debian\nLabel: {label}\nSuite: {suite}\nCodename: {suite}\n"
            "Architectures: amd64\nComponents: main\n"
            f"SHA256:\n {digest} {len(text)} main/binary-amd64/Packages\n"
        )

    def update(self) -> None:
        """As far as there are archives."""
        (self.lists / "partial").mkdir(parents=True)
        with contextlib.suppress(SlurmElasticError):
            run(["apt-get", "update", "--quiet"])


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    if shutil.which("apt-get") is None:
        pytest.skip("apt is Debian's")
    made = Mirror(tmp_path, monkeypatch)
    made.archive("debian", "bookworm", "Debian")
    return made


def test_an_archive_that_this_host_has_not_fetched_is_the_images_too(mirror: Mirror) -> None:
    mirror.update()
    mirror.archive("security", "bookworm-security", "Debian-Security")
    assert [line.split()[2:] for line in sources("trixie", "bookworm")] == [
        ["trixie", "main"], ["trixie-security", "main"],
    ]  # fmt: skip
    assert not [path for path in mirror.lists.iterdir() if "security" in path.name], (
        "the host's own"
    )


def test_an_archive_that_cannot_be_fetched_is_no_image(mirror: Mirror) -> None:
    mirror.update()
    with pytest.raises(SlurmElasticError, match=r"/security/ bookworm-security main, which cannot"):
        sources("bookworm", "bookworm")
