"""The site's policies on real Slurm, and their journal put through the simulator.

One sandbox serves all tests; each has its own policies, by a changed file and a new daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from slurm_elastic.base.units import money
from slurm_elastic.features.growth.quiet_looks import FILES, PROOF
from slurm_elastic.policies.nodes.node_state import is_busy
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.policy_site import (
    FULL,
    HELD,
    LOOK,
    alive,
    clear,
    configure,
    decisions,
    held,
    nodes,
    not_at_midnight,
    starts,
    told,
    up,
)
from tests.e2e.world import Until, ledger, live_ec2, machines, running_nodes
from tests.simulate.replay import differences, entry

pytestmark = [pytest.mark.e2e, pytest.mark.release]
LEASE = 60
BEFORE_END = 20


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """With a long idle time at first: the partition's SuspendTime is written but once."""
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        resume_timeout=180.0,
        elastic={"policies": {"release": "idle(seconds=80000)", "poll_interval": LOOK}},
    )


@pytest.fixture
def under(site: Sandbox) -> Iterator[Callable[..., float]]:
    """``under(growth=..., ...)``: from now on the site has these policies; the time now."""
    not_at_midnight()
    yield partial(configure, site)
    clear(site)


def test_a_steady_stream_keeps_one_machine_warm(site: Sandbox, under: Callable[..., float]) -> None:
    since = under(growth="steady_stream(waste=60)", release="flagged")
    site.wait_for(lambda: len(up(site)) == 1, 120, "one machine is up for nobody")
    site.wait_for(lambda: len(held(site)) == 5, 60, "the others are kept from Slurm")
    (warm,) = up(site)
    assert [m.instance.node for m in machines(site)] == [warm]
    assert "one machine is always kept" in str(starts(site, since)[0].reason)
    jobs = [site.submit("sleep 5", *FULL, "--time=1") for _ in range(2)]
    for job in jobs:
        assert site.wait_job(job)["NodeList"] == warm, "120 s of work are no reason to grow"
    seen = {len(live_ec2(site)) for _ in range(5) if not time.sleep(1)}
    assert seen == {1}
    assert len(starts(site, since)) == 1


def test_a_job_after_a_quiet_time_is_seen_at_once_by_slurmctlds_files(
    site: Sandbox, under: Callable[..., float]
) -> None:
    """After a quiet minute a look is due within the next; slurmctld's files make it come at once.
    ``tests/features/test_quiet_looks.py`` counts the looks.
    """
    since = under(growth="on_demand", release="idle(seconds=5)", max_poll_interval="10m")
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    time.sleep(65.0)
    submitted_at = time.time()
    job = site.submit("sleep 1", *FULL, "--time=1")
    running_nodes(site, [job])
    for name in (PROOF, *FILES):
        assert (site.layout.dir / "slurmctld" / name).exists()
    (start,) = starts(site, since)
    print(f"machine ordered {start.at - submitted_at:.1f} s after the submission")
    assert start.at - submitted_at < 20


def test_bursts_boot_ahead_of_the_jobs(site: Sandbox, under: Callable[..., float]) -> None:
    since = under(growth="bursts(waste=60)", release="idle(seconds=5)")
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    before = len(machines(site, ended=True))
    # One submission, so that one look sees all of it: 240 s of work, 120 s a machine.
    job = site.submit("sleep 8", *FULL, "--time=1", "--array=1-4")
    site.wait_for(lambda: not alive(site, job), 240, "all four have run")
    (first, *more) = starts(site, since)
    assert more == []
    assert "2 more in pool pub: 4m of new work, 2m a machine" in str(first.reason)
    bought = machines(site, ended=True)[before:]
    assert len(bought) == 2
    assert all(m.instance.launched >= first.at - 1 for m in bought)
    site.wait_for(lambda: not live_ec2(site), 120, "idle machines went")
    site.wait_for(lambda: len(held(site)) == 6, 120, "and all are kept from Slurm again")


def test_a_delayed_release_keeps_an_idle_machine_until_its_paid_hour_ends(
    site: Sandbox, under: Callable[..., float]
) -> None:
    """An hour of a minute."""
    since = under(
        cloud={"billing_increment": LEASE, "release": f"delayed(before_end={BEFORE_END})"}
    )
    job = site.submit("sleep 1", *FULL, "--time=1")
    (node,) = site.wait_job(job)["NodeList"].split(",")
    machine = machines(site, ended=True)[-1]
    site.wait_for(lambda: not live_ec2(site), 240, "the machine went")
    left = decisions(site, since)[-1]
    assert "and nothing waits" in str(left.reason)
    assert left.subjects[-1] == node
    assert left.at - machine.instance.launched >= LEASE - BEFORE_END
    (now, _) = entry(left.detail) or pytest.fail("no measurement is journalled")
    into = (now.now - int(machine.instance.launched)) % LEASE
    assert into >= LEASE - BEFORE_END, "in the last part of what is paid"
    book = ledger(site)
    try:
        told = [str(d.reason) for d in book.decisions.about(node) if d.kind == "terminated"]
    finally:
        book.close()
    assert told[-1] == "suspended by Slurm"


def test_semi_elastic_holds_a_burst_until_the_wait_limit(
    site: Sandbox, under: Callable[..., float]
) -> None:
    since = under(
        growth="semi_elastic(wait_limit=150)", release="idle(seconds=30)", expected_boot_time="5s"
    )
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    until = Until(site)
    first = site.submit(f"{until.script}; sleep 15", *FULL, "--time=1")
    running_nodes(site, [first])
    assert "0 are there" in str(starts(site, since)[0].reason)
    second = site.submit("sleep 600", *FULL, "--time=10")
    until.go()  # for some looks more both are there
    # It waits for the first one's machine: by that one's limit it starts within a minute.
    (node,) = running_nodes(site, [second])[second]
    assert len(starts(site, since)) == 1
    assert site.job(first)["NodeList"] == node
    third = site.submit("sleep 1", *FULL, "--time=1")
    assert site.wait_job(third)["NodeList"] != node
    assert "the head would have waited" in str(starts(site, since)[1].reason)


def test_a_spent_budget_stops_new_machines_and_says_so(
    site: Sandbox, under: Callable[..., float]
) -> None:
    now = time.time()
    book = ledger(site)
    try:
        spent = book.books.dollars("aws", now - now % 86400, now)
    finally:
        book.close()
    limit = round(spent + 0.0002, 6)
    under(budget={"per_day": limit, "when_spent": "keep"})
    running = site.submit("sleep 600", *FULL)
    running_nodes(site, [running])
    site.wait_for(lambda: len(held(site)) == 5, 60, "no other node may be started")
    why = f"the budget of {money(limit)} a day is spent"
    assert {nodes(site)[n].reason for n in held(site)} == {f"{HELD}{why}"}
    waiting = site.submit("sleep 1", *FULL)
    site.wait_for(lambda: why in told(site, "explain", str(waiting)), 60, "explain says why")
    assert why in told(site, "explain", held(site)[0])
    status = json.loads(told(site, "status", "--json"))
    assert [h["reason"] for h in status["holds"]] == [why]
    assert status["pools"][0]["states"]["held"] == 5
    queue = {j.id: j for j in site.jobs()}
    assert "RUNNING" in queue[running].states, "running jobs go on"
    assert "PENDING" in queue[waiting].states
    assert len(live_ec2(site)) == 1
    under(budget={"per_day": 1000})
    running_nodes(site, [running])
    site.wait_job(waiting)
    assert is_busy(nodes(site)[site.job(running)["NodeList"]])


def test_an_account_over_its_budget_gets_no_new_machine_and_all_others_do(
    site: Sandbox, under: Callable[..., float]
) -> None:
    limit = 0.0002
    under(account_budgets={"physics": {"per_month": limit}, "chemistry": {"per_day": 100}})
    running = site.submit("sleep 600", *FULL, "--account=physics")
    (node,) = running_nodes(site, [running])[running]
    assert [m.accounts for m in machines(site)] == [{"physics/nobody": 1}]
    why = f"of {money(limit)} this month; new machines from"
    site.wait_for(lambda: why in told(site, "status"), 60, "the money is spent")
    waiting = site.submit("sleep 1", *FULL, "--account=physics")
    tasks = site.submit("sleep 1", *FULL, "--account=physics", "--array=1-3")
    moves = site.submit(
        "sleep 1", "--cpus-per-task=2", "--account=physics", "--partition=batch,aws"
    )
    others = [site.submit("sleep 600", *FULL, f"--account={a}") for a in ("chemistry", "chemistry")]
    alone = site.submit("sleep 600", *FULL)
    found = running_nodes(site, [running, *others, alone])
    assert found[running] == [node], "running jobs go on"
    site.wait_for(lambda: _begin_later(site, {waiting, tasks}), 60, "its jobs begin tomorrow")
    assert site.wait_job(moves)["Partition"] == "batch"
    said = told(site, "explain", str(waiting))
    assert "is PENDING (BeginTime); account physics has spent $0.00" in said
    assert why in said
    status = json.loads(told(site, "status", "--json"))
    stops = {b["account"]: b["stop"] for b in status["budgets"]}
    assert why in stops["physics"]
    assert stops["chemistry"] is None
    pays = {m.instance.node: m.accounts for m in machines(site)}
    of = {running: "physics", others[0]: "chemistry", others[1]: "chemistry", alone: "(none)"}
    assert pays == {found[job][0]: {f"{account}/nobody": 1} for job, account in of.items()}
    under(account_budgets={"physics": {"per_day": 100}})
    site.wait_job(waiting)
    on = {running, *others, alone}
    site.wait_for(lambda: set(alive(site, waiting)) <= on, 240, "the tasks have run, too")
    assert held(site) == []


def test_a_user_over_their_budget_gets_no_new_machine_and_the_account_goes_on(
    site: Sandbox, under: Callable[..., float]
) -> None:
    under(user_budgets={"root": {"per_month": 0.0002}})  # whose first jobs on this site these are
    running = site.submit("sleep 600", *FULL, "--account=physics", "--chdir=/", user="root")
    running_nodes(site, [running])
    why = "user root has spent $0.00"
    site.wait_for(lambda: why in told(site, "status"), 60, "the money is spent")
    waiting = site.submit("true", *FULL, "--account=chemistry", "--chdir=/", user="root")
    other = site.submit("sleep 600", *FULL, "--account=physics")
    running_nodes(site, [running, other])
    site.wait_for(lambda: _begin_later(site, {waiting}), 60, "their job begins tomorrow")
    assert why in told(site, "explain", str(waiting))
    under(user_budgets={"root": {"per_day": 100}})
    site.wait_job(waiting)


def test_what_slurmctld_gave_a_job_without_money_is_refused_before_a_machine_is_bought(
    site: Sandbox, under: Callable[..., float]
) -> None:
    """No look comes in between: the first one is over when the job is there."""
    budgets = {"account_budgets": {"biology": {"per_month": 0.0002}}}
    under(**budgets, poll_interval="1h")
    running = site.submit("sleep 600", *FULL, "--account=biology")
    running_nodes(site, [running])
    why = "account biology has spent $0.00"
    site.wait_for(lambda: why in told(site, "status"), 60, "the money is spent")
    refused = site.submit("sleep 1", *FULL, "--account=biology")
    site.wait_for(lambda: _kinds(site, refused) & {"refused"}, 60, "its node is not bought")
    site.wait_for(lambda: _is_pending(site, refused), 60, "it is requeued")
    assert len(machines(site, ended=False)) == 1
    assert held(site) == [], "other accounts may have every node"
    other = site.submit("sleep 600", *FULL, "--account=physics")
    running_nodes(site, [running, other])
    under(**budgets)
    site.wait_for(lambda: _begin_later(site, {refused}), 60, "the next look lets it begin later")
    assert why in told(site, "explain", str(refused))
    assert len(machines(site)) == 2


def _is_pending(site: Sandbox, job: int) -> bool:
    return any(j.id == job and "PENDING" in j.states for j in site.jobs())


def _kinds(site: Sandbox, job: int) -> set[str]:
    book = ledger(site)
    try:
        return {d.kind for d in book.decisions.about(f"job:{job}")}
    finally:
        book.close()


def _begin_later(site: Sandbox, jobs: set[int]) -> bool:
    """All of them, and every task of an array."""
    mine = [j for j in site.jobs() if j.id in jobs or j.array in jobs]
    far = time.time() + 120
    return bool(mine) and all("PENDING" in j.states and j.start > far for j in mine)


def test_without_capacity_growth_waits_and_goes_on_when_there_is_some(
    site: Sandbox, under: Callable[..., float]
) -> None:
    since = under(growth="on_demand", release="idle(seconds=5)")
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances"))
    try:
        job = site.submit("sleep 1", *FULL, "--time=1")
        site.wait_for(lambda: starts(site, since), 60, "a machine is asked for")
        site.wait_for(lambda: "InsufficientInstanceCapacity" in _reasons(site), 60, "it is refused")
        site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm again")
        assert job in alive(site, job)
        assert live_ec2(site) == []
    finally:
        site.ec2.heal()
    site.wait_job(job, timeout=300)


def _reasons(site: Sandbox) -> str:
    return " ".join(nodes(site)[name].reason for name in held(site))


def test_the_simulator_decides_the_same_from_the_journal(
    site: Sandbox, under: Callable[..., float]
) -> None:
    """The simulator replays the daemon's decisions in this test, and in all tests before."""
    under(growth="group_bursts(group=2)", release="idle(seconds=3)")
    site.wait_job(site.submit("sleep 1", *FULL, "--time=1"))
    site.wait_for(lambda: not live_ec2(site), 120, "idle machines went")
    found = [e for d in decisions(site, 0.0) if (e := entry(d.detail))]
    assert any(plan.starts for _, plan in found)
    assert any(plan.leaves for _, plan in found)
    assert differences(found) == []
