"""A stdout that takes nothing more costs an exit code and a sentence, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
COMMANDS = (
    ("slurm-elastic", "-h"),
    ("slurm-elastic", "--version"),
    ("slurm-elastic", "status", "-h"),
    ("slurm-elastic", "ckpt", "now", "-h"),
    ("slurm-elasticd", "-h"),
    ("slurm-elastic-ckptman", "-h"),
    ("slurm-elastic-watchdog", "-h"),
    ("slurm-elastic-local", "-h"),
    ("slurm-elastic-hub", "-h"),
    ("slurm-elastic-copier", "-h"),
)
WAYS = ("", "1")
"""Values of PYTHONUNBUFFERED: with it a write fails at once, without it at the next flush."""


def run(command: tuple[str, ...], stdout: int, unbuffered: str) -> tuple[int, str]:
    done = subprocess.run(
        [BIN / command[0], *command[1:]],
        stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", WAYS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_whose_reader_went_away(command: tuple[str, ...], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(command, writer, unbuffered) == (141, "")
    finally:
        os.close(writer)


@pytest.mark.parametrize("unbuffered", WAYS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_onto_a_full_disk(command: tuple[str, ...], unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, said = run(command, full, unbuffered)
    finally:
        os.close(full)
    assert code == 1
    assert said.startswith(f"{command[0]}")
    assert said.endswith(": No space left on device\n")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", WAYS)
def test_an_answer_onto_a_full_disk(unbuffered: str) -> None:
    example = Path(__file__).parents[2] / "etc/slurm-elastic.yaml"
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        command = ("slurm-elastic", "--config", str(example), "conf", "show")
        assert run(command, full, unbuffered) == (1, "slurm-elastic: No space left on device\n")
    finally:
        os.close(full)
