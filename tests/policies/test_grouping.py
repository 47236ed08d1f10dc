"""Offers with one cause are told together."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.one_line import one_line
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import CoolsDown
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.misfits import TooSmall
from slurm_elastic.model.causes.refusals import TakenAway
from slurm_elastic.model.cluster import Location, Market, Offer
from slurm_elastic.policies.launch.grouping import (
    MAX_CAUSE_LENGTH,
    braces,
    grouped,
    no_offer_serves,
)


def offer(kind: str, zone: str = "a", market: Market = Market.SPOT) -> Offer:
    return Offer(
        cloud="aws", location=Location.PUBLIC, instance_type=kind, zone=zone, market=market,
        price=0.1, cpus=2, memory=4096,
    )  # fmt: skip


def test_what_differs_in_names_and_numbers_only_is_one_cause() -> None:
    groups = grouped(
        [
            (
                offer("c5.large", "eu-1a"),
                Quoted(text="no c5.large in eu-1a, try eu-1b; again in 17 s"),
            ),
            (
                offer("c5.xlarge", "eu-1b"),
                Quoted(text="no c5.xlarge in eu-1b, try eu-1a; again in 170 s"),
            ),
            (offer("tiny"), TooSmall(resource="cpus", has=1, needed=2)),
        ]
    )
    assert [len(group.offers) for group in groups] == [2, 1]
    assert str(no_offer_serves(groups)) == (
        "2 offers: no c5.large in eu-1a, try eu-1b; again in 17 s;"
        " aws/tiny/a/spot: has 1 cpus, the pool's nodes need 2"
    )


def test_a_sentence_names_the_largest_groups_and_counts_the_others() -> None:
    words = ["one", "two", "three", "four", "five"]
    groups = grouped((offer(f"t{n}"), Quoted(text=word)) for n, word in enumerate(words))
    assert str(no_offer_serves(groups)).endswith("; 2 more for 2 other reasons")


def test_a_page_of_an_error_is_cut() -> None:
    (group,) = grouped([(offer("t"), Quoted(text="why " * 1000))])
    assert len(str(group.cause)) == MAX_CAUSE_LENGTH


def test_a_page_of_an_error_is_cut_also_inside_another_cause() -> None:
    page = Quoted(text="why " * 1000)
    inner = CoolsDown(until=Deadline(at=1.0), code="ICE", cause=page)
    (group,) = grouped([(offer("t"), inner)])
    assert isinstance(group.cause, CoolsDown)
    assert len(str(group.cause.cause)) == MAX_CAUSE_LENGTH


def test_what_differs_in_more_than_names_and_numbers_is_another_cause() -> None:
    ends = (Deadline(at=1.0), Deadline(at=2.0), Deadline(at=3.0, is_another_day=True))
    rests = [CoolsDown(until=end, code="ICE", cause=TakenAway(machine="i-1")) for end in ends]
    others = [replace(rests[0], code="Denied"), replace(rests[0], cause=Quoted(text="none"))]
    groups = grouped((offer("t"), cause) for cause in (*rests, *others))
    assert [group.cause for group in groups] == [rests[0], rests[2], *others]


def test_what_to_do_is_not_cut_off() -> None:
    (group,) = grouped([(offer("t"), Quoted(text="why " * 1000 + "; do: set `real_memory: 7400`"))])
    assert len(str(group.cause)) == MAX_CAUSE_LENGTH
    assert str(group.cause).endswith("; do: set `real_memory: 7400`")
    assert one_line("why; do: " + "this " * 99 + "that", 80).endswith("that")


def expanded(text: str) -> set[str]:
    """As a shell expands braces, which may be nested."""
    inner = re.search(r"\{([^{}]*)\}", text)
    if inner is None:
        return {text}
    parts = (text[: inner.start()] + one + text[inner.end() :] for one in inner[1].split(","))
    return set(itertools.chain.from_iterable(expanded(part) for part in parts))


def test_what_keys_share_is_written_once() -> None:
    keys = [f"aws/{t}/{z}/{m}" for t in ("t1", "t2") for z in "ab" for m in ("spot", "on-demand")]
    assert braces(keys) == ["aws/{t1,t2}/{a,b}/{on-demand,spot}"]
    assert braces(["aws/t1/a/spot"]) == ["aws/t1/a/spot"]


@given(
    st.sets(
        st.tuples(
            st.sampled_from(["aws", "b"]),
            st.sampled_from(["t1", "t2", "t3"]),
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["spot", "on-demand"]),
        ),
        min_size=1,
    )
)
def test_braces_name_every_key_and_no_other(parts: set[tuple[str, ...]]) -> None:
    keys = {"/".join(part) for part in parts}
    assert set().union(*(expanded(text) for text in braces(keys))) == keys
