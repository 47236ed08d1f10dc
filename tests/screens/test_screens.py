"""An operator sees in each situation what somebody has read and found good.

``scripts/test tests/screens --update-screens`` writes it anew: read each line that changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.screens.situations import SITUATIONS
from tests.screens.theatre import Theatre, bare, open_theatre

GOLDEN = Path(__file__).parents[1] / "golden" / "screens"
WIDTHS = (50, 80, 120)
FIRST = 80
"""The width at which each situation is kept: a terminal's usual one."""
KEPT_WHOLE = frozenset({"many", "cloud-unreachable", "daemon-away", "notice-and-migration"})
"""Situations that are kept at all widths and in colours. Between them they have every colour, the
longest lists, holds and moves.
"""


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with open_theatre(tmp_path_factory.mktemp("s")) as opened:
        yield opened


def test_each_kept_screen_is_of_a_situation() -> None:
    """A screen that no test compares would go unread."""
    names = {f"{name}.{FIRST}.txt" for name in SITUATIONS}
    ends = (*(f"{width}.txt" for width in WIDTHS), "colour.txt")
    names |= {f"{name}.{end}" for name in KEPT_WHOLE for end in ends}
    assert {path.name for path in GOLDEN.iterdir()} == names


def compare(name: str, found: str, *, update: bool) -> None:
    path = GOLDEN / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert found == path.read_text(), f"{path}: see the first lines of this module"


@pytest.mark.parametrize(
    "width", [FIRST, *(pytest.param(w, marks=pytest.mark.release) for w in WIDTHS if w != FIRST)]
)
@pytest.mark.parametrize("name", SITUATIONS)
def test_screens_are_as_they_were_read(
    theatre: Theatre, name: str, width: int, pytestconfig: pytest.Config
) -> None:
    update = pytestconfig.getoption("update_screens")
    screens, coloured = [], []
    for words in theatre.commands(name):
        text, code = theatre.plain(name, words, width)
        assert "\x1b" not in text
        shown = "\n".join(line.rstrip() for line in text.split("\n"))
        for line in shown.split("\n"):
            assert len(line) <= width or line.startswith("slurm-elastic: "), line
        headline = f"$ slurm-elastic {' '.join(words)}" + (f"   # exit {code}" if code else "")
        screens.append(f"{headline}\n{shown.strip(chr(10))}\n")
        if width == FIRST:
            # The kept colours of four situations stand for all, but each terminal is looked at.
            colour = theatre.colour(name, words, width).strip("\n")
            assert bare(colour) == shown.strip("\n"), "a terminal shows the same"
            coloured.append(f"{headline}\n{colour}\n")
    is_whole = name in KEPT_WHOLE
    if width == FIRST or is_whole:
        compare(f"{name}.{width}.txt", "\n".join(screens), update=update)
    if width == FIRST and is_whole:
        compare(f"{name}.colour.txt", "\n".join(coloured), update=update)


@pytest.mark.parametrize("name", ["idle", "slurmctld-down", "corrupt-ledger", "many"])
def test_a_watched_screen_begins_as_the_plain_one(theatre: Theatre, name: str) -> None:
    top = "5" if name == "many" else "8"  # as many as fit
    whole = theatre.plain(name, ["status", "--top", top], FIRST)[0].rstrip().split("\n")
    watched = bare(theatre.watch(name, ["status", "--watch"], FIRST, 24)).rstrip().split("\n")
    *watched, keys = watched
    assert "q quit" in keys
    expected = [line.rstrip() for line in whole]
    assert "\n".join(watched[:22]).rstrip().split("\n") == expected[:22]


@pytest.mark.parametrize("name", ["healthy", "burst", "slurmctld-down"])
def test_a_low_watched_screen_shows_machines_jobs_and_cost(theatre: Theatre, name: str) -> None:
    watched = bare(theatre.watch(name, ["status", "--watch"], FIRST, 24))
    assert "more lines" not in watched
    assert re.search(r"^op1 +vm4 +reserved +0\.01", watched, re.MULTILINE), watched
    assert ("40 bob" in watched) == (name != "slurmctld-down")
    assert re.search(r"^Cost: \$0\.\d+ for running machines", watched, re.MULTILINE), watched
    assert ("Jobs: " in watched) == (name != "slurmctld-down"), watched
