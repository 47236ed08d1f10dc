"""Copies of the resource manager's token buckets, so that calls wait for a token instead of being
rejected.

"Understand how Azure Resource Manager throttles requests": a subscription in a region has a bucket
each of reads, writes and deletes. All clouds of this process that use the subscription there share
one ``ArmRates``. Other programs use the subscription too, so a rejection empties our copy
(``base.token_bucket``), for as long as the answer says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from slurm_elastic.base.errors import TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.statuses import THROTTLED
from slurm_elastic.providers.base.token_bucket import Bucket, Rate

READS, WRITES, DELETES = "reads", "writes", "deletes"
RATES = {READS: Rate(250, 25), WRITES: Rate(200, 10), DELETES: Rate(200, 10)}
_MAX_PAUSE_S = 300.0
"""Longer pauses are not believed: a wrong header must not stop a cloud."""


def kind_of(method: str) -> str:
    """The bucket of an HTTP method. A POST is an action, which counts as a write."""
    return {"GET": READS, "DELETE": DELETES}.get(method, WRITES)


class ArmRates:
    """The buckets of one subscription in a region. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {
        # The clock is read under the lock, because the time of a bucket must never go back.
        "_lock": Guarded("_buckets", "_clock"),
    }

    def __init__(
        self,
        rates: Mapping[str, Rate] = RATES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        now = clock()
        self._buckets = {kind: Bucket(rate, now) for kind, rate in rates.items()}

    def take(self, cloud: str, method: str, max_wait_s: float) -> None:
        """Return when the bucket has a token for a call. TransientError, with nothing taken, if
        that would take longer than ``max_wait_s``.
        """
        kind = kind_of(method)
        with self._lock:
            now = self._clock()
            bucket = self._buckets[kind]
            wait_s = bucket.wait(1.0, now)
            if wait_s <= max_wait_s:
                bucket.take(1.0, now)
        if wait_s > max_wait_s:
            text = f"the subscription's {kind} are used up; the next one can go in {brief(wait_s)}"
            raise TransientError(cloud, THROTTLED, text)
        # Sleep without the lock. The token is already taken, so later callers wait longer.
        if wait_s > 0:
            self._sleep(wait_s)

    def accepted(self, method: str) -> None:
        """Note that Azure had a token."""
        with self._lock:
            self._buckets[kind_of(method)].accepted()

    def rejected(self, method: str, pause_s: float) -> None:
        """Note that Azure had no token, and wants no call for ``pause_s``."""
        with self._lock:
            now = self._clock()
            bucket = self._buckets[kind_of(method)]
            bucket.rejected(now)
            debt = min(pause_s, _MAX_PAUSE_S) * bucket.refill
            bucket.take(max(debt + bucket.level(now), 0.0), now)


class _SharedRates:
    """The rates of all subscriptions in use. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_rates")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: dict[tuple[str, str], ArmRates] = {}

    def get(self, place: tuple[str, str]) -> ArmRates:
        with self._lock:
            return self._rates.setdefault(place, ArmRates())


_shared = _SharedRates()


def rates_of(settings: AzureCloud) -> ArmRates | None:
    """The buckets of the cloud's subscription. None for a foreign endpoint, because its rates
    are unknown.
    """
    if not settings.is_of_microsoft:
        return None
    return _shared.get((settings.subscription.lower(), settings.region))
