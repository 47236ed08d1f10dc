"""The watchdog's rule: only what Slurm has had powered down for long, in several looks, is
ended.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ledger_cases import instance
from msgspec.structs import replace

from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.repair.unneeded import Bound, Standing, Unneeded, overdue

OFF = {"pub1": SlurmNode(name="pub1", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))}
UP = {"pub1": SlurmNode(name="pub1", states=frozenset({"IDLE", "CLOUD"}))}
BOUND = Bound(seconds=60.0)


def look(
    now: float, before: Mapping[str, Standing], nodes: Mapping[str, SlurmNode] = OFF
) -> Unneeded:
    return overdue(nodes, (), [instance()], before, now, BOUND)


def test_three_looks_in_a_row_over_the_whole_time_are_needed() -> None:
    first = look(1000.0, {})
    second = look(1060.0, first.unneeded_since)
    assert (first.ready, second.ready) == ((), ())
    (ended,) = look(1061.0, second.unneeded_since).ready
    assert ended.machine == "i-1"
    assert str(ended.reason) == "Slurm has its node powered down for 1m 1s"


def test_many_looks_in_a_short_time_are_not_enough() -> None:
    standing: Mapping[str, Standing] = {}
    for now in range(60):
        verdict = look(float(now), standing)
        assert verdict.ready == ()
        standing = verdict.unneeded_since
    assert look(60.0, standing).ready


def test_a_node_that_was_needed_meanwhile_starts_anew() -> None:
    second = look(60.0, look(0.0, {}).unneeded_since)
    needed = look(61.0, second.unneeded_since, UP)
    assert needed.unneeded_since == {}
    assert look(200.0, needed.unneeded_since).ready == ()


def test_a_machine_at_the_address_of_a_node_in_use_stays_whatever_its_tag_says() -> None:
    """Anybody may change a tag, and the watchdog knows the machine's node by nothing else."""
    mine = replace(instance(), address="10.0.0.7")
    used = SlurmNode(name="pub2", states=frozenset({"ALLOCATED", "CLOUD"}), address="10.0.0.7")
    standing: Mapping[str, Standing] = {}
    for now in (0.0, 60.0, 120.0, 180.0):
        verdict = overdue(OFF | {"pub2": used}, ("pub2",), [mine], standing, now, BOUND)
        standing = verdict.unneeded_since
        assert verdict.ready == ()
    gone = replace(used, states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))
    for now in (200.0, 240.0, 300.0):
        verdict = overdue(OFF | {"pub2": gone}, (), [mine], standing, now, BOUND)
        standing = verdict.unneeded_since
    assert verdict.ready
    one_host = {n: replace(used, name=n) for n in ("pub2", "pub3")}
    assert overdue(OFF | one_host, (), [mine], standing, 400.0, BOUND).ready, "it tells nothing"


@pytest.mark.parametrize(
    ("count", "ends", "waits"), [(3, 3, 0), (10, 10, 0), (11, 10, 1), (60, 12, 48)]
)
def test_a_look_ends_a_fifth_at_most_and_tells_how_many_wait(
    count: int, ends: int, waits: int
) -> None:
    names = [f"n{i}" for i in range(count)]
    off = {n: replace(OFF["pub1"], name=n) for n in names}
    seen = [replace(instance(), id=f"i-{n}", node=n) for n in names]
    standing = {one.id: Standing(since=0.0, rounds=9) for one in seen}
    found = overdue(off, (), seen, standing, 1e6, BOUND)
    assert (len(found.ready), found.deferred_count) == (ends, waits)


@pytest.mark.parametrize(
    ("change", "busy"),
    [
        ({"state": InstanceState.TERMINATED}, ()),
        ({"node": "left"}, ()),
        ({}, ("pub1",)),
    ],
)
def test_what_has_ended_has_a_job_or_is_of_no_node_is_let_be(
    change: dict[str, object], busy: tuple[str, ...]
) -> None:
    standing = {"i-1": Standing(since=0.0, rounds=9)}
    one = instance()
    assert overdue(OFF, (), [one], standing, 1e6, BOUND).ready
    found = overdue(OFF, busy, [replace(one, **change)], standing, 1e6, BOUND)
    assert (found.ready, found.unneeded_since) == ((), {})
