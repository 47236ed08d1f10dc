"""``e2e/nfs_heads.py`` in a Debian that boots: its kernel has the NFS client, which this host's may lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines import guest

pytestmark = [
    pytest.mark.release,
    pytest.mark.machines,
    pytest.mark.e2e,
    pytest.mark.timeout(10000),
]

INSIDE = "env SLURM_ELASTIC_HEADS_TIMEOUT=30 python -m pytest -v -s -p no:cacheprovider tests/e2e/nfs_heads.py"
PACKAGES = ("nfs-common", "nfs-ganesha-vfs")


def test_two_heads_whose_directory_is_on_an_nfs_server(tmp_path: Path) -> None:
    tree, raw = tmp_path / "tree", tmp_path / "raw"
    tree.mkdir(mode=0o755)
    guest.make(tree, raw, INSIDE, PACKAGES)
    code, said = guest.run(raw, tmp_path, 3000.0)
    print(said)
    assert code == 0, said
    assert " passed" in said
    assert " skipped" not in said
