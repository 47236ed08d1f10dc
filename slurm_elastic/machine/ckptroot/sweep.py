"""The sweeper removes job directories that no session uses and from which no run will go on.

A job removes its directory when it ends, but cannot if its machine was lost, its session was
killed, or it was cancelled while it waited. The sweeper runs now and then on one host (the head, if
root may write to the shared directory there, or any node). It removes nothing on doubt: only jobs
that slurmctld says have ended, or that it no longer knows while it is up.
"""

from __future__ import annotations

from pathlib import Path

from . import files, job_state
from .job_state import JobState
from .quota import tidy
from .site import Refused, Site, trust
from .store import REMOVED, Store


def sweep(site: Site) -> list[str]:
    """Remove what is over; a sentence for each job."""
    if not site.jobs.exists() or not job_state.is_up(site):
        return []
    trust(site.jobs, directory=True)
    lines = [line for path in sorted(site.jobs.iterdir()) if (line := _guarded(site, path))]
    try:
        tidy(site)
    except (OSError, Refused) as error:
        lines.append(f"quotas stay as they are: {error}")
    return lines


def _guarded(site: Site, path: Path) -> str:
    """A directory that cannot be removed now does not hold up the others; the next sweep tries it
    again.
    """
    try:
        return _one(site, path)
    except Exception as error:  # noqa: BLE001 - whatever one job's directory has in it
        return f"job {path.name}: stays: {str(error) or type(error).__name__}"


def _one(site: Site, path: Path) -> str:
    if path.name.startswith(REMOVED):
        return _rest(path)
    if not path.name.isdigit() or path.is_symlink():
        return ""
    found = job_state.ask(site, int(path.name))
    if found is None or not found.is_over():
        return ""
    store = Store(site, int(path.name))
    request = store.request()
    is_asked_for = request is not None and request.verb == "remove"
    # The number was given out again: that job's own run cleans up.
    if not is_asked_for and not _same_user(store, found):
        return ""
    try:
        store.open()
    except Refused:
        return ""
    try:
        store.remove()
    finally:
        store.close()
    return f"job {path.name}: removed, Slurm says {found.state}"


def _rest(path: Path) -> str:
    """Remove what a session was deleting when it ended, or its machine was lost; a sentence about
    it.
    """
    try:
        files.remove(path)
    except FileNotFoundError:
        return ""
    return f"job {path.name.removeprefix(REMOVED).partition('-')[0]}: the rest of it removed"


def _same_user(store: Store, found: JobState) -> bool:
    """Whether the directory is of the same user's job."""
    try:
        meta = store.meta()
    except OSError:
        return True
    return meta is None or found.state == "GONE" or meta.uid == found.uid
