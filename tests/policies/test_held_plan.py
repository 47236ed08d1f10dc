"""``plan reserve --held`` against a second program, which compares costs instead of shares of use.

It works on the machines of each hour with fractions: for each rank it asks directly which class of
a term is the cheapest, and it pays hour by hour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.policies.planning.held import DEMANDS, Risk, buy_now, plan_with
from slurm_elastic.policies.planning.portfolio import WEEK, ReservedClass, heaviest_first
from tests.policies.weekly_usage import usage_of

ON_DEMAND = 1.0
DEMAND_FRACTIONS = (Fraction(1, 2), Fraction(3, 4), Fraction(1), Fraction(5, 4), Fraction(3, 2))


def kind(name: str, weeks: int, upfront: float, price: float, always: bool = True) -> ReservedClass:
    return ReservedClass(
        name=name, term=weeks * WEEK, upfront=upfront, price=price, always=always
    )  # fmt: skip


TODAY = heaviest_first((
    kind("3y all", 156, 10483.2, 0.0), kind("3y none", 156, 0.0, 0.5),
    kind("1y all", 52, 5241.6, 0.0), kind("1y none", 52, 0.0, 0.75),
))  # fmt: skip
"""Reserved instances as they are sold now: each hour of the term is paid."""
OF_2011 = heaviest_first((
    kind("heavy", 52, 2620.8, 0.25), kind("medium", 52, 1747.2, 0.375, always=False),
    kind("light", 52, 873.6, 0.625, always=False), kind("month", 4, 0.0, 0.875),
))  # fmt: skip
"""EC2's classes of the paper, with prices that are whole in binary."""
BOOKS = {"today": TODAY, "2011": OF_2011}


def steady(_: random.Random, hour: int) -> int:
    return 8 + (hour // WEEK) % 2


def growing(rng: random.Random, hour: int) -> int:
    return hour // WEEK + rng.randrange(3)


def bursts(rng: random.Random, hour: int) -> int:
    return 3 + (rng.randrange(20) if hour % 24 < 6 else 0)


def shrinking(rng: random.Random, hour: int) -> int:
    return max(24 - hour // WEEK, 0) + (2 if hour % WEEK < 120 else 0) + rng.randrange(2)


HISTORIES: dict[str, Callable[[random.Random, int], int]] = {
    f.__name__: f for f in (steady, growing, bursts, shrinking)
}


def concurrent(name: str) -> list[int]:
    rng = random.Random(name)
    return [HISTORIES[name](rng, hour) for hour in range(20 * WEEK)]


class SecondProgram:
    """Hours and fractions: ``hours[rank]`` are the hours in which more than ``rank`` machines ran."""

    def __init__(self, classes: Sequence[ReservedClass], levels: Sequence[int]) -> None:
        self.classes = classes
        last = list(levels)[-12 * WEEK :]
        self.weeks = len(last) // WEEK
        weeks = [last[week * WEEK : (week + 1) * WEEK] for week in range(self.weeks)]
        self.ranks = [
            [Fraction(sum(level > rank for level in levels)) for rank in range(max(levels))]
            for levels in weeks
        ]
        """By week: the hours in which more than so many machines ran."""
        self.ever_best: dict[int, bool] = {}

    def hours(self, share: Fraction) -> list[Fraction]:
        """Each week by itself, as the ranks of a week are stretched by themselves."""
        whole: list[Fraction] = []
        for ranks in self.ranks:
            top = len(ranks)
            wide = round(float(top * share))
            stretched = [ranks[min(int(Fraction(n) / share), top - 1)] for n in range(wide)]
            whole += [Fraction(0)] * (wide - len(whole))
            whole = [
                a + b for a, b in zip(whole, stretched + [Fraction(0)] * len(whole), strict=False)
            ]
        return whole

    def per_week(self, kind: ReservedClass, used: Fraction) -> Fraction:
        """Dollars of a machine in a week in which it is used for so many hours."""
        paid = Fraction(WEEK) if kind.always else used
        return Fraction(kind.upfront) / (kind.term // WEEK) + paid * Fraction(kind.price)

    def best(self, used: Fraction, terms: Sequence[int], room: Callable[[int], bool]) -> int | None:
        """The cheapest class of the first term in which one is no dearer than on demand."""
        for term in terms:
            of_term = [n for n, k in enumerate(self.classes) if k.term == term]
            costs = {n: self.per_week(self.classes[n], used) for n in of_term}
            on_demand = used * Fraction(ON_DEMAND)
            # heavier classes win a tie, and a bound leaves the next lighter class that pays off
            ladder = [
                n for n in of_term
                if costs[n] <= on_demand and self.is_ever_best(n, of_term)
            ]  # fmt: skip
            for n in ladder:
                threshold_met = all(
                    costs[n] <= costs[m] for m in of_term if m > n and self.is_ever_best(m, of_term)
                )
                if threshold_met and room(n):
                    return n
        return None

    def is_ever_best(self, n: int, of_term: Sequence[int]) -> bool:
        """Whether at some use no other class of the term, nor on demand, is cheaper."""
        if n not in self.ever_best:
            self.ever_best[n] = self._is_ever_best(n, of_term)
        return self.ever_best[n]

    def _is_ever_best(self, n: int, of_term: Sequence[int]) -> bool:
        for step in range(8 * WEEK + 1):
            used = Fraction(step, 8)
            mine = self.per_week(self.classes[n], used)
            others = [self.per_week(self.classes[m], used) for m in of_term if m > n]
            heavier = [self.per_week(self.classes[m], used) for m in of_term if m < n]
            if mine <= used and all(mine <= o for o in others) and all(mine < h for h in heavier):
                return True
        return False

    def buy(self, held: Sequence[int], share: Fraction, risk: Risk) -> list[int]:
        counts = [0] * len(self.classes)
        terms = sorted({k.term for k in self.classes}, reverse=not risk.prefer_short)

        def room(n: int) -> bool:
            return n not in risk.at_most or held[n] + counts[n] < risk.at_most[n]

        for total in self.hours(share)[sum(held) :]:
            chosen = self.best(total / self.weeks, terms, room)
            if chosen is None:
                break
            counts[chosen] += 1
        return counts

    def cost(self, machines: Sequence[int], share: Fraction) -> Fraction:
        """Dollars per week: the lowest ranks run on what is held, in the order of the classes."""
        hours = self.hours(share)
        total, rank = Fraction(0), 0
        for count, k in zip(machines, self.classes, strict=True):
            for _ in range(count):
                used = hours[rank] if rank < len(hours) else Fraction(0)
                total += self.weeks * self.per_week(k, used / self.weeks)
                rank += 1
        return (total + sum(hours[rank:])) / self.weeks


HELD = {"nothing": (0, 0, 0, 0), "some": (2, 0, 1, 0), "much": (0, 6, 0, 4)}
RISKS = {
    "none": Risk(), "bounded": Risk(at_most={0: 3, 2: 2}), "short": Risk(prefer_short=True),
    "short, bounded": Risk(at_most={2: 4, 3: 5}, prefer_short=True),
}  # fmt: skip


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("history", HISTORIES)
def test_both_programs_say_the_same_to_the_cent(
    history: str, book: str, held: str, risk: str
) -> None:
    levels, classes, owned = concurrent(history), BOOKS[book], HELD[held]
    plan = plan_with(usage_of(levels), classes, ON_DEMAND, owned, RISKS[risk])
    second = SecondProgram(classes, levels)
    bought = second.buy(owned, Fraction(1), RISKS[risk])
    assert list(plan.buy) == bought
    assert round(plan.upfront, 2) == round(
        sum(n * k.upfront for n, k in zip(bought, classes, strict=True)), 2
    )
    both = [a + b for a, b in zip(owned, bought, strict=True)]
    for case, share in zip(plan.cases, DEMAND_FRACTIONS, strict=True):
        assert case.share == float(share)
        assert list(case.buy) == second.buy(owned, share, RISKS[risk])
        pairs = ((case.on_demand, [0] * 4), (case.held, owned), (case.bought, both))
        for dollars, machines in pairs:
            # Much less than a cent apart: rounded to cents, two halves may differ by rounding alone.
            assert dollars == pytest.approx(float(second.cost(machines, share)), abs=1e-5)
    assert tuple(map(float, DEMAND_FRACTIONS)) == DEMANDS


class BesideBlocks(SecondProgram):
    """The same for the hours in which more machines ran than the blocks have."""

    blocks = 3

    def hours(self, share: Fraction) -> list[Fraction]:
        return super().hours(share)[self.blocks :]


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("history", HISTORIES)
def test_machines_of_capacity_blocks_serve_the_lowest_ranks(history: str, book: str) -> None:
    levels, classes, owned = concurrent(history), BOOKS[book], HELD["some"]
    second = BesideBlocks(classes, levels)
    plan = plan_with(usage_of(levels), classes, ON_DEMAND, owned, Risk(), second.blocks)
    assert list(plan.buy) == second.buy(owned, Fraction(1), Risk())
    for case, share in zip(plan.cases, DEMAND_FRACTIONS, strict=True):
        assert list(case.buy) == second.buy(owned, share, Risk())
        for dollars, machines in ((case.on_demand, [0] * 4), (case.held, owned)):
            assert dollars == pytest.approx(float(second.cost(machines, share)), abs=1e-5)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 6), min_size=14, max_size=28),
    st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(list(BOOKS)),
    st.dictionaries(st.integers(0, 3), st.integers(0, 4)), st.booleans(),
)  # fmt: skip
def test_bounds_hold_and_nothing_is_bought_for_what_is_held(
    days: list[int], held: tuple[int, ...], book: str, at_most: dict[int, int], short: bool
) -> None:
    usage = usage_of([level for level in days for _ in range(24)])
    risk = Risk(at_most=at_most, prefer_short=short)
    bought = buy_now(usage, BOOKS[book], ON_DEMAND, held, risk)
    assert sum(bought) <= max(max(days) - sum(held), 0)
    for n, limit in at_most.items():
        assert bought[n] == 0 or held[n] + bought[n] <= limit


def test_a_short_term_is_taken_where_it_pays() -> None:
    usage = usage_of([2] * 12 * WEEK)
    assert buy_now(usage, TODAY, ON_DEMAND, (0, 0, 0, 0), Risk()) == (2, 0, 0, 0)
    short = buy_now(usage, TODAY, ON_DEMAND, (0, 0, 0, 0), Risk(prefer_short=True))
    assert sum(short[2:]) == 2


def test_a_longer_term_that_costs_more_is_not_taken() -> None:
    usage = usage_of([2] * 12 * WEEK)
    dear, cheap = kind("1y none", 52, 0.0, 0.875), kind("6m all", 26, 2184.0, 0.0)
    classes = heaviest_first((dear, cheap))
    assert [c.name for c in classes] == ["1y none", "6m all"]
    assert buy_now(usage, classes, ON_DEMAND, (0, 0), Risk()) == (0, 2)
    assert buy_now(usage, classes, ON_DEMAND, (0, 0), Risk(at_most={1: 1})) == (1, 1)
    assert buy_now(usage, classes, ON_DEMAND, (0, 0), Risk(prefer_short=True)) == (0, 2)
    same = heaviest_first((kind("1y", 52, 0.0, 0.5), kind("6m", 26, 2184.0, 0.0)))
    assert buy_now(usage, same, ON_DEMAND, (0, 0), Risk()) == (2, 0), "for the same price"
