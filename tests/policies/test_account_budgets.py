"""Who pays a machine, and when an account has nothing left."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.causes import Quoted
from slurm_elastic.policies.money.account_budgets import (
    ACCOUNT,
    NONE,
    USER,
    Overdrawn,
    barring,
    charged,
    overdrawn,
    parts,
    payer,
    scopes,
    shares,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
names = st.sampled_from(("physics", "chemistry/bob", "biology/alice", "(none)/bob", NONE))


def test_a_machine_is_paid_by_the_accounts_of_its_jobs_each_job_counting_one() -> None:
    jobs = {1: ("n1", "n2"), 2: ("n1",), 3: ("n1", "n9"), 4: ("n3",)}
    of = {1: "physics", 2: "chemistry", 3: "physics", 4: ""}
    assert shares(("n1", "n2", "n3", "n4"), jobs, of) == {
        "n1": {"chemistry": 1, "physics": 2},
        "n2": {"physics": 1},
        "n3": {NONE: 1},
        "n4": {},
    }


def test_one_that_is_started_ahead_is_paid_by_those_who_wait_by_their_nodes() -> None:
    waiting = [("physics", 2), ("chemistry", 1), ("physics", 3), ("", 4)]
    assert parts(waiting) == {NONE: 4, "chemistry": 1, "physics": 5}
    assert parts([]) == {}


def test_each_pays_its_part_and_nobody_what_is_for_nobody() -> None:
    paid = [({"chemistry": 1, "physics": 2}, 9.0), ({"physics": 1}, 1.0), ({}, 0.5)]
    found = charged(paid)
    assert found == {
        "account:chemistry": 3.0, "account:physics": 7.0, "account:(none)": 0.5, "user:(none)": 10.5
    }  # fmt: skip


def test_a_payer_is_an_account_and_a_user_and_each_may_have_a_budget() -> None:
    paid = [
        ({payer("physics", "alice"): 1, payer("physics", "bob"): 2}, 9.0),
        ({payer("", "alice"): 1}, 1.0),
    ]
    assert charged(paid) == {
        "account:physics": 9.0, "account:(none)": 1.0, "user:alice": 4.0, "user:bob": 6.0
    }  # fmt: skip
    assert scopes(payer("a/b", "alice")) == ("account:a/b", "user:alice")
    assert (payer("physics", ""), payer("", "")) == ("physics", NONE)


def test_of_two_budgets_the_one_that_keeps_a_job_longer_is_told() -> None:
    over = {
        "account:physics": Overdrawn(MIDNIGHT, Quoted(text="a")),
        "user:alice": Overdrawn(DECEMBER, Quoted(text="b")),
    }
    assert barring(over, "physics", "alice") == over["user:alice"]
    assert barring(over, "physics", "bob") == over["account:physics"]
    assert barring(over, "chemistry", "bob") is None


def test_two_budgets_of_a_day_are_spent_until_the_same_midnight() -> None:
    over = {
        "account:physics": Overdrawn(MIDNIGHT, Quoted(text="a")),
        "user:alice": Overdrawn(MIDNIGHT, Quoted(text="b")),
    }
    assert barring(over, "physics", "alice") == over["account:physics"]


@given(
    st.lists(
        st.tuples(st.dictionaries(names, st.integers(1, 5000), max_size=4), st.floats(0, 1e4)),
        max_size=30,
    )
)
def test_the_accounts_together_pay_what_was_paid_to_the_cent(
    paid: list[tuple[dict[str, int], float]],
) -> None:
    found = charged(paid)
    known = {name for of, _ in paid for name in of} | {NONE}
    for kind in (ACCOUNT, USER):
        mine = {scope: dollars for scope, dollars in found.items() if scope.startswith(kind)}
        assert sum(mine.values()) == pytest.approx(sum(d for _, d in paid), abs=0.001)
        assert all(dollars >= 0 for dollars in mine.values())
    assert found.keys() <= {scope for name in known for scope in scopes(name)}


@given(
    st.dictionaries(
        st.integers(1, 30),
        st.lists(st.sampled_from([f"n{i}" for i in range(8)]), unique=True).map(tuple),
    ),
    st.dictionaries(st.integers(1, 30), st.sampled_from(("", "physics", "chemistry"))),
)
def test_every_node_of_a_job_has_somebody_who_pays_it(
    jobs: dict[int, tuple[str, ...]], of: dict[int, str]
) -> None:
    nodes = [f"n{i}" for i in range(8)]
    found = shares(nodes, jobs, of)
    for node in nodes:
        waiting = [job for job, mine in jobs.items() if node in mine]
        assert sum(found[node].values()) == len(waiting)
        assert set(found[node]) == {of.get(job) or NONE for job in waiting}


def test_an_account_over_its_budget_is_told_with_figures_and_until_when() -> None:
    day = overdrawn("account:physics", Bounds(per_day=12.0), Spent(day=12.034, month=50.0), NOON)
    assert day is not None
    assert (day.until, day.reason) == (
        MIDNIGHT,
        "account physics has spent $12.03 of $12.00 today; new machines from 2026-11-21 00:00 UTC",
    )
    both = Bounds(per_day=12.0, per_month=50.0)
    december = "2026-12-01 00:00 UTC"
    month = overdrawn("account:physics", both, Spent(day=13.0, month=50.0), NOON)
    assert month is not None
    assert (month.until, month.reason) == (
        DECEMBER,
        f"account physics has spent $50.00 of $50.00 this month; new machines from {december}",
    )
    small = overdrawn("account:physics", Bounds(per_day=0.0002), Spent(day=0.000213), NOON)
    assert small is not None
    assert "$0.000213 of $0.0002 today" in small.reason
    odd = overdrawn("account:physics", Bounds(per_day=0.125), Spent(day=0.125), NOON)
    assert odd is not None
    assert "$0.125 of $0.125 today" in odd.reason, "more than cents are told whole"


def test_one_within_it_or_without_one_may_go_on() -> None:
    assert overdrawn("account:physics", Bounds(), Spent(day=1e9, month=1e9), NOON) is None
    within = Spent(day=11.99, month=49.99)
    assert overdrawn("account:physics", Bounds(per_day=12.0, per_month=50.0), within, NOON) is None


@pytest.mark.parametrize("month", range(1, 13))
def test_the_next_month_begins_on_its_first_day(month: int) -> None:
    last = datetime(2026, month, 28, 23, 59, tzinfo=UTC).timestamp()
    found = overdrawn("account:a", Bounds(per_month=1.0), Spent(month=1.0), last)
    assert found is not None
    until = datetime.fromtimestamp(found.until, UTC)
    assert (until.day, until.month, until.hour) == (1, month % 12 + 1, 0)
