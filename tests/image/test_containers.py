"""Apptainer, Enroot and Pyxis of a recipe. Pyxis itself is not here: a plugin in its form is built
against the image's Slurm.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from needs import ROOT, missing

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import apt, containers, tree
from slurm_elastic.image.containers import PLUGIN, add_pyxis
from slurm_elastic.image.recipe import BUILD_TOOLS, Recipe, packages, problems

LOCAL = ("deb [trusted=yes] file:///srv/debs ./",)
PLUGIN_SOURCE = """\
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1)
int slurm_spank_init(spank_t sp, int ac, char **av) { return ESPANK_SUCCESS; }
"""
MAKEFILE = """\
prefix ?= /usr/local
all: spank_pyxis.so
spank_pyxis.so: pyxis.c
\tgcc -shared -fPIC -o $@ $<
install: all
\tinstall -D -m 755 spank_pyxis.so $(DESTDIR)$(prefix)/lib/slurm/spank_pyxis.so
clean:
\trm -f spank_pyxis.so
.PHONY: all install clean
"""
CONTROL = """\
Package: enroot
Version: 3.5.0-1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: stands for Enroot
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """In the form of Pyxis: a Makefile whose ``install`` makes the plugin."""
    place = tmp_path / "pyxis-source"
    place.mkdir()
    (place / "pyxis.c").write_text(PLUGIN_SOURCE)
    (place / "Makefile").write_text(MAKEFILE)
    (place / "spank_pyxis.so").write_text("an old one, of another release")
    return place


def test_packages_come_with_the_keys() -> None:
    found = packages(Recipe(apptainer=True, pyxis="/srv/pyxis"), "trixie", booted=True)
    assert {"apptainer", "enroot", "libslurm-dev", "gcc"} <= set(found)
    assert not {"apptainer", "enroot", "gcc"} & set(packages(Recipe(), "trixie", booted=True))


@pytest.mark.parametrize("debian", ["bookworm", "trixie"])
def test_a_package_that_debian_lacks_needs_a_source(debian: str) -> None:
    (told,) = problems(Recipe(debian=debian, apptainer=True))
    words = f"apptainer: found True, expected also sources with the package apptainer, which Debian {debian}"
    assert told.startswith(words)
    assert problems(Recipe(debian="sid", apptainer=True)) == []
    assert problems(Recipe(debian=debian, apptainer=True, sources=LOCAL)) == []


def test_pyxis_needs_a_source_of_enroot() -> None:
    (told,) = problems(Recipe(pyxis="/srv/pyxis"))
    assert "pyxis: found '/srv/pyxis', expected also sources with the package enroot" in told
    assert problems(Recipe(pyxis="/srv/pyxis", sources=LOCAL)) == []


def test_its_source_is_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "pyxis.tar.gz"
    file.touch()
    with pytest.raises(ConfigError, match=r"pyxis: found .* expected a directory of this host"):
        tree.check_files(Recipe(pyxis=str(file)))


def test_another_source_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(containers.apt, "in_tree", lambda _, command: commands.append(command))
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(SlurmElasticError, match=r"made no /usr/local/lib/slurm/spank_pyxis\.so"):
        add_pyxis(str(source), root)
    assert commands == ["make -C /usr/src/pyxis clean install"]
    assert not (root / "usr/src/pyxis").exists()


@ROOT
@pytest.mark.release
@pytest.mark.skipif(bool(missing("mmdebstrap", "dpkg-deb")), reason="no mmdebstrap")
def test_a_plugin_is_built_against_the_images_slurm_and_the_compiler_goes(
    source: Path, tmp_path: Path
) -> None:
    debs, package = tmp_path / "debs", tmp_path / "package"
    debs.mkdir()
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN" / "control").write_text(CONTROL)
    subprocess.run(["dpkg-deb", "--build", package, debs / "enroot.deb"], check=True)
    index = subprocess.run(
        ["dpkg-scanpackages", "."], cwd=debs, check=True, capture_output=True
    ).stdout
    (debs / "Packages").write_bytes(index)
    recipe = Recipe(pyxis=str(source), sources=(f"deb [trusted=yes] copy:{debs} ./",))
    assert problems(recipe) == []
    root, debian = tmp_path / "root", apt.host_release()
    tmp_path.chmod(0o755)
    names = packages(recipe, debian, booted=False)
    apt.bootstrap(debian, root, names, recipe.sources)
    add_pyxis(str(source), root)
    plugin = root / PLUGIN.lstrip("/")
    assert plugin.read_bytes()[:4] == b"\x7fELF"
    symbols = subprocess.run(["strings", plugin], check=True, capture_output=True, text=True).stdout
    assert "slurm_spank_init" in symbols
    for name in BUILD_TOOLS:
        assert not apt.version_in(root, name), name
    assert apt.version_in(root, "enroot") == "3.5.0"
    assert apt.version_in(root, "slurmd")
    answer = apt.in_tree(root, f"mkdir -p /run/munge; slurmd -V; ldd {PLUGIN}")
    assert "not found" not in answer
