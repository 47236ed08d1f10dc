"""One moment of a run, in which the answers to people are read: nobody else gets a turn, and the
chance of the run is left as it was.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.operate import status

if TYPE_CHECKING:
    from tests.chaos.stage import Stage


class MovedError(Exception):
    """Another thread had a turn, so that the answers are of several moments."""


class _Clock(ModuleType):
    """In place of ``time`` in the commands: the head's clock of the run."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("time")
        self.time = stage.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextlib.contextmanager
def still(stage: Stage) -> Iterator[float]:
    """The head's time. MovedError if another thread had a turn all the same."""
    sched, chance, turns = stage.sched, stage.rng.getstate(), stage.sched.turns
    clocks: list[Any] = [explain, status]
    clock = _Clock(stage)
    sched.pause = lambda: None  # type: ignore[method-assign]
    for module in clocks:
        module.time = clock
    try:
        yield stage.now()
    finally:
        del sched.pause
        stage.rng.setstate(chance)
        for module in clocks:
            module.time = time
    if sched.turns != turns:
        raise MovedError
