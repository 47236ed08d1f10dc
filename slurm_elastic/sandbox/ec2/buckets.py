"""The rate limits of EC2's API, according to its developer guide. The emulated EC2 enforces them.

This code shares nothing with the client's own limiter (providers/aws/rate_limit), because it tests
that limiter. A bucket gets its tokens once per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_elastic.sandbox.ec2.api import Ec2Call
from slurm_elastic.sandbox.ec2.faults import Ec2Error

_REQUESTS = {
    "CreateLaunchTemplateVersion": (100, 5),
    "CreateTags": (100, 10),
    "RunInstances": (5, 2),
    "TerminateInstances": (100, 5),
}
_DESCRIBE, _OTHER = (100, 20), (50, 5)
_MACHINES = {
    "CreateFleet": ("started", 1000, 2),
    "RunInstances": ("started", 1000, 2),
    "TerminateInstances": ("ended", 1000, 20),
}


class Buckets:
    """All buckets of the account, off until ``begin``. A test can advance their time. If it
    is ``frozen``, the time advances only in that way, so that minutes pass in a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.on = False
        self.rejected = 0

    def begin(self, *, frozen: bool) -> None:
        """Enforce the limits from now on. All buckets are full."""
        self.on, self.rejected, self._ahead = True, 0, 0.0
        self._began = None if frozen else self._clock()
        self._buckets: dict[str, tuple[float, int]] = {}

    def advance(self, seconds: float) -> None:
        """Advance the time of the buckets."""
        self._ahead += seconds

    def refuse(self, call: Ec2Call) -> Ec2Error | None:
        """Return EC2's error if a bucket lacks tokens for the call, or None and take the tokens."""
        if not self.on:
            return None
        default = _DESCRIBE if call.action.startswith("Describe") else _OTHER
        demands = [(call.action, 1, *_REQUESTS.get(call.action, default), "request rate")]
        if call.action in _MACHINES:
            name, burst, refill = _MACHINES[call.action]
            demands.append((name, _machines(call), burst, refill, "resource rate"))
        # Check all buckets before any token is taken: a rejected call takes none.
        for name, count, burst, refill, limit_name in demands:
            if self._level(name, burst, refill) < count:
                self.rejected += 1
                text = f"Request limit exceeded: {call.action} exceeded its {limit_name} limit."
                return Ec2Error("RequestLimitExceeded", 503, text)
        for name, count, *_ in demands:
            level, second = self._buckets[name]
            self._buckets[name] = level - count, second
        return None

    def _level(self, name: str, burst: int, refill: int) -> float:
        # All tokens of a second arrive at once ("How throttling is applied"), not one by one.
        second = int(self._ahead + (0.0 if self._began is None else self._clock() - self._began))
        level, since = self._buckets.get(name, (burst, second))
        level = min(level + (second - since) * refill, burst)
        self._buckets[name] = level, second
        return level


def _machines(call: Ec2Call) -> int:
    if call.action == "RunInstances":
        return int(call.params.get("MaxCount", 1))
    if call.action == "CreateFleet":
        return int(call.params.get("TargetCapacitySpecification.TotalTargetCapacity", 1))
    return len(call.listed("InstanceId"))
