"""The fault matrix's column of libvirt, on a libvirtd's test driver: see test_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from libvirt_hosts import Daemon, running_libvirtd

from slurm_elastic.testing.bench import Bench, open_bench
from tests.faults.beds import Libvirt
from tests.faults.cells import Column, column


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_libvirtd() as running:
        yield running


@pytest.fixture
def bench(daemon: Daemon) -> Iterator[Bench]:
    with open_bench(lambda place: Libvirt(daemon, place)) as made:
        yield made


@column(Libvirt.name)
class TestLibvirt(Column): ...
