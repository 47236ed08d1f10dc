"""The page of ``status`` in as many lines as a screen has."""

from __future__ import annotations

import re

from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.cli.operate.status_screen import Screen
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.watch.view import StatusView

MIN_ROWS = 2  # each table of a watched screen has at least these rows
WITHOUT_WATCH = "without --watch"
_REVERSE = re.compile(r"\x1b\[(?:\d+;)*7(?:;\d+)*m")  # how a terminal begins reverse colours


def low(view: StatusView, console: Console, screen: Screen, room: int) -> Screen:
    """The screen with as few rows as it takes to fit in ``room`` lines, but at least MIN_ROWS."""
    fewer = screen.rows(console.width) if screen.top is None else None
    while fewer and fewer > MIN_ROWS and len(page_lines(view, console, screen)) > room:
        fewer -= 1
        screen = replace(screen, top=fewer)
    return screen


def fitted(
    view: StatusView, console: Console, screen: Screen, room: int, hint: str = WITHOUT_WATCH
) -> tuple[list[str], Screen]:
    """The page in at most ``room`` lines, and its screen. The last line counts hidden machines.

    The page starts so far down that it shows the selected machine.
    """
    screen = low(view, console, screen, room)
    lines = page_lines(view, console, screen)
    if len(lines) <= room:
        return lines, screen
    marked = next((n for n, line in enumerate(lines) if _REVERSE.search(line)), 0)
    first = min(max(marked - room + 2, 0), len(lines) - room)
    shown, hidden = lines[first : first + room], len(lines) - first - room + 1
    if hidden > 1:
        shown[-1] = f"{hidden} more lines: a taller window, or {hint}"
    return shown, screen


def page_lines(view: StatusView, console: Console, screen: Screen) -> list[str]:
    """The lines of the page, with colours if the console has them."""
    with console.capture() as captured:
        render(view, console, screen)
    return captured.get().rstrip("\n").split("\n")
