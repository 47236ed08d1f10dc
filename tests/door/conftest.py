from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user reaches: those of pytest are their user's alone."""
    made = Path(tempfile.mkdtemp(prefix="slurm-elastic-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)
