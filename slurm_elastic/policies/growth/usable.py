"""Finds the nodes and licences that a waiting job may get, as Slurm counts them. Pure.

A growth policy buys for a job only what that job can use. Slurm says why a job waits only after it
has looked at it, and gives one reason of several, so these facts are compared here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.model.slurm import Reservation, SlurmJob
from slurm_elastic.policies.launch.time_limits import is_admitted, may_be_shown

_LICENSE = re.compile(r"(?P<name>[^:=]+)(?:[:=](?P<count>\d+))?")


def is_within(row: Reservation, begin: float, end: float) -> bool:
    """Whether the reservation keeps whole nodes at any moment between ``begin`` and ``end``."""
    return not row.is_partial and row.start < end and row.end > begin


def in_maintenance(reservations: Iterable[Reservation], begin: float, end: float) -> frozenset[str]:
    """Return the nodes that a maintenance keeps at any moment between ``begin`` and ``end``."""
    kept = (
        row.nodes for row in reservations if "MAINT" in row.flags and is_within(row, begin, end)
    )
    return frozenset().union(*kept)


def avoided_nodes(
    job: SlurmJob, excluded: Iterable[str], reservations: Iterable[Reservation]
) -> frozenset[str]:
    """Return the nodes on which Slurm does not start the job: ``excluded`` ones, and nodes that one
    of the ``reservations`` within its time keeps for others.
    """
    own_reservations = {name for name in job.reservation.split(",") if name}
    # The nodes of the job's own reservations are the only ones that it may get.
    kept = (row.nodes for row in reservations if row.name not in own_reservations)
    return frozenset(excluded).union(*kept)


def reserved_nodes(job: SlurmJob, reservations: Sequence[Reservation]) -> frozenset[str] | None:
    """Return the only nodes that a job in a reservation may have; None if no reservation of nodes
    binds it.
    """
    own_reservations = {name for name in job.reservation.split(",") if name}
    nodes = [row.nodes for row in reservations if row.name in own_reservations and row.nodes]
    return frozenset().union(*nodes) if nodes else None


def exceeds_max_time(
    job: SlurmJob,
    partition: str,
    max_times: Mapping[str, float | None],
    *,
    is_fixed: bool,
) -> bool:
    """Whether the job's time limit is over MaxTime of the partition, so that Slurm does not start
    it there.

    A limit that Slurm may only show for a job without one proves nothing, unless ``is_fixed``: the
    first task of an array that starts fixes the limit of all others.
    """
    max_time = max_times.get(partition)
    limit = job.least_limit
    if max_time is None or (limit is not None and limit <= max_time) or is_admitted(job):
        return False
    return is_fixed or not may_be_shown(job, partition, max_times)


def licensed_tasks(text: str, tasks: int, free: Mapping[str, int]) -> tuple[int, Mapping[str, int]]:
    """Return how many of the job's tasks can get their licences, and the licences that remain. Only
    Slurm can judge a licence that ``free`` does not name.
    """
    best = tasks, free
    for number, choice in enumerate(text.split("|")):
        needed_licenses = _licenses(choice)
        count = min([tasks, *(free[n] // k for n, k in needed_licenses if k and n in free)])
        if number == 0 or count > best[0]:
            used = {n: free[n] - k * count for n, k in needed_licenses if n in free}
            best = max(count, 0), {**free, **used}
    return best


@functools.lru_cache(maxsize=1024)
def _licenses(text: str) -> tuple[tuple[str, int], ...]:
    """Each licence in ``matlab:2,ansys``, with the number that the job needs."""
    matches = (_LICENSE.fullmatch(item.strip()) for item in re.split("[,;&]", text))
    return tuple((match["name"], int(match["count"] or 1)) for match in matches if match)
