"""The control plane of a module as a provider's bed: nova is reached by a wire that may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from providers.openstack.stand_in import StandIn

from .bed import PlaneBed
from .plane import ControlPlane


@pytest.fixture(scope="module")
def wire(control_plane: ControlPlane) -> Iterator[StandIn]:
    with StandIn(behind=control_plane.place.endpoint("nova")).serving() as running:
        yield running


@pytest.fixture
def bed(control_plane: ControlPlane, wire: StandIn, tmp_path: Path) -> Iterator[PlaneBed]:
    wire.reset()
    made = PlaneBed(control_plane, wire, tmp_path)
    yield made
    made.tidy()
