"""Waiting jobs whose list of partitions, begin time or hold slurm-elasticd changes, and why.

Several parts want such changes at the same time: an operator's order, a spent budget, a limit that
a job never fits. Each part only says its wishes. ``policies.launch.changed_jobs`` computes the
values from all wishes, so that the end of one wish never undoes or loses another.
"""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.model.job_key import JobKey


class JobValues(Struct, frozen=True, kw_only=True):
    """The values of a waiting job that slurm-elasticd may change. ``begin``: its begin time (Unix
    time), 0 if none. ``is_held``: whether slurm-elasticd holds it. A person's hold does not count.
    """

    partitions: tuple[str, ...]
    begin: float = 0.0
    is_held: bool = False


class Barred(Struct, frozen=True, kw_only=True, tag="barred"):
    """The job's account or user has spent its budget: no public partition before ``until``."""

    until: float


class Redirected(Struct, frozen=True, kw_only=True, tag="redirected"):
    """By the operators' order ``number`` the jobs of the partition ``source`` may start in
    ``target``: in its place (``is_whole``), or in both.
    """

    number: int
    source: str
    target: str
    is_whole: bool


class Misfit(Struct, frozen=True, kw_only=True, tag="misfit"):
    """The cloud of the ``partition`` never serves the job: it needs too many nodes, or needs them
    for longer than the cloud has them. ``nodes`` (a hostlist) and ``need_s`` (None: without end):
    what was judged.
    ``request``: what the job asked for then.
    """

    cloud: str
    partition: str
    nodes: str
    need_s: float | None
    request: tuple[int, ...]


class Delayed(Struct, frozen=True, kw_only=True, tag="delayed"):
    """The ``partition`` may serve the job from ``begins_at`` on, when a reservation begins, or when
    the cloud is asked again. ``request``: what the job asked for when that was judged.
    """

    partition: str
    begins_at: float
    request: tuple[int, ...]


class Held(Struct, frozen=True, kw_only=True, tag="held"):
    """The job waits until a person has looked at it and releases it."""


Wish = Barred | Redirected | Misfit | Delayed | Held


class ChangedJob(Struct, frozen=True, kw_only=True):
    """A job with wishes or with changed values.

    ``key``: the job as it was when its values were changed last. ``own``: the values that its user
    and the submit filter gave it. ``latest``: the values that it was given last. ``before``: the
    values before those, until the job has been seen with ``latest``. ``is_answered``: whether Slurm
    has confirmed that change. ``overruled``: orders that no longer change the job, because a person
    has changed its list while they held.
    """

    key: JobKey
    own: JobValues
    latest: JobValues
    before: JobValues | None = None
    is_answered: bool = False
    wishes: tuple[Wish, ...] = ()
    overruled: tuple[int, ...] = ()
