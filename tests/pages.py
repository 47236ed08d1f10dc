"""The fenced blocks of the pages that a reader follows, and the one way in which tests run their commands.

A test takes a block by ``shown("PAGE", "HOW A LINE OF IT BEGINS")``; ``tests/test_pages.py`` finds these calls, and
fails for a block that no test takes. ``Block.run`` runs every command of the block but those of EXEMPT:
a command that is written into such a block is run from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/decision.md",
    "docs/first-burst.md",
    "docs/first-light.md",
    "docs/own-cloud.md",
    "docs/planning.md",
    "docs/sandbox.md",
    "docs/simulate.md",
    "docs/workflows.md",
)
EXEMPT = {
    ("README.md", "./scripts/test"): "it is the run that this test is part of",
}
"""Commands that no test can run, by page, with the reason."""
_BLOCK = re.compile(
    r"(?:^<!-- made by: (?P<by>[^\n]*) -->\n)?^ *```(?P<language>[a-z]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_GOES_ON = re.compile(r"\\\n *|(?<=\|)\n *")
_COMMENT = re.compile(r"\s{2,}#.*|^#.*")


class Block(NamedTuple):
    """``made_by``: the command whose output it is, which ``scripts/figures`` runs; else ''."""

    page: str
    language: str
    text: str
    made_by: str

    @property
    def lines(self) -> list[str]:
        """Its commands as they are typed, each in one line, with its comment."""
        return [line for line in _GOES_ON.sub(" ", self.text).splitlines() if plain(line)]

    def run(self, do: Callable[[str], object], words: Mapping[str, str] | None = None) -> None:
        """``do`` each command in turn; ``words`` of the page stand for something that this site has."""
        words = words or {}
        assert [word for word in words if word not in self.text] == [], self.text
        for line in self.lines:
            if (self.page, plain(line)) not in EXEMPT:
                do(replaced(line, words))


def plain(line: str) -> str:
    """A command without its comment."""
    return _COMMENT.sub("", line).strip()


def replaced(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def blocks(page: str) -> list[Block]:
    """All of a page, in their order."""
    found = _BLOCK.finditer((ROOT / page).read_text("utf-8"))
    return [Block(page, one["language"], one["text"], one["by"] or "") for one in found]


def shown(page: str, line: str) -> Block:
    """The one block of the page in which a line begins so."""
    (found,) = (one for one in blocks(page) if f"\n{line}" in f"\n{one.text}")
    return found
