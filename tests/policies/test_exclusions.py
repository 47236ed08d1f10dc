"""What is not to be used for a while: cool-downs, breakers of pools; only so many machines boot at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.errors import QuotaError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import SpotRefused
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.cluster import Location, Market, Offer
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, NO_SPOT, Exclusion
from slurm_elastic.policies.launch.boots import given_up_after, longest_wait, may_wait, turn
from slurm_elastic.policies.launch.exclusions import (
    Boot,
    Excluded,
    after_failures,
    after_interruption,
    after_partial,
    after_refusal,
    cool_down_after_refusal,
    keys_of,
    no_spot,
    paused,
    pool_key,
    sickly,
    strikes_of,
    to_cool_down,
    touches,
)
from slurm_elastic.policies.launch.ranking import Scope, rank, serving
from tests.policies import strategies

T0 = 1000.0
OPEN = Exclusion(
    kind=BREAKER, scope="std", count=10, until=T0 + 50, cause=Quoted(text="10 machines in a row")
)
OFFER = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="m5", zone="a", market=Market.ON_DEMAND,
    price=0.1, cpus=2, memory=1000,
)  # fmt: skip


def failing(before: Exclusion, count: int, now: float) -> Exclusion:
    return after_failures(before, count, now, limit=10, cool_down=3600.0)


@pytest.mark.parametrize(
    ("of_size", "cool_down"), [(False, ("aws/*/*/on-demand", 1800.0)), (True, (OFFER.key, 180.0))]
)
def test_a_job_that_is_too_large_for_the_rest_of_a_quota_does_not_close_the_market(
    of_size: bool, cool_down: tuple[str, float]
) -> None:
    error = QuotaError("aws", "VcpuLimitExceeded", "more than your limit", of_size=of_size)
    assert cool_down_after_refusal(OFFER, error, 180.0, 1800.0)[:2] == cool_down


@given(st.lists(st.integers(1, 4), max_size=12))
def test_a_breaker_opens_with_the_tenth_in_a_row_and_not_before(counts: list[int]) -> None:
    breaker, opened = Exclusion(kind=BREAKER, scope="std"), None
    for n, count in enumerate(counts):
        breaker = failing(breaker, count, T0 + n)
        if opened is None and sum(counts[: n + 1]) >= 10:
            opened = T0 + n
        assert breaker.until == (0 if opened is None else opened + 3600), "it is set once"
        assert breaker.count == sum(counts[: n + 1])
        assert (paused(breaker, T0 + n) is None) == (opened is None)


def test_after_the_pause_one_that_fails_opens_it_again() -> None:
    assert paused(OPEN, T0 + 50) is None
    again = failing(OPEN, 1, T0 + 60)
    assert again.until == T0 + 60 + 3600
    assert str(again.cause) == "11 machines in a row booted but never registered with Slurm"


@given(st.integers(0, 5))
def test_after_the_pause_one_machine_is_on_trial(booting: int) -> None:
    request = strategies.request()
    pool = request.pool
    counted = Exclusion(kind=BREAKER, scope=pool.name, count=3)
    assert not Excluded(pool, (), T0).trial
    assert not Excluded(pool, (counted,), T0).trial
    scope = Scope(exclusions=(OPEN,), booting={f"pool:{pool.name}": booting})
    found = rank(request, [OFFER], scope, T0 + 60)
    assert [r.room for r in found.ranked] == ([] if booting else [1])


def test_the_ranking_says_that_a_pool_is_paused_or_on_trial() -> None:
    request = strategies.request()
    offer = OFFER
    shut = Scope(exclusions=(OPEN,))
    (rejected,) = rank(request, [offer], shut, T0).rejected
    assert rejected.reason == "pool std is paused until 00:17:30 UTC: 10 machines in a row"
    tried = serving(request, [offer, replace(offer, zone="b")], shut, T0 + 50)
    assert [t.room for t in tried] == [1], "one machine, whatever the offers"
    assert "pool std is tried with one machine" in tried[0].reason
    assert serving(request, [offer], replace(shut, booting={"pool:std": 1}), T0 + 50) == ()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12), st.integers(0, 12))
def test_no_cap_is_passed(cloud: int, pool: int, in_cloud: int, in_pool: int) -> None:
    caps = (("cloud:aws", cloud), ("pool:std", pool))
    left, words = turn(caps, {"cloud:aws": in_cloud, "pool:std": in_pool})
    for cap, booting in ((cloud, in_cloud), (pool, in_pool)):
        assert left <= max(cap - booting, 0)
    assert words


def test_a_node_waits_for_half_of_its_time() -> None:
    assert may_wait(T0, T0 + 299, 600)
    assert not may_wait(T0, T0 + 300, 600)
    assert may_wait(None, T0 + 10**6, 600)


@given(st.floats(1.0, 65533.0))
def test_a_node_is_given_up_before_slurmctld_does_it_and_not_much(resume_timeout: float) -> None:
    left = resume_timeout - given_up_after(resume_timeout)
    assert min(9.999, resume_timeout / 2) <= left <= 30.001
    assert given_up_after(resume_timeout) >= longest_wait(resume_timeout), "a turn is in time"


def test_what_rests_after_a_machine_that_did_not_register() -> None:
    failed = [Boot(offer="a", launched=T0), Boot(offer="b", launched=T0 + 5)]
    before = Boot(offer="a", launched=T0 - 99, registered=T0 - 1)
    booting = Boot(offer="a", launched=T0 + 1)
    assert to_cool_down(failed, [*failed, before, booting], "pool") == ("pool",), (
        "nothing proves it"
    )
    proof = Boot(offer="a", launched=T0 - 9, registered=T0 + 1)
    assert to_cool_down(failed, [*failed, proof], "pool") == ("b",), "the pool works, and offer a"
    other = Boot(offer="c", launched=T0, registered=T0 + 9)
    assert to_cool_down([failed[0]] * 2, [other], "pool") == ("a",)
    assert to_cool_down([failed[0]], [proof, other], "pool") == ()


def test_a_rest_is_of_its_pool_only() -> None:
    request = strategies.request()
    offer = Offer(
        cloud="aws", location=Location.PUBLIC, instance_type="m5", zone="a",
        market=Market.ON_DEMAND, price=0.1, cpus=2, memory=1000,
    )  # fmt: skip
    key = pool_key(request.pool)
    rest = Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=T0 + 9,
        code="BootFailed",
        cause=Quoted(text="n1 did not register"),
        count=1,
    )
    (rejected,) = rank(request, [offer], Scope(exclusions=(rest,)), T0).rejected
    assert (
        rejected.reason == "cooling down until 00:16:49 UTC after BootFailed: n1 did not register"
    )
    other = replace(request.pool, name="other")
    assert rank(replace(request, pool=other), [offer], Scope(exclusions=(rest,)), T0).ranked
    assert (touches(key, request.pool), touches(key, other)) == (True, False)


ANY = strategies.pool()
"""A pool of no types or zones in particular."""
NARROW = replace(ANY, instance_types=("m5", "c5"), zones=("a",), markets=(Market.SPOT,))


@pytest.mark.parametrize(
    ("key", "pools"),
    [
        ("aws/*/*/*", (True, True)),
        ("*/*/*/*", (True, True)),
        ("gcp/*/*/*", (False, False)),
        ("aws/c5/a/spot", (True, True)),
        ("aws/r5/*/*", (True, False)),
        ("aws/*/b/*", (True, False)),
        ("aws/*/a/*", (True, True)),
        ("aws/*/*/on-demand", (True, False)),
        ("aws/*/*/*/std", (True, True)),
        ("aws/*/*/*/other", (False, False)),
    ],
)
def test_a_key_touches_a_pool_that_may_buy_what_it_names(
    key: str, pools: tuple[bool, bool]
) -> None:
    assert (touches(key, ANY), touches(key, NARROW)) == pools


def test_refusals_in_a_row_double_the_cool_down_up_to_the_longest() -> None:
    made = [after_refusal("k", n, T0, 30.0, 100.0, "ICE", Quoted(text="none")) for n in range(4)]
    assert [one.until - T0 for one in made] == [30, 60, 100, 100]
    assert [one.count for one in made] == [1, 2, 3, 4]
    assert after_refusal("k", 0, T0, 30.0, 5.0, "ICE", Quoted(text="none")).until == T0 + 30
    partial, taken = after_partial("k", 2, 5, T0, 9.0), after_interruption("k", "i-1", T0, 9.0)
    assert [(e.kind, e.scope, e.until, e.count, str(e.cause)) for e in (partial, taken)] == [
        (COOL_DOWN, "k", T0 + 9, 0, "gave 2 of 5 machines"),
        (COOL_DOWN, "k", T0 + 9, 1, "machine i-1 is taken away"),
    ]


@pytest.mark.parametrize("strikes", [1023, 1024, 10**6])
def test_an_offer_that_refuses_for_weeks_cools_down_for_the_longest(strikes: int) -> None:
    made = after_refusal("k", strikes, T0, 30.0, 100.0, "ICE", Quoted(text="none"))
    assert (made.until, made.count) == (T0 + 100, strikes + 1)


def test_strikes_count_for_an_hour_after_the_cool_down() -> None:
    over = after_refusal("k", 2, T0, 30.0, 30.0, "ICE", Quoted(text="none"))
    others = replace(over, scope="other", count=9), replace(over, kind=BREAKER, count=9)
    assert strikes_of([*others, over], "k", T0 + 30 + 3599) == 3
    assert strikes_of([*others, over], "k", T0 + 30 + 3600) == 0
    assert strikes_of([], "k", T0) == 0


def test_an_offer_is_named_by_itself_its_market_and_its_cloud() -> None:
    assert keys_of(OFFER) == ("aws/m5/a/on-demand", "aws/*/*/on-demand", "aws/*/*/*")


SPOTLESS = Exclusion(kind=NO_SPOT, scope="job:7", until=T0 + 9, cause=Quoted(text="its saves fail"))


def test_a_job_that_cannot_be_saved_gets_no_spot_machine_for_a_while() -> None:
    told = SpotRefused(job=7, cause=SPOTLESS.cause)
    assert str(told) == "a job of this request gets no spot machine: its saves fail"
    assert no_spot([6, 7], [SPOTLESS], T0) == told
    assert no_spot([7], [SPOTLESS], T0 + 8) == told
    assert no_spot([7], [SPOTLESS], T0 + 9) is None, "it is over"
    assert no_spot([6], [SPOTLESS], T0) is None, "another job's"
    assert no_spot([7], [replace(SPOTLESS, kind=COOL_DOWN)], T0) is None, "of another kind"


def test_a_cool_down_and_a_pause_are_over_at_their_end() -> None:
    pool = strategies.pool()
    rest = Exclusion(
        kind=COOL_DOWN, scope=OFFER.key, until=T0 + 9, code="ICE", cause=Quoted(text="none")
    )
    for seen in (T0, T0 + 8):
        told = Excluded(pool, [rest], seen).why(OFFER)
        assert str(told) == "cooling down until 00:16:49 UTC after ICE: none", (
            "true whenever it is read"
        )
    assert str(Deadline.of(T0 + 2 * 86400, T0)) == "until 1970-01-03 00:16 UTC", "not today"
    assert str(Deadline.of(float("inf"), T0)) == "until an operator ends it"
    assert Excluded(pool, [rest], T0 + 9).why(OFFER) is None
    assert failing(OPEN, 1, OPEN.until).until == OPEN.until + 3600, "the one on trial failed"
    assert failing(OPEN, 1, OPEN.until - 1).until == OPEN.until


def test_only_its_own_breaker_shuts_a_pool() -> None:
    pool = strategies.pool()
    assert Excluded(pool, [OPEN], T0).pause is not None
    assert Excluded(pool, [replace(OPEN, scope="other")], T0).pause is None
    assert Excluded(pool, [OPEN, replace(OPEN, scope="other", until=0)], T0).pause is not None
    assert Excluded(pool, [replace(OPEN, kind="policy")], T0).pause is None


@pytest.mark.parametrize(
    "scope",
    ["aws/*/*/on-demand", "aws/m5/a/on-demand", "aws/*/*/*/std", "aws/m5/a/on-demand/std"],
)
def test_a_cool_down_of_any_width_is_told(scope: str) -> None:
    rest = Exclusion(
        kind=COOL_DOWN, scope=scope, until=T0 + 9, code="ICE", cause=Quoted(text="none")
    )
    assert Excluded(strategies.pool(), [rest], T0).why(OFFER) is not None
    other = replace(OFFER, cloud="gcp", instance_type="m6")
    assert Excluded(strategies.pool(), [rest], T0).why(other) is None


def test_an_open_breaker_keeps_its_cause_and_one_that_counts_has_the_latest() -> None:
    assert str(failing(OPEN, 1, T0).cause) == "10 machines in a row"
    counted = Exclusion(kind=BREAKER, scope="std", count=3, cause=Quoted(text="old"))
    assert failing(counted, 1, T0).cause == BootsFailed()


def test_a_machine_that_registered_at_the_very_launch_proves_the_pool() -> None:
    failed = Boot(offer="a", launched=T0)
    assert to_cool_down([failed], [Boot(offer="b", launched=T0 - 9, registered=T0)], "pool") == (
        "a",
    )


def test_a_breaker_says_whether_slurm_took_its_machines_out() -> None:
    assert sickly(replace(OPEN, cause=BootsFailed(in_a_row=3, node_reason="Prolog error")))
    assert not sickly(OPEN)


def test_other_words_change_no_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BootsFailed, "words", "x")
    drained = after_failures(
        Exclusion(kind=BREAKER, scope="std"), 9, T0, limit=3, cool_down=60.0,
        how=BootsFailed(node_reason="Prolog error"),
    )  # fmt: skip
    silent = failing(Exclusion(kind=BREAKER, scope="std"), 10, T0)
    assert (sickly(drained), sickly(silent)) == (True, False)
    assert paused(drained, T0) is not None
