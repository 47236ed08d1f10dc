"""Prints Debian's changelog of a package: the first section with entries in the project's own.

    python packaging/changelog.py CHANGELOG.md VERSION MAINTAINER DATE

Points in tables become lines, as Debian's form has none.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

_WIDTH = 76


def main(changelog: str, version: str, maintainer: str, date: str) -> None:
    """Print it."""
    points = entries(first(Path(changelog).read_text("utf-8").splitlines()))
    head = f"slurm-elastic ({version}) unstable; urgency=medium"
    sys.stdout.write("\n".join([head, "", *points, "", f" -- {maintainer}  {date}", ""]))


def first(lines: Iterable[str]) -> list[str]:
    """The lines of the newest release that has entries."""
    section: list[str] = []
    for line in lines:
        if line.startswith("## ") and any(line.startswith("- ") for line in section):
            break
        section = [] if line.startswith("## ") else [*section, line]
    return section


def entries(section: Iterable[str]) -> Iterator[str]:
    """Its kinds, and its points, each of them filled anew."""
    point: list[str] = []
    for line in (*section, ""):
        begins = line.startswith(("- ", "###", "  |"))
        if point and (begins or not line.strip()):
            yield from filled(" ".join(point))
            point = []
        if line.startswith("###"):
            yield f"  [ {line.strip('# ')} ]"
        elif line.startswith("- ") or (line.startswith("  ") and line.strip(" |-")):
            point.append(line.strip() if line.startswith("  ") else f"* {line[2:].strip()}")


def filled(text: str) -> list[str]:
    """A point begins with its star; what goes on with it stands below."""
    begin = "  " if text.startswith("* ") else "    "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=begin, subsequent_indent="    ", break_on_hyphens=False
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
