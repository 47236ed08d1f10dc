"""A player of screens in a pane of tmux, and what is seen there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import patience

from tests.screens.place import ROOT
from tests.screens.player import END
from tests.screens.situations import commands

__all__ = ["Theatre", "commands", "open_theatre"]

REPO = Path(__file__).parents[2]
TALL = 400
"""Lines of the pane: more than any screen has."""
_STYLE = re.compile(r"(?:\x1b\[[0-9;]*m)+")
_NAMES = {
    "1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan",
    "37": "white", "41": "on red",
}  # fmt: skip


class Theatre:
    """Asks the player, and looks at its pane."""

    def __init__(self, tmux: Sequence[str], link: socket.socket) -> None:
        self._tmux = tmux
        self._lines = link.makefile("rw")
        self._size = (0, 0)

    def ask(self, situation: str, **more: Any) -> Any:
        """The player's answer."""
        print(json.dumps({"situation": situation, **more}), file=self._lines, flush=True)
        return json.loads(self._lines.readline())

    def commands(self, situation: str) -> list[list[str]]:
        """The commands that are run in it."""
        return self.ask(situation, where="list")

    def plain(self, situation: str, words: Sequence[str], width: int) -> tuple[str, int]:
        """The text that goes into a pipe, and the exit code."""
        said = self.ask(situation, words=words, width=width, where="pipe")
        return said["text"], said["code"]

    def colour(self, situation: str, words: Sequence[str], width: int) -> str:
        """The text that a terminal of that width shows, with its styles named in braces."""
        self._resize(width, TALL)
        self.ask(situation, words=words, where="terminal", size=self._size)
        until = time.monotonic() + patience(60)
        while END not in (seen := self._seen("-J")):
            assert time.monotonic() < until, f"the terminal does not show the end of: {seen}"
            time.sleep(0.01)
        return named(seen[: seen.index(END)])

    def watch(self, situation: str, words: Sequence[str], width: int, height: int) -> str:
        """The text that a terminal of that size shows after the screen was drawn again."""
        self._resize(width, height)
        child = self.ask(situation, words=words, where="watch", size=self._size)["child"]
        until, before = time.monotonic() + patience(60), ""
        while True:
            seen = self._seen()
            if seen.strip() and seen == before and "eading" not in seen:
                break
            assert time.monotonic() < until, f"the terminal does not come to rest: {seen}"
            before = seen
            time.sleep(0.3)
        os.kill(child, signal.SIGTERM)  # it gives the terminal back
        status = Path(f"/proc/{child}/stat")
        while status.exists() and ") Z " not in status.read_text():
            assert time.monotonic() < until, "it does not end"
            time.sleep(0.01)
        return named(seen)

    def _resize(self, width: int, height: int) -> None:
        if (width, height) != self._size:
            self._call("resize-window", "-t", "screens", "-x", str(width), "-y", str(height))
            self._size = width, height

    def _seen(self, *options: str) -> str:
        return self._call("capture-pane", "-p", "-e", *options, "-t", "screens")

    def _call(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True)
        return done.stdout


def named(text: str) -> str:
    """Styles as ``{bold red}`` before and ``{}`` after; without spaces at the ends of lines."""
    styles: list[str] = []

    def name(match: re.Match[str]) -> str:
        before = list(styles)
        for code in re.findall(r"[0-9]+|(?<=\[)(?=m)", match[0]):
            if code in ("0", ""):
                styles.clear()
            elif code == "39":
                styles[:] = [s for s in styles if s in ("1", "2") or s.startswith("4")]
            elif code == "49":
                styles[:] = [s for s in styles if not s.startswith("4")]
            else:
                styles.append(code)
        if styles == before:
            return ""
        return "{" + " ".join(_NAMES.get(s, s) for s in styles) + "}"

    lines = []
    for line in text.split("\n"):
        styles.clear()
        shown = _STYLE.sub(name, line)
        lines.append(re.sub(r"\s+((?:\{\})?)$", r"\1", shown))
    return "\n".join(lines).rstrip("\n") + "\n"


def bare(text: str) -> str:
    """Without the names of styles."""
    words = "|".join([*_NAMES.values(), "[0-9]+"])
    shown = re.sub(rf"\{{(?:(?:{words}) ?)*\}}", "", text)
    return "\n".join(line.rstrip() for line in shown.split("\n"))


def mounts(directory: Path) -> str:
    """The shell command that puts ``directory``/root at ROOT.

    A clone that lies below ROOT would be hidden by that mount, so it is bound aside first and
    then back to its own path.
    """
    root, aside = directory / "root", directory / "clone"
    if not REPO.is_relative_to(ROOT):
        return f"mount --bind {root} {ROOT}"
    aside.mkdir()
    (root / REPO.relative_to(ROOT)).mkdir(parents=True)
    return (
        f"mount --bind {REPO} {aside} && mount --bind {root} {ROOT} && mount --bind {aside} {REPO}"
    )


@contextmanager
def open_theatre(directory: Path) -> Iterator[Theatre]:
    """With a player that has ``directory`` at ROOT, in a mount namespace of its own."""
    tmux = [shutil.which("tmux") or "tmux", "-u", "-S", str(directory / "tmux"), "-f", "/dev/null"]
    root = directory / "root"
    root.mkdir(mode=0o755)
    environment = {
        "PATH": os.environ.get("PATH", ""), "PYTHONPATH": f"{REPO}:{REPO / 'tests'}",
        "LANG": "C.UTF-8", "HOME": str(directory), "SHELL": "/bin/sh",
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(directory / "door"))
        door.listen(1)
        door.settimeout(patience(120))
        player = f"exec {sys.executable} -m tests.screens.player {directory / 'door'}"
        space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-rm"]
        inside = f"{mounts(directory)} && cd {REPO} && {player} 2>{directory / 'errors'}"
        command = [*space, "sh", "-c", inside]
        subprocess.run(
            [*tmux, "new-session", "-d", "-s", "screens", "-x", "80", "-y", str(TALL), *command],
            env=environment, cwd=REPO, check=True,
        )  # fmt: skip
        try:
            subprocess.run([*tmux, "set", "-g", "status", "off"], check=True)
            link, _ = door.accept()
            with link:
                link.settimeout(patience(300))
                yield Theatre(tmux, link)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
