"""SlurmUser without a home directory, as on Debian: where the credentials of a cloud are found, and how
it is told that there are none. Commands and the service's environment are those of real processes.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_ec2
from needs import ROOT

USER = "slurm"
CONFIG = """\
cluster: {{name: alps, uuid: 11111111-2222-4333-8444-555555555555}}
state_dir: {root}/state
slurm: {{conf: {root}/slurm.conf, user: slurm}}
allow: {{groups: [users]}}
limits: {{dollars_per_hour: 2.0}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    endpoint: {url}
    image: ami-12345678
    types: {{c5.xlarge: {{cpus: 4, memory: 8G, price: 0.194}}}}
pools:
  - {{name: burst, cloud: aws, nodes: "burst[1-2]", cpus: 4, memory: 8G, instance_types: [c5.xlarge]}}
"""
KEYS = "[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = example\n"
NO_METADATA = {"AWS_EC2_METADATA_DISABLED": "true"}
"""As on a head node that is no machine of EC2's: it has no role."""


def homeless() -> bool:
    try:
        return not Path(pwd.getpwnam(USER).pw_dir).is_dir()
    except KeyError:
        return False


pytestmark = [
    ROOT,
    pytest.mark.skipif(not homeless(), reason="user slurm has a home here, or there is none"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-home-") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "slurm.conf").write_text("ClusterName=alps\nSlurmUser=slurm\n")
        keys = path / "aws-credentials"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        os.chown(keys, pwd.getpwnam(USER).pw_uid, -1)
        yield path


@pytest.fixture
def file(root: Path) -> Iterator[Path]:
    emulator = root / "ec2"
    emulator.mkdir()
    with running_ec2(emulator) as control:
        path = root / "slurm-elastic.yaml"
        path.write_text(CONFIG.format(root=root, url=control.url))
        yield path


def as_slurm(file: Path, **variables: str) -> str:
    """``doctor --clouds`` as systemd starts a service of that user: its home, and what a file sets."""
    words = {"PATH": os.environ["PATH"], "HOME": pwd.getpwnam(USER).pw_dir, "COLUMNS": "200"}
    command = [
        *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
        *(sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(file)),
        *("doctor", "--clouds"),
    ]
    done = subprocess.run(
        command, env=words | NO_METADATA | variables, cwd="/", capture_output=True, text=True
    )
    assert "Traceback" not in done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def test_what_the_file_names_is_found_and_nothing_else(root: Path, file: Path) -> None:
    told = as_slurm(file)
    assert "credentials: refused: NoCredentials" in told
    assert "/etc/default/slurm-elastic" in told
    told = as_slurm(file, AWS_SHARED_CREDENTIALS_FILE=str(root / "aws-credentials"))
    assert "credentials: accepted" in told
