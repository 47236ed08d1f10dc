"""As many rows, and as much of a hostlist, as fit on a screen; and a word about the rest."""

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
"""Characters of a hostlist that are shown where not all is; on a narrow screen."""


def words(text: str, style: str | Style = "") -> Text:
    """Text of a user or a cloud as one line of visible characters, before a cell is measured; with
    its times in local time.
    """
    text = localised(text, time.time())
    if not text.isprintable():
        text = visible(" ".join(text.split()))
    return Text(text, style=style)


def offers(braced: str) -> str:
    """Offers as ``braces`` writes them in words that lines may break between:
    ``aws c5.large, m5.large in us-east-1a (on-demand, spot)``.
    """

    def names(group: str) -> str:
        return group.strip("{}").replace(",", ", ")

    found = _OFFERS.fullmatch(braced)
    cloud, kinds, rest = found.groups() if found else ("", "", "")
    if "{" not in braced or not found or _PLACES.sub("", rest).strip("{},"):
        return braced.replace(",", ", ")
    places = (f"{names(zone)} ({names(market)})" for zone, market in _PLACES.findall(rest))
    return f"{cloud} {names(kinds)} in {', '.join(places)}"


def more(rows: Sequence[object], top: int | None) -> str:
    return f"and {len(rows) - top} more: --all" if top is not None and len(rows) > top else ""


def with_rest(table: RenderableType, rest: str) -> RenderableType:
    return Group(table, Text(rest, style="dim")) if rest else table


def hosts(
    nodes: str, top: int | None, *, wide: bool = False, count: bool = True, first: str = ""
) -> Text:
    """A hostlist, or the beginning of one that is too long and how many it has (unless another
    column has that ``count``); the one that is asked for comes ``first``. ``top`` None: all of it.
    """
    most = HOSTS if wide else FEW_HOSTS
    if top is None or len(nodes) <= most or "," not in nodes:
        return Text(nodes)
    names = expand(nodes)
    told = f" ({len(names)} nodes)" if count else ""
    asked = f"{first}," if first in names else ""
    others = compress(name for name in names if name != first) if asked else nodes
    room = most - len(f"{asked},...]{told}")
    begin = others[: max(room, others.find(",") + 1)].rpartition(",")[0]  # one node at least
    closing = "]" if begin.count("[") > begin.count("]") else ""
    return Text(f"{asked}{begin},...{closing}{told}")
