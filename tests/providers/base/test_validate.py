"""How late a cloud's lists may show an order: so that it is repeated before its node is given up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from slurm_elastic.config.clouds import default_listing_lag
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.providers.base.validate import check_listing_lag


class Cloud(Struct):
    listing_lag: float | None
    resume_timeout: float | None = None


class Draft:
    """The timings of a file, and what is told of it."""

    def __init__(self, **timings: float | None) -> None:
        self.timings = timings
        self.told: list[tuple[Any, str, str]] = []
        self.problems = self

    def timing(self, name: str) -> float | None:
        return self.timings[name]

    def add(self, at: object, found: str, expected: str) -> None:
        self.told.append((at, found, expected))


def told(
    lag: float | None, own: float | None = None, *, reconcile_interval: float | None = 15.0,
    resume_timeout: float | None = 600.0,
) -> list[tuple[Any, str, str]]:  # fmt: skip
    draft = Draft(reconcile_interval=reconcile_interval, resume_timeout=resume_timeout)
    check_listing_lag(draft, 2, Cloud(lag, own))  # type: ignore[arg-type]
    return draft.told


END = given_up_after(600.0)


def test_one_that_leaves_a_round_before_the_end_is_well() -> None:
    assert told(END - 15.5) == []
    assert told(None) == []


@pytest.mark.parametrize("lag", [END - 15.0, END, END + 100])
def test_one_that_leaves_none_is_a_mistake(lag: float) -> None:
    ((at, _, expected),) = told(lag)
    assert at == ("clouds", 2, "listing_lag")
    assert expected.startswith("less than ")
    assert "timings.reconcile_interval before a node is given up" in expected


def test_the_clouds_own_time_to_boot_counts_first() -> None:
    assert told(50.0, own=60.0) != []
    assert told(50.0, own=600.0, resume_timeout=60.0) == []


def test_the_default_may_be_said_however_long_a_round_is() -> None:
    default = default_listing_lag(60.0)
    assert told(default, own=60.0, reconcile_interval=3600.0) == []
    ((_, _, expected),) = told(default + 1, own=60.0, reconcile_interval=3600.0)
    assert expected.startswith("at most ")
    assert "so that an order is repeated before a node is given up" in expected


@pytest.mark.parametrize("broken", [{"reconcile_interval": None}, {"resume_timeout": None}])
def test_beside_broken_timings_nothing_is_said(broken: dict[str, None]) -> None:
    assert told(10_000.0, **broken) == []
