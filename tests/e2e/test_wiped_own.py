"""``test_wiped.py`` at a site with an Epilog of its own, which runs on all nodes as before."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_wiped import (
    lab,
    scratch,
    site,
    test_nothing_of_a_user_is_left_for_the_next_one_and_both_never_share_the_machine,
    test_the_sites_own_node_runs_a_harmless_epilog,
)

__all__ = [
    "lab",
    "scratch",
    "site",
    "test_nothing_of_a_user_is_left_for_the_next_one_and_both_never_share_the_machine",
    "test_the_sites_own_node_runs_a_harmless_epilog",
]
pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def epilog() -> Iterator[Path]:
    """It writes down for which job it runs."""
    place = Path(tempfile.mkdtemp(prefix="se-epilog-", dir="/tmp"))
    place.chmod(0o755)
    program = place / "epilog"
    program.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >>{place}/ran\n')
    program.chmod(0o755)
    yield program
    shutil.rmtree(place)
