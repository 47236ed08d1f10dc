"""How long jobs really run: predicts the used share of a job's time limit from earlier jobs.

Users request more time than they need, by a factor that differs between users and changes little
(Tsafrir, Etsion, Feitelson: "Backfilling using system-generated predictions", IEEE TPDS 2007). They
also submit the same job again and again. We therefore draw a job's run time from the last jobs of
the same user, limit and size. If there are too few, we take the jobs of the user and limit,
then of the user, of the account, of all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

from msgspec import Struct

MAX_JOBS_PER_KIND, MAX_JOBS = 64, 2000  # jobs remembered of each kind, and of all jobs together
# Jobs needed of a kind: of the user, limit and size; user and limit; user; account (also for all).
MIN_JOBS = (2, 4, 4, 20)
_ANY = ("any",)
PRIOR = (
    0.001, 0.006, 0.018, 0.032, 0.05, 0.075, 0.11, 0.15, 0.2, 0.257, 0.333, 0.418, 0.51, 0.6,
    0.683, 0.785, 0.878, 0.958, 0.999, 1.0,
)  # fmt: skip
"""The mean quantiles of three public histories (SDSC SP2, KTH SP2, SDSC DataStar). They are used
for a site without a history.
"""


class RequestedJob(Struct, frozen=True, kw_only=True):
    """The request of a job: ``limit`` in seconds, ``size`` in machines or processors."""

    size: int
    limit: int
    user: str = ""
    account: str = ""


class Habits:
    """The ratios of run time to limit of the last jobs of each kind."""

    def __init__(self) -> None:
        self._of: defaultdict[Hashable, deque[float]] = defaultdict(
            partial(deque, maxlen=MAX_JOBS_PER_KIND)
        )
        self._all: deque[float] = deque(maxlen=MAX_JOBS)
        self._sorted: dict[Hashable, Sequence[float]] = {}
        self.jobs = 0

    def add(self, job: RequestedJob, run: int) -> None:
        """Record that a job has ended after ``run`` seconds."""
        ratio = min(run / job.limit, 1.0) if job.limit > 0 else 1.0
        for kind in (*_kinds(job), _ANY):
            self._sorted.pop(kind, None)
            (self._all if kind is _ANY else self._of[kind]).append(ratio)
        self.jobs += 1

    def remaining(self, job: RequestedJob, elapsed: int, place: float) -> int:
        """Return how many more seconds the job runs after ``elapsed``.

        The value is the quantile ``place`` (0 to 1) of the similar jobs that ran longer than
        ``elapsed``. A job beyond its limit ends in a second.
        """
        elapsed_ratio = elapsed / job.limit if job.limit > 0 else 1.0
        for ratios in self._similar_ratios(job):
            first_longer = bisect_right(ratios, elapsed_ratio)
            if first_longer < len(ratios):
                index = first_longer + int(place * (len(ratios) - first_longer))
                return max(int(ratios[index] * job.limit) - elapsed, 1)
        return max(job.limit - elapsed, 1)

    def _similar_ratios(self, job: RequestedJob) -> Iterator[Sequence[float]]:
        """Yield the ascending ratios of similar jobs, the most similar kind first."""
        for kind, least in zip(_kinds(job), MIN_JOBS, strict=True):
            ratios = self._of.get(kind)
            if ratios is not None and len(ratios) >= least:
                yield self._ascending(kind, ratios)
        yield self._ascending(_ANY, self._all) if len(self._all) >= MIN_JOBS[-1] else PRIOR

    def _ascending(self, kind: Hashable, ratios: deque[float]) -> Sequence[float]:
        """Return the sorted ratios. They are cached, because a forecast needs them 60,000 times."""
        ascending = self._sorted.get(kind)
        if ascending is None:
            ascending = self._sorted[kind] = sorted(ratios)
        return ascending


def _kinds(job: RequestedJob) -> tuple[Hashable, ...]:
    user, account = ("user", job.user), ("account", job.account)
    return (user, job.limit, job.size), (user, job.limit), user, account
