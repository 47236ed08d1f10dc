"""The limits of EC2's API, as its developer guide publishes them, enforced by the emulated one.

Written apart from the client's idea of them (providers/aws/rate_limit), which it is to test: here a
bucket gets its tokens once every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_elastic.sandbox.ec2_api import Call
from slurm_elastic.sandbox.ec2_faults import Ec2Error

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
    """All buckets of the account; off until ``begin``. Its time can be set ahead, or stand still
    but for that (``frozen``), so that minutes can be tried out in a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.on = False
        self.rejected = 0

    def begin(self, *, frozen: bool) -> None:
        """Enforce the limits from now on, all buckets full."""
        self.on, self.rejected, self._ahead = True, 0, 0.0
        self._began = None if frozen else self._clock()
        self._buckets: dict[str, tuple[float, int]] = {}

    def advance(self, seconds: float) -> None:
        """Have so much more time gone by."""
        self._ahead += seconds

    def refuse(self, call: Call) -> Ec2Error | None:
        """The rejection of a call that finds no token, in EC2's words."""
        if not self.on:
            return None
        default = _DESCRIBE if call.action.startswith("Describe") else _OTHER
        wanted = [(call.action, 1, *_REQUESTS.get(call.action, default), "request rate")]
        if call.action in _MACHINES:
            name, burst, refill = _MACHINES[call.action]
            wanted.append((name, _machines(call), burst, refill, "resource rate"))
        for name, count, burst, refill, what in wanted:
            if self._level(name, burst, refill) < count:
                self.rejected += 1
                text = f"Request limit exceeded: {call.action} exceeded its {what} limit."
                return Ec2Error("RequestLimitExceeded", 503, text)
        for name, count, *_ in wanted:
            level, second = self._buckets[name]
            self._buckets[name] = level - count, second
        return None

    def _level(self, name: str, burst: int, refill: int) -> float:
        # All tokens of a second at once, as "How throttling is applied" says, not by and by.
        second = int(self._ahead + (0.0 if self._began is None else self._clock() - self._began))
        level, since = self._buckets.get(name, (burst, second))
        level = min(level + (second - since) * refill, burst)
        self._buckets[name] = level, second
        return level


def _machines(call: Call) -> int:
    if call.action == "RunInstances":
        return int(call.params.get("MaxCount", 1))
    if call.action == "CreateFleet":
        return int(call.params.get("TargetCapacitySpecification.TotalTargetCapacity", 1))
    return len(call.listed("InstanceId"))
