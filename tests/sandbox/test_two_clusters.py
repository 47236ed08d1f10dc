"""Two real clusters in one table: the second head is asked through a real sshd."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import unless
from real_sshd import Sshd

from slurm_elastic.cli.main import main
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    unless("slurmctld", "sshd"),
]


@pytest.fixture
def west() -> Iterator[Sandbox]:
    yield from opened(SandboxSpec(dir=directory(), drop=("aws",), static_nodes=2))


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    made = Sshd(tmp_path / "sshd")
    with made.running():
        yield made


@pytest.fixture
def here(west: Sandbox, sshd: Sshd, tmp_path: Path) -> Iterator[Sandbox]:
    command = tmp_path / "status-of-west"
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in sorted(west.env().items()))
    status = f"exec {sys.executable} -P -m slurm_elastic.cli.main status --json"
    command.write_text(f"#!/bin/sh\n{exports}{status}\n")
    command.chmod(0o755)
    others = [
        {"name": "west", "ssh": "head-west", "command": str(command), "timeout": 60.0},
        {"name": "lab", "file": str(tmp_path / "lab.json")},
    ]
    spec = SandboxSpec(dir=directory(), drop=("aws",), static_nodes=1, elastic={"clusters": others})
    yield from opened(spec)


def directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))


def opened(spec: SandboxSpec) -> Iterator[Sandbox]:
    sandbox = Sandbox(spec)
    try:
        sandbox.up()
        yield sandbox
    finally:
        Sandbox(SandboxSpec(dir=spec.dir)).down()


def test_costs_and_jobs_of_both_are_summed_and_a_lost_head_says_since_when(
    here: Sandbox,
    west: Sandbox,
    sshd: Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ssh_config = tmp_path / "ssh_config"
    ssh_config.write_text(
        f"Host head-west\n HostName 127.0.0.1\n Port {sshd.port}\n User root\n"
        f" IdentityFile {sshd.key}\n IdentitiesOnly yes\n UserKnownHostsFile {sshd.known_hosts}\n"
    )
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {ssh_config} "$@"\n')
    program.chmod(0o755)
    environment = here.env() | {"HOME": str(tmp_path)}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    monkeypatch.setattr(os, "environ", environment)

    def asked() -> tuple[int, dict[str, Any]]:
        code = main(["status", "--clusters", "--json"])
        return code, json.loads(capsys.readouterr().out)

    for sandbox, count in ((here, 1), (west, 2)):
        for _ in range(count):
            job = sandbox.submit("sleep 1000", "-p", "batch", "--exclusive")
            sandbox.wait_job(job, "RUNNING")
    west.wait_job(west.submit("sleep 1000", "-p", "onprem"), "RUNNING")
    code, found = asked()
    rows = {row["name"]: row for row in found["clusters"]}
    assert code == 1, "the file of lab is not there"
    assert found["missing"] == ["lab"]
    assert (rows["sandbox"]["running"], rows["west"]["running"]) == (1, 3)
    assert (rows["sandbox"]["machines"], rows["west"]["machines"]) == (0, 1)
    assert found["total"]["running"] == 4
    assert found["total"]["price_now"] == rows["west"]["price_now"]
    # The other head's own document in a file is as good as its answer.
    (tmp_path / "lab.json").write_text(west.run(["slurm-elastic", "status", "--json"]).stdout)
    code, found = asked()
    assert code == 0
    assert found["total"]["machines"] == 2
    sshd.stop()
    code, found = asked()
    lost = next(row for row in found["clusters"] if row["name"] == "west")
    assert code == 1
    assert lost["machines"] is None
    assert lost["trouble"].startswith("no answer (last answer ")
    assert "refused" in lost["trouble"]
    west.service_stop("slurmctld")
    sshd.start()
    _, found = asked()
    row = next(row for row in found["clusters"] if row["name"] == "west")
    assert row["machines"] == 1, "the ledger knows its machines without Slurm"
    assert row["running"] is None
    assert "Slurm does not answer" in row["note"]
