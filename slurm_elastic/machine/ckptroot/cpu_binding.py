"""The CPUs that programs bind their threads to (sched_setaffinity(2)), as taskset and OpenMP do.

CRIU brings threads back with the CPUs of the step that they come back in, which is what Slurm gives
them. Where a program wanted less than its step had, it gets as much of the new one: by their places
among the step's CPUs, as another node, or another job beside it, leaves it other numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .proc import number_inside, status_of, threads_of

Bound = dict[str, list[int]]
"""By a thread's number in the job's own namespace, places among the sorted CPUs of its step."""


def bound(tasks: Iterable[int], allowed: Collection[int]) -> Bound:
    """The threads that use less than all CPUs ``allowed`` to the step."""
    places, found = {cpu: place for place, cpu in enumerate(sorted(allowed))}, Bound()
    for thread, inside in _threads(tasks):
        with contextlib.suppress(OSError):
            cpus = os.sched_getaffinity(thread)
            if cpus < places.keys():
                found[inside] = sorted(places[cpu] for cpu in cpus)
    return found


def bind(
    tasks: Iterable[int], saved: Mapping[str, Sequence[int]], allowed: Collection[int]
) -> None:
    """Bind threads again as they were ``saved``; where this step has fewer CPUs, those whose places
    it has not keep all of them. With the user's own rights, as a thread that has ended meanwhile
    may have left its number to somebody else's.
    """
    cpus = sorted(allowed)
    for thread, inside in _threads(tasks):
        wanted = saved.get(inside, ())
        if wanted and all(0 <= place < len(cpus) for place in wanted):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, {cpus[place] for place in wanted})


def _threads(tasks: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The number out here and the one inside of each thread."""
    for pid in tasks:
        for thread in threads_of(pid):
            yield thread, str(number_inside(status_of(thread)))
