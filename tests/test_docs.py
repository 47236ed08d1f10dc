"""The documentation: every page can be found, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def links(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in _LINK.findall(page.read_text())}


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert set((ROOT / "docs").glob("*.md")) - {index} <= links(index)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []
