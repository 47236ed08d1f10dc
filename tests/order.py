"""In which order test files start and where, and which tests run something real."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ENGINES = {"docker_engine", "control_plane"}  # fixtures
REPO = Path(__file__).parents[1]
SLOWEST = Path(__file__).parent / "data" / "slowest.txt"
"""How long files took once, lines of a .pytest_cache/slowest.txt; what of it is in the first tier where a
file has tests of both. Old ones cost a little time.
"""
UNKNOWN = 60.0
"""Seconds of a file with real daemons that is not among them."""


def mark_engines(items: list[pytest.Item]) -> None:
    """Mark the tests that use an engine's fixture, so that they can be left out by their mark."""
    for item in items:
        if ENGINES & set(getattr(item, "fixturenames", ())):
            item.add_marker("engine")


def real(item: pytest.Item) -> bool:
    """Whether it runs a slurmctld, a Docker engine, OpenStack's services or machines."""
    return any(item.get_closest_marker(mark) for mark in ("e2e", "engine", "machines"))


def longest_first(items: list[pytest.Item], slowest: Mapping[str, float]) -> None:
    """Sort whole files by the seconds they take; the tests of a file stay together and in order."""
    weights: dict[Path, float] = {}
    for item in items:
        known = slowest.get(str(item.path.relative_to(REPO)), UNKNOWN if real(item) else 0.0)
        weights[item.path] = max(weights.get(item.path, 0.0), known)
    items.sort(key=lambda item: weights[item.path], reverse=True)


def slowest() -> dict[str, float]:
    """Seconds by file, of those that take long."""
    lines = (line.split() for line in SLOWEST.read_text().splitlines())
    return {file: float(seconds) for seconds, _, file in lines}


def shuffled(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Files in another order, and the tests of each; those of a real cluster go on from each other."""
    chance = random.Random(seed)  # one seed is one order, in each process
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = [files[path] for path in chance.sample(sorted(files), len(files))]
    for group in groups:
        if not any(real(item) for item in group):
            chance.shuffle(group)
    return [item for group in groups for item in group]


class FromBothEnds(LoadFileScheduling):
    """Files go to workers one by one, the longest first; but a few workers begin with the shortest.

    The long ones wait for daemons most of their time, the short ones keep processors busy: side by
    side they are over sooner than one after the other.
    """

    processors = os.cpu_count() or 1

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._begins_with_the_shortest(node):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _begins_with_the_shortest(self, node: WorkerController) -> bool:
        """One worker a processor does, if there are several for each."""
        number = int(node.gateway.id.removeprefix("gw"))
        return number < self.processors and self.numnodes >= 3 * self.processors

    def _reschedule(self, node: WorkerController) -> None:
        """Give it a file when its last test begins: not before, as another one may have time."""
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)
