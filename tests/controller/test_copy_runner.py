"""The way to a machine: what our key may do there, by a real sshd."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.features.copy_orders import order_of
from slurm_elastic.features.copy_runner import authorized_line
from slurm_elastic.machine.jobfiles import bundle
from slurm_elastic.machine.jobfiles.copier import CopierRefusalError
from tests import real_sshd
from tests.real_sshd import Sshd


@pytest.mark.skipif(bool(real_sshd.why_not()), reason=str(real_sshd.why_not()))
def test_the_key_runs_the_program_and_nothing_else(tmp_path: Path) -> None:
    sshd = Sshd(tmp_path / "sshd")
    program = tmp_path / "jobfiles.pyz"
    program.write_bytes(bundle.build())
    public = sshd.key.with_suffix(".pub").read_text().strip()
    (sshd.place / "authorized").write_text(authorized_line("root", public, str(program)) + "\n")
    command = [
        "ssh", "-F", "/dev/null", "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o",
        "BatchMode=yes", "-i", str(sshd.key), "-p", str(sshd.port), "-l", "root", "127.0.0.1",
    ]  # fmt: skip
    evil = tmp_path / "evil"
    with sshd.running():
        done = subprocess.run(
            [*command, f"touch {evil}"], input=b'{"do": "out", "uid": 0, "gid": 0}\n',
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert json.loads(done.stdout)["error"] == "files are copied for users, not for root"
    assert not evil.exists()


def test_another_login_uses_sudo() -> None:
    line = authorized_line("debian", "ssh-ed25519 AAAA x")
    assert line.startswith('restrict,command="sudo -n /usr/bin/env python3 -I /var/lib/')
    assert line.endswith(' node" ssh-ed25519 AAAA x')


@pytest.mark.parametrize("uid", [0, -1, 4_000_000_000])
def test_whose_files_are_not_copied(uid: int) -> None:
    with pytest.raises(CopierRefusalError):
        order_of(uid)
