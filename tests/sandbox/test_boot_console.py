"""A machine of the emulated EC2 does not register; explain and status show its console."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import unless
from patience import patience

from slurm_elastic.cli.main import main
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    unless("slurmctld"),
]
LINE = "slurmd: fatal: no munge key"


@pytest.fixture
def site() -> Iterator[Sandbox]:
    directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
    spec = SandboxSpec(
        dir=directory, drop=("onprem",), static_nodes=1, never_boot="pub[1-6]", resume_timeout=40.0
    )
    sandbox = Sandbox(spec)
    try:
        sandbox.up()
        yield sandbox
    finally:
        Sandbox(SandboxSpec(dir=directory)).down()


def test_the_console_of_a_dead_machine_is_there_after_its_end(
    site: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", site.env())
    site.submit("sleep 10", "-p", "aws")
    until = time.monotonic() + patience(120)
    consoles: set[str] = set()
    text = ""
    while LINE not in text:
        assert time.monotonic() < until, text
        for machine in site.ec2.state().machines:
            if machine.id not in consoles:
                consoles.add(machine.id)
                site.ec2.console(machine.id, f"[ 1.0] boot\r\n\x1b[31m{LINE}\x1b[0m\r\n")
        time.sleep(0.5)
        if main(["explain", "pub1"]) == 0:
            text = " ".join(capsys.readouterr().out.split())
    assert f"ends with: {LINE}" in text
    assert "slurm-elastic try" in text
    main(["status"])
    assert f"its console ended with: {LINE}" in " ".join(capsys.readouterr().out.split())
    main(["doctor", "--quick"])
    assert LINE in " ".join(capsys.readouterr().out.split())
    site.run(["slurm-elastic", "explain", "pub1"], user="nobody", check=False)
    answer = site.run(["slurm-elastic", "explain", "pub1"], user="nobody", check=False).stdout
    assert "boot-failed" in answer
    assert "munge" not in answer
