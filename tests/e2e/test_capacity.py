"""No capacity on real Slurm: the next offer at once; and when none is left, the job moves on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.world import (
    TWO_PUBLIC_CLOUDS,
    Until,
    cleared,
    forget_cool_downs,
    ledger,
    live_ec2,
    machines,
    running_nodes,
    submit_many,
    waited_out,
)

pytestmark = [pytest.mark.e2e, pytest.mark.release]
FULL = "--cpus-per-task=2"
HELD = "slurm-elastic:hold:"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**TWO_PUBLIC_CLOUDS)


@pytest.fixture(autouse=True)
def healthy(site: Sandbox) -> Iterator[None]:
    site.ec2.heal()
    yield
    site.ec2.heal()
    cleared(site)
    forget_cool_downs(site)
    free(site)


def free(site: Sandbox) -> None:
    """Wait until no node is held any more."""
    site.wait_for(lambda: not held(site), 150, "all holds are over")


def held(site: Sandbox) -> list[str]:
    return sorted(holds(site))


def holds(site: Sandbox) -> dict[str, str]:
    """Why, by node."""
    nodes = site.nodes().values()
    return {n.name: n.reason for n in nodes if "DRAIN" in n.states and n.reason.startswith(HELD)}


def drained(site: Sandbox) -> list[str]:
    return sorted(n.name for n in site.nodes().values() if "DRAIN" in n.states)


def test_a_capacity_error_is_answered_by_the_next_offer_of_the_same_request(site: Sandbox) -> None:
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", market="spot", count=1))
    (job,) = submit_many(site, 1, "sleep 5", FULL, "--partition=aws")
    fields = site.wait_job(job)
    assert fields["Restarts"] == "0"
    requests = {d.correlation for d in chain(site, f"job:{job}") if d.kind == "launch-refused"}
    launched = [d for d in chain(site, f"job:{job}") if d.kind == "launched"]
    assert {d.correlation for d in launched} == requests
    assert len(requests) == 1


def test_without_any_spot_the_job_runs_on_demand(site: Sandbox) -> None:
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", market="spot"))
    (job,) = submit_many(site, 1, "sleep 5", FULL, "--partition=aws")
    site.wait_job(job)
    assert [m.instance.market for m in machines(site, ended=True)][-1] == "on-demand"


def test_when_nothing_is_left_the_job_moves_on_and_the_pool_is_held(site: Sandbox) -> None:
    """22.05 allows it in about 2 s by power_down_force, without waiting for ResumeTimeout."""
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", type="[cm]5.large"))
    before, until = waited_out(site), Until(site)
    (job,) = submit_many(site, 1, until.script, FULL, "--partition=aws,backup")
    # First, and in one look, as holds last for the cool-down only (20 s), and the job may start late.
    reasons = site.wait_for(
        lambda: found if (found := holds(site)).keys() == {"pub1", "pub2", "pub3"} else {},
        60, "the pool is held",
    )  # fmt: skip
    assert all("InsufficientInstanceCapacity" in r for r in reasons.values())
    running_nodes(site, [job])
    assert waited_out(site) == before, "it did not wait for ResumeTimeout"
    assert site.job(job)["Partition"] == "backup"
    assert site.job(job)["Restarts"] == "1"
    assert not [n for n in live_ec2(site) if n.startswith("pub")]
    until.go()
    site.wait_job(job)
    site.ec2.heal()
    free(site)
    assert_held_for_the_cool_down(site, job)
    (again,) = submit_many(site, 1, "sleep 2", FULL, "--partition=aws")
    fields = site.wait_job(again)
    assert (fields["Partition"], fields["Restarts"]) == ("aws", "0")
    assert fields["NodeList"] in ("pub1", "pub2", "pub3")


def assert_held_for_the_cool_down(site: Sandbox, job: int) -> None:
    """By what the ledger says, not by when anybody looked: each node is let go because of an offer
    whose cool-down, which began with this refusal, is over by then, and not long after it.
    """
    book = ledger(site)
    try:
        cool_downs = {c.scope: c for c in book.exclusions.cool_downs(0.0)}
    finally:
        book.close()
    told = chain(site, f"job:{job}")
    first = next(d for d in told if d.kind == "launch-refused")
    refused = next(d for d in told if d.kind == "refused")
    for node in ("pub1", "pub2", "pub3"):
        released = [d for d in chain(site, node) if d.kind == "released"][-1]
        offer = str(released.reason).removesuffix(" is available again")
        assert offer in cool_downs, released.reason
        over = cool_downs[offer].until
        assert over >= first.at + 15.0, "capacity_cooldown is 20 s, and that launch came before"
        assert refused.at < released.at
        assert over <= released.at <= over + 90.0, (node, released.at - over)


def test_a_job_that_forbids_requeueing_still_moves_on(site: Sandbox) -> None:
    """It never started, so nothing is lost by waiting again; its own setting is kept."""
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", type="[cm]5.large"))
    (job,) = submit_many(site, 1, "sleep 5", FULL, "--no-requeue", "--partition=aws,backup")
    fields = site.wait_job(job)
    assert fields["Partition"] == "backup"
    assert fields["Requeue"] == "0"


def test_a_two_node_job_moves_as_a_whole(site: Sandbox) -> None:
    site.ec2.stock("[cm]5.large/*/*", 1)
    site.ec2.stock("r5.large/*/*", 2)
    try:
        (job,) = submit_many(site, 1, "sleep 3", FULL, "-N2", "--partition=aws,backup")
        assert site.wait_job(job)["Partition"] == "backup"
        left_over = [str(m.cause_text) for m in machines(site, ended=True) if m.jobs == (job,)]
        assert "its job could not get all its nodes" in left_over, (
            "in the round that refused the job"
        )
    finally:
        site.ec2.stock("[cm]5.large/*/*", None)
        site.ec2.stock("r5.large/*/*", None)


def test_an_admins_own_drain_is_never_undone(site: Sandbox) -> None:
    site.run(["scontrol", "update", "nodename=pub3", "state=drain", "reason=fan is broken"])
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", type="[cm]5.large"))
    (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=aws,backup")
    site.wait_for(lambda: held(site) == ["pub1", "pub2"], 60, "the others are held")
    site.wait_job(job)
    site.ec2.heal()
    free(site)
    node = site.nodes()["pub3"]
    assert "DRAIN" in node.states
    assert node.reason == "fan is broken"
    site.run(["scontrol", "update", "nodename=pub3", "state=resume"])


def test_a_refused_credential_is_said_and_the_job_moves_on(site: Sandbox) -> None:
    site.ec2.fail(Fault(kind=FaultKind.AUTH, action="RunInstances"))
    (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=aws")
    site.wait_for(lambda: held(site), 60, "the pool is held")
    reasons = " ".join(str(d.reason) for d in chain(site, f"job:{job}"))
    assert "AuthFailure" in reasons
    site.ec2.heal()
    site.wait_job(job, timeout=240)


def test_static_nodes_are_never_touched(site: Sandbox) -> None:
    node = site.nodes()["st1"]
    assert node.states == {"IDLE"}
    assert phase(node) is Phase.UP
    assert chain(site, "st1") == []


def chain(site: Sandbox, subject: str) -> list:  # type: ignore[type-arg]
    book = ledger(site)
    try:
        return list(book.decisions.about(subject))
    finally:
        book.close()
