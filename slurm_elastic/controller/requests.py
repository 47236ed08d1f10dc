"""The requests of slurmctld's programs that wait in the spool: for which clouds, and until when.

A request only says which nodes to look at now, and which jobs wait for them: what is done is
decided by the round of their cloud (``reconcile``), from what there is. It leaves the spool once
the round of each of its clouds has acted on it; what is left undone, a later round repairs.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import EndOnlyError, NotLearntError, SlurmElasticError, SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.slurm import Request
from slurm_elastic.state.spool import Spool

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Attempts at a request whose work fails in a way that will not pass by itself."""
PASSING = (SlurmError, sqlite3.Error, NotLearntError, EndOnlyError)
"""Slurm, the ledger or the cloud's list cannot be reached: that passes, the request stays."""
PAUSES = Backoff(1.0, 30.0)
"""Seconds before a request whose work failed is tried again."""
TURN = 5.0
"""Seconds after which nodes that wait for their turn to boot are looked at again."""


class _Part(Struct):
    """One cloud's part of a request: how often its work failed, and when (monotonic) to go on.
    ``waits``: nodes of it wait for their turn to boot, and it was told of the others.
    """

    request: Request
    times: int = 0
    waits: bool = False
    counted: int = 0
    again: float = float("-inf")


class Requests:
    """Filled by the daemon's thread, served by those of the clouds."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_parts", "_served")}

    def __init__(self, site: Site, spool: Spool) -> None:
        self._site, self._spool = site, spool
        self._lock = threading.Lock()
        self._parts: dict[str, list[_Part]] = {cloud: [] for cloud in site.providers}
        self._served: set[str] = set()
        self._closed = False

    def take_in(self) -> None:
        """The requests that are new in the spool."""
        with self._lock:
            known = {part.request.id for parts in self._parts.values() for part in parts}
            served = self._served.copy()
        for key in served:
            self._remove(key)
        for request in self._spool.pending(known | served):
            self._take_in(request)

    def _take_in(self, request: Request) -> None:
        site = self._site
        clouds = {site.pool_of[n].cloud for n in request.nodes if n in site.pool_of}
        strange = [n for n in request.nodes if n not in site.pool_of]
        log.info(
            "%s request=%s nodes=%s jobs=%s note=%s",
            request.kind, request.id, compress(request.nodes), sorted(request.jobs), request.note,
        )  # fmt: skip
        if strange:
            log.error("nodes of no pool request=%s nodes=%s", request.id, compress(strange))
            site.record(request.id, "dropped", strange, "the configuration has no pool with it")
        if not clouds:
            self._remove(request.id)
            return
        if request.kind == "suspend":
            site.suspends[request.id] = request
        with self._lock:
            for cloud in clouds:
                self._parts[cloud].append(_Part(request))

    def serve(self, cloud: str, act: Callable[[Request, bool], bool]) -> None:
        """Those that are due by now, each once, the oldest first: what comes due meanwhile stands
        behind whatever else the cloud's worker has to do. ``act`` says whether nodes of one wait
        for their turn; it is told whether they do already.
        """
        for part in self.due(cloud):
            if self._closed:
                return
            try:
                waits = act(part.request, part.waits)
            except Exception as error:  # noqa: BLE001 - one must not stand in the others' way
                self._failed(cloud, part, error)
            else:
                if waits:
                    part.times, part.counted, part.waits = 0, 0, True
                    part.again = self._site.monotonic() + TURN
                else:
                    self._finish(cloud, part)

    def due(self, cloud: str) -> Sequence[_Part]:
        """Those that the cloud's round is to serve now."""
        clock = self._site.monotonic()
        with self._lock:
            return [part for part in self._parts[cloud] if part.again <= clock]

    def close(self) -> None:
        """No other one is begun: the spool keeps them for the next start."""
        self._closed = True

    def _failed(self, cloud: str, part: _Part, error: Exception) -> None:
        """It stays and is tried again after a while: as long as Slurm or the ledger cannot be
        reached, else a few times.
        """
        key = part.request.id
        known = isinstance(error, SlurmElasticError | sqlite3.Error)
        log.error("request fails id=%s error=%s", key, error, exc_info=None if known else error)
        part.times += 1
        part.counted += not isinstance(error, PASSING)
        part.again = self._site.monotonic() + PAUSES.after(part.times)
        if part.counted >= MAX_ATTEMPTS:
            log.error("request given up id=%s; reconcile goes on with its nodes", key)
            self._finish(cloud, part)

    def _finish(self, cloud: str, part: _Part) -> None:
        key = part.request.id
        with self._lock:
            others = [p for name, parts in self._parts.items() if name != cloud for p in parts]
            # All in one step: `take_in` must not find it in neither place, and begin it again.
            is_last = all(other.request.id != key for other in others)
            if is_last:
                self._served.add(key)
            self._parts[cloud].remove(part)
        if is_last:
            self._site.suspends.pop(key)
            self._remove(key)

    def _remove(self, key: str) -> None:
        """A request that was carried out is not done again because its file cannot be removed."""
        stays = False
        try:
            self._spool.remove(key)
        except OSError as error:
            stays = True
            log.debug("request stays in the spool id=%s error=%s", key, error)
        with self._lock:
            (self._served.add if stays else self._served.discard)(key)
