"""Filters the machines at a place for those of one cloud, and remembers their ids."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership
from slurm_elastic.providers.base.tags import CLOUD

log = logging.getLogger(__name__)

Machine = TypeVar("Machine")
KEPT_S = 3600.0
"""For so long an id stays ours after it was last listed."""


class Ours:
    """``ids`` were once listed with our tags, or returned by our launches. ``unclear``: ids of
    machines that could belong to any of several clouds. ``key``: the key of the tag that names the
    cloud. Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_seen_at", "_pruned_at", "_unclear_at")}

    def __init__(
        self,
        cloud: str,
        ownership: Ownership,
        key: str = CLOUD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seen_at: dict[str, float] = {}
        self._unclear_at: dict[str, float] = {}
        self._cloud = cloud
        self._ownership = ownership
        self._key = key
        self._lock = threading.Lock()
        self._clock = clock
        self._pruned_at = clock()

    @property
    def ids(self) -> set[str]:
        """The ids of our machines."""
        with self._lock:
            return set(self._seen_at)

    @property
    def unclear(self) -> set[str]:
        """The ids of machines that may belong to another cloud of this cluster."""
        with self._lock:
            return set(self._unclear_at)

    def remember(self, ids: Iterable[str]) -> None:
        """Note ids from a listing or a launch. An id that was not listed for KEPT_S is forgotten; a
        later question about it causes a new listing.
        """
        now = self._clock()
        with self._lock:
            self._seen_at.update(dict.fromkeys(ids, now))
            if now - self._pruned_at >= KEPT_S:
                self._pruned_at = now
                self._seen_at = _recent(self._seen_at, now)
                self._unclear_at = _recent(self._unclear_at, now)

    def has(self, marks: Mapping[str, str]) -> bool:
        """Whether these tags belong to a machine of this cloud."""
        return self._ownership.owner(marks) == self._cloud

    def among(
        self,
        machines: Iterable[Machine],
        tags_of: Callable[[Machine], Mapping[str, str]],
        id_of: Callable[[Machine], str],
    ) -> list[Machine]:
        """The machines of this cloud. A machine that only may be this cloud's is reported once,
        because no cloud lists it and it costs money.
        """
        owned = [(self._ownership.owner(tags_of(machine)), machine) for machine in machines]
        unclear = frozenset(id_of(machine) for owner, machine in owned if owner == AMBIGUOUS)
        with self._lock:
            # Compared under the lock, so that two threads do not both report the same machine.
            new_ids = unclear - self._unclear_at.keys()
            self._unclear_at |= dict.fromkeys(unclear, self._clock())
        if new_ids:
            log.error(
                "machines left alone, any of these clouds may have started them: tag them %s=NAME "
                "or end them clouds=%s ids=%s",
                self._key, ",".join(sorted(self._ownership.clouds)), ",".join(sorted(new_ids)),
            )  # fmt: skip
        return [machine for owner, machine in owned if owner == self._cloud]

    def split(self, ids: Sequence[str], learn: Callable[[], object]) -> tuple[list[str], list[str]]:
        """Our own ids among ``ids``, and the others. If an id is not known yet, ``learn`` must list
        all machines first.
        """
        requested = list(dict.fromkeys(ids))
        # A restarted process knows no id yet. An id that no listing has shown with our tags is
        # never ended: the machine may not be ours.
        if not self.ids.issuperset(requested):
            learn()
        own_ids = self.ids
        return [i for i in requested if i in own_ids], [i for i in requested if i not in own_ids]


def _recent(seen_at: Mapping[str, float], now: float) -> dict[str, float]:
    return {id_: time_s for id_, time_s in seen_at.items() if now - time_s < KEPT_S}
