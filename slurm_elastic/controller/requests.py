"""The requests of slurmctld's programs that wait in the spool, split by cloud, with their retries.

A request only names nodes and the jobs that wait for them. The round of the nodes' cloud
(``reconcile``) decides from the present state which action each node needs. A request leaves the
spool after the rounds of all its clouds have acted on it. Later rounds repair the rest.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import (
    EndOnlyError,
    NotLearntError,
    OtherHeadError,
    SlurmElasticError,
    SlurmError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes.repairs import NotConfigured
from slurm_elastic.model.slurm import Request
from slurm_elastic.state.spool import Spool
from slurm_elastic.state.store.trouble import passes

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Attempts at a request whose errors do not pass by themselves."""
PASSING_ERRORS = (SlurmError, sqlite3.Error, NotLearntError, EndOnlyError, OtherHeadError)
"""Errors that pass without a change of the request: Slurm, the ledger or the cloud's list cannot be
reached, or a person must say which head continues. The request stays in the spool, however often it
fails.
"""
RETRY_PAUSES = Backoff(1.0, 30.0)
"""Seconds before a failed request is retried."""
RETRY_WAITING_S = 5.0
"""Seconds before a request is served again if some of its nodes wait for their turn to boot."""


class _CloudPart(Struct):
    """The nodes of a request that belong to one cloud. ``retry_at``: when to serve it (monotonic
    s). ``attempts``: failed attempts in a row. ``permanent_failures``: failed attempts whose error
    does not pass by itself. ``waits_for_turn``: some nodes wait for their turn to boot, and the
    decisions about the other nodes are recorded.
    """

    request: Request
    attempts: int = 0
    waits_for_turn: bool = False
    permanent_failures: int = 0
    retry_at: float = float("-inf")


class Requests:
    """The waiting requests. The daemon's thread adds them, and the clouds' threads serve them."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_parts", "_served")}

    def __init__(self, site: Site, spool: Spool) -> None:
        self._site, self._spool = site, spool
        self._lock = threading.Lock()
        self._parts: dict[str, list[_CloudPart]] = {cloud: [] for cloud in site.providers}
        self._served: set[str] = set()
        self._closed = False

    def take_in(self) -> None:
        """Take new requests in from the spool."""
        with self._lock:
            known_ids = {
                cloud_part.request.id
                for cloud_parts in self._parts.values()
                for cloud_part in cloud_parts
            }
            # A copy, because ``_remove`` changes the set and takes the lock itself.
            served = self._served.copy()
        # Requests whose file could not be removed the last time. Else they would be served again.
        for key in served:
            self._remove(key)
        for request in self._spool.pending(known_ids | served):
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
            site.record(request.id, "dropped", strange, NotConfigured())
        if not clouds:
            self._remove(request.id)
            return
        # Before the request is queued: the rounds that serve it look there for its nodes.
        if request.kind == "suspend":
            site.suspends[request.id] = request
        with self._lock:
            # One part for each cloud, so that a cloud that hangs does not delay the nodes of the
            # others.
            for cloud in clouds:
                self._parts[cloud].append(_CloudPart(request))

    def serve(self, cloud: str, act: Callable[[Request, bool], bool]) -> None:
        """Serve each request due at this moment once, oldest first. Requests that become due later
        wait for the next call, so that the worker's other tasks get their turn.

        ``act(request, is_retry)`` returns whether some nodes of the request wait for their turn to
        boot. ``is_retry``: some nodes waited for their turn at the last call.
        """
        for cloud_part in self.due(cloud):
            if self._closed:
                return
            try:
                is_waiting = act(cloud_part.request, cloud_part.waits_for_turn)
            except Exception as error:  # noqa: BLE001 - one must not stand in the others' way
                self._failed(cloud, cloud_part, error)
            else:
                # Waiting for a turn is no failure, so the counts of failures begin again.
                if is_waiting:
                    (
                        cloud_part.attempts,
                        cloud_part.permanent_failures,
                        cloud_part.waits_for_turn,
                    ) = 0, 0, True
                    cloud_part.retry_at = self._site.monotonic() + RETRY_WAITING_S
                else:
                    self._finish(cloud, cloud_part)

    def due(self, cloud: str) -> Sequence[_CloudPart]:
        """The requests that the cloud's worker must serve now, oldest first."""
        clock = self._site.monotonic()
        with self._lock:
            return [cloud_part for cloud_part in self._parts[cloud] if cloud_part.retry_at <= clock]

    def close(self) -> None:
        """Begin no further request. The spool keeps them for the next start."""
        self._closed = True

    def _failed(self, cloud: str, cloud_part: _CloudPart, error: Exception) -> None:
        """Schedule a retry, or drop the request after MAX_ATTEMPTS errors that do not pass by
        themselves. Errors in PASSING_ERRORS are retried without a limit, and so are errors of the
        state directory, which may be on a server that is away for a while.
        """
        key = cloud_part.request.id
        is_of_disk = isinstance(error, OSError) and passes(error)
        is_expected = is_of_disk or isinstance(error, SlurmElasticError | sqlite3.Error)
        log.error(
            "request fails id=%s error=%s", key, error, exc_info=None if is_expected else error
        )
        cloud_part.attempts += 1
        cloud_part.permanent_failures += not (is_of_disk or isinstance(error, PASSING_ERRORS))
        cloud_part.retry_at = self._site.monotonic() + RETRY_PAUSES.after(cloud_part.attempts)
        if cloud_part.permanent_failures >= MAX_ATTEMPTS:
            log.error("request given up id=%s; reconcile takes care of its nodes", key)
            self._finish(cloud, cloud_part)

    def _finish(self, cloud: str, cloud_part: _CloudPart) -> None:
        key = cloud_part.request.id
        with self._lock:
            other_parts = [
                p for name, cloud_parts in self._parts.items() if name != cloud for p in cloud_parts
            ]
            # Both changes under one lock: if `take_in` ran between them, it would find the request
            # neither served nor waiting, and would begin it again from the spool.
            is_last = all(other.request.id != key for other in other_parts)
            if is_last:
                self._served.add(key)
            self._parts[cloud].remove(cloud_part)
        if is_last:
            self._site.suspends.pop(key)
            self._remove(key)

    def _remove(self, key: str) -> None:
        """Remove the request from the spool. If its file cannot be removed, remember that it was
        carried out, so that it is not served again.
        """
        stays = False
        try:
            self._spool.remove(key)
        except OSError as error:
            stays = True
            log.debug("request stays in the spool id=%s error=%s", key, error)
        with self._lock:
            (self._served.add if stays else self._served.discard)(key)
