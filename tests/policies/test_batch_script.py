"""Whether the shell of a batch script dies of a signal, by the words of the script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_elastic.policies.checkpoint.batch_script import dies_of_signals
from tests.policies.scripts import DYING, OTHERS


@pytest.mark.parametrize("script", DYING)
def test_a_shell_that_neither_catches_signals_nor_becomes_its_program_dies(script: str) -> None:
    assert dies_of_signals(script)


@pytest.mark.parametrize("script", OTHERS)
def test_what_another_script_does_on_a_signal_is_not_known(script: str) -> None:
    assert not dies_of_signals(script)


def test_a_real_shell_dies_although_its_program_catches_the_signal(tmp_path: Path) -> None:
    program = "trap 'echo saved > state; exit 0' USR1; kill -USR1 $PPID; sleep 0.1; kill -USR1 $$"
    (tmp_path / "prog").write_text(program)
    lines = {
        "dies": "sh prog\nexit 0",
        "becomes it": "exec sh -c 'trap \"exit 0\" USR1; kill -USR1 $$'",
    }
    codes = {}
    for name, line in lines.items():
        script = f"#!/bin/sh\n{line}\n"
        (tmp_path / "job").write_text(script)
        codes[name] = subprocess.run(["/bin/sh", "job"], cwd=tmp_path, check=False).returncode
        assert dies_of_signals(script) == (codes[name] < 0)
    assert codes == {"dies": -10, "becomes it": 0}
