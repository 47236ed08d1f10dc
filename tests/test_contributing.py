"""Pages for who changes the code: every file that they name is there, and every name stands in one of these."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RULES = ROOT / "CONTRIBUTING.md"
PAGES = [RULES, *sorted((ROOT / "docs" / "contributing").glob("*.md"))]
_FOLDERS = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
_FILE = re.compile(
    rf"(?<![\w./-])(?:\./)?((?:{_FOLDERS})/(?:[\w./*-]*[\w/*])?|[A-Za-z]+\.(?:md|toml))(?!\w)"
)
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"--[\w-]+|[A-Za-z_][\w./]*(?:\(\w*\))?")
_PLACED = re.compile(r"(`[^`]+`(?:(?:,? and |,? or |, )`[^`]+`)*)(?: of | in | \()`([^`]+)`")
"""Names, and the file in which the page says that they are."""
_STANDS_FOR = "NAME"
"""In a path: whatever one chooses."""


def files(page: Path) -> set[str]:
    """All that a page names, in its links, too, from the root of the clone."""
    text = re.sub(r"\]\([^)]*\)", "", page.read_text())
    return {name for name in _FILE.findall(text) if _STANDS_FOR not in name}


def there(name: str, page: Path) -> list[Path]:
    """The files of that name; in a table of a folder's files, or beside a link, its last part."""
    return [*ROOT.glob(name.rstrip("/")), *page.parent.glob(name), *(ROOT / "docs").glob(name)]


@cache
def words(page: Path) -> frozenset[str]:
    """All that stands in the files that a page names, and the names of what is in its folders."""
    found: set[str] = set()
    for path in (path for name in files(page) for path in there(name, page)):
        if path.is_dir():
            found |= {part for one in path.rglob("*") for part in one.relative_to(ROOT).parts}
        elif path.suffix not in {".png", ".md"}:
            found |= text_words(path)
    return frozenset(found)


@cache
def text_words(path: Path) -> frozenset[str]:
    """All words and options in a file."""
    text = path.read_text()
    return frozenset({*re.findall(r"\w+", text), *re.findall(r"--[\w-]+", text)})


def names(page: Path) -> set[str]:
    """Single words in backquotes that are no files."""
    quoted = _QUOTED.findall(_BLOCK.sub("", page.read_text()))
    single = {word.partition("(")[0] for word in quoted if _NAME.fullmatch(word)}
    return {word for word in single if not _FILE.fullmatch(word) and _STANDS_FOR not in word}


def misplaced(page: Path) -> list[tuple[str, str]]:
    """Names that the file lacks in which the page says that they are, with the file."""
    text = " ".join(_BLOCK.sub("", page.read_text()).split())
    return [
        (name, file)
        for listed, file in _PLACED.findall(text)
        if (ROOT / file).is_file()
        for name in _QUOTED.findall(listed)
        if _NAME.fullmatch(name) and not _FILE.fullmatch(name) and _STANDS_FOR not in name
        if not {*re.findall(r"--[\w-]+|\w+", name)} <= text_words(ROOT / file)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short_and_has_a_title(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > 120] == []
    assert len(lines) <= (45 if page == RULES else 150)
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert files(page)
    assert [name for name in sorted(files(page)) if not there(name, page)] == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_every_name_on_a_page_stands_in_a_file_that_it_names(page: Path) -> None:
    known = words(page)
    missing = [
        name
        for name in sorted(names(page))
        if not {*name.split("/")} - {""} <= known and not {*name.split(".")} <= known
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_every_name_stands_in_the_file_that_the_page_says(page: Path) -> None:
    assert misplaced(page) == []


def test_a_name_of_another_file_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    main, orders = "slurm_elastic/cli/main.py", "slurm_elastic/cli/orders/giving_orders.py"
    page.write_text(
        f"`COMMANDS`, `GROUPS` and `PlannedOrder` of `{main}`; `give`, and `COMMANDS`\n(`{orders}`)"
    )
    assert misplaced(page) == [("PlannedOrder", main), ("COMMANDS", orders)]


def test_a_name_that_is_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`COMMANDS` and `COMMANDOS` of `slurm_elastic/cli/main.py`; `tests/nowhere.py`")
    assert names(page) - words(page) == {"COMMANDOS"}
    assert [name for name in files(page) if not there(name, page)] == ["tests/nowhere.py"]


_TESTS = ROOT / "docs" / "contributing" / "tests.md"


def promises() -> list[tuple[str, str, str]]:
    """Each with its test of the first and of the release tier, "" where there is none."""
    _, _, table = _TESTS.read_text().partition("| promise |")
    rows = [line.strip("| ").split("|") for line in table.partition("\n\n")[0].splitlines()[2:]]
    cells = [[cell.strip(" `") for cell in row] for row in rows]
    return [(promise, first, (*release, "")[0]) for promise, first, *release in cells]


def tiers(file: str) -> set[str]:
    """Which tiers a file has tests of."""
    text = (ROOT / "tests" / file.removeprefix("tests/")).read_text()
    whole = re.search(r"^pytestmark = .*?release", text, re.MULTILINE | re.DOTALL)
    if whole and "\n\n" not in whole[0]:
        return {"release"}
    return {"first", "release"} if "release" in text or "steps(" in text else {"first"}


@pytest.mark.parametrize(("promise", "first", "release"), promises(), ids=lambda cell: str(cell))
def test_a_promise_is_kept_in_the_tier_that_is_said(promise: str, first: str, release: str) -> None:
    assert first or release, promise
    assert not first or "first" in tiers(first)
    assert not release or "release" in tiers(release)
