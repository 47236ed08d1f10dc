"""OpenStack's stand-in, one for the tests of a file, and a provider's bed on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from providers.openstack.bed import StackBed
from providers.openstack.making_project import Project
from providers.openstack.stand_in import StandIn


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    with StandIn().serving() as running:
        yield running


@pytest.fixture
def bed(stand_in: StandIn, tmp_path: Path) -> StackBed:
    return StackBed(stand_in, tmp_path)


@pytest.fixture
def project(stand_in: StandIn, tmp_path: Path) -> Project:
    return Project(stand_in, tmp_path)
