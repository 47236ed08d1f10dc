"""Operations of Compute Engine: a call that changes something is answered before it is carried
out, and its errors are in the operation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.errors import GENERAL, of_operation, translated
from slurm_elastic.providers.gcp.settings import GcpCloud

_POLL_EVERY_S = (0.1, 0.3, 0.5, 1.0, 2.0)
"""The pauses between polls; the last one repeats. ``operations.wait`` may hold a call for two
minutes, which is longer than any time-out of ours.
"""
_MAX_PAGES = 4
"""Pages of operations that are searched for a reason. They only explain a refusal."""

Record = Mapping[str, Any]


class Operations:
    """The operations of one project. Thread-safe."""

    def __init__(self, settings: GcpCloud, project: Project) -> None:
        self._settings = settings
        self._project = project

    def ended(self, zone: str, operation: Record) -> Record:
        """The operation after it has ended. The cloud has accepted the call, so anything that
        keeps us from seeing its end is a TransientError.
        """
        give_up_at, polls = time.monotonic() + self._settings.launch_wait, 0
        try:
            with translated(self._settings.name):
                name = str(operation["name"])
            while not self._is_done(operation):
                pause_s = _POLL_EVERY_S[min(polls, len(_POLL_EVERY_S) - 1)]
                self._require_time(name, give_up_at - pause_s)
                time.sleep(pause_s)
                polls += 1
                operation = self._project.call("GET", f"zones/{quote(zone)}/operations/{name}")
        except TransientError:
            raise
        except ProviderError as error:
            text = f"the call was accepted, and its outcome cannot be seen: {error.message}"
            raise TransientError(self._settings.name, error.code, text) from error
        return operation

    def _require_time(self, name: str, give_up_at: float) -> None:
        if time.monotonic() > give_up_at:
            text = f"operation {name} has not ended after {self._settings.launch_wait:g} s"
            raise TransientError(self._settings.name, "NotDone", text)

    def _is_done(self, operation: Record) -> bool:
        with translated(self._settings.name):
            return str(operation["status"]) == "DONE"

    def wait(self, zone: str, operation: Record) -> None:
        """Wait until the operation has ended, and raise its error."""
        error = self.error(self.ended(zone, operation))
        if error is not None:
            raise error

    def error(self, operation: Record) -> ProviderError | None:
        """The error of an operation that has ended."""
        with translated(self._settings.name):
            errors = list((operation.get("error") or {}).get("errors") or ())
            return of_operation(self._settings.name, errors)

    def reason(self, zone: str, bulk: Record) -> ProviderError | None:
        """Why a bulk operation made fewer machines than it should: its own error, or that of one of
        its machines. They have operations of their own, with the same group.
        """
        own = self.error(bulk)
        if own is not None and own.code not in GENERAL:
            return own
        try:
            return self._reason_of_members(zone, str(bulk.get("operationGroupId") or "")) or own
        except ProviderError as error:
            # The outcome is known; only the reason is not.
            return own or error

    def _reason_of_members(self, zone: str, group: str) -> ProviderError | None:
        if not group:
            return None
        query = {"filter": f'operationGroupId = "{group}"'}
        pages = self._project.pages(f"zones/{quote(zone)}/operations", query)
        for _, answer in zip(range(_MAX_PAGES), pages, strict=False):
            with translated(self._settings.name):
                members = [
                    o for o in answer.get("items") or () if o.get("operationGroupId") == group
                ]
            errors = (self.error(member) for member in members)
            if reason := next((e for e in errors if e and e.code not in GENERAL), None):
                return reason
        return None


def made(bulk: Record) -> int:
    """How many machines a bulk operation that has ended has made and left."""
    metadata = bulk.get("instancesBulkInsertOperationMetadata") or {}
    places = (metadata.get("perLocationStatus") or {}).values()
    return sum(
        int(place.get("createdVmCount") or 0) - int(place.get("deletedVmCount") or 0)
        for place in places
    )
