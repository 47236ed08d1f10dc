"""Checkpoints as tables, for ``status`` and ``ckpt list``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from slurm_elastic.base.local_time import zone
from slurm_elastic.base.units import brief
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.watch.view.attention import silent_ckptman
from slurm_elastic.watch.view.checkpoints import CheckpointsView, MoveView

_BAD, _WARN, _GOOD = "bold red", "yellow", "green"
MIB = 1 << 20


def checkpoint_blocks(view: CheckpointsView) -> Iterable[RenderableType]:
    """Tables of threats to jobs, of saved jobs, and of finished moves."""
    yield life(view)
    yield from threatened(view)
    if view.saved:
        yield saved(view)
    if over := [m for m in view.moves if m.over]:
        yield _moves("Moved in the last 24 hours", over, "Began", "Took")
    if not (view.saved or view.threats or view.moves or view.unsavable):
        yield Text("No job is saved or being moved, and no machine will be taken away.")


def threatened(view: CheckpointsView) -> Iterable[RenderableType]:
    """Tables of notices, of jobs that are being moved, and of jobs that cannot be saved."""
    if view.threats:
        table = Rows("Notices", "Node", "Kind", "Left", "Told by", wrapped={"Told by": 24})
        for t in view.threats:
            reason = f": {t.reason}" if t.reason else ""
            by = words(f"{t.source}{reason}")
            table.add(words(t.node), Text(t.kind, style=_WARN), _left(t.left), by)
        yield table
    if standing := [m for m in view.moves if not m.over]:
        yield _moves("Jobs that are saved or moved now", standing, "Since", "Left")
    if view.unsavable:
        table = Rows(
            "Jobs that cannot be saved", "Job", "Method", "Why", "It would help to",
            wrapped={"Why": 20, "It would help to": 20},
        )  # fmt: skip
        for u in view.unsavable:
            table.add(words(u.label), words(u.method), words(u.why, _WARN), words(u.remedy))
        yield table


def life(view: CheckpointsView) -> Text:
    """One line: whether slurm-elastic-ckptman runs."""
    for trouble in silent_ckptman(view):
        return words(trouble.whole, _BAD)
    age = brief(view.age or 0.0)
    return Text.assemble("Checkpoints: ", ("alive", _GOOD), f", heartbeat {age} ago")


def _moves(title: str, moves: Sequence[MoveView], *times: str) -> Rows:
    lost = ("Work lost",) if any(m.work_lost is not None for m in moves) else ()
    names = ("Job", "Cause", "Off nodes", "Step", *times, *lost, "Note")
    if moves:
        title = f"{title}, times in {zone(moves[0].began)}"
    table = Rows(title, *names, wrapped={"Off nodes": 20, "Step": 20, "Note": 20}, gives=("Cause",))
    for m in moves:
        image = "" if m.image is None else f"from save {m.image}"
        table.add(
            words(m.label),
            words(m.cause),
            words(", ".join(m.nodes) or "-"),
            _step(m),
            time.strftime("%H:%M:%S", time.localtime(m.began)),
            brief(m.took) if m.over else _left(m.left),
            *(["-" if m.work_lost is None else brief(m.work_lost)] if lost else []),
            words("; ".join(text for text in (image, m.note) if text)),
        )
    return table


def _step(move: MoveView) -> Text:
    if move.started_over:
        return Text("started over", style=_WARN)
    step = f"{move.step} for {move.waits_for}" if move.waits_for else move.step
    return Text(step, style=_GOOD if move.step == MigrationStep.BACK else "")


def saved(view: CheckpointsView) -> Rows:
    """The table of the newest save of each job."""
    names, right = ("Job", "Method", "Save", "Node"), ("Age", "Size", "Took")
    table = Rows("Saved jobs", *names, *right, right=right, gives=("Method", "Took"))
    for s in view.saved:
        table.add(
            words(s.label), s.method, str(s.number), words(s.node), brief(s.age),
            shown_size(s.size), f"{s.seconds:.1f} s",
        )  # fmt: skip
    return table


def shown_size(size: int) -> str:
    """Bytes for people; "-" for 0, because a program that saves itself reports no size."""
    if not size:
        return "-"
    if size < MIB:
        return f"{size} B"
    return f"{size / MIB:.0f} MiB" if size < 1000 * MIB else f"{size / 1024 / MIB:.1f} GiB"


def _left(seconds: float | None) -> Text:
    if seconds is None:
        return Text("-")
    return Text(brief(seconds) if seconds > 0 else "over", style=_WARN if seconds < 60 else "")
