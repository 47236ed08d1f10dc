"""Some tests need what a machine may lack; they are skipped there, with the reason."""

from __future__ import annotations

import os

import pytest

ROOT_PART = pytest.mark.skipif(os.geteuid() != 0, reason="the root part is root's")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
"""Tests that act as another user, or give a file away."""
