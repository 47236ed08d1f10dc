"""The ledger's rows beside launches and machines: what is not to be used, words, runs, counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ledger_cases import T0, instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import Departure, Directive, LimitChange, Pause, Word
from slurm_elastic.model.exclusion import (
    BREAKER,
    CAPACITY,
    COOL_DOWN,
    DOUBT,
    OPERATOR,
    POLICY,
    Exclusion,
)
from slurm_elastic.model.memory import ChargedRun, Drained
from slurm_elastic.model.requeued_jobs import WAITS_SINCE, RequeuedJob
from slurm_elastic.state.ledger import Decision, Health, Ledger, decisions
from slurm_elastic.state.ledger.histograms import BUCKETS, Counts, observe, series


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as made:
        made.refresh()
        yield made


# exclusions


def breaker(count: int, scope: str = "burst") -> Exclusion:
    return Exclusion(kind=BREAKER, scope=scope, count=count)


def cool(scope: str, code: str = "ICE", until: float = T0) -> Exclusion:
    return Exclusion(kind=COOL_DOWN, scope=scope, until=until, code=code)


@pytest.mark.parametrize(
    ("writes", "counters"),
    [
        ([[breaker(3)]], {series("boot_failures", pool="burst"): 3}),
        ([[breaker(3)], [breaker(5)]], {series("boot_failures", pool="burst"): 5}),
        ([[breaker(3)], [breaker(3)]], {series("boot_failures", pool="burst"): 3}),
        ([[breaker(3)], [breaker(0)], [breaker(2)]], {series("boot_failures", pool="burst"): 5}),
        ([[breaker(3)], [breaker(1, "gpu")]],
         {series("boot_failures", pool="burst"): 3, series("boot_failures", pool="gpu"): 1}),
        ([[cool("aws/m5/a/spot"), cool("aws/c5/a/spot")], [cool("aws/m5/a/spot")]],
         {series("refusals", cloud="aws", market="spot", code="ICE"): 3}),
        ([[cool("aws/*/*/*/burst", "BootFailed")]],
         {series("refusals", cloud="aws", market="*", code="BootFailed"): 1}),
        ([[cool("aws")]], {series("refusals", cloud="aws", market="*", code="ICE"): 1}),
        ([[Exclusion(kind=CAPACITY, scope="pub1", count=4)]], {}),
    ],
)  # fmt: skip
def test_refusals_and_machines_that_did_not_come_up_are_counted(
    ledger: Ledger, writes: list[list[Exclusion]], counters: dict[str, float]
) -> None:
    for some in writes:
        ledger.exclusions.add(*some)
    assert ledger.usage.counters() == counters


def test_each_takes_the_place_of_an_earlier_of_its_kind_and_scope(ledger: Ledger) -> None:
    held = Exclusion(
        kind=CAPACITY, scope="pub1", until=T0, cause=Quoted(text="c"), pool="burst", since=T0
    )
    doubt = Exclusion(kind=DOUBT, scope="aws", until=T0, about=("i-1", "node:pub1"))
    ledger.exclusions.add(held, doubt, Exclusion(kind=POLICY, scope="pub1"))
    ledger.exclusions.add(replace(held, until=T0 + 9, cause=Quoted(text="d")))
    policy = Exclusion(kind=POLICY, scope="pub1")
    assert ledger.exclusions.all() == (
        doubt,
        policy,
        replace(held, until=T0 + 9, cause=Quoted(text="d")),
    )
    assert [one.kind for one in ledger.exclusions.holds()] == [POLICY, CAPACITY]


def test_what_is_used_again_is_forgotten_with_its_refusals(ledger: Ledger) -> None:
    ledger.exclusions.add(cool("a"), cool("b"), breaker(2, "a"))
    assert ledger.exclusions.readmit(COOL_DOWN, "a", "left")
    assert [(one.kind, one.scope) for one in ledger.exclusions.all()] == [
        (BREAKER, "a"), (COOL_DOWN, "b"),
    ]  # fmt: skip
    assert not ledger.exclusions.readmit(COOL_DOWN, "a")
    assert [one.scope for one in ledger.exclusions.breakers()] == ["a"]


def test_a_cool_down_is_over_at_its_end(ledger: Ledger) -> None:
    ledger.exclusions.add(cool("a", until=T0), cool("b", until=T0 + 1), breaker(2))
    assert [one.scope for one in ledger.exclusions.cool_downs(T0)] == ["b"]


def test_a_review_brings_the_holds_of_one_pool_forward(ledger: Ledger) -> None:
    def hold(scope: str, pool: str, until: float, kind: str = CAPACITY) -> Exclusion:
        return Exclusion(kind=kind, scope=scope, pool=pool, until=until)

    ledger.exclusions.add(hold("n1", "burst", T0 + 9), hold("n2", "burst", T0 - 9),
                   hold("n3", "gpu", T0 + 9), hold("n4", "burst", T0 + 9, OPERATOR))  # fmt: skip
    assert ledger.exclusions.review_holds("burst", T0) == 2
    assert [one.until - T0 for one in ledger.exclusions.holds()] == [0, -9, 9, 9]


@pytest.mark.parametrize(("kind", "ends"), [(COOL_DOWN, True), (BREAKER, True), (CAPACITY, True),
                                            (DOUBT, False), (OPERATOR, False)])  # fmt: skip
def test_what_lasts_longer_than_anything_is_set_for_is_of_a_clock_set_back(
    ledger: Ledger, kind: str, *, ends: bool
) -> None:
    ledger.exclusions.add(Exclusion(kind=kind, scope="a", until=T0 + 101),
                   Exclusion(kind=kind, scope="b", until=T0 + 100))  # fmt: skip
    assert ledger.exclusions.end_far(T0, 100.0) == (1 if ends else 0)
    assert [one.until - T0 for one in ledger.exclusions.all()] == [0 if ends else 101, 100]


# operators' words


WORDS: tuple[Word, ...] = (
    Pause(scope="cloud:aws"),
    LimitChange(scope="", key="nodes", value=4.0),
    Departure(verb="drain", about="pub1", nodes=("pub1",), aggressive=True, unavailable=2),
)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_comes_back_as_it_was_given(ledger: Ledger, word: Word) -> None:
    said = Directive(word=word, who="ann", since=T0, starts=T0 + 5, until=T0 + 9, reason="r")
    kept = ledger.directives.give(said)
    assert kept == replace(said, number=int(T0))
    assert ledger.directives.all() == (kept,)
    assert ledger.directives.end(kept.number)
    assert ledger.directives.all() == ()
    assert not ledger.directives.end(kept.number)


def test_no_two_words_ever_have_one_number(ledger: Ledger) -> None:
    said = Directive(word=WORDS[0], who="ann", since=T0 + 0.9, starts=T0)
    first, second = ledger.directives.give(said), ledger.directives.give(replace(said, until=None))
    assert (first.number, second.number) == (int(T0), int(T0) + 1)
    ledger.directives.end(first.number)
    ledger.directives.end(second.number)
    assert ledger.directives.give(said).number == int(T0) + 2
    assert ledger.directives.give(replace(said, since=T0 + 3)).number == int(T0) + 3
    assert ledger.directives.give(replace(said, since=T0 - 999)).number == int(T0) + 4


# runs, drains


def test_runs_of_a_span_are_those_of_which_some_part_is_in_it(ledger: Ledger) -> None:
    early = ChargedRun(job=1, begin=T0, end=T0 + 10, user="ann", shares=(("n[1-2]", 500_000),))
    late, open_ = ChargedRun(job=2, begin=T0 + 20, end=T0 + 30), ChargedRun(job=3, begin=T0 + 5)
    ledger.usage.write([late, early, open_])
    assert ledger.usage.open_runs() == (open_,)
    for since, until, found in (
        (T0, T0 + 99, (early, open_, late)),
        (T0 + 10, T0 + 20, (open_,)),
        (T0 + 9, T0 + 21, (early, open_, late)),
        (T0 + 30, T0 + 99, (open_,)),
        (T0 - 9, T0 + 5, (early,)),
    ):
        assert ledger.usage.runs(since, until) == found
    ledger.usage.write([replace(open_, end=T0 + 40)])
    assert ledger.usage.open_runs() == ()


def test_spans_without_jobs_are_told_by_node(ledger: Ledger) -> None:
    over, open_ = Drained(node="b", begin=T0, end=T0 + 10), Drained(node="a", begin=T0 + 5)
    ledger.usage.write((), [over, open_])
    assert ledger.state().drains == (open_,)
    assert ledger.usage.drains(T0, T0 + 99) == (open_, over)
    assert ledger.usage.drains(T0 + 10, T0 + 99) == (open_,)
    assert ledger.usage.drains(T0, T0 + 5) == (over,)
    ledger.usage.write((), [replace(open_, end=T0 + 6)])
    assert ledger.state().drains == ()


# what people were told, and counters


def test_people_are_told_again_after_a_while_and_never_too_much(ledger: Ledger) -> None:
    def told(now: float, keys: str, most: int = 3) -> str:
        claimed = ledger.decisions.claim_messages(
            [f"kind/{key}" for key in keys],
            T0 + now,
            repeat_after_s=100.0,
            max_messages=most,
            span_s=60.0,
        )
        return "".join(key.removeprefix("kind/") for key in claimed)

    assert told(0, "aba") == "ab"
    assert told(1, "abcd") == "c", "three in a minute"
    assert told(2, "d") == ""
    assert told(59, "d") == ""
    assert told(60, "def") == "de", "two are a minute old"
    assert told(99, "ag", most=9) == "g"
    assert told(100, "abc", most=9) == "ab"
    assert told(101, "x", most=0) == ""
    assert told(1000, "y") == "y"
    rows = ledger.store.select("select key from told")
    assert [row["key"] for row in rows] == ["kind/y"], "what is told again anyhow is forgotten"


def claim(ledger: Ledger, at: float, *keys: str, **options: Any) -> list[str]:
    bounds = {"repeat_after_s": 86400.0, "max_messages": 2, "span_s": 3600.0}
    return ledger.decisions.claim_messages(keys, T0 + at, **bounds | options)


def test_each_kind_of_message_has_its_own_bound(ledger: Ledger) -> None:
    assert claim(ledger, 0, "lost/1", "lost/2", "lost/3", "stray") == ["lost/1", "lost/2", "stray"]
    assert claim(ledger, 1, "lost/3", "credentials/a") == ["credentials/a"]


def test_many_in_one_message_count_as_one(ledger: Ledger) -> None:
    keys = [f"lost/{n}" for n in range(9)]
    assert claim(ledger, 0, *keys[:5], summed={"lost"}) == keys[:5]
    assert claim(ledger, 30, *keys[:8], summed={"lost"}) == keys[5:8]
    assert claim(ledger, 60, *keys, summed={"lost"}) == [], "two messages in an hour"
    assert claim(ledger, 3600, *keys, summed={"lost"}) == keys[8:]


def test_a_trouble_that_ended_and_returns_is_reported_again(ledger: Ledger) -> None:
    def told(at: float, *keys: str, over: Sequence[str] = ()) -> list[str]:
        return claim(ledger, at, *keys, over=over, return_after_s=600.0, max_messages=9)

    assert told(0, "a/1", "b/1") == ["a/1", "b/1"]
    assert told(60, "b/1") == [], "away, and not proven to be over"
    assert told(120, "b/1", over=["a/1"]) == []
    assert told(599, "a/1", "b/1") == [], "it comes and goes"
    assert told(600, "a/1", "b/1") == ["a/1"]
    assert told(5000, "a/1", "b/1") == [], "it stands since"
    assert told(86400, "a/1", "b/1") == ["b/1"]
    assert told(86400 * 3, over=["a/1"]) == []
    assert ledger.store.select("select key from told") == []


def test_a_message_of_a_clock_ahead_silences_nothing(ledger: Ledger) -> None:
    year = 365 * 86400.0
    assert claim(ledger, year, "cloud/a", "cloud/b") == ["cloud/a", "cloud/b"]
    assert claim(ledger, 0, "cloud/a", "cloud/c") == ["cloud/a", "cloud/c"]


def test_monthly_messages_are_claimed_once_whatever_happens_to_the_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    keys = ["month/2026-12/a", "month/2026-12/b", "month/2026-12/c"]
    ledger = Ledger(path)
    decisions = ledger.decisions
    assert decisions.claim_monthly(keys, T0, 2) == keys[:2]
    assert decisions.claim_messages(["x"], T0, 100.0, 1, 60.0) == ["x"], "they count apart"
    assert decisions.claim_messages(["x"], T0 + 5000, 100.0, 1, 60.0) == ["x"]
    assert decisions.claim_monthly(keys, T0 + 5000, 2) == keys[2:]
    ledger.close()
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    ledger = Ledger(path)  # made of its journal, as another head does
    assert ledger.decisions.claim_monthly(keys, T0 + 40 * 86400, 9) == []
    ledger.record_time(T0)
    assert ledger.decisions.claim_monthly(keys, T0 + 730 * 86400, 9) == [], "the clock is ahead"
    while ledger.record_time(T0 + 130 * 86400) < T0 + 101 * 86400:
        pass
    assert ledger.decisions.claim_monthly(["month/2027-05/a"], T0 + 130 * 86400, 9) != []
    rows = ledger.store.select("select key from told where key like 'month/%'")
    assert [row["key"] for row in rows] == ["month/2027-05/a"]
    ledger.close()


def test_a_histogram_counts_up_to_each_bound() -> None:
    counts = Counts(float)
    for value in (1.0, 5.0, 130.0):
        observe(counts, "start_delay_seconds", value, pool="p")
    found = {
        bound: counts[series("start_delay_seconds_bucket", le=bound, pool="p")]
        for bound in ("1", "2", "5", "120", "+Inf")
    }
    assert found == {"1": 1, "2": 1, "5": 2, "120": 2, "+Inf": 3}
    assert counts[series("start_delay_seconds_sum", pool="p")] == 136
    assert all(list(bounds) == sorted(bounds) for bounds in BUCKETS.values())


def test_the_bounds_of_histograms_are_those_of_earlier_releases() -> None:
    """They are names of counters in each ledger: with another bound its counts would not add up."""
    assert {name: [f"{bound:g}" for bound in bounds] for name, bounds in BUCKETS.items()} == {
        "boot_seconds": ["15", "30", "45", "60", "90", "120", "180", "300", "600"],
        "start_delay_seconds": ["1", "2", "5", "10", "30", "60", "120"],
        "resume_to_running_seconds": ["30", "60", "90", "120", "180", "300", "600", "1200"],
        "api_seconds": ["0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60"],
        "checkpoint_seconds": ["1", "2", "5", "10", "30", "60", "120", "300", "600", "1800"],
        "migration_seconds": ["10", "30", "60", "120", "300", "600", "1800", "3600", "7200"],
    }


@pytest.mark.parametrize(("seconds", "paid"), [(10, 60), (60, 60), (61, 61)])
def test_a_minute_is_paid_at_least_where_the_unit_is_a_second(
    ledger: Ledger, seconds: float, paid: float
) -> None:
    dear = offer(price=3.6)
    ledger.launches.record_intent(spec(nodes=("pub1",), bought=dear), "r", T0)
    ledger.machines.record_launch("g1", [instance("i-1", launched=T0, bought=dear)], T0)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0 + seconds)
    assert ledger.books.dollars("aws", T0, T0 + 1000) == pytest.approx(paid / 1000)


def test_requeues_that_were_lifted_by_then_are_told(ledger: Ledger) -> None:
    ledger.requeues.lift(7, 0, T0)
    ledger.requeues.lift(8, 2, T0 + 5)
    assert ledger.requeues.lifted() == ((7, 0), (8, 2))
    assert ledger.requeues.lifted(T0 + 5) == ((7, 0), (8, 2))
    assert ledger.requeues.lifted(T0 + 4.9) == ((7, 0),)
    ledger.requeues.forget(7)
    assert ledger.requeues.lifted() == ((8, 2),)


def test_a_label_is_quoted_as_prometheus_reads_it() -> None:
    assert series("a", pool='x"y\\z\n', cloud="c") == 'a{cloud="c",pool="x\\"y\\\\z\\n"}'


# decisions, answers of clouds


def test_the_last_decisions_are_those_that_were_written_last(ledger: Ledger) -> None:
    some = [
        Decision(
            at=T0 - n, correlation="c", kind="k", subjects=(f"n{n}",), cause=Quoted(text=str(n))
        )
        for n in range(5)
    ]
    ledger.decisions.record(*some)
    assert ledger.decisions.last(3) == tuple(some[2:])
    assert ledger.decisions.last(99) == tuple(some)


def test_the_last_requeue_of_each_job_is_found_among_the_last_decisions(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    details: list[dict[str, object] | None] = [{WAITS_SINCE: 1.0}, {WAITS_SINCE: 2.0}, None]
    for number, detail in enumerate(details):
        for kind in ("requeued", "other"):
            ledger.decisions.record(
                Decision(
                    at=T0 + number, correlation="r", kind=kind, cause=Quoted(text="x"),
                    subjects=("job:7", "pub1"), detail=detail,
                )
            )  # fmt: skip
    assert ledger.decisions.requeued() == {7: RequeuedJob(requeued_at=T0 + 1, waits_since=2.0)}
    monkeypatch.setattr(decisions, "MAX_READ_FOR_REQUEUES", 3)
    assert ledger.decisions.requeued() == {}


def test_of_decisions_that_are_forgotten_no_subject_is_kept(ledger: Ledger) -> None:
    for at in (T0, T0 + 5):
        ledger.decisions.record(
            Decision(
                at=at, correlation="c", kind="k", subjects=("n1", "n2"), cause=Quoted(text="r")
            )
        )
    assert ledger.prune(T0 + 5) == 1
    assert ledger.store.select("select count(*) from decision_subjects")[0][0] == 2
    assert len(ledger.decisions.about("n1")) == 1


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"checked": T0 + 0.5}, False),
        ({"checked": T0 + 59}, False),
        ({"checked": T0 + 60}, True),
        ({"checked": T0 - 1}, True),
        ({"checked": T0 + 1, "error": "away"}, True),
        ({"checked": T0 + 1, "code": "auth"}, True),
    ],
)
def test_the_same_answer_of_a_cloud_is_written_once_a_minute(
    ledger: Ledger, change: dict[str, object], *, kept: bool
) -> None:
    first = Health(name="aws", checked=T0)
    ledger.health.report(first)
    again = replace(first, **change)
    ledger.health.report(again)
    assert ledger.health.all() == (again if kept else first,)
