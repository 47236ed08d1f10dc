"""Which waiting jobs go to the other cloud in a migration, and which get their partitions back."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.redirects import (
    Redirect,
    Route,
    due_back,
    own_order,
    redirected,
    routes,
    steps_of_tasks,
)

SMALL = Pool(name="b", cloud="gcp", nodes=("g1",), cpus=4, real_memory=8000)
RACK = Pool(name="r", cloud="aws", nodes=("r1", "r2"), cpus=4, real_memory=8000)
BIG = Pool(name="m", cloud="aws", nodes=("m1",), cpus=64, real_memory=80000)
PARTITIONS = {"aws": "aws", "gcp": "gcp"}


def job(number: int, *partitions: str, state: str = "PENDING", **fields: Any) -> SlurmJob:
    states = frozenset(state.split())
    return SlurmJob(id=number, states=states, partitions=partitions, **fields)


def route(*nodes: str) -> Route:
    (only,) = routes(frozenset(nodes), "gcp", [RACK, BIG, SMALL], PARTITIONS)
    return only


def sent(jobs: list[SlurmJob], way: Route) -> dict[int, tuple[str, ...]]:
    return {j: change.partitions for change, ids in redirected(jobs, way).items() for j in ids}


def test_waiting_jobs_of_an_emptied_cloud_go_to_the_other_one_if_it_could_run_them() -> None:
    jobs = [
        job(1, "aws"),
        job(2, "static", "aws", "gcp"),
        job(3, "aws", "static"),
        job(4, "static"),
        job(5, "aws", state="RUNNING"),
        job(6, "aws", state="PENDING COMPLETING"),
        job(7, "aws", features="gpu"),
        job(8, "aws"),
    ]
    whole = route("r1", "r2", "m1")
    assert whole.is_whole
    assert sent(jobs, whole) == {
        1: ("gcp",), 8: ("gcp",), 2: ("gcp", "static"), 3: ("gcp", "static"),
    }  # fmt: skip
    assert sent(jobs, replace(whole, pools=[])) == {}


def test_while_machines_stay_the_other_cloud_is_only_added_for_jobs_that_lose_some() -> None:
    part = route("r1")
    assert not part.is_whole
    jobs = [
        job(1, "aws"),
        job(2, "static", "aws", "gcp"),
        job(3, "static", "aws", "x"),
        job(4, "aws", node_cpus=32),
    ]
    assert sent(jobs, part) == {1: ("aws", "gcp"), 3: ("static", "aws", "gcp", "x")}
    again = [replace(j, partitions=sent(jobs, part).get(j.id, j.partitions)) for j in jobs]
    assert sent(again, part) == {}, "each job once"


def test_a_route_leads_from_each_cloud_that_loses_machines() -> None:
    assert list(routes(frozenset({"g1"}), "gcp", [RACK, SMALL], PARTITIONS)) == []
    both = routes(frozenset({"r1", "g1"}), "gcp", [RACK, SMALL], PARTITIONS)
    assert [way.source for way in both] == ["aws"]


def test_jobs_get_their_partitions_back_when_the_order_is_over_unless_someone_changed_them() -> (
    None
):
    step = Redirect(earlier=("static", "aws"), partitions=("gcp", "static"), number=7)
    steps = {n: [step] for n in range(1, 5)}
    jobs = [
        job(1, "static", "gcp"),  # slurmctld tried that one last
        job(2, "static"),
        job(3, "gcp", "static", state="RUNNING"),
        job(9, "gcp", "static"),
    ]
    assert due_back(jobs, steps, {7}) == []
    assert due_back(jobs, steps, {8}) == [(jobs[0], step)]


def test_a_task_of_an_array_was_redirected_with_its_array() -> None:
    step = Redirect(earlier=("aws",), partitions=("gcp",), number=7)
    own = Redirect(earlier=("aws",), partitions=("gcp",), number=8)
    jobs = [
        job(12, "gcp", array=12),
        job(13, "gcp", array=12, task=1),
        job(14, "mine", array=12, task=2),
        job(15, "gcp", array=12, task=3),
        job(20, "gcp"),
    ]
    assert steps_of_tasks(jobs, {12: [step], 15: [own]}) == {13: [step]}


def test_the_order_of_the_clouds_is_the_one_that_the_submit_filter_has_noted() -> None:
    assert own_order(("west", "static", "east"), ("east", "west")) == ("static", "east", "west")
    assert own_order(("west", "static"), ()) == ("west", "static")
    assert own_order(("west", "static"), ("east",)) == ("west", "static")
