"""Shorten rows and hostlists to fit on a screen, with a note about the hidden part."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.local_time import localised
from slurm_elastic.cli.streams import visible

_SET = r"(\{[^{}]*\}|[^{},/]+)"
_PLACES = re.compile(f"{_SET}/{_SET}")
_OFFERS = re.compile(rf"([^{{}}/]+)/{_SET}/(.+)")
HOSTS, FEW_HOSTS = 72, 36
"""Most characters of a shortened hostlist; the same on a narrow screen."""


def words(text: str, style: str | Style = "") -> Text:
    """Text of a user or a cloud as one line of visible characters, with times in local time.

    Call it before a table measures the cell: control characters get longer.
    """
    text = localised(text, time.time())
    if not text.isprintable():
        text = visible(" ".join(text.split()))
    return Text(text, style=style)


def offers(braced: str) -> str:
    """The output of ``braces`` with spaces, so that lines can wrap:
    ``aws c5.large, m5.large in us-east-1a (on-demand, spot)``.
    """

    def names(group: str) -> str:
        return group.strip("{}").replace(",", ", ")

    match = _OFFERS.fullmatch(braced)
    cloud, kinds, places_text = match.groups() if match else ("", "", "")
    if "{" not in braced or not match or _PLACES.sub("", places_text).strip("{},"):
        return braced.replace(",", ", ")
    places = (f"{names(zone)} ({names(market)})" for zone, market in _PLACES.findall(places_text))
    return f"{cloud} {names(kinds)} in {', '.join(places)}"


def more(rows: Sequence[object], top: int | None) -> str:
    return f"and {len(rows) - top} more: --all" if top is not None and len(rows) > top else ""


def with_rest(table: RenderableType, hidden: str) -> RenderableType:
    return Group(table, Text(hidden, style="dim")) if hidden else table


def hosts(
    nodes: str, top: int | None, *, wide: bool = False, count: bool = True, first: str = ""
) -> Text:
    """A hostlist, shortened if it is too long (``top`` None: never).

    A shortened list ends with the number of its nodes, unless another column has the ``count``.
    The node ``first`` stands first.
    """
    limit = HOSTS if wide else FEW_HOSTS
    if top is None or len(nodes) <= limit or "," not in nodes:
        return Text(nodes)
    names = expand(nodes)
    count_text = f" ({len(names)} nodes)" if count else ""
    asked = f"{first}," if first in names else ""
    remaining = compress(name for name in names if name != first) if asked else nodes
    room = limit - len(f"{asked},...]{count_text}")
    # The ``max`` keeps at least one node, however little room there is.
    begin = remaining[: max(room, remaining.find(",") + 1)].rpartition(",")[0]
    closing = "]" if begin.count("[") > begin.count("]") else ""
    return Text(f"{asked}{begin},...{closing}{count_text}")
