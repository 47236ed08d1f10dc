"""How long hosts have been in a state, by the claims on them (``claims``).

A claim records Unix time, which the head's clock may change by hours, so ages come from monotonic
time. After a restart an age that exceeds its bound is unknown: it counts from zero again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.since import SinceMemory


class HostTimes:
    """The times of the hosts of one cloud. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_standing_since")}

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._recorded = SinceMemory[tuple[str, str]]()
        self._lock = threading.Lock()
        self._standing_since: dict[str, tuple[str, float]] = {}

    def age_s(self, host: str, event: str, recorded_at: float, bound_s: float) -> float:
        """The seconds since an event that was recorded at a Unix time. ``bound_s``: the wait that
        the event begins; an age beyond it is no longer known after a restart.
        """
        monotonic_s = self._monotonic()
        since = self._recorded.since(
            (host, event), recorded_at, now=self._clock(), monotonic_s=monotonic_s,
            bound_s=bound_s, if_unknown_s=0.0,
        )  # fmt: skip
        return since.age_s(monotonic_s, if_unknown=0.0)

    def standing_s(self, host: str, state: str) -> float:
        """For how long each look has found the host in this state; "" is no state, and 0.0."""
        now = self._monotonic()
        with self._lock:
            before, since = self._standing_since.get(host, ("", now))
            since = since if before == state else now
            self._standing_since[host] = state, since
        return now - since if state else 0.0

    def set_state(self, host: str, state: str) -> None:
        """Give the host's state another name, and continue to count."""
        with self._lock:
            before, since = self._standing_since.get(host, ("", 0.0))
            if before:
                self._standing_since[host] = state, since

    def forget_unless(self, hosts: Container[str]) -> None:
        """Forget all hosts except these ``hosts``."""
        self._recorded.forget_unless(lambda key: key[0] in hosts)
        with self._lock:
            kept = {h: times for h, times in self._standing_since.items() if h in hosts}
            self._standing_since = kept
