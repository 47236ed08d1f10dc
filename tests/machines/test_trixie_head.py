"""``spot.py`` and ``tunnel.py`` on a head of Debian trixie, whose machines' image has CRIU, that
release's Slurm, and the head's homes by NFS.
"""

from __future__ import annotations

import re
import secrets
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.image import label
from slurm_elastic.sandbox.spec import VIRTUAL_HEAD as HEAD
from tests.machines.spot import IMAGE

pytestmark = [pytest.mark.machines, pytest.mark.e2e, pytest.mark.timeout(10000)]

HERE = Path(__file__).parent
RECIPE = """\
debian: trixie
slurm: "24.11"
criu: true
files: FILES
packages: [wireguard-tools, default-jre-headless]
run:
  - useradd -u 2000 -M -s /bin/bash alice
  - chmod 400 /etc/slurm-elastic/ckpt.key
  - systemctl mask systemd-timesyncd.service
  - systemctl mask ldconfig.service systemd-journal-catalog-update.service apt-daily.timer
mounts:
  - "HEAD:/home /home nfs4 _netdev 0 0"
  - "HEAD:/shared /shared nfs4 _netdev 0 0"
"""
"""alice is a user of that head. ``tunnel.py`` mounts her home by ``join.mounts``, too. Without KVM
there is no time for some units.
"""


@pytest.fixture(scope="module")
def saving_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image whose machines save jobs by CRIU, with homes and images of jobs on the head's NFS."""
    place = tmp_path_factory.mktemp("saving")
    etc = place / "files" / "etc" / "slurm-elastic"
    etc.mkdir(parents=True)
    (etc / "ckpt-root.conf").write_text("directory = /shared/slurm-elastic\ncluster = sandbox\n")
    (etc / "ckpt.key").write_bytes(secrets.token_bytes(64))
    recipe, made = place / "recipe.yaml", place / "images" / "compute.qcow2"
    made.parent.mkdir()
    words = {"FILES": str(place / "files"), "HEAD": HEAD}
    recipe.write_text(re.sub("[A-Z]{4,}", lambda found: words[found[0]], RECIPE))
    assert main(["image", "build", "--recipe", str(recipe), str(made)]) == 0
    assert "criu-4." in label.read(made).software
    return made


@pytest.mark.parametrize("what", ["spot", "tunnel"])
def test_on_virtual_machines_of_a_head_of_trixie(what: str, saving_image: Path) -> None:
    done = subprocess.run(
        [HERE / "trixie", saving_image.parent, "env", f"{IMAGE}={saving_image}", "pytest", "-v",
         "-p", "no:cacheprovider", f"tests/machines/{what}.py"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
