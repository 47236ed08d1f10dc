"""Which waiting jobs go to the other cloud in a migration, and which get their partitions back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.model.changed_jobs import JobValues, Redirected, Wish
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.changed_jobs import new_record, own_order, values_of
from slurm_elastic.policies.repair.redirects import (
    Route,
    count_redirected,
    routes,
    with_redirects,
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


def sent(jobs: list[SlurmJob], *ways: Route) -> dict[int, tuple[str, ...]]:
    """Return the new lists of the jobs that orders with these routes change."""
    routes_of = {number: [way] for number, way in enumerate(ways, 1)}
    found = {}
    for each in jobs:
        record = new_record(each, (), 0.0)

        def list_of(wishes: Sequence[Wish], own: JobValues = record.own) -> tuple[str, ...]:
            return values_of(
                own, wishes, (), is_bound=False, is_refused=lambda _: False, now=0.0
            ).partitions

        names = list_of(with_redirects(each, record, routes_of, list_of).wishes)
        if names != each.partitions:
            found[each.id] = names
    assert len(found) == count_redirected(jobs, ways[0])
    return found


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
        1: ("gcp",), 8: ("gcp",), 2: ("static", "gcp"), 3: ("gcp", "static"),
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


def test_an_order_that_a_person_has_overruled_or_that_has_ended_is_no_wish() -> None:
    whole = route("r1", "r2", "m1")
    (order,) = with_redirects(
        job(1, "aws"), new_record(job(1, "aws"), (), 0.0), {7: [whole]},
        lambda wishes: ("gcp",) if wishes else ("aws",),
    ).wishes  # fmt: skip
    assert order == Redirected(number=7, source="aws", target="gcp", is_whole=True)
    record = replace(new_record(job(1, "aws"), (), 0.0), wishes=(order,), overruled=(8, 9))
    kept = with_redirects(job(1, "aws"), record, {9: [whole]}, lambda _: ("aws",))
    assert (kept.wishes, kept.overruled) == ((), (9,))


def test_the_order_of_the_clouds_is_the_one_that_the_submit_filter_has_noted() -> None:
    assert own_order(("west", "static", "east"), ("east", "west")) == ("static", "east", "west")
    assert own_order(("west", "static"), ()) == ("west", "static")
    assert own_order(("west", "static"), ("east",)) == ("west", "static")


def test_a_job_that_must_not_be_requeued_goes_to_no_spot_nodes_that_it_may_get() -> None:
    spot = replace(SMALL, nodes=("g1", "g2"), markets=(Market.SPOT, Market.ON_DEMAND))
    whole = replace(route("r1", "r2", "m1"), pools=[replace(spot, on_demand_nodes=1)])
    jobs = [
        job(1, "aws", requeue=False),
        job(2, "aws", requeue=True),
        job(3, "aws", requeue=False, comment="spot=ok"),
        job(4, "aws", requeue=False, excluded=("g1",)),
        job(5, "aws", "gcp", requeue=False),
        job(6, "aws", requeue=False, account="flow"),
    ]
    assert sorted(sent(jobs, whole)) == [2, 3, 4, 5]
    assert sorted(sent(jobs, replace(whole, risk_accounts=["flow"]))) == [2, 3, 4, 5, 6]
    steady = replace(spot, markets=(Market.ON_DEMAND,))
    assert sorted(sent(jobs, replace(whole, pools=[steady]))) == [1, 2, 3, 4, 5, 6]
