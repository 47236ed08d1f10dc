"""The outcomes of a file's cells of the fault matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.cells import Cell, noted


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, str]]:
    with noted() as found:
        yield found
