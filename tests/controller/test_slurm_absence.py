"""How long slurmctld was away is counted, whoever notices it and when."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from meanwhile import Meanwhile, Watched

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.slurm_absence import PERIOD_S, SlurmAbsence

AHEAD = 1_000_000.0
"""The clock is ahead of the monotonic one by that."""


class Case:
    """A slurmctld that was started at ``started`` (monotonic s), and may be away."""

    def __init__(self, started: float = 0.0, clock: float = 100.0) -> None:
        self.started, self.clock = started, clock
        self.is_away = False
        self.asked = 0
        self.absence = SlurmAbsence()

    def question(self) -> float:
        self.asked += 1
        if self.is_away:
            raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller")
        return self.started + AHEAD

    def watch(self, until: float) -> None:
        while self.clock < until:
            self.absence.ask(self.question, lambda: self.clock, lambda: self.clock + AHEAD)
            self.clock += 1.0

    def since(self, begin: float) -> float:
        return self.absence.seconds_since(begin, self.clock)


def test_a_slurmctld_that_answers_is_never_away_and_seldom_asked() -> None:
    case = Case()
    case.watch(200.0)
    assert case.since(100.0) == 0.0
    assert case.absence.answers_for(case.clock) > 100.0
    assert case.asked == pytest.approx(100.0 / PERIOD_S, abs=2)


def test_an_absence_counts_from_the_last_answer_on() -> None:
    case = Case()
    case.watch(110.0)
    case.is_away = True
    case.watch(150.0)
    assert case.absence.is_away
    assert case.absence.answers_for(case.clock) == 0.0
    assert case.since(100.0) == pytest.approx(40.0, abs=PERIOD_S)
    case.is_away = False
    case.watch(180.0)
    assert not case.absence.is_away
    assert case.since(100.0) == pytest.approx(41.0, abs=PERIOD_S)
    assert case.since(130.0) == pytest.approx(20.0, abs=1.0)
    assert case.since(160.0) == 0.0
    assert case.absence.answers_for(case.clock) == pytest.approx(30.0, abs=1.0)


def test_a_restart_between_two_questions_is_an_absence() -> None:
    case = Case()
    case.watch(110.0)
    case.started = 110.5
    case.watch(120.0)
    assert 0.0 < case.since(100.0) <= 2 * PERIOD_S


def test_a_first_answer_says_nothing_of_the_time_before_slurmctld_was_started() -> None:
    """This service was away, too: a boot from before counts from slurmctld's start on."""
    case = Case(started=80.0)
    case.watch(120.0)
    assert case.since(50.0) == pytest.approx(30.0)
    assert case.since(90.0) == 0.0
    assert case.absence.answers_for(case.clock) == pytest.approx(40.0, abs=1.0)


def test_an_answer_that_is_a_refusal_is_no_absence() -> None:
    def refuses() -> float:
        raise SlurmError(("scontrol",), 1, "Access/permission denied")

    absence = SlurmAbsence()
    with pytest.raises(SlurmError):
        absence.ask(refuses, lambda: 0.0, lambda: 0.0)
    assert not absence.is_away
    assert absence.answers_for(5.0) == inf


class Slow(SlurmAbsence):
    """Another thread comes before the spans are read."""

    look: Callable[[], None] | None = None

    def __getattribute__(self, name: str) -> Any:
        if name == "_spans" and (look := super().__getattribute__("look")) is not None:
            look()
        return super().__getattribute__(name)


def test_an_absence_that_ends_while_it_is_counted_counts_once() -> None:
    case, lock = Case(), Watched()
    case.absence = absence = Slow()
    absence._lock = lock  # type: ignore[assignment]
    case.watch(110.0)
    case.is_away = True
    case.watch(150.0)
    case.is_away = False

    def answer() -> None:
        absence.ask(case.question, lambda: case.clock, lambda: case.clock + AHEAD)

    other = Meanwhile(lock, answer)
    absence.look = other
    assert case.since(100.0) == pytest.approx(40.0, abs=PERIOD_S)
    other.end()
