"""The note on a job about why it waits for us, and which notes to change. Pure.

``explain`` shows the same sentence: the first failing predicate of each pool that the job lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.one_line import one_line
from slurm_elastic.base.units import utc_minute
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.launch.grouping import generalised
from slurm_elastic.policies.launch.verdict import Verdict, grouped

OURS = frozenset({"bound", "unhelped", "health"})
"""Predicates that fail because of us or of the clouds: the job waits for them to pass."""
HEALTH = "health"
MISFITS = frozenset({"time", "features", "gres", "cpus", "memory", "size"})
"""Predicates that fail for ever: such a pool does not count."""
PASSING = {
    "in use": "nodes in use",
    "reserved": "nodes reserved",
    "partition state": "partition closed",
}
"""Short words for predicates that fail because other jobs or the site keep the pool from the job.
If only such predicates fail, the job does not wait for us. The words show no figures, so that pools
of a cloud share one sentence.
"""
_BOOT_START = "its machines boot since "
MAX_LENGTH = 360
"""Characters of all sentences of a note."""
REFRESH_S = 600.0
"""Seconds until a note is written again of which only figures or times have changed."""


def wait_note(
    verdicts: Sequence[Verdict], retry_at: Mapping[str, float], *, hides_nodes: bool = False
) -> str:
    """Return why the job waits for us; "" if it waits for something else.

    A job waits for us if a pool fails because of us, and no pool could start it now: it usually
    lists a full own cloud beside a public one that is sold out, paused or limited.
    ``verdicts``: of the pools whose partition the job lists. ``retry_at``: by pool, when its
    sold-out cloud is asked again (Unix time). ``hides_nodes``: the site shows users no nodes.
    """
    fitting = [verdict for verdict in verdicts if verdict.predicate not in MISFITS]
    predicates = {verdict.predicate for verdict in fitting}
    if predicates.isdisjoint(OURS) or not predicates <= OURS | PASSING.keys():
        return ""
    short = PASSING | {HEALTH: "its nodes take no jobs"} if hides_nodes else PASSING
    groups = grouped([replace(v, reason=short.get(v.predicate, v.reason)) for v in fitting])
    clouds = [cloud for cloud, _, _ in groups]
    sentences = []
    for cloud, pools, reason in groups:
        whose = cloud if clouds.count(cloud) == 1 else f"{cloud} ({', '.join(pools)})"
        sentences.append(f"{whose}: {one_line(reason, MAX_LENGTH // len(groups))}")
    held_pools = {verdict.pool for verdict in fitting if verdict.predicate == HEALTH}
    times = [retry_at[pool] for pool in held_pools & retry_at.keys()]
    next_try = [f"next try {utc_minute(min(times))}"] if times else []
    return "; ".join([*sentences, *next_try])


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
