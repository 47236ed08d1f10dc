"""How long jobs really run: the share of their time limit that they use, by who asked for what
before.

Users ask for more time than they need, by a factor that is their own and changes little (Tsafrir,
Etsion, Feitelson: "Backfilling using system-generated predictions", IEEE TPDS 2007), and submit the
same job again and again. So we draw a job's run from the last ones of the same user, limit and
size, if there are some; else of the user and limit, of the user, of the account, of all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

from msgspec import Struct

KEPT, KEPT_OF_ALL = 64, 2000  # how many jobs are remembered of each kind, and of all
LEAST = (2, 4, 4, 20)  # jobs that we go by: of user, limit and size; user, limit; user; account
_ANY = ("any",)
PRIOR = (
    0.001, 0.006, 0.018, 0.032, 0.05, 0.075, 0.11, 0.15, 0.2, 0.257, 0.333, 0.418, 0.51, 0.6,
    0.683, 0.785, 0.878, 0.958, 0.999, 1.0,
)  # fmt: skip
"""The mean quantiles of three public histories (SDSC SP2, KTH SP2, SDSC DataStar), used for a site
that we know nothing about.
"""


class Asked(Struct, frozen=True, kw_only=True):
    """A job as it was asked for: ``limit`` in seconds, ``size`` in machines or processors."""

    size: int
    limit: int
    user: str = ""
    account: str = ""


class Habits:
    """The ratios of run time to limit of the last jobs of each kind."""

    def __init__(self) -> None:
        self._of: defaultdict[Hashable, deque[float]] = defaultdict(partial(deque, maxlen=KEPT))
        self._all: deque[float] = deque(maxlen=KEPT_OF_ALL)
        self._sorted: dict[Hashable, Sequence[float]] = {}
        self.jobs = 0

    def add(self, job: Asked, run: int) -> None:
        """Note that a job has ended after ``run`` seconds."""
        ratio = min(run / job.limit, 1.0) if job.limit > 0 else 1.0
        for kind in (*_kinds(job), _ANY):
            self._sorted.pop(kind, None)
            (self._all if kind is _ANY else self._of[kind]).append(ratio)
        self.jobs += 1

    def remaining(self, job: Asked, elapsed: int, place: float) -> int:
        """How many seconds the job still runs after ``elapsed``: the value at ``place`` (0 to 1)
        among jobs like it that ran longer than that. A job beyond its limit ends now.
        """
        least = elapsed / job.limit if job.limit > 0 else 1.0
        for longer in self._like(job):
            first = bisect_right(longer, least)
            if first < len(longer):
                at = first + int(place * (len(longer) - first))
                return max(int(longer[at] * job.limit) - elapsed, 1)
        return max(job.limit - elapsed, 1)

    def _like(self, job: Asked) -> Iterator[Sequence[float]]:
        """The ascending ratios of jobs like this, the nearest kind first."""
        for kind, least in zip(_kinds(job), LEAST, strict=True):
            found = self._of.get(kind)
            if found is not None and len(found) >= least:
                yield self._ascending(kind, found)
        yield self._ascending(_ANY, self._all) if len(self._all) >= LEAST[-1] else PRIOR

    def _ascending(self, kind: Hashable, ratios: deque[float]) -> Sequence[float]:
        """Sort once for all who ask: a forecast asks sixty thousand times."""
        found = self._sorted.get(kind)
        if found is None:
            found = self._sorted[kind] = sorted(ratios)
        return found


def _kinds(job: Asked) -> tuple[Hashable, ...]:
    user, account = ("user", job.user), ("account", job.account)
    return (user, job.limit, job.size), (user, job.limit), user, account
