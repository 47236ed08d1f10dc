"""The servers of this cluster in one project: listed completely, filtered, deleted by id."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from slurm_elastic.base.errors import (
    InstanceNotFound,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import EndAnswer
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.openstack import convert
from slurm_elastic.providers.openstack.catalog import Call
from slurm_elastic.providers.openstack.convert import Record, ServerFields
from slurm_elastic.providers.openstack.errors import from_fault, translated
from slurm_elastic.providers.openstack.pages import Page, has_next, marker_pages

log = logging.getLogger(__name__)

PAGE = 1000
"""nova's own limit for one answer, unless the site has configured a lower one."""

GONE = ("DELETED", "SOFT_DELETED")
"""An administrator can restore a SOFT_DELETED server, but it no longer runs."""

OFF = ("SHUTOFF", "powering-off")
CONFLICT = "Conflict"
"""The code of a call that the server's state does not allow."""

DELETION_COUNTS_S = 120.0
"""A deletion that nova has accepted counts for so long, although nova does not show it."""


class Servers:
    """Lists, deletes, stops and starts servers. Thread-safe. ``ours``: the ids that were ever
    listed with our metadata.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_deleted_at")}

    def __init__(self, name: str, ownership: Ownership, call: Call, threads: int) -> None:
        self.name = name
        self.ours = Ours(name, ownership)
        self._call = call
        self._threads = threads
        self._lock = threading.Lock()
        self._deleted_at: dict[str, float] = {}

    def live(self, mark: str = "") -> list[ServerFields]:
        """Our servers that exist; with ``mark`` only those with that mark in their names.

        TransientError if the listing lacks a cell, because an incomplete listing would make live
        servers look lost.
        """
        # All servers are read: nova cannot filter by metadata, nor by tag while a server is being
        # scheduled.
        present = [s for s in self._read(self._pages(mark)) if s.status not in GONE]
        self.ours.remember(s.id for s in present)
        # While a server boots, nova may not show for a while that it will be deleted.
        now = time.monotonic()
        with self._lock:
            self._deleted_at = {
                i: deleted_at
                for i, deleted_at in self._deleted_at.items()
                if now < deleted_at + DELETION_COUNTS_S
            }
            leaving = frozenset(self._deleted_at)
        return [replace(s, task=convert.DELETING) if s.id in leaving else s for s in present]

    def ended(self, mark: str, since: float) -> list[ServerFields]:
        """The ended servers of a launch since ``since`` (Unix time)."""
        stamp = dt.datetime.fromtimestamp(since, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        records = self._pages(mark, **{"changes-since": stamp})
        # nova forgets the metadata of a deleted server but keeps its name.
        ended_records = [{**r, "metadata": {}} for r in records if r.get("status") in GONE]
        with translated(self.name):
            return [s for s in convert.servers(ended_records) if mark in s.name]

    def delete(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete all of them, then raise the first error; errors whose call must be repeated come
        first.

        Callers pass only ids of servers that were listed with our metadata.
        """
        return self._answer_each(ids, self._delete)

    def look_up(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Whether nova has these servers, whose metadata is not ours."""
        return self._answer_each(ids, self._look_up)

    def _answer_each(
        self, ids: Sequence[str], answer: Callable[[str], EndAnswer]
    ) -> Mapping[str, EndAnswer]:
        results = each(list(ids), answer, self._threads)
        raise_first_error(failures(results))
        return {server: result.result() for server, result in zip(ids, results, strict=True)}

    def _look_up(self, server: str) -> EndAnswer:
        try:
            record = self._call("compute", "GET", f"/servers/{quote(server)}")["server"]
        except InstanceNotFound:
            return EndAnswer.GONE
        with translated(self.name):
            return EndAnswer.GONE if record["status"] in GONE else EndAnswer.NOT_OURS

    def stop(self, ids: Sequence[str]) -> None:
        """Stop each server (os-stop): its guest shuts down. nova reports a conflict if the server
        is off or shutting down already, which is no error here.
        """
        for server in ids:
            try:
                self._act(server, "os-stop")
            except TransientError:
                if not self._has_state(server, *OFF):
                    raise

    def start(self, server: str) -> None:
        """Start a stopped server (os-start). A conflict is no error if it runs already.
        UnsettledError while it is still stopping.
        """
        try:
            self._act(server, "os-start")
        except TransientError as error:
            if error.code != CONFLICT:
                raise
            if self._has_state(server, "ACTIVE", "powering-on") and not self._has_state(
                server, "powering-off"
            ):
                return
            raise UnsettledError(self.name, error.code, error.message) from error

    def _act(self, server: str, verb: str) -> None:
        self._call("compute", "POST", f"/servers/{quote(server)}/action", {verb: None})

    def _has_state(self, server: str, *states: str) -> bool:
        """Whether the server's status, or its current task in nova, is among ``states``."""
        record = self._call("compute", "GET", f"/servers/{quote(server)}")["server"]
        with translated(self.name):
            return not {str(record["status"]), record.get("OS-EXT-STS:task_state")}.isdisjoint(
                states
            )

    def fault(self, server: str) -> ProviderError:
        """Why the server's start failed. nova reports this only in the answer about a single
        server.
        """
        try:
            record = self._call("compute", "GET", f"/servers/{quote(server)}")["server"]
            with translated(self.name):
                return from_fault(self.name, str((record.get("fault") or {}).get("message") or ""))
        except ProviderError as error:
            log.info("fault cannot be read cloud=%s id=%s error=%s", self.name, server, error)
            return from_fault(self.name, "the start failed")

    def _delete(self, server: str) -> EndAnswer:
        answer = EndAnswer.ENDED
        try:
            self._call("compute", "DELETE", f"/servers/{quote(server)}")
        except InstanceNotFound:
            answer = EndAnswer.GONE
            log.info("already gone cloud=%s id=%s", self.name, server)
        with self._lock:
            # Also for a server that was not found: a lagging listing may still show it.
            self._deleted_at[server] = time.monotonic()
        return answer

    def _pages(self, mark: str, **filters: str) -> Iterator[Record]:
        """The servers of all pages, until a page has no link to the next one. nova may use smaller
        pages.
        """
        query = {"limit": str(PAGE), **filters} | ({"name": mark} if mark else {})

        def read(marker: str) -> Page:
            page_query = query | ({"marker": marker} if marker else {})
            answer: Any = self._call("compute", "GET", f"/servers/detail?{urlencode(page_query)}")
            with translated(self.name):
                return answer["servers"], has_next(answer, "servers_links")

        return marker_pages(self.name, read)

    def _read(self, records: Iterator[Record]) -> list[ServerFields]:
        """The servers that belong to this cloud by their metadata."""
        all_records = list(records)
        cut_ids = [r["id"] for r in all_records if not convert.is_complete(r)]
        if cut_ids:
            text = f"nova cannot read all of its cells: {len(cut_ids)} servers lack their metadata"
            raise TransientError(self.name, "CellDown", text)
        with translated(self.name):
            parsed = convert.servers(all_records)
        return self.ours.among(parsed, lambda s: s.tags, lambda s: s.id)
