"""The configuration as its file has it now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.configfile import INSTALLED_COPY
from slurm_elastic.config.fresh import FreshConfig, load_or_installed

TEXT = """
cluster: {{name: alps}}
state_dir: {root}
clouds:
  - {{name: rack, provider: local, location: on-premises}}
pools:
  - {{name: rack, cloud: rack, nodes: "op[1-{nodes}]", slurmd_port: 17001, cpus: 1, memory: 1G}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(TEXT.format(root=tmp_path, nodes=1))
    return path


def test_a_change_is_seen_and_without_one_the_object_stays(file: Path) -> None:
    fresh = FreshConfig(file)
    before = fresh.get()
    assert fresh.get() is before
    os.utime(file)
    assert fresh.get() is before, "touched, but not changed"
    file.write_text(TEXT.format(root=file.parent, nodes=4))
    assert fresh.get().pools[0].nodes == "op[1-4]"


def test_while_the_file_is_broken_the_last_good_one_serves(file: Path) -> None:
    fresh = FreshConfig(file)
    before, good = fresh.get(), file.read_text()
    for _ in range(2):
        file.write_text(good + "limitz: {}\n")
        assert fresh.get() is before
        assert "limitz" in fresh.trouble
        file.write_text(good)
        assert fresh.get() is before
        assert fresh.trouble == ""
    file.unlink()
    assert fresh.get() is before
    assert str(file) in fresh.trouble


def test_what_was_installed_last_serves_screens_while_the_file_is_wrong(file: Path) -> None:
    said: list[str] = []
    good = load_or_installed(file, said.append)
    (file.parent / INSTALLED_COPY).write_text(file.read_text())
    assert said == []
    file.write_text(file.read_text() + "limitz: {}\nlimits: {nodez: 1}\n")
    assert load_or_installed(file, said.append) == good
    assert "limitz" in said[0]
    assert "no service can start again before it is corrected" in said[0]
    assert "by the configuration of the last conf install (" in said[0]
    (file.parent / INSTALLED_COPY).write_text("clusterz: {}")
    with pytest.raises(ConfigError, match="limitz"):
        load_or_installed(file, said.append)


def test_the_installed_configuration_serves_if_the_file_is_broken_from_the_start(
    file: Path,
) -> None:
    good_text, good = file.read_text(), FreshConfig(file).get()
    fresh = FreshConfig(file, or_installed=True)
    file.write_text("limitz: {}")
    with pytest.raises(ConfigError, match="limitz"):
        fresh.get()
    (file.parent / INSTALLED_COPY).write_text(good_text)
    assert fresh.get() == good
    assert "limitz" in fresh.trouble
    file.write_text(good_text)
    assert fresh.get() == good
    assert fresh.trouble == ""


def test_a_file_that_was_never_good_is_an_error(file: Path) -> None:
    file.write_text("limitz: {}")
    with pytest.raises(ConfigError, match="limitz"):
        FreshConfig(file).get()
