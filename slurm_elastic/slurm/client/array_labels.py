"""The names of array tasks in Slurm's commands, as its lists of jobs gave them.

scontrol takes 17_2, while squeue's numbers name each task's own id. One task of each array has the
array's own number, which means all tasks to Slurm's commands.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.slurm import SlurmJob

MAX_LABELS = 100_000
"""At most this many labels of tasks that the last lists did not name."""


class ArrayLabels:
    """Thread-safe. A task keeps its label while lists do not name it: most lists leave out jobs
    that have ended.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_labels")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels: dict[int, str] = {}

    def label(self, job: int) -> str:
        """The id of the job in Slurm's commands."""
        with self._lock:
            return self._labels.get(job, str(job))

    def learn(self, jobs: Sequence[SlurmJob], *, is_whole: bool = False) -> None:
        """Note the labels in a list of jobs. ``is_whole``: the list has all jobs of Slurm."""
        with self._lock:
            if is_whole:
                self._labels.clear()
            for job in jobs:
                # First remove it: the order is the order of the last lists.
                self._labels.pop(job.id, None)
                if job.task is not None:
                    self._labels[job.id] = job.label
            for number in list(self._labels)[: max(len(self._labels) - MAX_LABELS, 0)]:
                del self._labels[number]
