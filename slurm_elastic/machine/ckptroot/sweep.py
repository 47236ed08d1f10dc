"""The sweeper: job directories that nobody drives and that no run will go on from.

A job removes its directory when it ends. It cannot when its machine was lost, its session was
killed, or it was cancelled while it waited: that is what this is for. It runs now and then on one
host (the head, where that has root's rights on the shared directory, or any node). Nothing goes on
doubt: only what slurmctld says has ended, or no longer knows while it knows of itself.
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
    """A directory that cannot be removed now keeps nothing else; the next sweep tries it again."""
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
    """Remove what a session is deleting, or was when its machine was lost; a sentence of it."""
    try:
        files.remove(path)
    except FileNotFoundError:
        return ""
    return f"job {path.name.removeprefix(REMOVED).partition('-')[0]}: the rest of it removed"


def _same_user(store: Store, found: JobState) -> bool:
    """A number that was given out again belongs to another job: its own run clears that up."""
    try:
        meta = store.meta()
    except OSError:
        return True
    return meta is None or found.state == "GONE" or meta.uid == found.uid
