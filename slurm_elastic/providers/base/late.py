"""Machines that a cloud accepted and could not start later. No job can use them, and they cost as
long as they exist, so the provider's ``tidy`` ends them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

FAILURE_COUNTS_S = 300.0
"""For so long a failure counts as the answer to the next launch of the same kind."""


class LateFailures:
    """The late failures of one cloud by a key, such as an offer's key or a machine type.
    Thread-safe. ``threads``: how many failed machines are ended at a time.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_errors", "_noted_ids")}

    def __init__(
        self, cloud: str, clock: Callable[[], float] = time.monotonic, threads: int = 1
    ) -> None:
        self._cloud, self._clock, self._threads = cloud, clock, threads
        self._lock = threading.Lock()
        self._errors: dict[str, tuple[float, ProviderError]] = {}
        self._noted_ids: frozenset[str] = frozenset()

    def note(self, key: str, error: ProviderError) -> None:
        """Remember a failure."""
        with self._lock:
            self._errors[key] = self._clock() + FAILURE_COUNTS_S, error

    def take(self, key: str) -> ProviderError | None:
        """A recent failure, returned only once: afterwards the caller's cool-down takes its
        place.
        """
        with self._lock:
            counts_until, error = self._errors.pop(key, (0.0, None))
        return error if self._clock() < counts_until else None

    def tidied(
        self,
        listed: Sequence[Instance],
        failed: Mapping[str, ProviderError],
        end: Callable[[str], object],
        served: Container[str] = frozenset(),
    ) -> Sequence[Instance]:
        """The answer of ``Tidying.tidy``, for a cloud with any create call. ``failed``: the error
        of each failed machine by id, without machines of a launch under way. Each is the answer to
        one launch. The failures of machines that have ``served`` before say nothing about the next
        launch. A machine that ``end`` has ended is TERMINATED in this answer, and must be missing
        from later lists. If the cloud refuses, the machine is STOPPING and ended by the next call.
        """
        machines = [machine for machine in listed if machine.id in failed]
        for machine in self._not_noted(machines):
            if machine.id not in served:
                self.note(machine.offer_key, failed[machine.id])
        ended = end_failed(self._cloud, machines, end, failed, self._threads)
        unended = {machine.id for machine in machines} - ended.keys()
        stopping = dict.fromkeys(unended, InstanceState.STOPPING)
        states = dict.fromkeys(ended, InstanceState.TERMINATED) | stopping
        return tuple(replace(m, state=states.get(m.id, m.state)) for m in listed)

    def _not_noted(self, machines: Sequence[Instance]) -> list[Instance]:
        """Those of all failed machines that the last call did not have."""
        # A cloud may refuse for months to end a machine, because of a lock or a missing right.
        # Its failure would be the answer to every launch in that time.
        with self._lock:
            noted_ids = self._noted_ids
            self._noted_ids = frozenset(machine.id for machine in machines)
        return [machine for machine in machines if machine.id not in noted_ids]


def end_failed(
    cloud: str,
    machines: Sequence[Instance],
    end: Callable[[str], object],
    reasons: Mapping[str, object],
    threads: int = 1,
) -> dict[str, Instance]:
    """End failed machines, each by a call of its own, at most ``threads`` at a time. Returns the
    ended machines by id; a refusal is logged, and keeps no other machine.
    """

    def is_ended(machine: Instance) -> bool:
        log.warning(
            "machine failed after its launch; ending it cloud=%s id=%s node=%s reason=%s",
            cloud, machine.id, machine.node, reasons.get(machine.id, "unknown"),
        )  # fmt: skip
        try:
            end(machine.id)
        except ProviderError as error:
            log.warning("machine not ended, tried again later cloud=%s error=%s", cloud, error)
            return False
        return True

    # The cloud's other calls wait for this, and hundreds of spot machines may fail at once.
    results = each(machines, is_ended, threads)
    return {m.id: m for m, result in zip(machines, results, strict=True) if result.result()}
