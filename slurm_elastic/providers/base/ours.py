"""Which of all machines at a place are one cloud's, and which ids are known to be so."""

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
"""Seconds for which an id is ours that nothing tells any more."""


class Ours:
    """``ids`` were once seen with our tags, or told by a launch of ours; ``unclear`` are those of
    machines that might be any of several clouds'. ``key``: how the tag of the cloud is spelled.
    Thread-safe.
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
        """The ids that are ours."""
        with self._lock:
            return set(self._seen_at)

    @property
    def unclear(self) -> set[str]:
        """The ids of machines that may be another cloud's."""
        with self._lock:
            return set(self._unclear_at)

    def remember(self, ids: Iterable[str]) -> None:
        """Note the ids of a list or a launch. An id that no list has shown for KEPT_S is forgotten,
        and a question about it makes a new list.
        """
        now = self._clock()
        with self._lock:
            self._seen_at.update(dict.fromkeys(ids, now))
            if now - self._pruned_at >= KEPT_S:
                self._pruned_at = now
                self._seen_at = _recent(self._seen_at, now)
                self._unclear_at = _recent(self._unclear_at, now)

    def has(self, marks: Mapping[str, str]) -> bool:
        """Whether these tags say that what bears them is this cloud's."""
        return self._ownership.owner(marks) == self._cloud

    def among(
        self,
        found: Iterable[Machine],
        marks: Callable[[Machine], Mapping[str, str]],
        number: Callable[[Machine], str],
    ) -> list[Machine]:
        """Those that are this cloud's. One that may be is told of once: nobody lists it, and it
        costs money.
        """
        owned = [(self._ownership.owner(marks(one)), one) for one in found]
        unclear = frozenset(number(one) for whose, one in owned if whose == AMBIGUOUS)
        with self._lock:
            new = unclear - self._unclear_at.keys()
            self._unclear_at |= dict.fromkeys(unclear, self._clock())
        if new:
            log.error(
                "machines left alone, any of these clouds may have started them: tag them %s=NAME "
                "or end them clouds=%s ids=%s",
                self._key, ",".join(sorted(self._ownership.clouds)), ",".join(sorted(new)),
            )  # fmt: skip
        return [one for whose, one in owned if whose == self._cloud]

    def named(
        self, ids: Sequence[str], learn: Callable[[], object], done: str = "terminated"
    ) -> list[str]:
        """Those of ``ids`` that are ours; where one is not known, ``learn`` lists all anew."""
        wanted = list(dict.fromkeys(ids))
        if not self.ids.issuperset(wanted):
            learn()
        ours = self.ids
        for one in wanted:
            if one not in ours:
                log.warning("not %s, gone or not ours cloud=%s id=%s", done, self._cloud, one)
        return [one for one in wanted if one in ours]


def _recent(seen_at: Mapping[str, float], now: float) -> dict[str, float]:
    return {id_: time_s for id_, time_s in seen_at.items() if now - time_s < KEPT_S}
