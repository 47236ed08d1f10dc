"""Which machines are one cloud's, and what is said of those that nobody can tell."""

from __future__ import annotations

import pytest

from slurm_elastic.providers.base.ours import KEPT_S, Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER

OWNERS = Ownership(cluster="u", clouds=frozenset({"a", "b"}))
MINE, UNCLEAR = {CLUSTER: "u", CLOUD: "a"}, {CLUSTER: "u"}


def test_one_of_no_cloud_that_can_be_told_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours = Ours("a", OWNERS)
    there = {"1": MINE, "2": UNCLEAR, "3": MINE | {CLOUD: "b"}, "4": {}, "5": UNCLEAR}
    for _ in range(2):
        assert ours.among(there, there.__getitem__, str) == ["1"]
    assert (ours.unclear, ours.ids) == ({"2", "5"}, set())
    (told,) = caplog.records
    assert told.levelname == "ERROR"
    assert told.getMessage() == (
        "machines left alone, any of these clouds may have started them: tag them "
        "slurm-elastic:cloud=NAME or end them clouds=a,b ids=2,5"
    )
    ours.among([], there.__getitem__, str)
    ours.among([*there, "6"], (there | {"6": UNCLEAR}).__getitem__, str)
    ours.among(there, there.__getitem__, str)
    assert [one.getMessage()[-5:] for one in caplog.records[1:]] == ["ids=6"]


def test_of_named_ids_those_that_are_ours_are_taken() -> None:
    ours, asked = Ours("a", OWNERS), []
    ours.remember(["1"])
    assert ours.split(["1", "1"], lambda: asked.append("all")) == (["1"], [])
    assert asked == [], "it is known"
    assert ours.split(["2", "1"], lambda: ours.remember(["2"])) == (["2", "1"], [])
    assert ours.split(["3", "2"], lambda: asked.append("all")) == (["2"], ["3"])
    assert asked == ["all"]


def test_an_id_that_nothing_tells_any_more_is_forgotten() -> None:
    now = 0.0
    ours = Ours("a", OWNERS, clock=lambda: now)
    ours.remember(["lives", "gone"])
    for _ in range(4):
        now += KEPT_S / 2
        ours.remember(["lives"])
    assert ours.ids == {"lives"}
    learnt = ours.split(["gone"], lambda: ours.remember(["gone"]))
    assert learnt == (["gone"], []), "all are listed again"


def test_a_machine_of_no_clear_cloud_that_is_gone_is_forgotten() -> None:
    now = 0.0
    ours = Ours("a", OWNERS, clock=lambda: now)
    tags = {"stays": UNCLEAR, "gone": UNCLEAR}
    ours.among(tags, tags.__getitem__, str)
    for _ in range(4):
        now += KEPT_S / 2
        ours.among(["stays"], tags.__getitem__, str)
        ours.remember([])
    assert ours.unclear == {"stays"}
