"""What some tests need that a machine may lack; they are skipped there, with the reason."""

from __future__ import annotations

import os

import pytest

ROOT_PART = pytest.mark.skipif(os.geteuid() != 0, reason="the root part is root's")
