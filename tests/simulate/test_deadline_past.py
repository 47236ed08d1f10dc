"""The choice for a job with a deadline is told the past of its market, and nothing of its future."""

from __future__ import annotations

import random

from slurm_elastic.policies.checkpoint.deadline import DeadlineChoice, Race, choose
from slurm_elastic.policies.checkpoint.market_spells import NOTHING
from slurm_elastic.simulate.studies.deadline import pasts_by_tick, tried

GAP = 60
JOB = {"work": 3600.0, "deadline": 5400.0, "restart": 120.0}
TICKS = int(JOB["deadline"] // GAP) + 2


def told(counts: list[int]) -> list[Race]:
    """All that one job is told, from the first random start."""
    races = []

    def listening(race: Race) -> DeadlineChoice:
        races.append(race)
        return choose(race)

    tried(counts, GAP, choose=listening, starts=1, **JOB)
    return races


def test_a_choice_knows_the_trace_up_to_where_it_stands() -> None:
    chance = random.Random(4)
    counts = [int(chance.random() < 0.7) for _ in range(400)]
    first = random.Random(0).randrange(len(counts) - TICKS)
    pasts = pasts_by_tick([count > 0 for count in counts], GAP)
    races = told(counts)
    assert first > 0
    assert [race.past for race in races] == pasts[first + 1 : first + 1 + len(races)]
    assert all(race.up == race.down == race.past.age for race in races)


def test_on_a_trace_that_repeats_it_knows_what_it_saw_since_its_start() -> None:
    races = told([1, 0, 0, 1, 1] * 10)
    assert races[0].past == NOTHING.then(GAP, spot=races[0].spot)
    assert races[-1].past.downs.lengths


def test_on_a_trace_as_long_as_the_job_it_knows_nothing_before() -> None:
    assert told([1] * TICKS)[0].past == NOTHING.then(GAP, spot=True)
