"""Nobody but root and SlurmUser writes what root and SlurmUser go by: configurations, credentials."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import ROOT

from slurm_elastic.base import trust
from slurm_elastic.cli import main
from slurm_elastic.cli.services import ckptman, copier, daemon, hub, local_agent, watchdog

pytestmark = ROOT
NOBODY = 65534
SITE = """
cluster: {{name: c, uuid: 11111111-2222-3333-4444-555555555555}}
state_dir: {dir}/state
slurm: {{user: root, sbin_dir: {dir}}}
clouds:
  - {{name: onprem, provider: local, location: on-premises, socket: {dir}/local.sock}}
pools:
  - {{name: p, cloud: onprem, nodes: "n[1-2]", cpus: 1, memory: 2048, slurmd_port: 20000}}
"""
PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "slurm-elastic-local": local_agent.main,
    "slurm-elastic-hub": hub.main,
    "slurm-elastic-copier": copier.main,
    "slurm-elasticd": daemon.main,
    "slurm-elastic-ckptman": ckptman.main,
    "slurm-elastic-watchdog": watchdog.main,
    "conf show": lambda config: main.main([*config, "conf", "show"]),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("SUDO_UID", raising=False)
    path = Path(tempfile.mkdtemp(prefix="se-others-", dir="/tmp"))
    path.chmod(0o755)
    (path / "site.yaml").write_text(SITE.format(dir=path))
    (path / "site.yaml").chmod(0o644)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("name", ["site.yaml", "."])
def test_a_configuration_of_another_user_is_refused(
    place: Path, program: Callable[[list[str]], int], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    os.chown(place / name, NOBODY, NOBODY)
    assert program(["--config", str(place / "site.yaml")]) == 2
    said = capfd.readouterr().err
    assert f"{place}/site.yaml: others may have written it: " in said
    assert "belongs to nobody, not to root; chown " in said


def test_one_that_others_may_write_is_refused(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "site.yaml").chmod(0o664)
    assert local_agent.main(["--config", str(place / "site.yaml")]) == 2
    assert "may be written by others (mode 0664); chmod go-w " in capfd.readouterr().err


def test_root_reads_credentials_of_the_configurations_slurmuser(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_slurm_user", set())
    text = (place / "site.yaml").read_text().replace("user: root", "user: nobody")
    (place / "site.yaml").write_text(text)
    assert NOBODY not in trust.ours()
    assert main.main(["--config", str(place / "site.yaml"), "conf", "show"]) == 0
    assert NOBODY in trust.ours()
