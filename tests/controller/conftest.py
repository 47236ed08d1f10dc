"""A site in memory for each test."""

from __future__ import annotations

from tests.controller.world import world

__all__ = ["world"]
