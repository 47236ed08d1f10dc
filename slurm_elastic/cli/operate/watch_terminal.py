"""The terminal of ``status --watch``: it reads single keys, and is as before at every end."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType

from slurm_elastic.cli.operate.watch_keys import keys_of

ESCAPE_S = 0.1
"""After an escape character we wait this long for the rest of a sequence."""
_BEGIN = "\x1b[?1049h\x1b[?7l\x1b[?25l"  # the other screen; lines are cut; no cursor
_END = "\x1b[?25h\x1b[?7h\x1b[?1049l"
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


def has_keys() -> bool:
    """Whether stdin and stdout are a terminal that can place the cursor, and we may read it."""
    if os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        # A process in the background would be stopped when it reads.
        return os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


class KeyTerminal:
    """A context in which the terminal sends single keys and shows whole pictures.

    ``wake`` may be called by any thread: ``keys`` then returns at once.
    """

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0)
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        os.set_blocking(self._woken, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unread = ""
        self._must_stop = False
        self._handlers: list[Callable[[int, FrameType | None], object] | int | None] = []

    def __enter__(self) -> KeyTerminal:
        self._handlers = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        try:
            self._take()
        except BaseException:  # a signal: Python does not call __exit__ then
            self._give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()
        for number, handler in zip(_SIGNALS, self._handlers, strict=True):
            signal.signal(number, handler)
        # The pipe stays open: a thread that still reads may call ``wake``.

    def wake(self) -> None:
        """Make ``keys`` return. A full pipe has woken it already."""
        with contextlib.suppress(OSError):
            os.write(self._waking, b"\0")

    def keys(self, seconds: float) -> Sequence[str]:
        """The keys that come within this time; none after ``wake`` or a change of the size.

        EOFError if the terminal is gone.
        """
        ready, _, _ = select.select([0, self._woken], [], [], seconds)
        if self._woken in ready:
            while self._drained():
                pass
        if self._must_stop:
            self._stop()
        return self._read() if 0 in ready else ()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top. Each must be as wide as the screen at most."""
        picture = "\r\n".join(f"{line}\x1b[0m\x1b[K" for line in lines)
        self._write(f"\x1b[H{picture}\x1b[J")

    def _drained(self) -> bool:
        try:
            return bool(os.read(self._woken, 1024))
        except BlockingIOError:
            return False

    def _read(self) -> Sequence[str]:
        data = os.read(0, 4096)
        if not data:
            raise EOFError
        text = self._unread + self._decoder.decode(data)
        keys, self._unread = keys_of(text, is_complete=False)
        if self._unread and not select.select([0], [], [], ESCAPE_S)[0]:
            more, self._unread = keys_of(self._unread, is_complete=True)
            keys += more
        return keys

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._must_stop = self._must_stop or number == signal.SIGTSTP
        self.wake()

    def _stop(self) -> None:
        """Give the terminal back to the shell, and stop until the shell continues us (Ctrl-Z)."""
        self._must_stop = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)
        self._take()

    def _take(self) -> None:
        tty.setcbreak(0, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._write(_BEGIN)

    def _give_back(self) -> None:
        # An OSError or termios.error: the terminal is gone.
        with contextlib.suppress(OSError, termios.error):
            # TCSAFLUSH drops keys that we have not read: they are not meant for the shell.
            termios.tcsetattr(0, termios.TCSAFLUSH, self._before)
        with contextlib.suppress(OSError):
            self._write(_END)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
