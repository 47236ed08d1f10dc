"""The comment that four writers share: nobody's text is lost, whoever writes in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.admin_comment import (
    MAX_SENTENCE_LENGTH,
    NoteKind,
    note_of,
    parsed,
    with_note,
)
from slurm_elastic.policies.launch.order_note import noted_order, with_order
from slurm_elastic.policies.money.cost_note import noted

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60)
SITES = TEXTS.filter(lambda text: "[slurm-elastic" not in text)
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), min_size=1, max_size=4)
WRITES = st.one_of(
    st.tuples(st.sampled_from([NoteKind.WAIT, NoteKind.UNSAVED]), TEXTS),
    st.tuples(st.just(NoteKind.CLOUDS), NAMES.map(tuple)),
    st.tuples(st.just(NoteKind.COST), st.integers(0, 10**9)),
)


def written(comment: str, part: NoteKind, value: str | tuple[str, ...] | int) -> str:
    """What the writer of that part makes of the comment."""
    if isinstance(value, tuple):
        return with_order(comment, value)
    if isinstance(value, int):
        return noted(comment, value, ["spot"])
    return with_note(comment, part, value)


@given(SITES, st.lists(WRITES, max_size=8))
def test_the_sites_text_survives_every_sequence_of_writers(
    site: str, writes: list[tuple[NoteKind, str | tuple[str, ...] | int]]
) -> None:
    comment = site
    for part, value in writes:
        before = parsed(comment).notes
        comment = written(comment, part, value)
        after = parsed(comment)
        assert after.site_text == site
        kept = {p: t for p, t in before.items() if p not in (part, NoteKind.WAIT)}
        assert kept.items() <= after.notes.items(), "a writer changes its own part alone"
        assert str(after) == comment
    for part in NoteKind:
        comment = with_note(comment, part, "")
    assert comment == site


@given(SITES, TEXTS)
def test_a_part_is_found_again_and_written_only_once(site: str, text: str) -> None:
    once = with_note(site, NoteKind.WAIT, text)
    assert with_note(once, NoteKind.WAIT, text) == once
    found = note_of(once, NoteKind.WAIT)
    assert with_note(site, NoteKind.WAIT, found) == once
    assert len(found) <= MAX_SENTENCE_LENGTH
    assert once.count("[slurm-elastic: ") == bool(found)


def test_it_reads_well() -> None:
    comment = with_order("ticket 7", ("west", "east"))
    comment = with_note(comment, NoteKind.WAIT, "aws: pub[1-3]\nare sold out")
    assert comment == (
        "ticket 7 [slurm-elastic: aws: pub(1-3) are sold out] [slurm-elastic clouds=west,east]"
    )
    assert noted_order(comment) == ("west", "east")
    assert noted(comment, 1_500_000, ["spot"]) == (
        "ticket 7 [slurm-elastic clouds=west,east] [slurm-elastic cost=$1.500000 market=spot]"
    ), "a job that has ended waits for nothing"


@pytest.mark.parametrize(
    "text", ["[slurm-elastic]", "[slurm-elastic note]", "slurm-elastic: x", "[slurm-elastic:x]"]
)
def test_other_text_that_looks_like_ours_is_kept(text: str) -> None:
    assert parsed(text).site_text == text
    assert with_note(text, NoteKind.WAIT, "") == text


def test_the_width_that_the_pages_name_shows_a_whole_sentence() -> None:
    """squeue cuts a column in silence: the end of a sold-out note says when it is tried again."""
    longest = with_note("", NoteKind.UNSAVED, "x" * 2 * MAX_SENTENCE_LENGTH)
    pages = Path(__file__).parents[2] / "docs"
    widths = [
        int(width)
        for page in pages.glob("*.md")
        for width in re.findall(r"admin_comment:(\d+)", page.read_text())
    ]
    assert widths
    assert min(widths) >= len(longest)
