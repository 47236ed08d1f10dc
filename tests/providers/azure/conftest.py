"""An emulated Azure, one for the tests of a file, and a provider's bed on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from providers.azure.bed import AzureBed

from slurm_elastic.sandbox.azure.serve import EmulatedAzure


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatedAzure]:
    with EmulatedAzure().serving() as running:
        yield running


@pytest.fixture
def bed(emulator: EmulatedAzure, tmp_path: Path) -> AzureBed:
    return AzureBed(emulator, tmp_path)
