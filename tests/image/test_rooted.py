"""Paths in a tree: whatever its links say, they lead nowhere out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.image import rooted


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "data" / "deep").mkdir(parents=True)
    (made / "etc").mkdir()
    return made


@pytest.mark.parametrize(
    ("link", "leads", "name", "found"),
    [
        ("etc/there", "/data", "etc/there/x", "data/x"),
        ("etc/there", "../data/deep", "/etc/there/x", "data/deep/x"),
        ("etc/there", "../../../../data", "etc/there", "data"),
        ("etc/there", "/data/deep/../../etc/new", "etc/there", "etc/new"),
        ("etc/there", "/", "etc/there/etc", "etc"),
        ("etc/there", "/no/../such", "etc/there", "such"),
        ("etc/other", "/data", "../../etc//./passwd", "etc/passwd"),
        ("etc/other", "/data", "/", ""),
    ],
)
def test_a_path_leads_where_it_does_on_a_machine_of_the_image(
    tree: Path, link: str, leads: str, name: str, found: str
) -> None:
    (tree / link).symlink_to(leads)
    assert rooted.target(tree, name) == tree / found


def test_the_entry_itself_may_be_a_link(tree: Path) -> None:
    (tree / "etc/there").symlink_to("/data")
    (tree / "data/link").symlink_to("/etc/passwd")
    assert rooted.entry(tree, "etc/there") == tree / "etc/there"
    assert rooted.entry(tree, "/etc/there/link") == tree / "data/link"


def test_links_in_a_circle_are_told(tree: Path) -> None:
    (tree / "etc/one").symlink_to("two")
    (tree / "etc/two").symlink_to("/etc/one")
    with pytest.raises(
        SlurmElasticError, match="/etc/one/x of the image: found links that lead in"
    ):
        rooted.target(tree, "etc/one/x")


def test_patterns_go_by_the_images_links_and_find_links(tree: Path) -> None:
    (tree / "etc/logs").symlink_to("/data")
    for name in ("data/a.log", "data/deep/b.log"):
        (tree / name).touch()
    (tree / "data/c.log").symlink_to("/etc/passwd")
    assert list(rooted.matching(tree, "etc/logs/*.log")) == [
        tree / "data/a.log",
        tree / "data/c.log",
    ]
    assert list(rooted.matching(tree, "*/logs/deep/*")) == [tree / "data/deep/b.log"]
    assert list(rooted.matching(tree, "no/such/*")) == []


WORDS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5)


@given(
    links=st.dictionaries(
        st.sampled_from(["a", "b", "c", "d/a", "d/b"]), st.tuples(WORDS, st.booleans())
    ),
    name=WORDS,
)
def test_no_link_leads_out_of_the_tree(
    tmp_path_factory: pytest.TempPathFactory,
    links: dict[str, tuple[list[str], bool]],
    name: list[str],
) -> None:
    """The answer has no link on its way, and is in the tree."""
    tree = tmp_path_factory.mktemp("tree")
    (tree / "d").mkdir()
    for place, (words, absolute) in links.items():
        (tree / place).symlink_to("/" * absolute + "/".join(words))
    try:
        found = rooted.target(tree, "/".join(name))
    except SlurmElasticError:
        return
    assert found == tree or tree in found.parents
    assert os.path.realpath(found) == str(found)
