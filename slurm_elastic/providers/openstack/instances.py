"""The servers of this cluster in one project: listed whole, told apart, deleted by id."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Iterator, Sequence
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
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.openstack import convert
from slurm_elastic.providers.openstack.catalog import Call
from slurm_elastic.providers.openstack.convert import Record, ServerFields
from slurm_elastic.providers.openstack.errors import from_fault, translated

log = logging.getLogger(__name__)

PAGE = 1000
"""nova's own bound for one answer, unless the site has set a lower one."""

GONE = ("DELETED", "SOFT_DELETED")
"""The second may come back for an administrator, and runs no more."""

OFF = ("SHUTOFF", "powering-off")
CONFLICT = "Conflict"
"""The code of a call that the server's state is not for."""

BELIEVED = 120.0
"""Seconds for which a deletion that nova has taken counts although nova does not show it."""


class Servers:
    """Thread-safe. ``ours`` are the ids that were ever seen with our metadata."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_taken")}

    def __init__(self, name: str, ownership: Ownership, call: Call, threads: int) -> None:
        self.name = name
        self.ours = Ours(name, ownership)
        self._call = call
        self._threads = threads
        self._lock = threading.Lock()
        self._taken: dict[str, float] = {}

    def live(self, mark: str = "") -> list[ServerFields]:
        """Ours that are there, of the launch with that mark in their names.

        A list that lacks a cell raises TransientError: it is not the truth.
        """
        # As a whole: nova filters neither by metadata nor, while a server is being scheduled, by
        # tag.
        found = [s for s in self._read(self._records(mark)) if s.status not in GONE]
        self.ours.remember(s.id for s in found)
        # A boot under way may hide for a while that the machine is going to be deleted.
        now = time.monotonic()
        with self._lock:
            self._taken = {i: since for i, since in self._taken.items() if now < since + BELIEVED}
            leaving = frozenset(self._taken)
        return [replace(s, task=convert.DELETING) if s.id in leaving else s for s in found]

    def ended(self, mark: str, since: float) -> list[ServerFields]:
        """Servers of a launch that are gone."""
        stamp = dt.datetime.fromtimestamp(since, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        records = self._records(mark, **{"changes-since": stamp})
        # Of what is gone nova forgets the metadata and keeps the name.
        gone = [{**r, "metadata": {}} for r in records if r.get("status") in GONE]
        with translated(self.name):
            return [s for s in convert.servers(gone) if mark in s.name]

    def delete(self, ids: Sequence[str]) -> None:
        """All of them; afterwards the first error is raised, what must be repeated before others.

        ids are nova's own, of servers that were seen with our metadata: nothing else comes here.
        """
        raise_first_error(failures(each(list(ids), self._delete, self._threads)))

    def stop(self, ids: Sequence[str]) -> None:
        """os-stop of each: the guest shuts down. One that is off, or on its way, is a conflict."""
        for server in ids:
            try:
                self._act(server, "os-stop")
            except TransientError:
                if not self._is(server, *OFF):
                    raise

    def start(self, server: str) -> None:
        """os-start. One that runs, or is about to, is a conflict; UnsettledError while it stops."""
        try:
            self._act(server, "os-start")
        except TransientError as error:
            if error.code != CONFLICT:
                raise
            if self._is(server, "ACTIVE", "powering-on") and not self._is(server, "powering-off"):
                return
            raise UnsettledError(self.name, error.code, error.message) from error

    def _act(self, server: str, verb: str) -> None:
        self._call("compute", "POST", f"/servers/{quote(server)}/action", {verb: None})

    def _is(self, server: str, *words: str) -> bool:
        """Whether its status, or what nova does with it now, is one of these."""
        record = self._call("compute", "GET", f"/servers/{quote(server)}")["server"]
        with translated(self.name):
            return not {str(record["status"]), record.get("OS-EXT-STS:task_state")}.isdisjoint(
                words
            )

    def fault(self, server: str) -> ProviderError:
        """Why its start failed: only the single answer tells."""
        try:
            record = self._call("compute", "GET", f"/servers/{quote(server)}")["server"]
            with translated(self.name):
                return from_fault(self.name, str((record.get("fault") or {}).get("message") or ""))
        except ProviderError as error:
            log.info("fault cannot be read cloud=%s id=%s error=%s", self.name, server, error)
            return from_fault(self.name, "the start failed")

    def _delete(self, server: str) -> None:
        try:
            self._call("compute", "DELETE", f"/servers/{quote(server)}")
        except InstanceNotFound:
            log.info("already gone cloud=%s id=%s", self.name, server)
        with self._lock:
            self._taken[server] = time.monotonic()

    def _records(self, mark: str, **more: str) -> Iterator[Record]:
        """Page by page, to the one without a link to the next; nova may make them smaller."""
        query = {"limit": str(PAGE), **more} | ({"name": mark} if mark else {})
        seen: set[str] = set()
        while True:
            answer: Any = self._call("compute", "GET", f"/servers/detail?{urlencode(query)}")
            with translated(self.name):
                page = [r for r in answer["servers"] if r["id"] not in seen]
                further = any(link["rel"] == "next" for link in answer.get("servers_links", ()))
            yield from page
            seen.update(r["id"] for r in page)
            if not further or not page:
                return
            query["marker"] = page[-1]["id"]

    def _read(self, records: Iterator[Record]) -> list[ServerFields]:
        """The servers that are this cloud's by their metadata."""
        whole = list(records)
        broken = [r["id"] for r in whole if not convert.is_whole(r)]
        if broken:
            text = f"nova cannot read all of its cells: {len(broken)} servers lack their metadata"
            raise TransientError(self.name, "CellDown", text)
        with translated(self.name):
            found = convert.servers(whole)
        return self.ours.among(found, lambda s: s.tags, lambda s: s.id)
