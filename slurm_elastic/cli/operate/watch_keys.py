"""The keys of ``status --watch``: what each key changes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.cli.operate.status_screen import SORTS

HELP = """Keys of slurm-elastic status --watch

up, down, k, j     select a machine
page up, page down, home, end   select further away, the first, the last
Enter or e         explain the node of the selected machine
s                  sort the machines: by attention, node, cost, price, age
/                  show only machines with this text: node, id, pool, cloud,
                   market, type, zone, job, user or next step
                   Enter keeps the filter, Escape removes it
r                  read now
h or ?             this help
q or Ctrl-C        quit

An explanation scrolls with the same keys; Escape or q leaves it."""

ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page-up", "page-down", "home", "end"
_MAX_FILTER_LENGTH = 60
_PAGE_ROWS = 10  # machines that page up and page down skip
_ALIASES = {"k": UP, "j": DOWN, "g": HOME, "G": END, " ": PAGE_DOWN, "b": PAGE_UP}
_SEQUENCES = {
    "[A": UP, "[B": DOWN, "[5~": PAGE_UP, "[6~": PAGE_DOWN, "[H": HOME, "[F": END,
    "[1~": HOME, "[4~": END, "OA": UP, "OB": DOWN, "OH": HOME, "OF": END,
}  # fmt: skip


class WatchPage(StrEnum):
    """The page that the screen shows."""

    STATUS = "status"
    EXPLANATION = "explanation"
    HELP = "help"


class WatchRow(Struct, frozen=True):
    """A machine that can be selected: its ``id``, and the ``subject`` that explains it."""

    id: str
    subject: str


class WatchState(Struct, frozen=True, kw_only=True):
    """All that the keys have set.

    ``pattern``: the filter, which the user ``is_typing`` now or not. ``selected``: the id of a
    machine ("": none). ``subject``: what the EXPLANATION is about; ``scroll``: its first line on
    the screen. ``reads_now``: the user does not want to wait for the next reading.
    """

    page: WatchPage = WatchPage.STATUS
    sort: str | None = None
    pattern: str = ""
    is_typing: bool = False
    selected: str = ""
    subject: str = ""
    scroll: int = 0
    reads_now: bool = False
    is_done: bool = False


def after_key(
    state: WatchState, key: str, rows: Sequence[WatchRow], lines: int = 0, room: int = 1
) -> WatchState:
    """The state after ``key``.

    ``rows``: the machines in the order of the screen. ``lines``: how many the explanation has, of
    which ``room`` fit.
    """
    state = replace(state, reads_now=False)
    if state.is_typing:
        return _typed(state, key)
    key = _ALIASES.get(key, key)
    if state.page is not WatchPage.STATUS:
        return _scrolled(state, key, lines, room)
    match key:
        case "q":
            return replace(state, is_done=True)
        case "h" | "?":
            return replace(state, page=WatchPage.HELP, scroll=0)
        case "s":
            return replace(state, sort=_next_sort(state.sort))
        case "r":
            return replace(state, reads_now=True)
        case "/":
            return replace(state, is_typing=True)
        case "escape":
            return replace(state, pattern="", selected="")
        case "enter" | "e":
            return _explained(state, rows)
    return _moved(state, key, rows)


def _typed(state: WatchState, key: str) -> WatchState:
    """The state after a key while the user types the filter."""
    if key == ENTER:
        return replace(state, is_typing=False)
    if key == ESCAPE:
        return replace(state, is_typing=False, pattern="")
    if key == BACKSPACE:
        return replace(state, pattern=state.pattern[:-1])
    if len(key) == 1 and key.isprintable() and len(state.pattern) < _MAX_FILTER_LENGTH:
        return replace(state, pattern=state.pattern + key)
    return state


def _next_sort(sort: str | None) -> str | None:
    """The order after this one; None, by attention, comes after the last."""
    number = 0 if sort is None else SORTS.index(sort) + 1
    return SORTS[number] if number < len(SORTS) else None


def _explained(state: WatchState, rows: Sequence[WatchRow]) -> WatchState:
    subject = next((row.subject for row in rows if row.id == state.selected), "")
    if not subject:
        return state
    return replace(state, page=WatchPage.EXPLANATION, subject=subject, scroll=0)


def _moved(state: WatchState, key: str, rows: Sequence[WatchRow]) -> WatchState:
    """The state after a key that moves the selection."""
    ids = [row.id for row in rows]
    here = ids.index(state.selected) if state.selected in ids else -1
    last = len(ids) - 1
    goal = {
        UP: here - 1, DOWN: here + 1, PAGE_UP: here - _PAGE_ROWS, PAGE_DOWN: here + _PAGE_ROWS,
        HOME: 0, END: last,
    }.get(key)  # fmt: skip
    if goal is None or not ids:
        return state
    return replace(state, selected=ids[min(max(goal, 0), last)])


def _scrolled(state: WatchState, key: str, lines: int, room: int) -> WatchState:
    """The state after a key on a page of text."""
    if key in ("q", ESCAPE, "h", "?"):
        return replace(state, page=WatchPage.STATUS, subject="", scroll=0)
    last = max(lines - room, 0)
    goal = {
        UP: state.scroll - 1, DOWN: state.scroll + 1, PAGE_UP: state.scroll - room,
        PAGE_DOWN: state.scroll + room, HOME: 0, END: last,
    }.get(key, state.scroll)  # fmt: skip
    return replace(state, scroll=min(max(goal, 0), last))


def keys_of(text: str, *, is_complete: bool) -> tuple[list[str], str]:
    """The keys in the terminal's text, and the beginning of a sequence that is not complete.

    Over a slow line the bytes of an arrow key may come apart. ``is_complete``: nothing followed
    for a while, so an escape character is the key Escape.
    """
    keys: list[str] = []
    while text:
        key, length = _first_key(text)
        if not length and not is_complete:
            return keys, text
        if key:
            keys.append(key)
        text = text[length or 1 :]
        if not length:
            keys.append(ESCAPE)
    return keys, ""


def _first_key(text: str) -> tuple[str, int]:
    """The first key, "" for an unknown one, and its length; 0 if the sequence is not complete."""
    first = text[0]
    if first != "\x1b":
        named = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\b": BACKSPACE}.get(first, first)
        return named, 1
    if len(text) == 1:
        return "", 0
    if text[1] not in "[O":
        return ESCAPE, 1
    end = 3 if text[1] == "O" else _end_of_sequence(text)
    if not end or len(text) < end:
        return "", 0
    return _SEQUENCES.get(text[1:end], ""), end


def _end_of_sequence(text: str) -> int:
    """Where a control sequence ends: after its first letter or tilde (ECMA-48, 5.4); 0: nowhere."""
    return next((n + 1 for n in range(2, len(text)) if "@" <= text[n] <= "~"), 0)
