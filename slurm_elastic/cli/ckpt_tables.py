"""Checkpoints as tables, for ``status`` and ``ckpt list``."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.units import brief
from slurm_elastic.cli.shortened import words
from slurm_elastic.watch.view.attention import silent_ckptman
from slurm_elastic.watch.view.checkpoints import CheckpointsView, MoveView

_BAD, _WARN, _GOOD = "bold red", "yellow", "green"
MIB = 1 << 20


def checkpoint_blocks(view: CheckpointsView) -> Iterable[RenderableType]:
    """Tables of all that threatens jobs, of saved ones, and of moves that are over."""
    yield life(view)
    yield from threatened(view)
    if view.saved:
        yield saved(view)
    if over := [m for m in view.moves if m.over]:
        yield _moves("Moved in the last 24 hours", over, "Began", "Took")


def threatened(view: CheckpointsView) -> Iterable[RenderableType]:
    """Tables of notices, of jobs on their way, and of jobs that cannot be saved."""
    if view.threats:
        table = titled_table("Notices", "Node", "Kind", "Left", "Why")
        for t in view.threats:
            table.add_row(words(t.node), Text(t.kind, style=_WARN), _left(t.left), words(t.reason))
        yield table
    if standing := [m for m in view.moves if not m.over]:
        yield _moves("Jobs on their way", standing, "Since", "Left")
    if view.unsavable:
        table = titled_table(
            "Jobs that cannot be saved", "Job", "Method", "Why", "It would help to"
        )
        for u in view.unsavable:
            table.add_row(words(u.label), words(u.method), words(u.why, _WARN), words(u.remedy))
        yield table


def life(view: CheckpointsView) -> Text:
    """Whether the service runs, in a line."""
    for trouble in silent_ckptman(view):
        return Text(trouble.text, style=_BAD)
    age = brief(view.age or 0.0)
    return Text.assemble("Checkpoints: ", ("alive", _GOOD), f", heartbeat {age} ago")


def _moves(title: str, moves: Iterable[MoveView], *times: str) -> Table:
    table = titled_table(title, "Job", "Cause", "Off nodes", "Step", *times, "Note")
    table.columns[4].no_wrap = True  # a time is not broken
    for m in moves:
        image = "" if m.image is None else f"from save {m.image}"
        table.add_row(
            words(m.label),
            words(m.cause),
            words(",".join(m.nodes) or "-"),
            Text(m.step, style=_GOOD if m.step == "back" else ""),
            Text(time.strftime("%H:%M:%S", time.localtime(m.began))),
            Text(brief(m.took)) if m.over else _left(m.left),
            words("; ".join(part for part in (image, m.note) if part)),
        )
    return table


def saved(view: CheckpointsView) -> Table:
    """The last image of each job."""
    table = titled_table("Saved jobs", "Job", "Method", "Save", "Node")
    for name in ("Age", "Size", "Took"):
        table.add_column(name, justify="right")
    for s in view.saved:
        table.add_row(
            words(s.label), Text(s.method), Text(str(s.number)), words(s.node), Text(brief(s.age)),
            Text(shown_size(s.size)), Text(f"{s.seconds:.1f} s"),
        )  # fmt: skip
    return table


def shown_size(size: int) -> str:
    """Bytes for people; what an application keeps itself has no size here."""
    if not size:
        return "-"
    if size < MIB:
        return f"{size} B"
    return f"{size / MIB:.0f} MiB" if size < 1000 * MIB else f"{size / 1024 / MIB:.1f} GiB"


def _left(seconds: float | None) -> Text:
    if seconds is None:
        return Text("-")
    return Text(brief(seconds) if seconds > 0 else "over", style=_WARN if seconds < 60 else "")


def titled_table(title: str, *columns: str) -> Table:
    """An empty table with a bold title at its left, as all of ``status`` and ``ckpt`` are."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=None, header_style="dim",
        pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
