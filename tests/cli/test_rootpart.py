"""``slurm-elastic rootpart``: the program for the nodes, as one file that runs by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main


def test_it_writes_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "part"
    assert main(["rootpart", str(file)]) == 0
    assert "sudoers" in capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o755
    done = subprocess.run([str(file)], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)  # as root it says its usage, else that it is for root
    assert "root" in done.stderr


def test_a_place_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rootpart", str(tmp_path / "no" / "part")]) == 1
    assert "No such file" in capsys.readouterr().err
