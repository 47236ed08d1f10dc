"""Two heads on a directory of SlurmUser's where root may nothing, as over NFS with root_squash."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import unless

from slurm_elastic.base.account import account, acting_as
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.state import heads
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.ledger import Ledger

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody somewhere"),
    unless("setpriv"),
]
USER = "nobody"
SQUASHED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
"""Root without the rights over files of others."""


class Head:
    """This host as the first one of two; what both share is ``USER``'s alone."""

    def __init__(self, root: Path) -> None:
        self.root, self.shared = root, root / "shared"
        here = os.uname().nodename
        (root / "slurm.conf").write_text(
            f"SlurmctldHost={here}\nSlurmctldHost=b\nStateSaveLocation={root}\n"
        )
        (root / "heartbeat").write_bytes(struct.pack(">QQ", int(time.time()), 0))
        self.yaml = root / "slurm-elastic.yaml"
        self.yaml.write_text(f"""
cluster: {{name: c, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}}
state_dir: {root}/state
ha: {{directory: {self.shared}}}
slurm: {{conf: {root}/slurm.conf, user: {USER}, bin_dir: {root}/none}}
clouds: [{{name: here, provider: local, location: on-premises, socket: {root}/sock}}]
pools: [{{name: p, cloud: here, nodes: "n[1-2]", cpus: 1, memory: 1000, slurmd_port: 7000}}]
""")
        for place in (self.shared, root / "state"):
            place.mkdir(mode=0o700)
            os.chown(place, account(USER).pw_uid, -1)
        with acting_as(USER):
            heads.link(root / "state", self.shared)
            Epochs(self.shared).take(here)
            ledger = Ledger(root / "state" / "ledger.db")
            ledger.exclusions.add(
                Exclusion(
                    kind=BREAKER,
                    scope="p",
                    until=time.time() + 3600,
                    cause=Quoted(text="r"),
                    count=3,
                )
            )
            ledger.close()
        # state_dir is on this head's own disk, where root may all.
        (root / "state").chmod(0o755)
        (root / "state" / "ledger.db").chmod(0o644)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-P",
            "-m",
            "slurm_elastic.cli.main",
            "--config",
            self.yaml,
            *words,
        ]
        return subprocess.run(
            [*SQUASHED, *command], capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def head() -> Iterator[Head]:
    root = Path(tempfile.mkdtemp(prefix="se-squash-", dir="/tmp"))
    root.chmod(0o755)
    yield Head(root)
    shutil.rmtree(root)


def test_root_may_nothing_there(head: Head) -> None:
    looked = subprocess.run([*SQUASHED, "ls", head.shared], capture_output=True, check=False)
    assert b"Permission denied" in looked.stderr


def test_commands_of_root_read_and_write_there_as_slurm_user(head: Head) -> None:
    here = os.uname().nodename
    for words in (
        ["status"],
        ["status", "--json"],
        ["metrics", "--no-slurm"],
        ["journal", "verify"],
    ):
        done = head.run(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "Permission" not in done.stdout + done.stderr
    assert f"Head: {here} acts, this one, epoch 1" in head.run("status").stdout
    done = head.run("clear", "p")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cleared: failed boots of pool p" in done.stdout
    assert "nothing was cooling down or paused" in head.run("clear", "p").stdout
    owner = account(USER).pw_uid
    everything = [head.shared, *head.shared.rglob("*"), *(head.root / "state").iterdir()]
    assert {path.lstat().st_uid for path in everything} == {owner}
