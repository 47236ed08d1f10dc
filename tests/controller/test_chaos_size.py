"""A chaos test's size follows the time that it has."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.controller import chaos


class Ticking(RuleBasedStateMachine):
    now = 0.0
    each = 0.0

    def __init__(self) -> None:
        super().__init__()
        type(self).now += self.each

    @rule()
    def nothing(self) -> None: ...


def drawn(seconds_of_an_example: float, monkeypatch) -> int:
    monkeypatch.setattr(chaos, "ASKED", "")

    class Machine(Ticking):
        each = seconds_of_an_example

    return chaos.draw(Machine, 40, 1, clock=lambda: Machine.now)


def test_with_time_it_draws_all_examples(monkeypatch):
    assert drawn(0.01, monkeypatch) == 40


def test_without_time_it_draws_one_round_and_no_more(monkeypatch):
    assert drawn(1000.0, monkeypatch) == chaos.ROUND


def test_what_is_asked_for_is_drawn_whatever_it_takes(monkeypatch):
    class Machine(Ticking):
        each = 1000.0

    monkeypatch.setattr(chaos, "ASKED", "20")
    assert chaos.draw(Machine, 40, 1, clock=lambda: Machine.now) == 20
