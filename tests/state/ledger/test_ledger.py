from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ledger_cases import T0, instance, offer, pool, spec
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.changed_jobs import (
    Barred,
    ChangedJob,
    Delayed,
    Held,
    JobValues,
    Misfit,
    Redirected,
)
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, POLICY, Exclusion
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.model.launch_states import Done, Failed, Intended
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.memory import MACHINE_JOBS
from slurm_elastic.policies.launch.exclusions import strikes_of
from slurm_elastic.state.ledger import Decision, Health, Ledger
from slurm_elastic.state.ledger import schema as ledger_schema
from slurm_elastic.state.store.store import AT_ONCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with_file = Ledger(path)
    yield with_file
    with_file.close()


# launches


def test_a_pass_takes_in_what_another_process_has_written(tmp_path: Path) -> None:
    mine, other = Ledger(tmp_path / "ledger.db"), Ledger(tmp_path / "ledger.db")
    mine.refresh()
    assert mine.launches.open() == ()
    other.launches.record_intent(spec(), "r1", T0)
    assert mine.launches.open() == (), "within a pass it is of one moment"
    mine.refresh()
    assert len(mine.launches.open()) == 1
    mine.close()
    other.close()


def test_intent_is_on_disk_before_anything_else(ledger: Ledger, path: Path) -> None:
    ledger.launches.record_intent(spec(jobs=(7, 8)), "r1", T0)
    other = Ledger(path)
    (launch,) = other.launches.open()
    other.close()
    assert (launch.generation, launch.request, launch.state) == ("g1", "r1", Intended())
    assert (launch.pool, launch.cloud, launch.nodes) == ("burst", "aws", ("pub1", "pub2"))
    assert (launch.jobs, launch.offer) == ((7, 8), offer())
    assert launch.created == T0


def test_intending_the_same_again_is_nothing(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    before = ledger.launches.get("g1")
    ledger.launches.record_intent(spec(), "r1", T0 + 5)
    assert ledger.launches.get("g1") == before
    ledger.machines.record_launch("g1", [instance()], T0 + 6)
    ledger.launches.record_intent(spec(), "r1", T0 + 7)
    assert ledger.launches.open() == ()


@pytest.mark.parametrize(
    "other",
    [
        spec(nodes=("pub1",)),
        spec(of=pool(name="other")),
        spec(bought=offer(price=0.05)),
        spec(jobs=(1,)),
    ],
)
def test_one_generation_never_stands_for_two_launches(ledger: Ledger, other: object) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    with pytest.raises(SlurmElasticError, match="g1 already stands for another launch"):
        ledger.launches.record_intent(other, "r1", T0)
    assert [x.nodes for x in ledger.launches.open()] == [("pub1", "pub2")]


def test_a_failed_generation_is_not_used_again(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.launches.record_failure("g1", "no capacity", T0 + 1)
    with pytest.raises(SlurmElasticError, match="g1 has failed: no capacity"):
        ledger.launches.record_intent(spec(), "r1", T0 + 2)


def test_launched_closes_the_intent_and_keeps_the_machines(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(jobs=(7,)), "r1", T0)
    answer = [instance("i-1"), instance("i-2", node="pub2", address="10.0.0.2")]
    ledger.machines.record_launch("g1", answer, T0 + 3)
    ledger.machines.record_launch("g1", answer, T0 + 9)
    assert ledger.launches.open() == ()
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert launch.state == Done(finished_at=T0 + 3)
    first, second = ledger.machines.live()
    assert (first.instance, second.instance) == tuple(answer)
    assert (first.pool, first.jobs, first.last_seen, first.missed_listings) == (
        "burst",
        (7,),
        T0 + 3,
        0,
    )
    assert first.worst_price == 0.12
    assert first.lease.price == 0.04


def test_a_fuller_second_answer_adds_the_missing_machines(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0 + 1)
    ledger.machines.record_launch("g1", [instance("i-1"), instance("i-2", node="pub2")], T0 + 2)
    assert [m.instance.id for m in ledger.machines.live()] == ["i-1", "i-2"]


def test_an_id_that_comes_again_after_the_end_of_its_machine_is_another_machine(
    ledger: Ledger,
) -> None:
    """OpenNebula counts anew after a reset of its database."""
    for number, generation in enumerate(("g1", "g2", "g3")):
        at = T0 + 100 * number
        ledger.launches.record_intent(spec(generation), "r1", at)
        ledger.machines.record_launch(generation, [instance("i-1", generation=generation)], at)
        assert [m.instance.generation for m in ledger.machines.live()] == [generation]
        ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), at + 50)
    ended = {m.instance.generation: m.ended_at for m in ledger.machines.live(ended_since=0.0)}
    assert ended == {"g1": T0 + 50, "g2": T0 + 150, "g3": T0 + 250}


@pytest.mark.parametrize("has_intent", [True, False], ids=["launch known", "launch unknown"])
def test_a_list_shows_an_id_that_comes_again_before_its_launch_is_recorded(
    ledger: Ledger, has_intent: bool
) -> None:
    ledger.launches.record_intent(spec("g1"), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1", generation="g1")], T0)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), T0 + 50)
    if has_intent:
        ledger.launches.record_intent(spec("g2"), "r2", T0 + 100)
    later = instance("i-1", "n2", "g2", launched=T0 + 101)
    ledger.machines.observe("aws", [later], T0 + 200)
    live = [m.instance.generation for m in ledger.machines.live()]
    assert live == ([] if has_intent else ["g1"]), "a tag alone is no proof"
    if has_intent:
        ledger.machines.record_launch("g2", [later], T0 + 201)
        (machine,) = ledger.machines.live()
        assert (machine.instance.generation, machine.instance.node) == ("g2", "n2")
        ended = [m for m in ledger.machines.live(ended_since=0.0) if m.has_ended]
        assert [(m.instance.generation, m.ended_at) for m in ended] == [("g1", T0 + 50)]


@pytest.mark.parametrize(("launched", "generation"), [(T0 + 101, "g2"), (T0, "g1")])
def test_an_adopted_machine_is_another_if_it_was_launched_after_the_end_of_the_one_with_its_id(
    ledger: Ledger, launched: float, generation: str
) -> None:
    for row in ("g1", "g2"):
        ledger.launches.record_intent(spec(row), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1", generation="g1")], T0)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), T0 + 50)
    ledger.machines.adopt(instance("i-1", "n2", "g2", launched=launched), "burst", T0 + 200)
    assert [m.instance.generation for m in ledger.machines.live()] == [generation]


def test_an_instance_belongs_to_one_launch(ledger: Ledger) -> None:
    for generation in ("g1", "g2"):
        ledger.launches.record_intent(spec(generation), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0)
    with pytest.raises(
        SlurmElasticError, match="instance i-1 of cloud aws is known from generation g1"
    ):
        ledger.machines.record_launch(
            "g2", [instance("i-0", "pub2", "g2"), instance("i-1", "pub1", "g2")], T0
        )
    assert [m.instance.id for m in ledger.machines.live()] == ["i-1"], "all of it or nothing"
    assert [x.generation for x in ledger.launches.open()] == ["g2"]


def test_two_clouds_may_count_their_machines_alike(ledger: Ledger) -> None:
    for cloud in ("near", "far"):
        of = pool(cloud=cloud)
        ledger.launches.record_intent(spec(cloud, of=of, bought=offer(cloud=cloud)), "r1", T0)
        ledger.machines.record_launch(
            cloud, [replace(instance("7", generation=cloud), cloud=cloud)], T0
        )
    assert len(ledger.machines.live()) == 2
    ledger.machines.record_registration("near", ["7"], T0 + 5)
    ledger.machines.record_ending("far", ["7"], Quoted(text="idle"), T0 + 6)
    ledger.machines.observe("near", [], T0 + 7)
    rows = {m.instance.cloud: m for m in ledger.machines.live()}
    assert (rows["near"].registered_at, rows["far"].registered_at) == (T0 + 5, None)
    assert (rows["near"].retired_at, rows["far"].retired_at) == (None, T0 + 6)
    assert (rows["near"].missed_listings, rows["far"].missed_listings) == (1, 0)
    ledger.machines.record_end("far", ["7"], Quoted(text="gone"), T0 + 8)
    assert [m.instance.cloud for m in ledger.machines.live()] == ["near"]


def test_a_machine_registers_once(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0)
    assert ledger.machines.live()[0].boots
    assert all(m.boots for m in ledger.machines.live())
    ledger.machines.record_registration("aws", ["i-1"], T0 + 5)
    ledger.machines.record_registration("aws", ["i-1"], T0 + 9)
    (machine,) = ledger.machines.live()
    assert (machine.registered_at, machine.boots) == (T0 + 5, False)
    assert not any(m.boots for m in ledger.machines.live())


def test_breakers_and_the_review_of_holds(ledger: Ledger) -> None:
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="burst", count=3))
    paused = Exclusion(
        kind=BREAKER, scope="burst", count=10, until=T0 + 9, cause=Quoted(text="10 in a row")
    )
    ledger.exclusions.add(paused)
    assert ledger.exclusions.breakers() == (paused,)
    ledger.exclusions.add(
        *[
            Exclusion(
                kind=CAPACITY,
                scope="pub1",
                pool="burst",
                cause=Quoted(text="x"),
                since=T0,
                until=T0 + 99,
            )
        ]
    )
    assert ledger.exclusions.review_holds("burst", T0 + 5) == 1
    assert ledger.exclusions.holds()[0].until == T0 + 5
    assert ledger.exclusions.review_holds("other", T0) == 0
    assert (
        ledger.exclusions.readmit(BREAKER, "burst"),
        ledger.exclusions.readmit(BREAKER, "burst"),
    ) == (True, False)


def test_a_launch_keeps_all_the_offers_it_may_use(ledger: Ledger) -> None:
    other = offer(type_="m6i.xlarge", price=0.05, on_demand=0.20)
    wide = replace(spec(), alternatives=(other,))
    ledger.launches.record_intent(wide, "r1", T0)
    ledger.launches.record_intent(wide, "r1", T0)
    (row,) = ledger.launches.open()
    assert (row.offer, row.alternatives) == (wide.offer, (other,))
    with pytest.raises(SlurmElasticError, match="already stands for another launch"):
        ledger.launches.record_intent(spec(), "r1", T0)
    bought = replace(instance("i-1"), instance_type="m6i.xlarge")
    ledger.machines.record_launch("g1", [instance("i-2", "pub2"), bought], T0)
    assert {m.instance.id: m.worst_price for m in ledger.machines.live()} == {
        "i-1": 0.20,
        "i-2": 0.12,
    }


def test_failed_keeps_the_clouds_words(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.launches.record_failure("g1", "InsufficientInstanceCapacity", T0 + 1)
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert launch.state == Failed(finished_at=T0 + 1, error="InsufficientInstanceCapacity")
    assert ledger.launches.open() == ()


def test_a_done_launch_does_not_fail_later(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance()], T0)
    ledger.launches.record_failure("g1", "late", T0 + 1)
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert launch.state == Done(finished_at=T0)


def test_machines_found_after_giving_up_are_kept(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.launches.record_failure("g1", "time-out", T0 + 1)
    ledger.machines.record_launch("g1", [instance()], T0 + 2)
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert launch.state == Done(finished_at=T0 + 1)
    assert len(ledger.machines.live()) == 1


def test_results_of_launches_nobody_intended_are_refused(ledger: Ledger) -> None:
    for call in (
        lambda: ledger.machines.record_launch("g9", [], T0),
        lambda: ledger.launches.record_failure("g9", "x", T0),
    ):
        with pytest.raises(SlurmElasticError, match="no launch with generation g9"):
            call()


def test_open_launches_are_told_in_order(ledger: Ledger) -> None:
    for at, generation in enumerate(("gb", "ga", "gc")):
        ledger.launches.record_intent(spec(generation), "r1", T0 + at)
    ledger.launches.record_failure("ga", "no capacity", T0 + 9)
    assert [x.generation for x in ledger.launches.open()] == ["gb", "gc"]
    assert ledger.launches.get("nothing") is None


# machines


def launched(ledger: Ledger, *ids: str, at: float = T0) -> None:
    ledger.launches.record_intent(spec(nodes=tuple(f"n{i}" for i in ids)), "r1", at)
    ledger.machines.record_launch("g1", [instance(i, node=f"n{i}", launched=at) for i in ids], at)


def test_observe_updates_those_seen_and_counts_misses_of_others(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2")
    seen = instance("i-1", state=InstanceState.RUNNING, address="10.0.0.1")
    ledger.machines.observe("aws", [seen], T0 + 10)
    ledger.machines.observe("aws", [seen], T0 + 20)
    one, two = ledger.machines.live()
    assert (one.instance.state, one.instance.address) == (InstanceState.RUNNING, "10.0.0.1")
    assert (one.last_seen, one.missed_listings) == (T0 + 20, 0)
    assert (two.last_seen, two.missed_listings) == (T0, 2)
    ledger.machines.observe("aws", [instance("i-2")], T0 + 30)
    one, two = ledger.machines.live()
    assert (one.missed_listings, two.missed_listings) == (1, 0)
    assert one.instance.address == "10.0.0.1", "a read without address does not forget it"


def test_observe_leaves_other_clouds_alone(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    ledger.machines.observe("onprem", [], T0 + 10)
    assert ledger.machines.live()[0].missed_listings == 0


def test_a_read_that_began_before_the_launch_is_no_miss(ledger: Ledger) -> None:
    launched(ledger, "i-1", at=T0 + 10)
    ledger.machines.observe("aws", [], T0 + 9)
    ledger.machines.observe("aws", [], T0 + 10)
    assert ledger.machines.live()[0].missed_listings == 0
    ledger.machines.observe("aws", [], T0 + 11)
    assert ledger.machines.live()[0].missed_listings == 1


def test_what_was_seen_before_the_clock_was_set_back_by_hours_is_missed(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2", at=T0)
    ledger.machines.observe("aws", [instance("i-1"), instance("i-2")], T0 + 10)
    for later in (0, 30, 60):
        ledger.machines.observe("aws", [instance("i-1")], T0 - 7200 + later)
    assert [m.missed_listings for m in ledger.machines.live()] == [0, 3]


def test_what_was_seen_before_the_clock_was_set_back_by_minutes_is_missed(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2", at=T0)
    ledger.machines.observe("aws", [instance("i-1"), instance("i-2")], T0 + 10, took_s=2.0)
    for later in (0, 30, 60):
        ledger.machines.observe("aws", [instance("i-1")], T0 - 600 + later, took_s=2.0)
    assert [m.missed_listings for m in ledger.machines.live()] == [0, 3]


def test_a_launch_during_a_slow_read_is_no_miss(ledger: Ledger) -> None:
    launched(ledger, "i-1", at=T0 + 100)
    ledger.machines.observe("aws", [], T0, took_s=101.0)
    assert ledger.machines.live()[0].missed_listings == 0


def test_observe_does_not_adopt(ledger: Ledger) -> None:
    ledger.machines.observe("aws", [instance("i-9")], T0)
    assert ledger.machines.live(ended_since=0) == ()


def test_a_terminated_machine_has_ended(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    gone = instance("i-1", state=InstanceState.TERMINATED)
    ledger.machines.observe("aws", [gone], T0 + 10)
    ledger.machines.observe("aws", [gone], T0 + 20)
    assert ledger.machines.live() == ()
    (machine,) = ledger.machines.live(ended_since=T0 + 10)
    assert (machine.ended_at, str(machine.cause_text)) == (T0 + 10, "terminated in the cloud")
    assert machine.lease.end == T0 + 10
    assert ledger.machines.live(ended_since=T0 + 11) == ()


def test_a_machine_that_still_runs_is_live_again(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2")
    ledger.machines.record_ending("aws", ["i-1"], Quoted(text="idle"), T0 + 1)
    ledger.machines.record_end("aws", ["i-1", "i-2"], Quoted(text="missing"), T0 + 5)
    running = [instance(i, state=InstanceState.RUNNING) for i in ("i-1", "i-2")]
    ledger.machines.observe("aws", running, T0 + 5)
    assert ledger.machines.live() == (), "that read began before the end"
    ledger.machines.observe("aws", running, T0 + 6)
    one, two = ledger.machines.live()
    assert (one.ended_at, one.retired_at, str(one.cause_text)) == (None, T0 + 1, "idle")
    assert (two.ended_at, two.retired_at, two.cause_text) == (None, None, None)


def test_a_machine_on_its_way_out_stays_ended(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="missing"), T0 + 5)
    ledger.machines.observe("aws", [instance("i-1", state=InstanceState.STOPPING)], T0 + 6)
    assert ledger.machines.live() == ()


def test_suspend_keeps_the_first_intent_and_reason(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2")
    ledger.machines.record_ending("aws", ["i-1"], Quoted(text="idle 600 s"), T0 + 1)
    ledger.machines.record_ending(
        "aws", ["i-1", "i-2", "unknown"], Quoted(text="maximum age"), T0 + 2
    )
    one, two = ledger.machines.live()
    assert (one.retired_at, str(one.cause_text)) == (T0 + 1, "idle 600 s")
    assert (two.retired_at, str(two.cause_text)) == (T0 + 2, "maximum age")
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone from the cloud"), T0 + 3)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="again"), T0 + 4)
    (one,) = (m for m in ledger.machines.live(ended_since=T0) if m.has_ended)
    assert (one.ended_at, str(one.cause_text)) == (T0 + 3, "idle 600 s")
    assert one.instance.state == InstanceState.TERMINATED


def test_adopt_takes_in_a_machine_once(ledger: Ledger) -> None:
    ledger.machines.adopt(instance("i-9", generation="lost"), "burst", T0)
    ledger.machines.adopt(instance("i-9", generation="lost", address="10.9.9.9"), "burst", T0 + 5)
    (machine,) = ledger.machines.live()
    assert (machine.pool, machine.last_seen) == ("burst", T0 + 5)
    assert machine.instance.address == "10.9.9.9"
    ledger.machines.record_end("aws", ["i-9"], Quoted(text="x"), T0 + 6)
    ledger.machines.adopt(instance("i-9", generation="lost"), "burst", T0 + 7)
    assert len(ledger.machines.live()) == 1


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.RUNNING])
def test_adopt_takes_one_that_had_ended_back_whatever_the_clock_says(
    ledger: Ledger, state: InstanceState
) -> None:
    launched(ledger, "i-1")
    ledger.machines.record_ending("aws", ["i-1"], Quoted(text="idle"), T0 + 100)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0 + 100)
    ledger.machines.observe("aws", [instance("i-1", state=InstanceState.STOPPING)], T0 + 200)
    assert ledger.machines.live() == (), "not by one read alone"
    before = ledger.machines.adopt(instance("i-1", state=state), "burst", T0 + 50)
    assert before is not None
    assert before.ended_at == T0 + 100
    (machine,) = ledger.machines.live()
    assert (machine.retired_at, str(machine.cause_text)) == (T0 + 100, "idle")
    assert machine.instance.state is state


def test_a_machine_without_a_node_takes_it_with_those_who_pay(ledger: Ledger) -> None:
    ledger.books.record_payers({"pub1": {"physics": 1}}, T0)
    ledger.launches.record_intent(spec(nodes=("pub1",)), "r", T0)
    ledger.machines.adopt(instance("i-1", node=""), "", T0)
    ledger.machines.observe("aws", [instance("i-1", node="")], T0 + 1, {"pub1": pool()})
    assert ledger.machines.live()[0].pool == ""
    ledger.machines.observe("aws", [instance("i-1", node="pub1")], T0 + 2, {"pub1": pool()})
    (machine,) = ledger.machines.live()
    assert (machine.instance.node, machine.pool) == ("pub1", "burst")
    assert machine.accounts == {"physics": 1}
    ledger.machines.observe("aws", [instance("i-1", node="pub2")], T0 + 3, {"pub2": pool()})
    assert ledger.machines.live()[0].instance.node == "pub1", "a node is taken once"


def test_a_machine_without_a_node_may_be_told_its_own_with_its_adoption(ledger: Ledger) -> None:
    ledger.machines.adopt(instance("i-1", node=""), "", T0)
    ledger.machines.adopt(instance("i-1", node="pub1"), "burst", T0 + 1)
    (machine,) = ledger.machines.live()
    assert (machine.instance.node, machine.pool) == ("pub1", "burst")


def test_a_machine_goes_on_under_its_clouds_new_name(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    ledger.machines.record_registration("aws", ["i-1"], T0 + 5)
    moved = instance("i-1", bought=offer(cloud="east"))
    before = ledger.machines.adopt(moved, "burst", T0 + 10, 0.0, {"east"})
    assert before is not None
    assert before.instance.cloud == "aws"
    (machine,) = ledger.machines.live()
    assert (machine.instance.cloud, machine.registered_at) == ("east", T0 + 5)
    assert ledger.machines.clouds(T0) == ("east",)
    found = ledger.launches.get("g1")
    assert found is not None
    assert found.cloud == "east"


def test_a_machine_that_was_given_up_under_its_clouds_old_name_is_paid_once(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    ledger.machines.record_registration("aws", ["i-1"], T0 + 5)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="not listed"), T0 + 6)
    moved = instance("i-1", bought=offer(cloud="east"))
    ledger.machines.adopt(moved, "burst", T0 + 10, 0.0, {"east"})
    (machine,) = ledger.machines.live(ended_since=0.0)
    assert machine.instance.cloud == "east"
    assert machine.life == Serving(registered_at=T0 + 5)


def test_only_a_machine_that_boots_registers(ledger: Ledger) -> None:
    launched(ledger, "i-1", "i-2")
    ledger.machines.record_ending("aws", ["i-1"], Quoted(text="idle"), T0 + 1)
    ledger.machines.record_end("aws", ["i-2"], Quoted(text="gone"), T0 + 1)
    ledger.machines.record_registration("aws", ["i-1", "i-2"], T0 + 2)
    assert [m.registered_at for m in ledger.machines.live(ended_since=0.0)] == [None, None]


def test_another_clouds_machine_of_the_same_name_is_another(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    other = instance("i-1", bought=offer(cloud="east"))
    assert ledger.machines.adopt(other, "burst", T0, 0.0, {"east", "aws"}) is None, (
        "both are configured"
    )
    third = instance("i-1", generation="g9", bought=offer(cloud="west"))
    assert ledger.machines.adopt(third, "burst", T0, 0.0, {"west"}) is None, "of another launch"
    assert ledger.machines.clouds(T0) == ("aws", "east", "west")


def test_adopt_knows_the_launch_where_there_is_one(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(jobs=(4,)), "r1", T0)
    ledger.machines.adopt(instance("i-1"), "burst", T0 + 1)
    (machine,) = ledger.machines.live()
    assert (machine.jobs, machine.worst_price) == ((4,), 0.12)


def test_a_machine_repeats_only_the_first_of_its_launchs_many_jobs(ledger: Ledger) -> None:
    many = tuple(range(1, 5001))
    ledger.launches.record_intent(spec(jobs=many), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0 + 1)
    (machine,) = ledger.machines.live()
    assert machine.jobs == many[:MACHINE_JOBS]
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert launch.jobs == many


# cool-downs and holds


def cool_down(until: float, strikes: int = 1) -> Exclusion:
    key = offer().key
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=until,
        code="NoCapacity",
        cause=Quoted(text="none left"),
        count=strikes,
    )


def test_cool_downs_end(ledger: Ledger) -> None:
    ledger.exclusions.add(cool_down(T0 + 180))
    assert ledger.exclusions.cool_downs(T0 + 179) == (cool_down(T0 + 180),)
    assert ledger.exclusions.cool_downs(T0 + 180) == ()
    ledger.exclusions.add(cool_down(T0 + 500, strikes=2))
    assert ledger.exclusions.cool_downs(T0 + 180) == (cool_down(T0 + 500, strikes=2),)


def test_strikes_are_remembered_for_an_hour_after_the_end(ledger: Ledger) -> None:
    key = offer().key
    assert strikes_of(ledger.exclusions.all(), key, T0) == 0
    ledger.exclusions.add(cool_down(T0 + 180, strikes=3))
    assert strikes_of(ledger.exclusions.all(), key, T0 + 1) == 3
    assert strikes_of(ledger.exclusions.all(), key, T0 + 180 + 3599) == 3
    assert strikes_of(ledger.exclusions.all(), key, T0 + 180 + 3600) == 0
    assert strikes_of(ledger.exclusions.all(), "other", T0) == 0


def test_clearing_a_cool_down_forgives_its_strikes(ledger: Ledger) -> None:
    ledger.exclusions.add(cool_down(T0 + 180, strikes=3))
    assert ledger.exclusions.readmit(COOL_DOWN, offer().key) is True
    assert ledger.exclusions.readmit(COOL_DOWN, offer().key) is False
    assert ledger.exclusions.cool_downs(T0) == ()
    assert strikes_of(ledger.exclusions.all(), offer().key, T0) == 0


def test_what_lasts_for_longer_than_anything_is_set_for_is_over(ledger: Ledger) -> None:
    for key, until in (("a", T0 + 100), ("b", T0 + 101)):
        ledger.exclusions.add(
            Exclusion(
                kind=COOL_DOWN, scope=key, until=until, code="X", cause=Quoted(text="x"), count=2
            )
        )
        ledger.exclusions.add(
            Exclusion(kind=BREAKER, scope=key, count=3, until=until, cause=Quoted(text="x"))
        )
        row = Exclusion(
            kind=CAPACITY, scope=key, pool="burst", cause=Quoted(text="x"), since=T0, until=until
        )
        ledger.exclusions.add(*[row, replace(row, kind="policy")])
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="closed", count=1))
    assert ledger.exclusions.end_far(T0, 100) == 3
    assert [c.scope for c in ledger.exclusions.cool_downs(T0)] == ["a"]
    assert strikes_of(ledger.exclusions.all(), "b", T0) == 2, "what was refused was refused"
    assert [(b.scope, b.until) for b in ledger.exclusions.breakers()] == [
        ("a", T0 + 100), ("b", T0), ("closed", 0)
    ]  # fmt: skip
    found = {(row.scope, row.kind): row.until for row in ledger.exclusions.holds()}
    assert (found["b", "capacity"], found["b", "policy"]) == (T0, T0 + 101)
    assert ledger.exclusions.end_far(T0, 100) == 0


def test_holds_are_per_node(ledger: Ledger) -> None:
    def hold(node: str, until: float) -> Exclusion:
        return Exclusion(
            kind=CAPACITY,
            scope=node,
            pool="burst",
            cause=Quoted(text="no capacity"),
            since=T0,
            until=until,
        )

    ledger.exclusions.add(*[hold("pub2", T0 + 1), hold("pub1", T0 + 1)])
    ledger.exclusions.add(*[hold("pub2", T0 + 9)])
    assert ledger.exclusions.holds() == (hold("pub1", T0 + 1), hold("pub2", T0 + 9))
    ledger.exclusions.readmit(CAPACITY, "pub1", "unknown")
    assert ledger.exclusions.holds() == (hold("pub2", T0 + 9),)


# decisions, heartbeat, health


def decision(at: float, *subjects: str, detail: dict[str, object] | None = None) -> Decision:
    return Decision(
        at=at,
        correlation="r1",
        kind="ranked",
        subjects=subjects,
        cause=Quoted(text="why"),
        detail=detail,
    )


def test_a_lifted_requeue_is_remembered_as_it_was_first(ledger: Ledger) -> None:
    ledger.requeues.lift(7, 0, T0)
    ledger.requeues.lift(7, 1, T0 + 5)
    ledger.requeues.lift(9, 3, T0)
    ledger.requeues.lift(8, 0, T0 + 5)
    assert ledger.requeues.lifted() == ((7, 0), (8, 0), (9, 3))
    assert ledger.requeues.lifted(T0) == ((7, 0), (9, 3))
    ledger.requeues.forget(8)
    ledger.requeues.forget(7)
    ledger.requeues.forget(7)
    assert ledger.requeues.lifted() == ((9, 3),)


def test_decisions_are_found_by_any_subject_in_time_order(ledger: Ledger) -> None:
    second = decision(T0 + 2, "pub1", "job:7")
    first = decision(T0 + 1, "pub1", detail={"rejected": [["aws/x", "too dear"]], "n": 1})
    ledger.decisions.record(second, first)
    ledger.decisions.record(decision(T0 + 3, "pub2"))
    assert ledger.decisions.about("pub1") == (first, second)
    assert ledger.decisions.about("job:7") == (second,)
    assert ledger.decisions.about("pub1", limit=1) == (second,), "the newest are kept"
    assert ledger.decisions.about("nobody") == ()


def test_detail_may_hold_our_values(ledger: Ledger) -> None:
    ledger.decisions.record(decision(T0, "pub1", detail={"offer": offer()}))
    (kept,) = ledger.decisions.about("pub1")
    assert kept.detail is not None
    assert kept.detail["offer"]["instance_type"] == "c6i.xlarge"


def test_any_number_of_decisions_of_one_write_keep_their_own_subjects(ledger: Ledger) -> None:
    ledger.decisions.record(decision(T0 - 1, "before"))
    ledger.decisions.record(*(decision(T0 + n, f"n{n}", "all") for n in range(AT_ONCE + 2)))
    for n in (0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1):
        (found,) = ledger.decisions.about(f"n{n}")
        assert (found.at, found.subjects) == (T0 + n, (f"n{n}", "all"))
    assert len(ledger.decisions.about("all", limit=5000)) == AT_ONCE + 2
    ledger.decisions.record()
    assert len(ledger.decisions.about("before")) == 1


def test_a_decision_on_5000_nodes_is_one_row_and_can_be_pruned(ledger: Ledger) -> None:
    nodes = [f"n{i}" for i in range(5000)]
    ledger.decisions.record(decision(T0, *nodes, *nodes[:5]))
    ledger.decisions.record(decision(T0 + 10, "n1"))
    (kept,) = ledger.decisions.about("n4999")
    assert len(kept.subjects) == 5005
    assert ledger.prune(T0 + 5) == 1
    assert ledger.decisions.about("n4999") == ()
    assert len(ledger.decisions.about("n1")) == 1


def test_prune_keeps_what_was_paid(ledger: Ledger) -> None:
    launched(ledger, "i-1")
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="x"), T0 + 1)
    ledger.exclusions.add(cool_down(T0 + 2))
    assert ledger.prune(T0 + 1e6) == 0
    assert len(ledger.machines.live(ended_since=0)) == 1
    assert ledger.launches.get("g1") is not None
    assert strikes_of(ledger.exclusions.all(), offer().key, T0 + 3) == 0


def test_heartbeat_and_health_keep_the_last_word(ledger: Ledger) -> None:
    assert ledger.health.heartbeat("daemon") is None
    ledger.health.beat("daemon", T0, 10)
    ledger.health.beat("daemon", T0 + 5, 11)
    assert ledger.health.heartbeat("daemon") == (T0 + 5, 11)
    bad = Health(name="aws", checked=T0, error="no credentials", code="auth")
    ledger.health.report(bad)
    ledger.health.report(Health(name="slurm", checked=T0))
    assert ledger.health.all() == (bad, Health(name="slurm", checked=T0))
    ledger.health.report(Health(name="aws", checked=T0 + 1))
    assert ledger.health.all()[0] == Health(name="aws", checked=T0 + 1)


# the file


def test_the_file_and_what_sqlite_puts_beside_it_are_its_owners_alone_whatever_the_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0)
    try:
        ledger = Ledger(tmp_path / "a ?#%.db")
        ledger.health.beat("slurm-elasticd", T0, 1)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    files = {f"a ?#%.db{end}": 0o600 for end in ("", "-wal", "-shm")}
    journal = {"a ?#%.applied": 0o600, "a ?#%-000001.jsonl": 0o600}
    assert modes == {"journal": 0o700} | journal | files
    ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_ledger_first_made_by_root_belongs_to_the_directorys_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.health.beat("daemon", T0, 1)
    owners = {p.stat().st_uid for p in tmp_path.rglob("*")}
    ledger.close()
    assert owners == {65534}, "the -wal and -shm too"


def test_a_newer_schema_is_refused(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="has schema 99, this release knows"):
            Ledger(path, read_only=read_only)


def test_a_view_of_another_schema_is_made_anew_of_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path)
    launched(ledger, "i-1")
    ledger.close()
    before = ledger_schema.LEDGER
    more = (*before.statements, "alter table machines add column colour text default 'red'")
    later = msgspec.structs.replace(before, version=before.version + 1, statements=more)
    monkeypatch.setattr(ledger_schema, "LEDGER", later)
    reader = Ledger(path, read_only=True)
    assert len(reader.machines.live()) == 1, "in memory, until a writer makes it"
    reader.close()
    ledger = Ledger(path)
    assert ledger.store.select("select colour from machines")[0][0] == "red"
    ledger.close()
    other = path.parent / "other" / "ledger.db"
    other.parent.mkdir()
    Ledger(other).close()
    monkeypatch.setattr(ledger_schema, "LEDGER", before)
    for _ in range(2):
        for read_only in (False, True):
            with pytest.raises(ConfigError, match="install the newer slurm-elastic again"):
                Ledger(other, read_only=read_only)
        other.unlink(missing_ok=True)


def test_a_cloud_was_read_whole_once_that_is_said(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.machines.clouds_read() == frozenset()
    for again in range(2):
        ledger.machines.record_whole_list("aws", T0 + again)
    assert ledger.machines.clouds_read() == {"aws"}
    ledger.close()


def test_who_pays_a_machine_is_kept_with_its_launch(path: Path) -> None:
    ledger = Ledger(path)
    ledger.books.record_payers({"pub1": {"physics": 2, "chemistry": 1}}, T0)
    ledger.launches.record_intent(spec(nodes=("pub1",)), "r", T0)
    ledger.books.record_payers({"pub1": {"biology": 1}}, T0 + 1)
    ledger.machines.record_launch("g1", [instance("i-1", node="pub1")], T0 + 2)
    (machine,) = ledger.machines.live()
    assert machine.accounts == {"physics": 2, "chemistry": 1}
    (paid,) = ledger.books.cost_by_payers("aws", T0, T0 + 3600)
    assert paid == (machine.accounts, ledger.books.dollars("aws", T0, T0 + 3600))
    ledger.books.delete_payers(["pub1"], T0)
    assert ledger.books.payers_by_node(["pub1"]) == {"pub1": {"biology": 1}}, "that is younger"
    ledger.books.delete_payers(["pub1"], T0 + 2)
    assert ledger.books.payers_by_node(["pub1"]) == {}
    ledger.close()


def test_changed_jobs_are_remembered_until_they_have_their_own_values(path: Path) -> None:
    ledger = Ledger(path)
    key = JobKey(number=7, uid=5, attempt=2, submitted=T0)
    own = JobValues(partitions=("main", "aws"), begin=T0)
    held = JobValues(partitions=("main",), is_held=True)
    wishes = (
        Barred(until=T0 + 60),
        Redirected(number=3, source="main", target="aws", is_whole=True),
        Misfit(cloud="aws", partition="aws", nodes="a[1-9]", need_s=5.0, request=(9, 18)),
        Delayed(partition="aws", begins_at=T0, request=(9, 18)),
        Held(),
    )
    one = ChangedJob(
        key=key, own=own, latest=held, before=own, is_answered=True, wishes=wishes, overruled=(2,)
    )
    two = ChangedJob(key=JobKey(number=8), own=own, latest=own)
    ledger.changed_jobs.keep([one, two])
    ledger.close()
    ledger = Ledger(path)
    assert ledger.changed_jobs.all() == (one, two)
    ledger.changed_jobs.forget([7])
    assert ledger.changed_jobs.all() == (two,)
    ledger.close()


def test_a_file_that_is_no_ledger_is_not_touched(path: Path) -> None:
    path.write_text("precious notes, long enough to be no sqlite header" * 20)
    with pytest.raises(sqlite3.DatabaseError):
        Ledger(path)
    assert path.read_text().startswith("precious notes")


def test_a_reader_without_a_ledger_gets_a_sentence(path: Path) -> None:
    with pytest.raises(SlurmElasticError, match=r"there is no ledger at .*ledger\.db"):
        Ledger(path, read_only=True)
    assert not path.exists()


def test_a_reader_cannot_write(ledger: Ledger, path: Path) -> None:
    reader = Ledger(path, read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.health.beat("daemon", T0, 1)
    reader.close()


READ = """
import sys
from pathlib import Path
from slurm_elastic.state.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), read_only=True)
print([m.instance.id for m in ledger.machines.live()])
"""


def read_afresh(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{READ}", str(path)],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_reads_beside_a_running_writer(ledger: Ledger, path: Path) -> None:
    launched(ledger, "i-1")
    assert read_afresh(path) == "['i-1']"


def test_it_reads_after_a_clean_stop(path: Path) -> None:
    ledger = Ledger(path)
    launched(ledger, "i-1")
    ledger.close()
    assert not path.with_name("ledger.db-wal").exists()
    assert read_afresh(path) == "['i-1']"


def test_it_reads_after_a_crash(path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from msgspec.structs import replace
from ledger_cases import *
from slurm_elastic.state.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
ledger.launches.record_intent(spec(), "r", T0)
ledger.machines.record_launch("g1", [instance()], T0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=patience(60), check=False)
    assert path.with_name("ledger.db-wal").stat().st_size > 0
    assert read_afresh(path) == "['i-1']"


# several at once


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    problems: list[Exception] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                name = f"{number}-{i}"
                ledger.launches.record_intent(spec(name), "r", T0)
                ledger.machines.record_launch(name, [instance(name, generation=name)], T0)
                ledger.decisions.record(decision(T0, name))
                ledger.machines.observe("aws", [], T0 + 1)
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(ledger.machines.live()) == 80
    assert ledger.launches.open() == ()


WRITE = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from msgspec.structs import replace
from ledger_cases import *
from slurm_elastic.state.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    name = f"{{sys.argv[2]}}-{{number}}"
    ledger.launches.record_intent(spec(name), "r", T0)
    ledger.machines.record_launch(name, [instance(name, generation=name)], T0)
    print(name, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    code = WRITE.format(path=sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_create_and_write_at_the_same_time(path: Path) -> None:
    writers = [writer(path, f"w{n}", 15) for n in range(4)]
    for process in writers:
        process.communicate(timeout=patience(120))
    assert [p.returncode for p in writers] == [0] * 4
    ledger = Ledger(path)
    assert [p.name for p in path.parent.glob(".ledger*")] == [], "no draft is left"
    assert len(ledger.machines.live()) == 60
    ledger.close()


def test_killing_the_writer_loses_nothing_it_was_told_is_kept(path: Path) -> None:
    kept: set[str] = set()
    for attempt in range(6):
        process = writer(path, f"a{attempt}", 10**6)
        assert process.stdout is not None
        wanted = random.randrange(1, 12)
        kept |= {process.stdout.readline().strip() for _ in range(wanted)}
        process.send_signal(signal.SIGKILL)
        kept |= set(process.stdout.read().splitlines(keepends=False)[:-1])
        process.stdout.close()
        process.wait(timeout=patience(60))
        reader = Ledger(path, read_only=True)
        present = {m.instance.id for m in reader.machines.live()}
        half_done = {x.generation for x in reader.launches.open()}
        reader.close()
        assert kept <= present
        assert present.isdisjoint(half_done), "machines and the launch's end are one step"
    with sqlite3.connect(path) as db:
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    db.close()


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from msgspec.structs import replace
from ledger_cases import *
from slurm_elastic.state.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for number in range(10_000):
    name = f"g{{number}}"
    ledger.launches.record_intent(spec(name), "r", T0)
    print(name, flush=True)
"""


def test_a_full_disk_stops_the_spending_and_keeps_what_was_written(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(path=sys.path), str(path)],
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert done.returncode == 1
    assert "sqlite3.OperationalError" in done.stderr.splitlines()[-1]
    ledger = Ledger(path)
    kept = {launch.generation for launch in ledger.launches.open()}
    assert kept == set(done.stdout.split())
    ledger.launches.record_intent(spec("after"), "r", T0)
    ledger.close()
    with sqlite3.connect(path) as db:
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    db.close()


def test_the_documented_backup_is_a_whole_ledger(ledger: Ledger, path: Path) -> None:
    launched(ledger, "i-1", "i-2")
    copy = path.with_name("copy.db")
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    reader.execute("vacuum into ?", (str(copy),))
    reader.close()
    backup = Ledger(copy)
    assert backup.machines.live() == ledger.machines.live()
    backup.close()


def test_a_node_is_held_for_either_cause(path: Path) -> None:
    ledger = Ledger(path)
    row = Exclusion(
        kind=CAPACITY,
        scope="pub1",
        pool="burst",
        cause=Quoted(text="no capacity"),
        since=T0,
        until=T0 + 60,
    )
    policy = msgspec.structs.replace(row, cause=Quoted(text="the budget is spent"), kind="policy")
    ledger.exclusions.add(*[row, policy])
    assert [held.kind for held in ledger.exclusions.holds()] == ["policy", "capacity"]
    ledger.exclusions.readmit(CAPACITY, "pub1")
    assert ledger.exclusions.holds() == (policy,)
    ledger.exclusions.readmit(POLICY, "pub1")
    assert ledger.exclusions.holds() == ()
    ledger.close()


def test_readings_of_the_present_do_not_read_the_machines_of_a_year(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    select = ledger.store.select

    def planned(sql: str, *values: object) -> list[sqlite3.Row]:
        rows = ledger.store._db.execute(f"explain query plan {sql}", values)
        plans.extend(str(row["detail"]) for row in rows)
        return select(sql, *values)

    monkeypatch.setattr(ledger.store, "select", planned)
    ledger.machines.live(ended_since=T0)
    ledger.machines.live(ended_since=T0, nodes=["pub1"])
    ledger.machines.live(nodes=["pub1"])
    ledger.machines.clouds(T0)
    ledger.books.dollars("aws", T0, T0 + 1)
    ledger.books.ended_stamp(T0)
    of_machines = [plan for plan in plans if "machines" in plan]
    assert len(of_machines) == 12
    wanted = (
        "INDEX machines_live", "INDEX machines_ended (ended>?)", "INDEX machines_increment",
    )  # fmt: skip
    assert [plan for plan in of_machines if not any(name in plan for name in wanted)] == []


def test_machines_of_some_nodes(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec("g1"), "r1", T0)
    found = [instance("i-1", "pub1"), instance("i-2", "pub2")]
    ledger.machines.record_launch("g1", found, T0)
    ledger.machines.record_end("aws", ["i-2"], Quoted(text="why"), T0 + 5)
    ids = lambda **which: [m.instance.id for m in ledger.machines.live(**which)]  # noqa: E731
    assert ids(nodes=["pub1", "pub2"]) == ["i-1"]
    assert ids(nodes=["pub2"], ended_since=T0) == ["i-2"]
    assert ids(nodes=[], ended_since=T0) == []


def test_counters_say_up_to_when_they_have_all(ledger: Ledger) -> None:
    assert ledger.usage.settled() is None
    ledger.usage.settle(5.0, {"a": 1.0, "b": 2.0})
    ledger.usage.settle(9.0, {"a": 0.5})
    assert (ledger.usage.settled(), ledger.usage.counters()) == (9.0, {"a": 1.5, "b": 2.0})
