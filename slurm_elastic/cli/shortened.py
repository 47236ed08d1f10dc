"""As many rows, and as much of a hostlist, as fit on a screen; and a word about the rest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

HOSTS = 72
"""Characters of a hostlist that are shown where not all is."""


def more(rows: Sequence[object], top: int | None) -> str:
    return f"and {len(rows) - top} more: --all" if top is not None and len(rows) > top else ""


def with_rest(table: RenderableType, rest: str) -> RenderableType:
    return Group(table, Text(rest, style="dim")) if rest else table


def hosts(nodes: str, top: int | None) -> Text:
    """A hostlist, or the beginning of one that is too long."""
    if top is None or len(nodes) <= HOSTS:
        return Text(nodes)
    return Text(f"{nodes[:HOSTS].rpartition(',')[0]}, ...")
