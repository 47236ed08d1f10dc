"""An emulated front end, one for the tests of a file, and the bed of a user of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_one
from providers.opennebula.bed import OneBed

from slurm_elastic.sandbox.nebula.control import OneControl


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneControl]:
    with running_one(tmp_path_factory.mktemp("one")) as running:
        yield running


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    return OneBed(control, tmp_path, user="elastic")
