"""What the running slurmctld is asked again, and what not: a scontrol that answers as told."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.config import SlurmSettings
from slurm_elastic.errors import SlurmError
from slurm_elastic.slurm import controller


def scontrol(directory: Path, *answers: str) -> SlurmSettings:
    """One that fails with each of these in turn, then works; its calls are lines of ``calls``."""
    lines = "\n".join(f"{n}) echo '{text}' >&2; exit 1 ;;" for n, text in enumerate(answers, 1))
    script = directory / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$*" >>{directory}/calls\n'
        f"case $(wc -l <{directory}/calls) in\n{lines}\nesac\nexit 0\n"
    )
    script.chmod(0o755)
    return SlurmSettings(conf="/dev/null", bin_dir=str(directory))


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


def test_a_left_over_system_error_is_asked_again(tmp_path: Path) -> None:
    settings = scontrol(
        tmp_path,
        "Interrupted system call for job 7",
        "Resource temporarily unavailable for job 7",
    )
    controller.set_partitions(settings, 7, ("batch", "long"))
    assert calls(tmp_path) == ["update jobid=7 partition=batch,long"] * 3


def test_slurms_own_refusal_counts_at_once(tmp_path: Path) -> None:
    settings = scontrol(tmp_path, "Invalid partition name specified for job 7")
    with pytest.raises(SlurmError, match="Invalid partition name"):
        controller.set_partitions(settings, 7, ("batch",))
    assert len(calls(tmp_path)) == 1


def test_asking_again_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_RETRY_SECONDS", 0.3)
    settings = scontrol(tmp_path, *["Resource temporarily unavailable for job 7"] * 50)
    with pytest.raises(SlurmError, match="temporarily unavailable"):
        controller.set_partitions(settings, 7, ("batch",))
    assert 1 < len(calls(tmp_path)) < 10
