"""A periodic task's looks, by the world's clock."""

from __future__ import annotations

from slurm_elastic.controller.periodic import SiteTask
from tests.controller.world import World


class Looks:
    """In a look's place: each takes ``took`` seconds, and fails where it is to."""

    def __init__(self, world: World, took: float, *, fails: bool = False) -> None:
        self._world, self._took, self._fails = world, took, fails
        self._begun: list[float] = []

    def __call__(self, *_: object) -> None:
        self._begun.append(self._world.now)
        self._world.now += self._took
        if self._fails:
            raise RuntimeError("nobody thought of that")

    def begun(self, task: SiteTask, due: float) -> list[float]:
        """When the looks began, in seconds after the end of the first; the task is ticked at once
        then, shortly before the next is ``due``, and when it is.
        """
        task.tick()
        ended = self._world.now
        for seconds in (0.0, due - 0.125, due):
            self._world.now = ended + seconds
            task.tick()
        return [at - ended for at in self._begun]
