"""Outputs of commands in the documentation, and the picture of the README's simulation.

A page says which command an output is of: a comment ``<!-- made by: COMMAND -->``, a line after it
the output between two lines of three backquotes. A file of a command is the clone's, else one of
the histories' directory.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.traces import VARIABLE, data  # noqa: E402

PICTURE = ROOT / "docs" / "simulate.png"
SIZE = "980,1930"
_MADE = re.compile(r"(<!-- made by: (slurm-elastic .*?) -->\n```\n)(.*?)(\n```\n)", re.DOTALL)
_SHOWN = re.compile(r"^\./(slurm-elastic .* simulate (?:.*\\\n)*.*)$", re.MULTILINE)
_CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


class NotHereError(Exception):
    """A file that a command names is not at hand."""


def pages() -> list[Path]:
    """All that may show an output."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def readme_command() -> str:
    """The README's simulation, as one line."""
    (shown,) = _SHOWN.findall((ROOT / "README.md").read_text())
    return " ".join(str(shown).replace("\\\n", " ").split())


def arguments(command: str, directory: Path) -> list[str]:
    """The words of a command, whose histories are linked into the directory where it runs.

    So its output names them without anybody's paths. Raises NotHereError without a history.
    """
    return [_linked(word, directory) for word in shlex.split(command)[1:]]


def printed(command: str) -> str:
    """The output of a command on a terminal of 80 columns, without its notes."""
    with tempfile.TemporaryDirectory() as scratch:
        return _run(arguments(command, Path(scratch)), Path(scratch))


def made_anew(page: Path) -> Iterator[tuple[str, str]]:
    """(command, what it prints now) of each output of a page that is not what it shows."""
    for _, command, shown, _ in _MADE.findall(page.read_text()):
        now = printed(command)
        if now != shown:
            yield command, now


def picture(path: Path) -> None:
    """The README's report, as a browser shows it."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(arguments(readme_command(), Path(scratch)), Path(scratch))
        report = Path(scratch) / "report.html"
        subprocess.run(
            [*_CHROMIUM, f"--window-size={SIZE}", f"--screenshot={path}", report.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip


def main(check: bool) -> int:
    changed = False
    for page in pages():
        for command, now in made_anew(page):
            changed = True
            print(f"{page.relative_to(ROOT)}: {command}")
            if not check:
                _write(page, command, now)
    if not check:
        picture(PICTURE)
    return int(check and changed)


def _write(page: Path, command: str, now: str) -> None:
    def renewed(found: re.Match[str]) -> str:
        return f"{found[1]}{now}{found[4]}" if found[2] == command else found[0]

    page.write_text(_MADE.sub(renewed, page.read_text()))


def _linked(word: str, directory: Path) -> str:
    _, _, file = word.rpartition("=")
    if (ROOT / word).is_file():
        return str(ROOT / word)
    if not file.endswith((".swf.gz", ".json", ".json.gz", ".csv.gz")):
        return word
    histories = data()
    there = next(histories.rglob(file), None) if histories else None
    if there is None:
        raise NotHereError(f"{file} is not at hand: set ${VARIABLE}")
    if not (directory / file).exists():
        (directory / file).symlink_to(there)
    return word


def _run(words: list[str], directory: Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("slurm-elastic"), *words],
        cwd=directory, env={**os.environ, "COLUMNS": "80", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


if __name__ == "__main__":
    try:
        sys.exit(main(check="--check" in sys.argv[1:]))
    except NotHereError as error:
        sys.exit(f"figures: {error}")
