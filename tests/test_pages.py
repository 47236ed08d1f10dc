"""What the pages that a reader follows tell him to type is run by a test, every word of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import EXEMPT, PAGES, ROOT, Block, blocks, plain, shown

TESTS = Path(__file__).parent
_TAKEN = re.compile(r'shown\(\s*"([^"]+)",\s*"([^"]+)"\s*\)')


def taken() -> list[Block]:
    """The blocks that tests take from pages; each call names one that is there."""
    texts = (path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    return [shown(page, begins) for text in texts for page, begins in _TAKEN.findall(text)]


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_taken_by_a_test(page: str) -> None:
    """One that is made by a command is compared by tests/scripts/test_figures.py."""
    known = taken()
    there = [one for one in blocks(page) if not one.made_by]
    assert there, "no block is found"
    assert [one.text for one in there if one not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_alone(page: str) -> None:
    """Text that is only moved in would be looked at by nobody."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    assert re.findall(r"(?<=\n\n)(?: {4}|\t)[^\n]*", text) == []


@pytest.mark.parametrize(("page", "command"), EXEMPT)
def test_what_is_exempt_is_there(page: str, command: str) -> None:
    assert command in {plain(line) for one in blocks(page) for line in one.lines}
