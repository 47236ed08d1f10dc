"""The fault matrix's column of libvirt, on a libvirtd's test driver: see test_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from libvirt_hosts import Daemon, running_libvirtd

from slurm_elastic.testing.bench import Bench, open_bench
from slurm_elastic.testing.matrix import CALLS, FAULTS, outcome_of
from tests.faults.beds import Libvirt
from tests.faults.cells import Cell, compared, noted


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, str]]:
    with noted() as found:
        yield found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_libvirtd() as running:
        yield running


@pytest.fixture
def bench(daemon: Daemon) -> Iterator[Bench]:
    with open_bench(lambda place: Libvirt(daemon, place)) as made:
        yield made


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_no_orphan_no_double_and_a_defined_state(
    bench: Bench, outcomes: dict[Cell, str], call: str, fault: str
) -> None:
    cell = (Libvirt.name, call, fault)
    outcomes[cell] = compared(cell, outcome_of(bench, call, fault))
