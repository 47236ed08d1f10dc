"""Remembers answers about purchases, also between the runs of one process.

A plan replays one history with a hundred policies. The same questions come again: which offer is
best for so many more machines while so many of each offer are up? If prices never change, no
reservation begins or ends, and no offer cools down, the answer depends on nothing else. Ranking all
offers for it takes a hundred times as long as looking it up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

MOST_ANSWERS = 50_000
MOST_SITES = 4

Answers = dict[Hashable, Any]
_sites: list[tuple[object, Answers]] = []


def answers_of(terms: object) -> Answers:
    """Return the answers for purchases on these ``terms``: offers, limits, the order of offers."""
    for known_terms, answers in _sites:
        if known_terms == terms:
            return answers
    answers = {}
    _sites.append((terms, answers))
    del _sites[:-MOST_SITES]
    return answers


def remember(answers: Answers, key: Hashable, answer: object) -> None:
    """Store an answer. If there are too many answers, forget the others."""
    if len(answers) >= MOST_ANSWERS:
        answers.clear()
    answers[key] = answer
