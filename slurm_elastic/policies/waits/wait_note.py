"""The note on a job about why it waits for us, and which notes to change. Pure.

All screens show the same obstacles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.one_line import one_line
from slurm_elastic.base.units import utc_minute
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.launch.grouping import generalised
from slurm_elastic.policies.waits.wait import Wait

_BOOT_START = "its machines boot since "
MAX_LENGTH = 360
"""Characters of all sentences of a note."""
REFRESH_S = 600.0
"""Seconds until a note is written again of which only figures or times have changed."""


def wait_note(wait: Wait) -> str:
    """Return why the job waits for us; "" if it waits for something else."""
    obstacles = wait.named_obstacles()
    sentences = [
        f"{name}: {one_line(reason, MAX_LENGTH // len(obstacles))}" for name, reason in obstacles
    ]
    if obstacles and wait.retry_at is not None:
        sentences.append(f"next try {utc_minute(wait.retry_at)}")
    return "; ".join(sentences)


def boot_note(nodes: Collection[str], machines: Iterable[Machine]) -> str:
    """Return the note of a job whose machines boot; "" if no machine of it boots. ``nodes``: the
    job's.

    The time is of the machines and not of the job: a machine that did not come up may have been
    replaced since the job got its nodes.
    """
    launched_at = {
        machine.instance.node: machine.instance.launched
        for machine in machines
        if machine.boots and machine.instance.node in nodes
    }
    if not launched_at:
        return ""
    since = utc_minute(min(launched_at.values()))
    return f"{_BOOT_START}{since}: {compress(sorted(launched_at))}"


def is_boot_note(text: str) -> bool:
    """Whether the note is about machines that boot. It is wrong as soon as they have ended."""
    return text.startswith(_BOOT_START)


class WrittenNote(Struct, frozen=True, kw_only=True):
    """The note that a job carries. ``at``: when we wrote or found it (monotonic s)."""

    text: str
    at: float


class NoteChange(Struct, frozen=True, kw_only=True):
    """Write ``text`` on the job ("": remove the note). ``is_refresh``: only figures or times of the
    note have changed.
    """

    job: int
    text: str
    is_refresh: bool = False


def note_changes(
    new_notes: Mapping[int, str],
    written: Mapping[int, WrittenNote],
    left_alone: Collection[int],
    clock: float,
) -> list[NoteChange]:
    """Return the changes, most important first: removals, new causes, then refreshed times.

    ``new_notes``: by job, in the order of their priority. ``left_alone``: jobs whose comment
    another program has replaced.
    """
    removals = [NoteChange(job=job, text="") for job in written if job not in new_notes]
    changes = [
        NoteChange(job=job, text=text, is_refresh=is_same_cause(written[job].text, text))
        if job in written
        else NoteChange(job=job, text=text)
        for job, text in new_notes.items()
        if job not in left_alone and not _is_up_to_date(written.get(job), text, clock)
    ]
    return [*removals, *sorted(changes, key=lambda change: change.is_refresh)]


def _is_up_to_date(note: WrittenNote | None, text: str, clock: float) -> bool:
    if note is None:
        return False
    return note.text == text or (is_same_cause(note.text, text) and clock - note.at < REFRESH_S)


def is_same_cause(old: str, new: str) -> bool:
    """Whether two notes differ only in figures and times, as two notes of one cause do."""
    # Another time or node of a boot is another machine.
    return old == new or (not is_boot_note(old) and generalised(old) == generalised(new))
