"""``status --watch`` on a real pseudo-terminal: its keys, and the terminal after every end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from patience import patience
from status_cases import busy_ledger, config_file

OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
COMMAND = (sys.executable, "-P", "-m", "slurm_elastic.cli.main")
BROKEN = """
import sys
from slurm_elastic.cli.operate import status
from slurm_elastic.cli.main import main
def broken(*_):
    raise RuntimeError("a defect")
status.gather = broken
sys.exit(main())
"""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: Sequence[str], rows: int = 24, columns: int = 80) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                # Tests in the background of a shell hand an ignored SIGINT down.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                # Rich believes these two before it asks the terminal.
                inherited = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
                os.execve(command[0], list(command), inherited | {"TERM": "xterm-256color"})
            finally:
                os._exit(70)
        self._text, self._code = "", 0
        self.settings = termios.tcgetattr(self._fd)

    def press(self, keys: str) -> None:
        self._text = ""
        os.write(self._fd, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        self._text = ""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def shows(self, *words: str, seconds: float = 5.0) -> str:
        """Wait for these words in the text since the last key."""
        until = time.monotonic() + patience(seconds)
        while not all(word in self._plain() for word in words):
            assert time.monotonic() < until, f"no {words} in {self._plain()!r}"
            assert self._read(1.0), f"it ended without {words}: {self._plain()!r}"
        return self._plain()

    def end(self) -> tuple[int, str]:
        """Wait for the end. The exit code, and all that came since the last key."""
        until = time.monotonic() + patience(30)
        while self._read(1.0):
            assert time.monotonic() < until, f"it does not end: {self._plain()!r}"
        if self.pid:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.pid = 0
        return self._code, self._text

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def now(self) -> list[object]:
        return termios.tcgetattr(self._fd)

    def _plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*[mK]", "", self._text)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other side is closed
            return False
        self._text += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def site(tmp_path: Path) -> list[str]:
    """The end of a command for a site with machines, whose Slurm is nowhere."""
    busy_ledger(tmp_path / "ledger.db").close()
    return ["--config", str(config_file(tmp_path)), "status", "--watch", "60"]


@pytest.fixture
def terminal(site: list[str]) -> Iterator[Terminal]:
    opened = Terminal([*COMMAND, *site], rows=60)
    yield opened
    opened.close()


def test_keys_sort_filter_explain_and_quit(terminal: Terminal) -> None:
    terminal.shows("Reading Slurm and the records")
    terminal.shows("op1", "op2", "q quit", "sort: attention")
    terminal.press("s")
    terminal.shows("sort: node")
    terminal.press("/op2")
    terminal.shows("Filter: op2_", "filter op2: 1 of 6")
    terminal.press("\r")
    assert "op1 " not in terminal.shows("/ filter: op2")
    terminal.press("\x1b")
    terminal.shows("op1 ", "/ filter")
    terminal.press("\x1b[B")
    terminal.shows("op1 ")
    terminal.press("\r")
    terminal.shows("Reading the decisions about op1", "local-op1-1")
    terminal.press("q")
    terminal.shows("sort: node")
    terminal.press("?")
    terminal.shows("Keys of slurm-elastic status --watch")
    terminal.press("h")
    terminal.shows("sort: node")
    terminal.resize(60, 130)
    terminal.shows("Location", "$/h worst/max")
    terminal.press("q")
    code, text = terminal.end()
    assert (code, text.count(FIRST_SCREEN)) == (0, 1)


def test_a_low_screen_moves_to_the_selected_machine(site: list[str]) -> None:
    terminal = Terminal([*COMMAND, *site])
    assert "pub1" not in terminal.shows("more lines: a taller window, or down to select a machine")
    terminal.press("\x1b[B")
    terminal.shows("\r\npub1 ")
    terminal.press("q")
    assert terminal.end()[0] == 0
    terminal.close()


def test_the_terminal_is_as_before_after_each_end(site: list[str]) -> None:
    for ending in (signal.SIGTERM, signal.SIGHUP, None):
        terminal = Terminal([*COMMAND, *site])
        before = terminal.settings
        terminal.shows("q quit", "Machines: 7")
        assert terminal.now() != before
        if ending is None:
            terminal.press("\x03")
        else:
            os.kill(terminal.pid, ending)
        code, text = terminal.end()
        assert code == 130, ending
        assert FIRST_SCREEN in text
        terminal.close()


def test_a_shell_gets_its_terminal_back(site: list[str], tmp_path: Path) -> None:
    """After Ctrl-Z, after q, and after a defect."""
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN)
    terminal = Terminal(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"])
    terminal.press("PS1='ready'\"> \"\n")
    terminal.shows("ready> ")
    normal = terminal.now()
    terminal.press(f"{' '.join([*COMMAND, *site])}\n")
    terminal.shows("q quit", "Machines: 7")
    assert terminal.now() != normal
    terminal.press("\x1a")
    terminal.shows(FIRST_SCREEN, "Stopped", "ready> ")
    assert terminal.now() == normal
    terminal.press("fg\n")
    terminal.shows(OTHER_SCREEN, "q quit", "Machines: 7")
    assert terminal.now() != normal
    terminal.press("q")
    terminal.shows(FIRST_SCREEN, "ready> ")
    assert terminal.now() == normal
    terminal.press(f"{sys.executable} {broken} {' '.join(site)}\n")
    terminal.shows(FIRST_SCREEN, "RuntimeError: a defect", "ready> ")
    assert terminal.now() == normal
    terminal.press("exit\n")
    terminal.end()
    terminal.close()


def test_without_a_terminal_for_keys_it_is_as_before(site: list[str]) -> None:
    terminal = Terminal(["/bin/sh", "-c", f"{' '.join([*COMMAND, *site])} </dev/null"])
    assert OTHER_SCREEN not in terminal.shows("Machines: 7", "or without --watch")
    terminal.press("\x03")
    terminal.end()
    terminal.close()
