"""``e2e/mounts_lab.py`` in a Debian that boots: its kernel has the NFS client, which this host's may
lack. 30 jobs where KVM starts guests, else 6.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines import guest
from tests.machines.conftest import boots_by_kvm

pytestmark = [
    pytest.mark.release,
    pytest.mark.machines,
    pytest.mark.e2e,
    pytest.mark.timeout(10000),
]

INSIDE = "env SLURM_ELASTIC_NFS_JOBS={jobs} python -m pytest -v -s -p no:cacheprovider tests/e2e/mounts_kernel.py tests/e2e/mounts_lab.py"
PACKAGES = ("nfs-common", "nfs-ganesha-vfs", "wireguard-tools", "wireguard-go", "nftables",
            "openssh-server", "openssh-client")  # fmt: skip


def test_homes_through_the_tunnel_and_their_server_away_for_90_s(tmp_path: Path) -> None:
    jobs = 30 if boots_by_kvm(tmp_path / "probe") else 6
    tree, raw = tmp_path / "tree", tmp_path / "raw"
    tree.mkdir(mode=0o755)
    guest.make(tree, raw, INSIDE.format(jobs=jobs), PACKAGES)
    code, said = guest.run(raw, tmp_path, 4000.0)
    print(said)
    assert code == 0, said
    assert " passed" in said
    assert " skipped" not in said
