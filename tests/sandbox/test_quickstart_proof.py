"""A rehearsal's conclusions from jobs, machines and decisions."""

import pytest
from machine_cases import machine_with

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import Decision
from slurm_elastic.sandbox.quickstart_proof import (
    JobRow,
    JobWatch,
    RehearsedPartition,
    costs,
    job_problems,
    market_problems,
    markets,
    parse_jobs,
)

PLACES = [
    RehearsedPartition(partition="batch", cloud="(site)", nodes=("st1", "st2"), own=True),
    RehearsedPartition(partition="onprem", cloud="onprem", nodes=("op1",), own=True),
    RehearsedPartition(partition="aws", cloud="aws", nodes=("pub1", "pub2", "pub3"), own=False),
]
SHOWN = (
    "JobId=3 JobName=mpi-1 UserId=nobody(65534) JobState={state} Reason=None Dependency=(null)"
    " StartTime={start} Partition=aws NodeList={nodes} NumNodes={count} NumCPUs=4\n"
)


def job(id_: int, partition: str, *nodes: str, state: str = "RUNNING", wanted: int = 1) -> JobRow:
    return JobRow(
        id=id_, name=f"job-{id_}", state=state, partition=partition, nodes=nodes, wanted=wanted
    )


def look(*jobs: JobRow) -> dict[int, JobRow]:
    return {j.id: j for j in jobs}


def machine(node: str, market: Market, launched: float, ended: float | None = None, **more):
    fields = {"generation": f"g{launched:09.1f}", "price": 0.03, "cloud": "aws"} | more
    instance = Instance(
        id=f"i-{node}-{launched}",
        node=node,
        instance_type="c5.large",
        zone="us-east-1a",
        market=market,
        state=InstanceState.RUNNING,
        launched=launched,
        **fields,
    )
    return machine_with(instance=instance, pool="pub", ended=ended)


def test_a_running_job_is_read_with_its_nodes():
    text = SHOWN.format(state="RUNNING", start="2026-01-01T00:00:05", nodes="pub[1-2]", count="2-2")
    row = parse_jobs(text)[3]
    assert (row.name, row.nodes, row.wanted) == ("mpi-1", ("pub1", "pub2"), 2)
    assert row.holds
    assert not row.over


@pytest.mark.parametrize("nodes", ["(null)", "pub[1-2]"])
def test_a_waiting_job_holds_nothing_even_if_slurm_shows_its_last_nodes(nodes):
    text = SHOWN.format(state="PENDING", start="Unknown", nodes=nodes, count="2")
    row = parse_jobs("No jobs\n" + text)[3]
    assert (row.nodes, row.started) == ((), 0.0)
    assert not row.holds
    assert not row.over


def test_public_machines_while_own_ones_are_taken_are_fine():
    watch = JobWatch(PLACES)
    own = [job(1, "batch", "st1"), job(2, "batch", "st2"), job(3, "onprem", "op1")]
    watch.see(look(*own))
    watch.see(look(*own, job(4, "aws", "pub1"), job(5, "aws", "pub2", "pub3", wanted=2)))
    assert watch.too_early == []
    assert watch.busy() == {"(site)": 2, "onprem": 1, "aws": 3}


def test_public_machines_while_own_ones_are_free_are_too_early():
    watch = JobWatch(PLACES)
    watch.see(look(job(1, "batch", "st1")))
    watch.see(look(job(1, "batch", "st1"), job(2, "aws", "pub1")))
    assert watch.too_early == ["job-2 went to aws while batch was free"]


def test_a_node_that_became_free_between_two_looks_is_no_reproach():
    watch = JobWatch(PLACES)
    full = [job(1, "batch", "st1"), job(2, "batch", "st2"), job(3, "onprem", "op1")]
    watch.see(look(*full))
    over = job(3, "onprem", "op1", state="COMPLETED")
    watch.see(look(*full[:2], over, job(4, "aws", "pub1")))
    assert watch.too_early == []


def test_own_nodes_that_are_too_few_for_a_job_do_not_count_as_free():
    watch = JobWatch(PLACES)
    watch.see(look(job(1, "batch", "st1")))
    watch.see(look(job(1, "batch", "st1"), job(2, "aws", "pub1", "pub2", wanted=2)))
    assert watch.too_early == []


def test_jobs_that_slurm_forgot_are_remembered():
    watch = JobWatch(PLACES)
    watch.see(look(job(1, "batch", "st1", state="COMPLETED")))
    watch.see({})
    assert watch.states() == {"completed": 1}


def finished() -> JobWatch:
    watch = JobWatch(PLACES)
    watch.see(
        look(
            job(1, "batch", "st1", state="COMPLETED"),
            job(2, "onprem", "op1", state="COMPLETED"),
            job(3, "aws", "pub1", "pub2", state="COMPLETED", wanted=2),
        )
    )
    return watch


def test_all_as_it_should_be():
    assert job_problems(finished(), [1, 2, 3]) == []


def test_every_shortfall_of_the_jobs_is_named():
    watch = finished()
    watch.see(
        look(
            job(1, "batch", "st1", state="FAILED"),
            job(2, "onprem", "op1", "pub3", state="COMPLETED", wanted=2),
            job(3, "aws", "pub1", state="COMPLETED", wanted=2),
        )
    )
    assert job_problems(watch, [1, 2, 3, 4]) == [
        "job-1 (job 1) is FAILED, not COMPLETED",
        "job-2 ran on op1, pub3: not in one partition",
        "job-3 ran on 1 nodes, not on 2",
        "job 4 was submitted and is not known to Slurm",
    ]


def test_a_cloud_that_no_job_reached_is_named():
    watch = JobWatch(PLACES)
    watch.see(look(job(1, "batch", "st1", state="COMPLETED")))
    assert job_problems(watch, [1]) == ["no job ran on onprem", "no job ran on aws"]


def test_a_job_has_the_market_of_the_machine_that_was_there_when_it_started():
    machines = [
        machine("pub1", Market.SPOT, 100.0, ended=150.0),
        machine("pub1", Market.ON_DEMAND, 200.0),
        machine("pub2", Market.SPOT, 100.0),
    ]
    early = JobRow(
        id=1, name="a", state="RUNNING", partition="aws", nodes=("pub1",), wanted=1, started=110.0
    )
    late = JobRow(
        id=2, name="b", state="RUNNING", partition="aws", nodes=("pub1", "pub2"), wanted=2,
        started=210.0,
    )  # fmt: skip
    assert markets(early, machines) == [Market.SPOT]
    assert markets(late, machines) == [Market.ON_DEMAND, Market.SPOT]
    assert markets(job(3, "batch", "st1"), machines) == []


def test_costs_are_added_by_market_beside_the_on_demand_price():
    machines = [
        machine("pub1", Market.SPOT, 0.0, ended=3600.0),
        machine("pub2", Market.SPOT, 0.0),
        machine("op1", Market.RESERVED, 0.0, cloud="onprem", price=0.0),
    ]
    spot, own = costs(machines[:2], {"c5.large": 0.1}, 7200.0) + costs(machines[2:], {}, 7200.0)
    assert (spot.machines, spot.hours) == (2, 3.0)
    assert spot.dollars == pytest.approx(0.09)
    assert spot.on_demand == pytest.approx(0.3)
    assert (own.market, own.dollars, own.on_demand) == (Market.RESERVED, 0.0, None)


def decision(kind: str, at: float, request: str = "r1") -> Decision:
    return Decision(
        at=at, correlation=request, kind=kind, subjects=("pub1",), cause=Quoted(text="so")
    )


ANSWERED = [decision("launch-refused", 1.0), decision("launched", 2.0)]
BOUGHT = [machine("pub1", Market.SPOT, 1.0), machine("pub2", Market.ON_DEMAND, 2.0)]


def test_spot_before_on_demand_and_an_answered_refusal_are_as_they_should_be():
    assert market_problems(BOUGHT, ANSWERED) == []


def test_on_demand_before_spot_is_named():
    bought = [machine("pub1", Market.SPOT, 2.0), machine("pub2", Market.ON_DEMAND, 1.0)]
    assert market_problems(bought, ANSWERED) == [
        "an on-demand machine was bought before any spot machine"
    ]


def test_a_market_that_was_not_used_is_named():
    assert market_problems(BOUGHT[:1], ANSWERED) == ["no machine was bought on-demand"]


@pytest.mark.parametrize(
    "decisions",
    [
        [],
        ANSWERED[:1],
        ANSWERED[1:],
        [decision("launch-refused", 1.0), decision("launched", 2.0, "r2")],
        [decision("launched", 1.0), decision("launch-refused", 2.0)],
    ],
)
def test_a_refusal_that_no_other_offer_answered_is_named(decisions):
    assert market_problems(BOUGHT, decisions) == [
        "no refused offer was followed by another one inside the same request"
    ]
