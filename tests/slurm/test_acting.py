"""Which slurmctld acts, by the file that the acting one keeps writing."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client.acting import Controllers, controllers

NOW = 1_800_000_000.0


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A slurm.conf of two heads, of which this host is the second."""
    uname = os.uname()
    here = os.uname_result((uname.sysname, "b.example.org", *uname[2:]))
    monkeypatch.setattr(os, "uname", lambda: here)
    path = tmp_path / "slurm.conf"
    path.write_text(
        "ClusterName=c\nSlurmctldHost=a(10.0.0.1)\nSlurmctldHost=b(10.0.0.2)\n"
        f"StateSaveLocation={tmp_path}\nSlurmctldTimeout=30\n"
    )
    return path


def beat(pair: Controllers, at: float, place: int) -> None:
    pair.heartbeat.write_bytes(struct.pack(">QQ", int(at), place))


def test_the_controllers_of_a_site(conf: Path) -> None:
    found = controllers(str(conf))
    assert (found.hosts, found.place, found.timeout) == (("a", "b"), 1, 30.0)
    assert found.takeover == 120.0
    assert found.acting(NOW) is None


@pytest.mark.parametrize(("age", "place", "acts"), [(0, 1, True), (31, 1, False), (5, 0, False)])
def test_it_acts_whose_place_was_written_lately(
    conf: Path, age: float, place: int, acts: bool
) -> None:
    found = controllers(str(conf))
    beat(found, NOW - age, place)
    assert (found.acting(NOW) == found.place) is acts


def test_half_a_file_tells_nobody(conf: Path) -> None:
    found = controllers(str(conf))
    found.heartbeat.write_bytes(b"1234567")
    assert found.acting(NOW) is None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_file_that_a_client_of_nfs_believes_to_be_away_is_looked_for_again(
    conf: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As ``e2e/nfs_heads.py`` finds it: opening the directory is what ends that belief."""
    found, real, opened = controllers(str(conf)), os.open, []
    beat(found, NOW, 0)
    read = Path.read_bytes

    def believed(path: Path) -> bytes:
        if not opened:
            raise OSError(number, "", str(path))
        return read(path)

    def opening(path: Path, *more: int) -> int:
        opened.append(path)
        return real(path, *more)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(Path, "read_bytes", believed)
    assert found.acting(NOW) == 0
    assert opened == [found.heartbeat.parent]


def test_a_host_that_is_no_controller_is_told_so(conf: Path) -> None:
    conf.write_text(conf.read_text().replace("SlurmctldHost=b", "SlurmctldHost=d"))
    with pytest.raises(ConfigError, match=r"this host is b\.example\.org, .* SlurmctldHost a, d"):
        controllers(str(conf))


def test_one_controller_always_acts(conf: Path) -> None:
    text = conf.read_text().replace("SlurmctldHost=a(10.0.0.1)\n", "")
    conf.write_text(text.replace("SlurmctldTimeout=30\n", ""))
    found = controllers(str(conf))
    assert found.acting(NOW) == found.place == 0
    assert found.timeout == 120.0


@pytest.mark.parametrize(("age", "place", "acts"), [(0, 1, 1), (0, 0, 0), (31, 1, 0), (-31, 1, 0)])
def test_a_single_controller_stands_by_while_a_later_one_writes(
    conf: Path, age: float, place: int, acts: int
) -> None:
    """slurm.conf had one line when the service started. An old file is of earlier two."""
    conf.write_text(conf.read_text().replace("SlurmctldHost=a(10.0.0.1)\n", ""))
    found = controllers(str(conf))
    beat(found, NOW - age, place)
    assert found.acting(NOW) == acts
    found.heartbeat.write_bytes(b"1234567")
    assert found.acting(NOW) is None, "slurmctld is writing it"
