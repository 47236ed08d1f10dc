"""Hostlists: as Slurm reads them, back and forth, and what is not one."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import unless

from slurm_elastic.base.hostlist import HostlistError, chunks, compress, expand, expand_of_user

names = st.builds(
    lambda prefix, number, width: f"{prefix}{str(number).zfill(width)}",
    st.sampled_from(["n", "pub", "gpu-a", "x.y", "r1-n"]),
    st.integers(0, 1200),
    st.integers(0, 5),
) | st.sampled_from(["head", "login", "a-b"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1,3-4],head", ["n1", "n3", "n4", "head"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (" n1,n1 ", ["n1", "n1"]),
    ],
)
def test_expand(text: str, expected: list[str]) -> None:
    assert expand(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty name"),
        ("n1,,n2", "empty name"),
        ("n[1-3", "bracket is not closed"),
        ("n1-3]", "unbalanced or nested brackets"),
        ("n[1-[2]]", "unbalanced or nested brackets"),
        ("n[3-1]", "range '3-1' runs backwards"),
        ("n[a-c]", "'a-c' is not a number or a range"),
        ("n[]", "'' is not a number or a range"),
        ("n 1", "'n 1' is not a host name"),
        ("n1;rm -rf", "is not a host name"),
        ("n[1-999999]", "is over 100000 hosts"),
        ("n[1-90000],m[1-90000]", "names more than 100000 hosts"),
    ],
)
def test_what_is_no_hostlist(text: str, words: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1,", ("n1",)),
        (",n1", ("n1",)),
        ("n1,,n2", ("n1", "n2")),
        ("n1 n2\tn3\nn4", ("n1", "n2", "n3", "n4")),
        (" n[1-2] , n4 ", ("n1", "n2", "n4")),
        (" , ", ()),
        ("n[1", ()),
    ],
)
def test_a_list_of_a_user_is_read_as_slurm_reads_it(text: str, expected: tuple[str, ...]) -> None:
    assert expand_of_user(text) == expected


@given(st.lists(names))
def test_compress_and_expand_are_inverse(some: list[str]) -> None:
    if some:
        assert sorted(expand(compress(some))) == sorted(set(some))


@given(st.lists(names, min_size=1), st.integers(12, 80))
def test_chunks_fit_and_lose_nothing(some: list[str], size: int) -> None:
    parts = chunks(some, size)
    assert sorted(n for part in parts for n in expand(part)) == sorted(set(some))
    assert all(len(part) <= size or len(expand(part)) == 1 for part in parts)


def test_five_thousand_nodes_are_one_short_word() -> None:
    assert compress(f"pub{i}" for i in range(1, 5001)) == "pub[1-5000]"


@unless("scontrol")
@settings(max_examples=20, deadline=None)
@given(st.lists(names, min_size=1, max_size=20))
def test_slurm_reads_our_hostlists_the_same(tmp_path_factory, some: list[str]) -> None:
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n")
    told = subprocess.run(
        ["scontrol", "show", "hostnames", compress(some)],
        env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told == expand(compress(some))
