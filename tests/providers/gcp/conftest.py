"""An emulated Compute Engine, one for the tests of a file, and the bed of a project in it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from emulated import running_gce

from slurm_elastic.sandbox.gce.control import GceControl

if TYPE_CHECKING:
    from providers.gcp.bed import GcpBed


def _has_google_auth() -> bool:
    """``google`` alone may be another package's."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec("google.auth") is not None
    return False


# The extra gcp is not everywhere where an older environment is used again.
collect_ignore_glob = [] if _has_google_auth() else ["test_*.py"]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GceControl]:
    with running_gce(tmp_path_factory.mktemp("gce")) as running:
        yield running


@pytest.fixture
def bed(control: GceControl, tmp_path: Path) -> Iterator[GcpBed]:
    from providers.gcp.bed import GcpBed

    made = GcpBed(control, tmp_path)
    yield made
    made.require_valid()
