"""The fault matrix's column of docker, on a real engine: see test_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from realcloud.docker.engine import Engine

from slurm_elastic.testing.bench import Bench, open_bench
from tests.faults.beds import Docker
from tests.faults.cells import Column, column


@pytest.fixture
def bench(docker_engine: Engine, trixie: str) -> Iterator[Bench]:
    with open_bench(lambda place: Docker(docker_engine, trixie, place)) as made:
        yield made


@column(Docker.name)
class TestDocker(Column): ...
