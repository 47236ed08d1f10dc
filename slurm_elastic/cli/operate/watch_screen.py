"""``status --watch`` on a terminal: pictures, keys, and readings in the background."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.background import in_background
from slurm_elastic.base.processes.signals import ended_like_ctrl_c
from slurm_elastic.cli.operate.columns import shortened
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.status_machines import ordered
from slurm_elastic.cli.operate.status_page import fitted
from slurm_elastic.cli.operate.status_screen import Screen
from slurm_elastic.cli.operate.watch_keys import (
    HELP,
    WatchPage,
    WatchRow,
    WatchState,
    after_key,
)
from slurm_elastic.cli.operate.watch_terminal import KeyTerminal
from slurm_elastic.cli.streams import in_a_line
from slurm_elastic.watch.view import StatusView

_IDLE_S = 3600.0


class WatchReading(Struct, frozen=True, kw_only=True):
    """The end of a reading. ``subject``: what the text explains; "" if it is of the status."""

    subject: str = ""
    view: StatusView | None = None
    text: str = ""
    trouble: str = ""
    error: BaseException | None = None


class WatchSources(Struct, frozen=True, kw_only=True):
    """Functions that read the status, and an explanation of this width. Each runs in a thread."""

    status: Callable[[], StatusView]
    explanation: Callable[[str, int], str]


def watch(sources: WatchSources, cluster: str, period: float, screen: Screen) -> int:
    """Show the status until the user quits. Returns the exit code; KeyboardInterrupt if a signal
    ends it.

    Raises whatever a reading raises, except SlurmElasticError, which the screen shows.
    """
    with ended_like_ctrl_c(), KeyTerminal() as terminal:
        return _Watch(sources, cluster, period, screen, terminal).run()


class _Watch:
    def __init__(
        self, sources: WatchSources, cluster: str, period: float, screen: Screen,
        terminal: KeyTerminal,
    ) -> None:  # fmt: skip
        self._sources, self._period, self._terminal = sources, period, terminal
        self._cluster, self._screen = cluster, screen
        self._state = WatchState(sort=screen.sort)
        self._done: SimpleQueue[WatchReading] = SimpleQueue()
        self._view: StatusView | None = None
        self._trouble = ""
        self._is_reading = False
        self._due_at = time.monotonic()
        self._asked: tuple[str, int] | None = None
        self._explanation = ""

    def run(self) -> int:
        while not self._state.is_done:
            self._read_if_due()
            rows, lines, room = self._draw()
            try:
                keys = self._terminal.keys(max(self._due_at - time.monotonic(), 0.0))
            except EOFError:
                return 0
            for key in keys:
                self._state = after_key(self._state, key, rows, lines, room)
                if self._state.reads_now and not self._is_reading:
                    self._due_at = time.monotonic()
            self._take_readings()
        return 1 if self._view and self._view.ledger_error and self._view.slurm_error else 0

    def _read_if_due(self) -> None:
        if not self._is_reading and time.monotonic() >= self._due_at:
            self._is_reading, self._due_at = True, time.monotonic() + _IDLE_S
            in_background("status", self._read_status)
        wanted = self._state.subject, plain().width
        if not wanted[0]:
            self._asked = None
        elif self._asked != wanted:
            self._asked, self._explanation = wanted, ""
            in_background("explain", self._read_explanation, *wanted)

    def _read_status(self) -> None:
        try:
            reading = WatchReading(view=self._sources.status())
        except SlurmElasticError as error:
            reading = WatchReading(trouble=in_a_line(str(error)))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            reading = WatchReading(error=error)
        # Wake last: the main thread looks for readings only when its wait for keys has ended.
        self._done.put(reading)
        self._terminal.wake()

    def _read_explanation(self, subject: str, width: int) -> None:
        try:
            reading = WatchReading(subject=subject, text=self._sources.explanation(subject, width))
        except SlurmElasticError as error:
            lines = textwrap.wrap(in_a_line(str(error)), max(width - 1, 1))
            reading = WatchReading(subject=subject, text="\n".join(lines))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            reading = WatchReading(subject=subject, error=error)
        self._done.put(reading)
        self._terminal.wake()

    def _take_readings(self) -> None:
        while True:
            try:
                reading = self._done.get_nowait()
            except Empty:
                return
            if reading.error is not None:
                raise reading.error
            if reading.subject:
                # The user may have chosen another subject since this reading began.
                if reading.subject == self._state.subject:
                    self._explanation = reading.text
                continue
            self._is_reading, self._due_at = False, time.monotonic() + self._period
            self._trouble = reading.trouble
            self._view = reading.view or self._view

    def _draw(self) -> tuple[Sequence[WatchRow], int, int]:
        """Draw the page. Return the machines of the screen, and the lines and room of a text."""
        console = plain()
        room = max(console.height - 1, 2)
        footer = shortened(self._footer(), max(console.width - 1, 1))
        if self._state.page is WatchPage.STATUS:
            lines, rows = self._status(console, room)
            self._show(lines[:room], room, footer, console)
            return rows, 0, room
        text = HELP.split("\n") if self._state.page is WatchPage.HELP else self._explained()
        first = min(self._state.scroll, max(len(text) - room, 0))
        self._show(text[first : first + room], room, footer, console)
        return (), len(text), room

    def _show(self, lines: Sequence[str], room: int, footer: Text, console: Console) -> None:
        padding = [""] * (room - len(lines))
        self._terminal.draw([*lines, *padding, *_rendered(console, footer)])

    def _explained(self) -> list[str]:
        reading = f"Reading the decisions about {self._state.subject} ..."
        return (self._explanation or reading).split("\n")

    def _status(self, console: Console, room: int) -> tuple[list[str], Sequence[WatchRow]]:
        if self._view is None:
            reading = self._trouble or "Reading Slurm and the records of slurm-elasticd ..."
            text = Text.assemble("Cluster ", (self._cluster, "bold"), "\n\n", reading)
            return _rendered(console, text), ()
        state = self._state
        screen = replace(
            self._screen, sort=state.sort, pattern=state.pattern, selected=state.selected
        )  # fmt: skip
        hint = "down to select a machine"
        lines, screen = fitted(self._view, console, screen, room, hint)
        machines = ordered(self._view.instances, screen, screen.rows(console.width))
        return lines, [WatchRow(i.id, i.node or i.pool or i.cloud) for i in machines]

    def _footer(self) -> Text:
        state = self._state
        if state.page is not WatchPage.STATUS:
            return Text(" q back   up, down, page up, page down scroll ", style="reverse")
        if state.is_typing:
            return Text(
                f" Filter: {state.pattern}_   Enter keeps it, Escape removes it ", "reverse"
            )
        parts = [
            "q quit", f"s sort: {state.sort or 'attention'}",
            f"/ filter: {state.pattern}" if state.pattern else "/ filter",
            "up, down, Enter explain", "h help",
        ]  # fmt: skip
        if self._is_reading:
            parts.append("reading ...")
        footer = Text(f" {'   '.join(parts)} ", style="reverse")
        if self._trouble and self._view is not None:
            footer = Text(f" {self._trouble} ", style="bold white on red")
        return footer


def _rendered(console: Console, text: Text) -> list[str]:
    with console.capture() as captured:
        console.print(text)
    return captured.get().rstrip("\n").split("\n")
