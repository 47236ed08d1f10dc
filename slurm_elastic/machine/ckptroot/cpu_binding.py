"""Remembers the CPUs that programs bind their threads to (sched_setaffinity(2)), as taskset and
OpenMP do.

After a restore by CRIU, threads have all CPUs of the new step. A program that had bound some to
fewer gets as much of the new step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .proc import number_inside, status_of, threads_of

Bound = dict[str, list[int]]
"""For each thread, by its number in the job's namespace, places among the step's sorted CPUs."""


def bound(tasks: Iterable[int], allowed: Collection[int]) -> Bound:
    """The threads that use fewer CPUs than ``allowed``, the step's."""
    places, found = {cpu: place for place, cpu in enumerate(sorted(allowed))}, Bound()
    for thread, inside in _threads(tasks):
        with contextlib.suppress(OSError):
            cpus = os.sched_getaffinity(thread)
            if cpus < places.keys():
                # By place among the step's CPUs: the new step may have CPUs of other numbers.
                found[inside] = sorted(places[cpu] for cpu in cpus)
    return found


def bind(
    tasks: Iterable[int], saved: Mapping[str, Sequence[int]], allowed: Collection[int]
) -> None:
    """Bind threads again as ``saved``. A thread keeps all CPUs if this step has too few for its
    places. Called with the user's rights: a thread may have ended, and its number be somebody
    else's.
    """
    cpus = sorted(allowed)
    for thread, inside in _threads(tasks):
        wanted = saved.get(inside, ())
        if wanted and all(0 <= place < len(cpus) for place in wanted):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, {cpus[place] for place in wanted})


def _threads(tasks: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each thread's number on the node, and the one in the job's namespace."""
    for pid in tasks:
        for thread in threads_of(pid):
            yield thread, str(number_inside(status_of(thread)))
