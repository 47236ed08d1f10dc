"""Remove job directories that no session uses and from which no run will continue.

A job removes its directory when it ends. It cannot if its machine was lost, its session was killed,
or it was ended while it was held or waited. The sweeper runs periodically on one host (the head, if
root may write to the shared directory there, or any node). In doubt it removes nothing. It removes
only jobs that slurmctld reports as ended, or that slurmctld no longer knows while it is up and has
given later numbers. A job that Slurm has ended at its time limit or by a preemption stays for as
long as slurmctld knows it, unless the head asks for the removal.
"""

from __future__ import annotations

from pathlib import Path

from . import files, job_state
from .job_state import JobState
from .quota import tidy
from .site import HelperSite, RequestRefused, trust
from .store import REMOVED, JobStore


def sweep(site: HelperSite) -> list[str]:
    """Remove the directories of ended jobs; return a sentence for each."""
    if not site.jobs.exists() or not job_state.is_up(site):
        return []
    trust(site.jobs, directory=True)
    lines = [line for path in sorted(site.jobs.iterdir()) if (line := _sweep_safely(site, path))]
    try:
        tidy(site)
    except (OSError, RequestRefused) as error:
        lines.append(f"quotas stay as they are: {error}")
    return lines


def _sweep_safely(site: HelperSite, path: Path) -> str:
    """Sweep one directory. An error must not stop the others; the next sweep retries."""
    try:
        return _sweep_job(site, path)
    except Exception as error:  # noqa: BLE001 - a job's directory may contain anything
        return f"job {path.name}: stays: {str(error) or type(error).__name__}"


def _sweep_job(site: HelperSite, path: Path) -> str:
    if path.name.startswith(REMOVED):
        return _remove_rest(path)
    if not path.name.isdigit() or path.is_symlink():
        return ""
    state = job_state.ask(site, int(path.name))
    if state is None or not state.is_over():
        return ""
    store = JobStore(site, int(path.name))
    request = store.request()
    # The head may ask for the removal of a directory whose job it knows to be over, or has missed
    # for a week if slurmctld may have lost its state.
    is_asked_for = request is not None and request.verb == "remove"
    # A slurmctld without its state gives the first numbers again. A person may restore that state,
    # and then the job waits again.
    is_lost = state.state == "GONE" and store.job >= job_state.next_number(site)
    if is_lost and not is_asked_for:
        return f"job {path.name}: stays: slurmctld may have lost its state"
    # While Slurm knows a job that it has cut off, the head may still requeue it. The second case:
    # the job id was reused, and the new job's own run cleans up.
    if not is_asked_for and (state.was_cut_off() or not _same_user(store, state)):
        return ""
    try:
        store.open()
    except RequestRefused:
        return ""
    try:
        store.remove()
    finally:
        store.close()
    return f"job {path.name}: removed, Slurm says {state.state}"


def _remove_rest(path: Path) -> str:
    """Remove a directory whose deletion was interrupted; return a sentence about it."""
    try:
        files.remove(path)
    except FileNotFoundError:
        return ""
    return f"job {path.name.removeprefix(REMOVED).partition('-')[0]}: the rest of it removed"


def _same_user(store: JobStore, state: JobState) -> bool:
    """Return whether the directory belongs to a job of the same user."""
    try:
        meta = store.meta()
    except OSError:
        return True
    return meta is None or state.state == "GONE" or meta.uid == state.uid
