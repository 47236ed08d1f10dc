"""EC2's token buckets, kept here too, so that calls wait for a token instead of being rejected.

"Request throttling for the Amazon EC2 API" (EC2 developer guide, tables "Request token bucket sizes
and refill rates" and "Resource token bucket sizes and refill rates"): each action has a bucket of
requests, and launches and terminations a second one of machines. The buckets are an account's in a
region, so all clouds and threads of the process that use it share one ``Pace``. Others use the
account too: a rejection empties our idea of the bucket and halves its refill, and each success
gives a twentieth of it back.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief
from slurm_elastic.providers.aws.settings import AwsCloud


class Rate(Struct, frozen=True):
    """A bucket: tokens at most, and tokens a second."""

    burst: float
    refill: float


READS = Rate(100, 20)
"""Describe calls with a filter or in pages, as all of ours are."""
WRITES = Rate(50, 5)
REQUESTS = {
    "create_launch_template_version": Rate(100, 5),
    "create_tags": Rate(100, 10),
    "run_instances": Rate(5, 2),
    "terminate_instances": Rate(100, 5),
}
"""Actions with buckets of their own; ``create_fleet`` and all else that writes has WRITES."""
LAUNCHES = Rate(1000, 2)
TERMINATIONS = Rate(1000, 20)
_LAUNCHING = ("create_fleet", "run_instances")
_LEAST = 1 / 16
_REGAIN = 1 / 20


class Busy(Exception):  # noqa: N818 - no error, but an answer to who will not wait
    """Tokens are there only after ``seconds``, which is longer than the caller waits."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            f"EC2's limit of {what} is used up; the next call can go in {brief(seconds)}"
        )
        self.seconds = seconds


class Bucket:
    """Tokens of one kind. Not thread-safe by itself; times are of one monotonic clock.

    With ``margin`` the tokens of the last second do not count yet.
    """

    def __init__(self, rate: Rate, now: float, *, margin: bool = False) -> None:
        self.rate = rate
        # EC2 adds its tokens once a second, and not when we think.
        self._margin = rate.refill if margin else 0.0
        self._level = rate.burst
        self._at = now
        self._share = 1.0

    def level(self, now: float) -> float:
        """Tokens there at ``now``; negative while calls wait for tokens they have taken ahead."""
        refilled = max(now - self._at, 0.0) * self.refill
        self._level, self._at = min(self._level + refilled, self.rate.burst), max(now, self._at)
        return self._level

    def usable(self, now: float, seconds: float = 0.0) -> float:
        """Tokens that can be counted on, now or so many seconds later."""
        level = self.level(now) + seconds * self.refill
        return self.rate.burst if level >= self.rate.burst else level - self._margin

    def wait(self, count: float, now: float) -> float:
        """Seconds until ``count`` tokens (at most a full bucket) are there."""
        if self.usable(now) >= min(count, self.rate.burst) - 1e-9:
            return 0.0
        lacking = min(count + self._margin, self.rate.burst) - self.level(now)
        return max(lacking - 1e-9, 0.0) / self.refill

    @property
    def refill(self) -> float:
        """Tokens a second that are ours, as far as we know."""
        return self.rate.refill * self._share

    def take(self, count: float, now: float) -> None:
        """Take them, ahead of time if need be: who comes later waits longer."""
        self._level = self.level(now) - count

    def give_back(self, count: float, now: float) -> None:
        """They were not used."""
        self._level = min(self.level(now) + count, self.rate.burst)

    def rejected(self, now: float) -> None:
        """EC2 had no token: ours is not the only claim to them."""
        self._level = min(self.level(now), 0.0)
        self._share = max(self._share / 2, _LEAST)

    def accepted(self) -> None:
        """EC2 had one."""
        self._share = min(self._share + _REGAIN, 1.0)


class Pace:
    """All buckets of one account and region. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {
        # The clock is read under the lock, because the time of a bucket must never go back.
        # The readers pass a bucket on to ``_within``, which takes the lock, or read its fixed rate.
        "_lock": Guarded(
            "_requests",
            "_clock",
            "_launches",
            "_terminations",
            unguarded_readers=["startable", "endable", "launches"],
        ),
    }

    def __init__(
        self,
        launches: Rate = LAUNCHES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: dict[str, Bucket] = {}
        now = clock()
        self._launches = Bucket(launches, now, margin=True)
        self._terminations = Bucket(TERMINATIONS, now, margin=True)

    def take(self, operation: str, machines: int, patience: float) -> None:
        """Return when EC2 has tokens for one call about so many machines; Busy, with nothing taken,
        where that takes longer than ``patience`` seconds. ``operation`` is boto3's name for it.
        """
        with self._lock:
            now = self._clock()
            needs = self._needs(operation, machines)
            wait, what = max((bucket.wait(n, now), what) for bucket, n, what in needs)
            if wait > patience:
                raise Busy(what, wait)
            for bucket, count, _ in needs:
                bucket.take(count, now)
        # Without the lock: the tokens are taken, and whoever comes later waits for longer.
        if wait > 0:
            self.sleep(wait)

    def accepted(self, operation: str) -> None:
        """EC2 has taken the call."""
        with self._lock:
            for bucket, _, _ in self._needs(operation, 1):
                bucket.accepted()

    def rejected(self, operation: str, machines: int, message: str) -> None:
        """EC2 has rejected it for its rate. Its words may say that it is the machines' bucket."""
        with self._lock:
            now = self._clock()
            (requests, _, _), *more = self._needs(operation, machines)
            by_machines = bool(more) and "resource" in message.lower()
            for bucket, count, _ in more:
                # A call that was rejected has started or ended no machine.
                bucket.give_back(count, now)
                if by_machines:
                    bucket.rejected(now)
            if not by_machines:
                requests.rejected(now)

    def startable(self, patience: float = 0.0) -> int:
        """How many machines EC2 would start in a call now, or within so many seconds."""
        return self._within(self._launches, patience)

    def endable(self, patience: float = 0.0) -> int:
        """How many machines EC2 would end in a call now, or within so many seconds."""
        return self._within(self._terminations, patience)

    @property
    def launches(self) -> Rate:
        """The rate that EC2 allows: machines at once, and a second after that."""
        return self._launches.rate

    def _within(self, bucket: Bucket, patience: float) -> int:
        with self._lock:
            # A billionth of slack, as levels are sums of products.
            return max(math.floor(bucket.usable(self._clock(), patience) + 1e-9), 0)

    def _needs(self, operation: str, machines: int) -> list[tuple[Bucket, float, str]]:
        if operation not in self._requests:
            kind = READS if operation.startswith(("describe_", "get_")) else WRITES
            rate = REQUESTS.get(operation, kind)
            self._requests[operation] = Bucket(rate, self._clock())
        needs = [(self._requests[operation], 1.0, f"{operation} calls")]
        if operation in _LAUNCHING:
            needs.append((self._launches, float(machines), "machines started"))
        elif operation == "terminate_instances":
            needs.append((self._terminations, float(machines), "machines ended"))
        return needs


class SharedPaces:
    """The paces of all accounts, as clouds of one account and region share their limits."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_paces")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[tuple[str, str | None], Pace] = {}

    def get(self, key: tuple[str, str | None], rate: Rate) -> Pace:
        """The pace of that account and region, a new one if its rate has changed."""
        with self._lock:
            pace = self._paces.get(key)
            if pace is None or pace.launches != rate:
                pace = self._paces[key] = Pace(rate)
            return pace


_shared = SharedPaces()


def pace_of(settings: AwsCloud) -> Pace | None:
    """The account's buckets in the cloud's region; None behind an endpoint of one's own, which has
    none unless the settings say so.
    """
    stated = settings.launch_burst is not None or settings.launch_rate is not None
    if settings.endpoint is not None and not stated:
        return None
    rate = Rate(
        float(settings.launch_burst or LAUNCHES.burst), settings.launch_rate or LAUNCHES.refill
    )
    where = f"{settings.endpoint or ''} {settings.region}"
    return _shared.get((where, settings.profile), rate)
