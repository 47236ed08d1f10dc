"""Sandboxes and images for tests that boot virtual machines; where they run at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.image import disk, machine, network
from tests.e2e.conftest import pytest_runtest_makereport, sandbox

__all__ = ["pytest_runtest_makereport", "sandbox"]

ASKED = "SLURM_ELASTIC_MACHINES"
"""In the environment where scripts/test was called with --machines."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = disk.PROGRAMS | machine.PROGRAMS | network.PROGRAMS | {"mmdebstrap": "mmdebstrap"}


@pytest.fixture(scope="session", autouse=True)
def machines(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where machines cannot be booted, or were not asked for and would take minutes each."""
    missing = [package for name, package in PROGRAMS.items() if not shutil.which(name, path=PATH)]
    if os.geteuid() != 0 or missing or not Path("/dev/net/tun").exists():
        pytest.skip(f"needs root, /dev/net/tun and: {' '.join(missing) or 'nothing else'}")
    if ASKED not in os.environ and not boots_by_kvm(tmp_path_factory.mktemp("probe")):
        pytest.skip("KVM starts no guests here, a boot takes minutes: scripts/test --machines")


def boots_by_kvm(place: Path) -> bool:
    """A disk without a kernel comes as far as GRUB's complaint."""
    tree = place / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "vmlinuz").write_bytes(b"no kernel" * 1000)
    disk.write_raw(tree, place / "raw", 64)
    return machine.accelerator(place / "raw", place, shows="invalid magic number") == "kvm"


@pytest.fixture(scope="session")
def own_image(machines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of this host's own release of Debian and Slurm."""
    image = tmp_path_factory.mktemp("image") / "own.qcow2"
    assert main(["image", "build", str(image)]) == 0
    return image
