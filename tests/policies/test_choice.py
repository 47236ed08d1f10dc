"""Which policy is chosen from what the last weeks would have cost and waited."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.planning.choice import PolicyOutcome, next_policy

OWN, QUICK, CHEAP = "on_demand+idle(600)", "slurm+idle(3600)", "bursts+idle(60)"


def of(policy: str, cost: float, wait: float, unserved: int = 0) -> PolicyOutcome:
    return PolicyOutcome(policy=policy, cost=cost, wait=wait, jobs=1000, unserved=unserved)


@pytest.mark.parametrize(
    ("outcomes", "present", "max_wait", "chosen"),
    [
        ([of(OWN, 100, 60), of(CHEAP, 80, 60)], OWN, None, CHEAP),
        ([of(OWN, 100, 60), of(CHEAP, 96, 60)], OWN, None, OWN),
        ([of(OWN, 100, 60), of(CHEAP, 96, 60)], CHEAP, None, CHEAP),
        ([of(OWN, 100, 60), of(CHEAP, 80, 62)], OWN, None, CHEAP),
        ([of(OWN, 100, 60), of(CHEAP, 80, 90)], OWN, None, OWN),
        ([of(OWN, 100, 60), of(CHEAP, 80, 90)], CHEAP, None, OWN),
        ([of(OWN, 100, 60), of(CHEAP, 80, 90)], OWN, 120, CHEAP),
        ([of(OWN, 100, 60), of(QUICK, 200, 20)], OWN, 30, QUICK),
        ([of(OWN, 100, 60), of(QUICK, 200, 40), of(CHEAP, 50, 90)], OWN, 30, QUICK),
        ([of(OWN, 100, 60), of(CHEAP, 50, 10, unserved=3)], OWN, None, OWN),
        ([of(OWN, 0, 0), of(CHEAP, 0, 0)], CHEAP, None, CHEAP),
        ([of(OWN, 100, 60)], "gone", None, OWN),
        ([of(OWN, 100, 60), of(CHEAP, 80, 65)], OWN, None, OWN),
        ([of(OWN, 100, 60), of(CHEAP, 80, 65)], CHEAP, None, CHEAP),
    ],
    ids=[
        "cheaper", "hardly cheaper", "hardly dearer", "waits as long", "waits too long",
        "present waits too long", "within the limit", "only the dear keeps the limit",
        "none keeps the limit", "leaves jobs", "nothing ran", "present is unknown",
        "a little too long", "present waits a little too long",
    ],
)  # fmt: skip
def test_the_cheapest_within_the_wait_counts_and_small_savings_do_not(
    outcomes: list[PolicyOutcome], present: str, max_wait: float | None, chosen: str
) -> None:
    found = next_policy(outcomes, present, OWN, max_wait)
    assert found.policy == chosen
    for outcome in outcomes:
        assert outcome.policy in found.reason
