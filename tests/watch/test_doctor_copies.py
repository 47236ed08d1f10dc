"""doctor looks at what copies of jobs' files need, and at files that are on their way for long."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import CopySettings, Data
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import copies
from tests.controller.world import T0, make_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    plain = make_config(tmp_path, copy=CopySettings(socket=f"{tmp_path}/copier.sock"))
    clouds = (plain.clouds[0], replace(plain.clouds[1], data=Data.COPY))
    slurm = replace(plain.slurm, user="root")
    ssh = Ssh(key="/etc/slurm-elastic/login", munge_key="/etc/munge/munge.key")
    return replace(plain, clouds=clouds, slurm=slurm, join=replace(plain.join, ssh=ssh))


def test_it_says_nothing_where_nothing_is_copied(config: Config) -> None:
    plain = tuple(replace(cloud, data=Data.SHARED) for cloud in config.clouds)
    assert list(copies.examine(replace(config, clouds=plain), T0)) == []


def test_a_copier_that_is_not_there_and_ssh_that_is_not_installed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "ssh" else "/usr/bin/x")
    missing, silent = copies.examine(config, T0)
    assert missing.observed == "the head has no ssh"
    assert silent.observed.endswith("No such file or directory: no job starts in pub")
    assert "systemctl enable --now slurm-elastic-copier" in silent.advice


def test_files_on_machines_without_join_ssh(config: Config) -> None:
    """Also of a cloud that no longer copies."""
    shared = tuple(replace(cloud, data=Data.SHARED) for cloud in config.clouds)
    with_ssh = replace(config, clouds=shared)
    ledger = Ledger(config.state / "ledger.db")
    for job, state in ((3, CopyState.THERE), (1, CopyState.OWED), (2, CopyState.BACK)):
        ledger.copies.put(
            JobCopy(job=job, restarts=0, node=f"pub{job}", machine=f"i-{job}", uid=1,
                    directory="/home/a/w", outputs={}, state=state, since=T0)
        )  # fmt: skip
    ledger.close()
    assert list(copies.examine(with_ssh, T0)) == []
    without = replace(with_ssh, join=replace(config.join, ssh=None))
    (finding,) = copies.examine(without, T0)
    assert finding.level == FindingLevel.WRONG
    assert finding.observed == (
        "join.ssh is missing, and files of jobs 1, 3 are on pub[1,3]: they are lost when these"
        " machines end"
    )


def test_files_that_do_not_come_back(config: Config) -> None:
    ledger = Ledger(config.state / "ledger.db")
    for job, ago in ((1, 400), (2, 10)):
        ledger.copies.put(
            JobCopy(job=job, restarts=0, node="pub1", machine="i-1", uid=1, directory="/home/a/w",
                    outputs={}, state=CopyState.OWED, since=T0 - ago)
        )  # fmt: skip
    ledger.close()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(config.copy.socket)
        listener.listen()
        fine, late = copies.examine(config, T0)
    assert (fine.level, late.level) == (FindingLevel.OK, FindingLevel.NOTE)
    assert late.observed.startswith("job 1: its files have been on pub1 since its end at ")
    assert late.advice == "slurm-elastic explain 1"
