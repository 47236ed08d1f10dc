"""Each provider x each fault x each call: no orphan, no double, a defined state; a table of how.

``docs/faults.md`` has the table; SLURM_ELASTIC_FAULT_TABLE=FILE writes it anew. The column of
``docker`` is in test_docker.py, that of ``libvirt`` in test_libvirt.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.testing.bench import Bench, open_bench
from slurm_elastic.testing.matrix import FAULTS
from tests.faults.beds import Docker, Libvirt, all_beds
from tests.faults.cells import OPEN, PAGE, PROVIDERS, Column, column, table, told

ALONE = (Docker.name, Libvirt.name)
Beds = dict[str, Callable[[Path], Any]]


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beds]:
    with all_beds(tmp_path_factory.mktemp("clouds")) as made:
        yield made


@pytest.fixture
def bench(request: pytest.FixtureRequest, beds: Beds) -> Iterator[Bench]:
    with open_bench(beds[request.getfixturevalue("provider")]) as made:
        yield made


@column(*(p for p in PROVIDERS if p not in ALONE))
class TestAll(Column): ...


def test_the_page_has_the_whole_table() -> None:
    lines = PAGE.read_text().splitlines()
    header, _, *rows = table({}).splitlines()
    assert header in lines
    for row in rows:
        start = row.split(OPEN)[0]
        (found,) = [line for line in lines if line.startswith(start)]
        assert OPEN not in found


def test_a_table_is_filled_in_by_parts() -> None:
    some = {("fake", "launch", FAULTS[0]): "retried"}
    more = {("docker", "list", FAULTS[1]): "machines kept"}
    assert told(table(some)) == some
    assert told(table(told(table(some)) | more)) == some | more
