"""Fixtures of tests on a real OpenStack control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .plane import ControlPlane, NoControlPlane, running_plane


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane of its own for the module, with pages of 5 servers; the tests are skipped
    where this machine can run none.
    """
    try:
        with running_plane(page=5) as plane:
            yield plane
    except NoControlPlane as reason:
        pytest.skip(f"no OpenStack control plane: {reason}")
