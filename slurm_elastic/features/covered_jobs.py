"""Which waiting jobs a growth policy has counted already, so that each counts once.

One whose machines never came up, or that was requeued, counts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase


def counted_id(job: SlurmJob) -> int:
    """The job's id; of what is left of an array the array's, as its own changes with each task."""
    return job.array if job.array and job.task is None else job.id


class CoveredJobs:
    """The counted jobs of one group of pools: jobs with their restarts at that time, and the nodes
    that were ``started``, each with those that it was started for, until it is up.
    """

    def __init__(
        self, jobs: Iterable[int] = (), started: Mapping[str, frozenset[int]] = MappingProxyType({})
    ) -> None:
        self._jobs: dict[int, int | None] = dict.fromkeys(jobs)
        self._started = dict(started)

    def remaining(
        self, jobs: Sequence[SlurmJob], nodes: Mapping[str, SlurmNode]
    ) -> tuple[int, ...]:
        """The jobs that are still covered by a scale-up."""
        for name, ids in list(self._started.items()):
            node = nodes.get(name)
            where = phase(node) if node is not None and not is_down(node) else None
            if where is Phase.POWERING_UP:
                continue
            del self._started[name]
            if where is not Phase.UP:  # it never came: its jobs wait for nothing
                for job in ids:
                    self._jobs.pop(job, None)
        restarts = {counted_id(job): job.restarts for job in jobs}
        self._jobs = {
            job: restarts[job]
            for job, then in self._jobs.items()
            # None: by the journal of an earlier daemon, which does not tell how often it had
            # restarted.
            if job in restarts and then in (None, restarts[job])
        }
        return tuple(sorted(self._jobs))

    def add(self, ids: Iterable[int], nodes: Iterable[str], jobs: Sequence[SlurmJob]) -> None:
        """From now on these are counted; ``nodes`` were started for those that are new."""
        restarts = {counted_id(job): job.restarts for job in jobs}
        new = frozenset(ids) - self._jobs.keys()
        self._jobs = {job: restarts.get(job) for job in ids}
        self._started |= dict.fromkeys(nodes, new)
