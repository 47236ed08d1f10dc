"""As many rows, and as much of a hostlist, as fit on a screen; and a word about the rest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from slurm_elastic.cli.streams import visible

HOSTS, FEW_HOSTS = 72, 36
"""Characters of a hostlist that are shown where not all is; on a narrow screen."""


def words(text: str, style: str | Style = "") -> Text:
    """Text that a user or a cloud may have written, as one line of visible characters: a cell is
    measured before the console sees to control characters.
    """
    if not text.isprintable():
        text = visible(" ".join(text.split()))
    return Text(text, style=style)


def more(rows: Sequence[object], top: int | None) -> str:
    return f"and {len(rows) - top} more: --all" if top is not None and len(rows) > top else ""


def with_rest(table: RenderableType, rest: str) -> RenderableType:
    return Group(table, Text(rest, style="dim")) if rest else table


def hosts(nodes: str, top: int | None, *, wide: bool = False) -> Text:
    """A hostlist, or the beginning of one that is too long; ``top`` None: all of it."""
    most = HOSTS if wide else FEW_HOSTS
    if top is None or len(nodes) <= most:
        return Text(nodes)
    return Text(f"{nodes[: most - 4].rpartition(',')[0]},...")
