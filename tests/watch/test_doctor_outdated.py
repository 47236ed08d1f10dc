"""Services that run with an older configuration than the file has now."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Config, configfile
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, MARK, Mark, leave_mark
from slurm_elastic.watch.doctor import outdated

CONFIG = """
cluster: {{name: alps}}
state_dir: {root}
clouds:
  - {{name: rack, provider: local, location: on-premises}}
pools:
  - {{name: rack, cloud: rack, nodes: op1, slurmd_port: 17001, cpus: 1, memory: 1G}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(CONFIG.format(root=tmp_path))
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return configfile.load(file)


@pytest.fixture
def service() -> Iterator[int]:
    """A process that has run for a moment."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def changed(file: Path, seconds: float) -> None:
    """The file was changed so many seconds from now."""
    at = time.time() + seconds
    os.utime(file, (at, at))


def test_a_service_that_started_before_the_change_is_named(
    config: Config, file: Path, service: int
) -> None:
    leave_mark(config.state, Mark(time.time(), service))
    changed(file, -60)
    assert list(outdated.examine(config, file)) == []
    changed(file, 60)
    (found,) = outdated.examine(config, file)
    assert found.observed.startswith(f"slurm-elasticd was started before {file} was changed (")
    assert "restart" in found.advice
    assert "ckptman" not in found.advice
    leave_mark(config.state, Mark(time.time(), service), CKPTMAN_MARK)
    (found,) = outdated.examine(config, file)
    assert "slurm-elasticd and slurm-elastic-ckptman were started" in found.observed


def test_a_service_of_root_is_known_by_the_socket_at_which_it_listens(
    config: Config, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "copier.sock"
    config = replace(config, copy=replace(config.copy, socket=str(path)))
    changed(file, 60)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        assert list(outdated.examine(config, file)) == [], "nobody listens there yet"
        server.listen()
        (found,) = outdated.examine(config, file)
        assert "slurm-elastic-copier was started before" in found.observed
        assert "slurm-elastic-copier" in found.advice
    assert list(outdated.examine(config, file)) == [], "a socket that a killed service left"


def test_a_pid_that_another_process_has_now_is_no_service(
    config: Config, file: Path, service: int
) -> None:
    """Also the mark of another head, in the directory that both share."""
    leave_mark(config.state, Mark(time.time() - 3600, service), MARK)
    changed(file, 60)
    assert list(outdated.examine(config, file)) == []


def test_without_a_service_there_is_nothing_to_say(config: Config, file: Path) -> None:
    changed(file, 60)
    assert list(outdated.examine(config, file)) == []
    assert list(outdated.examine(config, file.with_name("missing"))) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["slurm-elastic.yaml", "cluster-uuid"])
def test_a_file_of_the_caller_of_sudo_is_named_as_services_refuse_it(
    config: Config, file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    path = file.parent / name
    path.touch()
    assert list(outdated.refused(config, file)) == []
    os.chown(path, 12345, 0)
    configfile.require_ours(file)  # root by sudo accepts it
    (found,) = outdated.refused(config, file)
    assert found.observed == f"{path} belongs to uid 12345, not to root or slurm"
    assert found.advice == f"chown root {path}"
