"""The published terms can be read again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.limits import DollarsLimited, NodesLimited
from slurm_elastic.model.causes.refusals import CloudSilent, NoOffers
from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.launch.pool_order import PoolTerms, PricedRoom
from slurm_elastic.slurm.hooks.order_file import MAX_AGE_S, parse, read, text_of

NOW = 1_764_000_000
NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True)
DOLLARS = st.floats(0, 1e6, allow_nan=False)
RANKINGS = st.permutations(["location", "market", "price", "risk", "waste", "own"]).map(tuple)
CAUSES: st.SearchStrategy[AnyCause] = st.one_of(
    st.builds(Quoted, text=st.text()),
    st.builds(CloudSilent, cloud=NAMES, error=st.text()),
    st.builds(NodesLimited, scope=NAMES, limit=st.integers(0, 9), used=st.integers(0, 9)),
    st.builds(DollarsLimited, scope=NAMES, limit=DOLLARS, spent=DOLLARS, price=DOLLARS),
    st.just(NoOffers()),
)
TERMS = st.builds(
    PoolTerms,
    pool=NAMES,
    cloud=NAMES,
    partition=NAMES,
    offers=st.lists(
        st.builds(
            PricedRoom, room=st.integers(0, 999), market=st.sampled_from(Market), price=DOLLARS,
            lost_share=DOLLARS,
            max_run_s=st.one_of(st.just(math.inf), st.floats(0, 1e7)),
        ),
        max_size=3,
    ).map(tuple),
    on_demand=DOLLARS | st.just(math.inf),
    boot_s=DOLLARS,
    lease_s=st.just(1.0) | st.integers(2, 86400).map(float),
    keys=st.dictionaries(NAMES.filter(lambda name: name != "available"), st.floats(allow_nan=False)),
    unavailable=st.none() | CAUSES,
)  # fmt: skip


@given(st.lists(TERMS, max_size=4), RANKINGS, st.integers(0, 2**33))
def test_what_is_read_is_what_was_published(
    table: list[PoolTerms], ranking: tuple[str, ...], at: int
) -> None:
    found = parse(text_of(table, ranking, at), at)
    assert found is not None
    assert (found.table, found.ranking, found.at) == (tuple(table), ranking, at)


def test_an_old_incomplete_or_foreign_file_counts_as_absent(tmp_path: Path) -> None:
    terms = PoolTerms(
        pool="p", cloud="c", partition="c", unavailable=Quoted(text="cloud x\nend\npool"),
        offers=(PricedRoom(room=1, market=Market.SPOT, price=0.1),),
    )  # fmt: skip
    text = text_of([terms], ("price",), NOW)
    assert parse(text, NOW + MAX_AGE_S) is not None
    assert parse(text, NOW + MAX_AGE_S + 1) is None
    assert parse(text, NOW - 61) is None
    for length in range(len(text)):
        assert parse(text[:length], NOW) is None
    for before, after in (("spot", "gold"), ("offer 1 ", "offer "), ("quoted", "of a later release"),
                          ("cloud c ", "cloud"), ("pool p c", "pool p"), ("order 1", "order 2")):  # fmt: skip
        assert text.replace(before, after, 1) != text
        assert parse(text.replace(before, after, 1), NOW) is None, before
    assert read(tmp_path / "absent", NOW) is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert read(tmp_path / "binary", NOW) is None


def test_a_file_without_pools_lines_is_refused() -> None:
    text = text_of([], ("price",), NOW).replace("end\n", "offer 1 spot 0.1 0.0\nend\n")
    assert parse(text, NOW) is None


@pytest.mark.parametrize("name", ["location", "price"])
def test_the_key_that_we_add_is_no_key_of_the_site(name: str) -> None:
    found = parse(text_of([], (name, "waste"), NOW), NOW)
    assert found is not None
    assert found.ranking == (name, "waste")
