"""Each provider x each fault x each call: no orphan, no double, a defined state; a table of how.

``docs/faults.md`` has the table; SLURM_ELASTIC_FAULT_TABLE=FILE writes it anew. The column of
``docker`` is in test_docker.py, that of ``libvirt`` in test_libvirt.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.testing.bench import Bench, open_bench
from slurm_elastic.testing.matrix import CALLS, FAULTS
from tests.faults.beds import Docker, Libvirt, all_beds
from tests.faults.cells import PAGE, PROVIDERS, Column, column, published, table, told

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
    """Each call, fault and provider exactly once, and none open."""
    header, *_ = table({}).splitlines()
    lines = iter(PAGE.read_text().splitlines())
    assert header in lines
    rows = [
        line.strip("|").split("|")
        for line in itertools.takewhile(lambda row: row[:1] == "|", lines)
    ]
    named = [(row[0].strip(), fault) for row in rows[1:] for fault in row[1].strip().split("; ")]
    assert sorted(named) == sorted(itertools.product(CALLS, FAULTS))
    assert published().keys() == set(itertools.product(PROVIDERS, CALLS, FAULTS))


def test_a_table_is_filled_in_by_parts() -> None:
    some = {("fake", "launch", FAULTS[0]): "retried"}
    more = {("docker", "list", FAULTS[1]): "machines kept"}
    assert told(table(some)) == some
    assert told(table(told(table(some)) | more)) == some | more
