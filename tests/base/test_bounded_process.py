"""Work in a process of its own: what it may take, and what is told where it takes more."""

from __future__ import annotations

import operator
import os
import resource
import time
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes import bounded_process as module
from slurm_elastic.base.processes.bounded_process import MAX_BYTES, run_bounded
from slurm_elastic.config import configfile
from slurm_elastic.model.directive import clock


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host the start of a process with the lowest priority may take the whole limit."""
    monkeypatch.setattr(module, "TIMEOUT_S", 300)


def test_it_returns_what_the_function_does() -> None:
    assert run_bounded(clock, 0.0) == "1970-01-01 00:00 UTC"


def test_it_is_bounded_and_comes_after_everything_else() -> None:
    assert run_bounded(resource.getrlimit, resource.RLIMIT_AS) == (MAX_BYTES, MAX_BYTES)
    assert run_bounded(resource.getrlimit, resource.RLIMIT_CPU) == (300, 300)
    assert run_bounded(os.nice, 0) == min(os.nice(0) + 10, 19)
    assert run_bounded(Path.read_text, Path("/proc/self/oom_score_adj")) == "1000\n"


def test_what_takes_too_long_or_too_much_memory_is_ended_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SlurmElasticError, match=r"takes more than .* or 1024 MiB"):
        run_bounded(bytearray, 2 * MAX_BYTES)
    with pytest.raises(SlurmElasticError, match="ask for less"):
        run_bounded(
            bytearray, MAX_BYTES * 2 // 3
        )  # it is made, and there is no room to hand it over
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(SlurmElasticError, match="ask for less"):
        run_bounded(time.sleep, 600)
    assert time.monotonic() - began < 300


def test_one_that_the_kernel_ends_is_told() -> None:
    with pytest.raises(SlurmElasticError, match="ask for less"):
        run_bounded(os.abort)


def test_a_defect_is_none_of_the_askers_sentences() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_bounded(operator.truediv, 1, 0)


def test_a_sentence_is_raised_again_here(tmp_path: Path) -> None:
    with pytest.raises(SlurmElasticError, match=r"missing\.yaml"):
        run_bounded(configfile.load, tmp_path / "missing.yaml")
