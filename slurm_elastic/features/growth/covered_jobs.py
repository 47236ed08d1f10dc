"""Waiting jobs that already have machines on their way (covered jobs), so that growth counts each
job once. A job counts again if its machines never came up, or if it was requeued.

The waiting tasks of an array are one job with the array's id. slurmctld gives a task an id of its
own when it starts, except the last one, which keeps the array's id (measured on Slurm 22.05.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase


class CoveredJobs:
    """The covered jobs of one group of pools. ``_jobs``: by job, its restart count when it was
    added. ``_started``: by node that is not up yet, the jobs for which it was started. ``begun``:
    the jobs whose machines start in turns.
    """

    def __init__(
        self,
        jobs: Iterable[int] = (),
        started: Mapping[str, frozenset[int]] = MappingProxyType({}),
        begun: Iterable[int] = (),
    ) -> None:
        self._jobs: dict[int, int | None] = dict.fromkeys(jobs)
        self._started = dict(started)
        self.begun = frozenset(begun)

    def remaining(
        self, jobs: Sequence[SlurmJob], nodes: Mapping[str, SlurmNode]
    ) -> tuple[int, ...]:
        """Return the jobs still covered. Forget the others."""
        for name, ids in list(self._started.items()):
            node = nodes.get(name)
            node_phase = phase(node) if node is not None and not is_down(node) else None
            if node_phase is Phase.POWERING_UP:
                continue
            del self._started[name]
            # If the machine never came up, its jobs must count again.
            if node_phase is not Phase.UP:
                for job in ids:
                    self._jobs.pop(job, None)
        restarts = {job.id: job.restarts for job in jobs}
        self._jobs = {
            job: restarts[job]
            for job, restarts_then in self._jobs.items()
            # None: the job was restored from the journal, which lacks the restart count.
            if job in restarts and restarts_then in (None, restarts[job])
        }
        return tuple(sorted(self._jobs))

    def add(
        self,
        ids: Iterable[int],
        nodes: Iterable[str],
        counted: Iterable[int],
        jobs: Sequence[SlurmJob],
        begun: Iterable[int] = (),
    ) -> None:
        """Replace the covered jobs by ``ids``. ``nodes`` were started for the ``counted`` jobs,
        some of which may lack other nodes until a later look.
        """
        restarts = {job.id: job.restarts for job in jobs}
        new = frozenset(counted) - self._jobs.keys()
        self._jobs = {job: restarts.get(job) for job in ids}
        self._started |= dict.fromkeys(nodes, new)
        self.begun = frozenset(begun)
