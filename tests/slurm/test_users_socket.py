"""``conf check`` names a directory where slurm-elasticd cannot make the socket for users."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.slurm.conf.checks import users_socket
from tests.slurm import small_sites

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has SlurmUser's rights, too")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Unlike pytest's own, one that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="se-socket-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def notices(directory: Path, state_dir: str) -> list[str]:
    config = small_sites.config(small_sites.copy("default-1", directory))
    slurm = replace(config.slurm, user="nobody")
    return list(users_socket.notices(replace(config, slurm=slurm, state_dir=state_dir)))


def test_a_directory_that_slurm_user_cannot_write_is_noted(directory: Path) -> None:
    (line,) = notices(directory, f"{directory}/elastic")
    assert line.startswith(f"{directory}: nobody may not write this directory")
    assert "elastic.sock" in line


def test_a_directory_that_slurm_user_can_write_is_none(directory: Path) -> None:
    directory.chmod(0o777)
    assert notices(directory, f"{directory}/elastic") == []


def test_the_usual_socket_is_systemds(directory: Path) -> None:
    assert notices(directory, "/var/lib/slurm-elastic") == []
