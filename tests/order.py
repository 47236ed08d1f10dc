"""In which order test files start, and which tests run something real."""

from __future__ import annotations

from pathlib import Path

import pytest

ENGINES = {"docker_engine", "control_plane"}  # fixtures


def mark_engines(items: list[pytest.Item]) -> None:
    """Mark the tests that use an engine's fixture, so that they can be left out by their mark."""
    for item in items:
        if ENGINES & set(getattr(item, "fixturenames", ())):
            item.add_marker("engine")


def real(item: pytest.Item) -> bool:
    """Whether it runs a slurmctld, a Docker engine or OpenStack's services."""
    return any(item.get_closest_marker(mark) for mark in ("e2e", "engine"))


def longest_first(items: list[pytest.Item]) -> None:
    """Sort whole files by their heaviest test; the tests of a file stay together and in order."""
    weights: dict[Path, tuple[float, bool, bool]] = {}
    for item in items:
        weights[item.path] = max(weights.get(item.path, _weight(item)), _weight(item))
    items.sort(key=lambda item: weights[item.path], reverse=True)


def _weight(item: pytest.Item) -> tuple[float, bool, bool]:
    limit = item.get_closest_marker("timeout")
    seconds = float(limit.args[0]) if limit and limit.args else 0.0
    return (seconds, real(item), "chaos" in item.nodeid.lower())
