"""Whose question is answered next."""

from __future__ import annotations

from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.watch.door.fair_turns import FairTurns, WaitingQuestion


def asked(uid: int, *, trusted: bool = False) -> WaitingQuestion:
    return WaitingQuestion(Peer(uid=uid), uid, trusted, b"", None)  # type: ignore[arg-type]


def rest(turns: FairTurns) -> list[WaitingQuestion]:
    return list(iter(turns.take, None))


def test_in_a_lane_one_of_each_user_is_next_and_of_the_trusted_first() -> None:
    turns = FairTurns()
    all_ = [asked(uid, trusted=uid == 0) for uid in (1, 1, 2, 1, 3, 0, 2)]
    for one in all_:
        turns.add(one)
    assert [all_.index(one) for one in rest(turns)] == [5, 0, 2, 4, 1, 6, 3]
    assert turns.take() is None


def test_who_comes_while_another_one_is_answered_is_next() -> None:
    """Else one who asks for what takes long would have two turns before anybody's first."""
    turns = FairTurns()
    first, second, third, other = (asked(uid) for uid in (1, 1, 1, 2))
    turns.add(first)
    turns.add(second)
    assert turns.take() is first
    turns.add(third)
    turns.add(other)
    turns.withdraw(second)
    assert rest(turns) == [other, third]


def test_who_takes_a_question_back_keeps_the_turn_and_gains_none() -> None:
    turns = FairTurns()
    mine, gone, other, late = (asked(uid) for uid in (1, 1, 2, 1))
    for one in (gone, mine, other):
        turns.add(one)
    turns.withdraw(gone)
    assert turns.take() is mine
    turns.add(gone)
    turns.withdraw(gone)
    turns.add(late)
    assert rest(turns) == [other, late]


def test_who_asks_while_oneself_is_answered_is_after_who_comes_then() -> None:
    turns = FairTurns()
    first, gone, late, other = (asked(uid) for uid in (1, 1, 1, 2))
    turns.add(first)
    turns.add(gone)
    assert turns.take() is first
    turns.withdraw(gone)
    turns.add(late)
    turns.add(other)
    assert rest(turns) == [other, late]
