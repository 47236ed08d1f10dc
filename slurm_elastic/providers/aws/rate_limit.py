"""Copies of EC2's token buckets, so that calls wait for a token instead of being rejected.

"Request throttling for the Amazon EC2 API" (EC2 developer guide, tables "Request token bucket sizes
and refill rates" and "Resource token bucket sizes and refill rates"): each action has a bucket of
requests; launches and terminations have a second bucket of machines. The buckets belong to an
account in a region, so all clouds and threads of this process that use the account share one
``RateLimits``. Other programs use the account too. Therefore a rejection empties our copy of the
bucket and halves its refill rate, and each success restores a twentieth of the rate.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.token_bucket import Bucket, Rate

READS = Rate(100, 20)
"""Describe calls with a filter or in pages; all of ours are of this kind."""
WRITES = Rate(50, 5)
REQUESTS = {
    "create_launch_template_version": Rate(100, 5),
    "create_tags": Rate(100, 10),
    "run_instances": Rate(5, 2),
    "terminate_instances": Rate(100, 5),
}
"""Actions with buckets of their own. ``create_fleet`` and all other actions that change something
have WRITES.
"""
LAUNCHES = Rate(1000, 2)
TERMINATIONS = Rate(1000, 20)
_LAUNCHING = ("create_fleet", "run_instances")


class Busy(Exception):  # noqa: N818 - no error, but the answer to a caller that does not wait
    """Tokens will be available only after ``seconds``, which is longer than the caller waits."""

    def __init__(self, limit_name: str, seconds: float) -> None:
        super().__init__(
            f"EC2's limit of {limit_name} is used up; the next call can go in {brief(seconds)}"
        )
        self.seconds = seconds


class RateLimits:
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

    def take(self, operation: str, machines: int, max_wait_s: float) -> None:
        """Return when EC2 has tokens for one call about ``machines`` machines. ``operation`` is
        boto3's name of the call. Raises Busy, with nothing taken, if that would take longer than
        ``max_wait_s``.
        """
        with self._lock:
            now = self._clock()
            needs = self._needs(operation, machines)
            wait, limit_name = max(
                (bucket.wait(n, now), limit_name) for bucket, n, limit_name in needs
            )
            if wait > max_wait_s:
                raise Busy(limit_name, wait)
            for bucket, count, _ in needs:
                bucket.take(count, now)
        # Sleep without the lock. The tokens are already taken, so later callers wait longer.
        if wait > 0:
            self.sleep(wait)

    def accepted(self, operation: str) -> None:
        """Note that EC2 has accepted the call."""
        with self._lock:
            for bucket, _, _ in self._needs(operation, 1):
                bucket.accepted()

    def rejected(self, operation: str, machines: int, *, lacks_resources: bool) -> None:
        """Note that EC2 has rejected a call because of its rate. ``lacks_resources``: because the
        bucket of machines was empty.
        """
        with self._lock:
            now = self._clock()
            (requests, _, _), *machine_needs = self._needs(operation, machines)
            by_machines = bool(machine_needs) and lacks_resources
            for bucket, count, _ in machine_needs:
                # A rejected call has started or ended no machine.
                bucket.give_back(count, now)
                if by_machines:
                    bucket.rejected(now)
            if not by_machines:
                requests.rejected(now)

    def startable(self, max_wait_s: float = 0.0) -> int:
        """How many machines EC2 would start in one call now, or within ``max_wait_s``."""
        return self._within(self._launches, max_wait_s)

    def endable(self, max_wait_s: float = 0.0) -> int:
        """How many machines EC2 would end in one call now, or within ``max_wait_s``."""
        return self._within(self._terminations, max_wait_s)

    @property
    def launches(self) -> Rate:
        """EC2's limit for launches: the number of machines at once, and the number per second after
        that.
        """
        return self._launches.rate

    def _within(self, bucket: Bucket, max_wait_s: float) -> int:
        with self._lock:
            # A billionth of slack, because levels are sums of rounded products.
            return max(math.floor(bucket.usable(self._clock(), max_wait_s) + 1e-9), 0)

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
    """The paces of all accounts. Clouds of one account and region share their limits."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_paces")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[tuple[str, str | None], RateLimits] = {}

    def get(self, key: tuple[str, str | None], rate: Rate) -> RateLimits:
        """The pace of the account and region. A new one if its rate has changed."""
        with self._lock:
            pace = self._paces.get(key)
            if pace is None or pace.launches != rate:
                pace = self._paces[key] = RateLimits(rate)
            return pace


_shared = SharedPaces()


def pace_of(settings: AwsCloud) -> RateLimits | None:
    """The buckets of the account in the cloud's region. None for a service other than EC2,
    which has no limits unless the settings name them.
    """
    stated = settings.launch_burst is not None or settings.launch_rate is not None
    if settings.foreign_endpoint is not None and not stated:
        return None
    rate = Rate(
        float(settings.launch_burst or LAUNCHES.burst), settings.launch_rate or LAUNCHES.refill
    )
    # Each foreign endpoint is a service of its own, with limits of its own.
    place = f"{settings.foreign_endpoint or ''} {settings.region}"
    return _shared.get((place, settings.profile), rate)
