"""On a Slurm that is newer than Debian's, by Slurm's commands and by pyslurm of its release: the
contract, the quickstart's jobs, and jobs from their sbatch to their machines' end.

All runs go on at once, each with clusters of its own: they mostly wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurm_elastic.cli.setting_up.quickstart import verdict
from slurm_elastic.config import SlurmClientKind
from tests.e2e.conftest import why_not
from tests.e2e.newer_slurm import PYSLURM, QUICKSTART, NewerSlurm, Run, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.release]
CLIENTS = (SlurmClientKind.CLI, SlurmClientKind.PYSLURM)
CONTRACT = {SlurmClientKind.CLI: "TestCommandLine", SlurmClientKind.PYSLURM: "TestPyslurm"}
JOBS = (
    "tests/e2e/test_burst.py",  # three
    "tests/e2e/test_lost_suspend.py",
    "tests/e2e/test_slurmctld_hangs.py",
    "tests/e2e/test_slurmctld_away.py::test_a_node_allocated_to_no_job_comes_to_rest",
    "tests/e2e/test_two_heads.py::test_jobs_go_on_at_the_other_head_and_its_memory_is_the_same",
    "tests/e2e/test_two_heads.py::test_a_head_that_stood_still_does_nothing_when_it_wakes",
    "tests/e2e/test_reconfigure.py",
    "tests/e2e/test_migrate_nodes.py",
    "tests/e2e/test_interruption.py::test_an_announced_interruption_saves_and_moves_the_job",
)
ALONE = {"test_array_limits": 48, "test_array_growth": 32, "test_slurm_words_live": 17}
"""Files of tests, and how many there are in each."""
ENOUGH = 1200.0
LONG = 3000.0
"""All runs share this machine."""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> NewerSlurm:
    if reason := why_not():
        pytest.skip(reason)
    return unpacked(tmp_path_factory.mktemp("newer"))


@pytest.fixture(scope="module")
def runs(newer: NewerSlurm) -> Iterator[Mapping[str, Run]]:
    begun: dict[str, Run] = {}
    tests = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]
    for client in CLIENTS:
        environment = {"SLURM_ELASTIC_TEST_CLIENT": client, "PYTHONPATH": PYSLURM}
        own = {
            "contract": [*tests, f"tests/slurm/test_contract.py::{CONTRACT[client]}"],
            "jobs": [*tests, *JOBS],
            "quickstart": [
                sys.executable, "-c", QUICKSTART, client, "quickstart",
                "--dir", f"/tmp/se-newer-{os.getpid()}-{client}",
            ],
        }  # fmt: skip
        for name, words in own.items():
            begun[f"{name}-{client}"] = newer.start(f"{name}-{client}", words, **environment)
    # Their answers are the same by either client.
    for name in ALONE:
        begun[name] = newer.start(name, [*tests, f"tests/e2e/{name}.py"])
    yield begun
    for run in begun.values():
        run.end()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_contract(runs: Mapping[str, Run], client: SlurmClientKind) -> None:
    said = runs[f"contract-{client}"].said(ENOUGH)
    assert "skipped" not in said
    assert " passed" in said


@pytest.mark.parametrize("client", CLIENTS)
def test_jobs_from_sbatch_to_their_machines_end(
    runs: Mapping[str, Run], client: SlurmClientKind
) -> None:
    said = runs[f"jobs-{client}"].said(ENOUGH)
    assert "skipped" not in said
    assert "12 passed" in said


@pytest.mark.parametrize("name", ALONE)
def test_arrays_and_the_words_of_its_slurmctld(runs: Mapping[str, Run], name: str) -> None:
    said = runs[name].said(LONG)
    assert "skipped" not in said
    assert f"{ALONE[name]} passed" in said


@pytest.mark.parametrize("client", CLIENTS)
def test_the_quickstarts_jobs(runs: Mapping[str, Run], client: SlurmClientKind) -> None:
    said = runs[f"quickstart-{client}"].said(ENOUGH)
    assert said.splitlines()[-1] == verdict([])[-1]
    assert not Path(f"/tmp/se-newer-{os.getpid()}-{client}").exists()
