"""The checkpoint part of ``status`` and ``ckpt list``. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.ckptman.recorder import lost_seconds
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.memory import Machine
from slurm_elastic.state.ckptstate.facts import (
    Migration,
    MigrationStep,
    RecordedNotice,
    UnsavableRun,
)
from slurm_elastic.state.heartbeat import alive


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """The records of slurm-elastic-ckptman. ``process_found``: it runs (None: not checked)."""

    heartbeat: tuple[float, int] | None = None
    trouble: str = ""
    process_found: bool | None = None
    images: Sequence[Image] = ()
    warned: Sequence[RecordedNotice] = ()
    migrations: Sequence[Migration] = ()
    unsavable: Sequence[UnsavableRun] = ()


class SavedView(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"age": "age_s", "seconds": "took_s", "size": "size_bytes"},
):
    """A job's last good image: ``age`` in seconds, ``size`` in bytes (0: the application's own
    image).
    """

    job: int
    label: str
    method: str
    node: str
    number: int
    age: float
    size: int
    seconds: float


class UnsavableView(
    Struct, frozen=True, kw_only=True, rename={"age": "age_s", "why": "reason", "remedy": "advice"}
):
    """A job that cannot be saved: the reason, and what would help."""

    job: int
    label: str
    method: str
    age: float
    why: str
    remedy: str


class ThreatView(Struct, frozen=True, kw_only=True, rename={"left": "left_s"}):
    """A notice that still holds.

    ``left``: seconds to the deadline (None: unknown). ``source``: who gave the notice. If the
    source gave no ``reason``, people are shown the source instead.
    """

    node: str
    kind: str
    left: float | None
    reason: str
    source: str = ""


class MoveView(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"left": "left_s", "began": "began_at", "took": "took_s", "work_lost": "work_lost_s"},
):
    """A job that leaves its nodes or returns to them, or did so in the last day; ``cause`` says
    why.

    It ``began`` at that Unix time and ``took`` so many seconds so far or, if ``over``, in all.
    ``waits_for``: the next event if its ``step`` is waiting. ``hopeless``: nothing of the run can
    be saved. ``started_over``: the job runs again from its start. ``work_lost``: seconds that the
    last run had worked since the image that the job continues from (None: it does not run again
    yet).
    """

    job: int
    label: str
    step: str
    cause: str
    nodes: tuple[str, ...]
    left: float | None
    began: float
    took: float
    image: int | None
    note: str
    over: bool
    waits_for: str = ""
    hopeless: bool = False
    started_over: bool = False
    work_lost: float | None = None


class CheckpointsView(Struct, frozen=True, kw_only=True, rename={"age": "heartbeat_age_s"}):
    """Everything about checkpoints.

    ``alive``: slurm-elastic-ckptman's heartbeat, ``age`` seconds old, is fresh and its process is
    not known to be gone. ``trouble``: why it keeps its records only in memory.
    """

    alive: bool
    age: float | None
    process_found: bool | None
    trouble: str
    saved: tuple[SavedView, ...]
    threats: tuple[ThreatView, ...]
    moves: tuple[MoveView, ...]
    unsavable: tuple[UnsavableView, ...] = ()
    private: tuple[str, ...] = ()


def checkpoints_view(
    facts: CheckpointFacts, machines: Sequence[Machine], now: float, stale: float
) -> CheckpointsView:
    """Join the records with the machines; ``stale`` (s) is ``timings.daemon_timeout``."""
    age = None if facts.heartbeat is None else max(now - facts.heartbeat[0], 0.0)
    node_of = {m.instance.id: m.instance.node for m in machines}
    newest: dict[int, Image] = {}
    for image in sorted(facts.images, key=lambda i: i.taken):
        newest[image.job] = image
    return CheckpointsView(
        alive=alive(facts.heartbeat, facts.process_found, now, stale),
        age=age,
        process_found=facts.process_found,
        trouble=facts.trouble,
        saved=tuple(_saved(newest[job], now) for job in sorted(newest)),
        threats=tuple(_threat(w, node_of, now) for w in facts.warned),
        moves=tuple(_move(r, now) for r in facts.migrations),
        unsavable=tuple(
            UnsavableView(
                job=run.job, label=run.label, method=run.method, age=max(now - run.at, 0.0),
                why=str(run.cause), remedy=run.remedy,
            )
            for run in facts.unsavable
        ),
    )  # fmt: skip


def _saved(image: Image, now: float) -> SavedView:
    return SavedView(
        job=image.job,
        label=image.label,
        method=image.method,
        node=image.node,
        number=image.number,
        age=max(now - image.taken, 0.0),
        size=image.size,
        seconds=image.seconds,
    )


def _threat(warned: RecordedNotice, node_of: Mapping[str, str], now: float) -> ThreatView:
    notice = warned.notice
    node = node_of.get(notice.instance, notice.node) or notice.instance
    return ThreatView(
        node=node,
        kind=str(notice.kind),
        left=None if notice.deadline is None else notice.deadline - now,
        reason=notice.reason,
        source=warned.source,
    )


def _move(move: Migration, now: float) -> MoveView:
    end = move.changed if move.is_over else now
    return MoveView(
        job=move.run.job,
        label=move.run.label,
        step=str(move.step),
        cause=str(move.cause),
        nodes=move.threatened,
        left=None if move.deadline is None or move.is_over else move.deadline - now,
        began=move.began,
        took=max(end - move.began, 0.0),
        image=None if move.image is None else move.image.number,
        note="" if move.note is None else str(move.note),
        over=move.is_over,
        waits_for=_waits_for(move),
        hopeless=move.is_hopeless,
        started_over=move.step is MigrationStep.BACK and move.image is None,
        work_lost=lost_seconds(move) if move.step is MigrationStep.BACK else None,
    )


def _waits_for(move: Migration) -> str:
    if move.step is not MigrationStep.WAITING:
        return ""
    return "another save" if move.again else "the end of its node"
