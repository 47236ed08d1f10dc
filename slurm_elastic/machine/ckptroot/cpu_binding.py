"""Record the CPUs that programs bind their threads to (sched_setaffinity(2)), as taskset and OpenMP
do.

After a restore by CRIU, threads may use all CPUs of the new step. We bind the threads again that a
program had bound to fewer CPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .proc import number_inside, status_of, threads_of

Bound = dict[str, list[int]]
"""By thread number in the job's namespace: indexes into the step's sorted CPUs."""


def bound(tasks: Iterable[int], allowed: Collection[int]) -> Bound:
    """Return the bindings of threads that use fewer CPUs than ``allowed``, the step's."""
    places, bindings = {cpu: place for place, cpu in enumerate(sorted(allowed))}, Bound()
    for thread, inside in _threads(tasks):
        with contextlib.suppress(OSError):
            cpus = os.sched_getaffinity(thread)
            if cpus < places.keys():
                # Indexes, not CPU numbers: the next step may have CPUs of other numbers.
                bindings[inside] = sorted(places[cpu] for cpu in cpus)
    return bindings


def bind(
    tasks: Iterable[int], saved: Mapping[str, Sequence[int]], allowed: Collection[int]
) -> None:
    """Bind threads again as ``saved``. A thread keeps all CPUs if this step has too few.

    Call it with the user's rights, because a thread may have ended and its number may belong to
    another user.
    """
    cpus = sorted(allowed)
    for thread, inside in _threads(tasks):
        thread_places = saved.get(inside, ())
        if thread_places and all(0 <= place < len(cpus) for place in thread_places):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, {cpus[place] for place in thread_places})


def _threads(tasks: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield each thread's number on the node, and its number in the job's namespace."""
    for pid in tasks:
        for thread in threads_of(pid):
            yield thread, str(number_inside(status_of(thread)))
