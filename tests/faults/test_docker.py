"""The fault matrix's column of docker, on a real engine: see test_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from realcloud.docker.engine import Engine

from slurm_elastic.testing.bench import Bench, open_bench
from slurm_elastic.testing.matrix import CALLS, FAULTS, outcome_of
from tests.faults.beds import Docker
from tests.faults.cells import Cell, compared, noted


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, str]]:
    with noted() as found:
        yield found


@pytest.fixture
def bench(docker_engine: Engine, trixie: str) -> Iterator[Bench]:
    with open_bench(lambda place: Docker(docker_engine, trixie, place)) as made:
        yield made


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_no_orphan_no_double_and_a_defined_state(
    bench: Bench, outcomes: dict[Cell, str], call: str, fault: str
) -> None:
    cell = (Docker.name, call, fault)
    outcomes[cell] = compared(cell, outcome_of(bench, call, fault))
