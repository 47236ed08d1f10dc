"""The requests that slurmctld's programs leave for the daemon: one durable file each.

Written by ``programs/power.py`` (standard library only, it imports nothing of ours),
read here. A file is ``requests/<received ns>-<host>-<pid>-<kind>.json``, with one line of JSON::

    {"kind": "resume" | "suspend" | "resume-fail", "hostlist": "pub[1-8]",
     "received": <Unix time>, "resume_file_error": "..." | null}

Slurm's SLURM_RESUME_FILE follows unchanged below this line (22.05: ``all_nodes``, ``jobs[].nodes``;
from 23.02 ``all_nodes_resume``, ``jobs[].nodes_resume``), or is the line's ``resume_file``. An
unreadable request is moved to ``requests/bad/`` and logged. It is never deleted, and it never
blocks other requests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, ValidationError, convert

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.model.slurm import Request
from slurm_elastic.state import statedir

T = TypeVar("T")

log = logging.getLogger(__name__)

STALE_DRAFT = 3600.0
"""Seconds after which a draft counts as abandoned by a killed program."""

_UNREADABLE = (IsADirectoryError, PermissionError, ValueError, ValidationError, RecursionError)
"""The errors that a request itself can cause."""


def received_at(request: str) -> float | None:
    """When the program wrote the request with this id (Unix time); None if it is no such id."""
    digits = request.partition("-")[0]
    return int(digits) / 1e9 if digits.isascii() and digits.isdigit() else None


class ResumeJob(Struct, frozen=True, kw_only=True):
    """A job of SLURM_RESUME_FILE, whichever release wrote it; both hostlists as Slurm gave them."""

    job_id: int
    nodes: str | None = None
    nodes_resume: str | None = None
    nodes_alloc: str | None = None

    @property
    def hostlist(self) -> str:
        """The nodes that Slurm resumes for this job."""
        # Only 22.05 has ``nodes``. ``nodes_alloc`` also has nodes of the job that are up already.
        return self.nodes_resume or self.nodes or self.nodes_alloc or ""


class _File(Struct, frozen=True, kw_only=True):
    kind: str
    hostlist: str
    received: float
    resume_file: object = None
    resume_file_error: str | None = None


class Spool:
    """The ``requests/`` directory of a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir / "requests"
        self._bad = self._dir / "bad"

    def create(self) -> None:
        """Create the directories, and delete the drafts of killed programs; OSError passes."""
        self._dir.mkdir(mode=statedir.DIRECTORY, parents=True, exist_ok=True)
        self._bad.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
        self.remove_stale_drafts()

    def remove_stale_drafts(self) -> None:
        """Delete the drafts of killed programs; OSError passes."""
        for draft in self._dir.glob(".*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - STALE_DRAFT:
                    log.warning("unfinished request removed file=%s", draft.name)
                    draft.unlink()

    def pending(self, known: Container[str] = ()) -> Iterator[Request]:
        """All requests, oldest first; unreadable ones are set aside on the way. Requests whose ids
        are ``known`` are not read again.
        """
        for path in sorted(self._dir.glob("*.json")):
            if path.stem in known:
                continue
            try:
                yield _read(path)
            except FileNotFoundError:  # Carried out since the listing.
                continue
            except _UNREADABLE as error:
                self._set_aside(path, error)
            except OSError as error:  # of the disk or the process, not of this request
                log.warning("request not read, tried again file=%s reason=%s", path.name, error)

    def pending_before(self, read: Callable[[], T]) -> tuple[list[Request], T]:
        """Return all requests, and the result of ``read``, which reads the ledger after them."""
        # The spool before the ledger: a request leaves the spool after the ledger has its effect.
        # In the other order, a request served between the two reads would be in neither.
        requests = list(self.pending())
        return requests, read()

    def count(self) -> int:
        """How many requests wait."""
        return sum(1 for _ in self._dir.glob("*.json"))

    def oldest(self) -> float | None:
        """The time at which the oldest waiting request came (Unix time); None without requests."""
        times = []
        for path in self._dir.glob("*.json"):
            with contextlib.suppress(OSError):
                # A request may have been carried out since the listing.
                times.append(path.stat().st_mtime)
        return min(times, default=None)

    def newest(self) -> float:
        """The latest time in the ids of waiting requests (Unix time); 0 without requests."""
        times = (received_at(path.stem) for path in self._dir.glob("*.json"))
        return max((time for time in times if time is not None), default=0.0)

    def remove(self, request_id: str) -> None:
        """Forget a request that was carried out or dropped; removing twice is no error."""
        with contextlib.suppress(FileNotFoundError):
            (self._dir / f"{request_id}.json").unlink()

    def _set_aside(self, path: Path, error: Exception) -> None:
        log.error("request set aside file=%s reason=%s", path.name, error)
        # If it cannot be moved, it stays and the next call of ``pending`` tries again.
        with contextlib.suppress(OSError):
            os.replace(path, self._bad / path.name)


def _read(path: Path) -> Request:
    head, _, resume_file = path.read_bytes().partition(b"\n")
    file = convert(json.loads(head), _File)
    if file.kind not in ("resume", "suspend", "resume-fail"):
        raise ValueError(f"unknown kind {file.kind!r}, expected resume, suspend or resume-fail")
    # The resume file only says which job waits for which node. A malformed file must not stop the
    # request, because its nodes are in ``hostlist``.
    jobs, note = _jobs_below(resume_file) if resume_file else _jobs(file.resume_file)
    return Request(
        id=path.stem,
        kind=file.kind,
        nodes=tuple(dict.fromkeys(expand(file.hostlist))),
        received=file.received,
        jobs=jobs,
        note=file.resume_file_error or note,
    )


def _jobs_below(resume_file: bytes) -> tuple[dict[int, tuple[str, ...]], str | None]:
    try:
        parsed = json.loads(resume_file.decode())
    except (ValueError, RecursionError) as error:
        return {}, f"the resume file is not JSON: {error}"
    if not isinstance(parsed, dict):
        return {}, "the resume file is not a JSON object"
    return _jobs(parsed)


def _jobs(resume_file: object) -> tuple[dict[int, tuple[str, ...]], str | None]:
    """The nodes per job of a resume file, and a note about an unreadable part (None: all read)."""
    if resume_file is None:
        return {}, None
    entries = resume_file.get("jobs", []) if isinstance(resume_file, dict) else None
    if not isinstance(entries, list):
        return {}, "the resume file has no list of jobs"
    jobs: dict[int, tuple[str, ...]] = {}
    note = None
    for entry in entries:
        try:
            job = convert(entry, ResumeJob)
            if job.hostlist:
                jobs[job.job_id] = tuple(expand(job.hostlist))
        except (ValidationError, HostlistError) as error:
            note = f"a job of the resume file cannot be read: {error}"
    return jobs, note
