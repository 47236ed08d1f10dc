"""Tokens of repeated create calls."""

from __future__ import annotations

import uuid

from slurm_elastic.providers.base.attempts import KEPT_CALLS, Attempts, token

UUID = "7d1f0c52-8f7e-4d5d-9d5e-111111111111"


def test_only_a_refusal_makes_another_token() -> None:
    attempts, call = Attempts(), ("g1", 0)
    assert attempts.number(call) == attempts.number(call) == 0
    assert attempts.refused(call) == attempts.number(call) == 1
    assert attempts.refused(call) == 2
    assert attempts.number(("g1", 1)) == attempts.number(("g2", 0)) == 0


def test_another_calls_refusal_takes_no_attempt_away() -> None:
    """Else its next token brings the old refusal again."""
    attempts = Attempts()
    attempts.refused(("g1", 0))
    attempts.refused(("g1", 1))
    assert attempts.number(("g1", 0)) == 1


def test_old_calls_are_forgotten() -> None:
    attempts = Attempts()
    for number in range(KEPT_CALLS + 1):
        attempts.refused(("g", number))
    assert (attempts.number(("g", 0)), attempts.number(("g", 1))) == (0, 1)


def test_a_token_belongs_to_one_attempt_of_one_call_of_one_cluster() -> None:
    other = "11111111-2222-3333-4444-555555555555"
    made = [
        token(cluster, (generation, number), attempt)
        for cluster in (UUID, other)
        for generation in ("g1", "g2")
        for number in (0, 1)
        for attempt in (0, 1)
    ]
    assert len(set(made)) == len(made)
    assert token(UUID, ("g1", 0), 0) == made[0], "a restarted process finds the first answer"
    assert all(uuid.UUID(text).int for text in made), "Google refuses a zero"
