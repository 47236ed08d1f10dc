"""A growth policy on real Slurm starts no machine that the waiting jobs cannot use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.policy_site import FULL, alive, configure, held, starts, told
from tests.e2e.world import cleared, ledger, live_ec2, set_default_time

pytestmark = [pytest.mark.e2e, pytest.mark.release]
LOOKS_S = 12.0
"""Seconds for which no machine must start: a dozen looks of the daemon, two of slurmctld."""
NODES = "pub[1-6]"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return grows_on_demand(sandbox, "Licenses=matlab:2")


@pytest.fixture(scope="module")
def site_in_order(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Each job waits behind every one that cannot start, which growth cannot foresee."""
    return grows_on_demand(sandbox, "SchedulerType=sched/builtin")


def grows_on_demand(sandbox: Callable[..., Sandbox], *slurm_conf: str) -> Sandbox:
    site = sandbox(
        static_nodes=1,
        drop=("onprem",),
        resume_timeout=180.0,
        slurm_conf=slurm_conf,
        elastic={"policies": {"release": "idle(seconds=80000)", "poll_interval": "1s"}},
    )
    configure(site, growth="on_demand", release="idle(seconds=5)")
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    return site


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"site", "site_in_order"} & set(request.fixturenames):
        calmed(request.getfixturevalue(name))


def calmed(site: Sandbox) -> None:
    site.run(["scancel", "--user=nobody"], check=False)
    site.run(["scontrol", "delete", "reservation=window"], check=False)
    site.run(["scontrol", "update", "partitionname=aws", "state=up"])
    set_default_time(site, "10")
    cleared(site)
    site.wait_for(lambda: len(held(site)) == 6, 120, "all are kept from Slurm again")


def in_vain(site: Sandbox, since: float) -> int:
    """Machines that were started within some looks from now on."""
    time.sleep(LOOKS_S)
    return sum(len(d.detail["plan"]["starts"]) for d in starts(site, since) if d.detail)  # type: ignore[index]


def held_after_requeue(site: Sandbox) -> None:
    """Slurm has one word for it, "job requeued in held state"."""
    job = site.submit("sleep 600", "--partition=batch", "--cpus-per-task=2", "--time=20")
    site.wait_job(job, "RUNNING")
    site.run(["scontrol", "requeuehold", str(job)])
    site.wait_job(job, "PENDING")
    site.run(["scontrol", "update", f"jobid={job}", "partition=aws"])


def user_hold(site: Sandbox) -> None:
    site.submit("sleep 5", *FULL, "--time=2", "--hold")


def begin_time(site: Sandbox) -> None:
    site.submit("sleep 5", *FULL, "--time=2", "--begin=now+1hour")


def dependency(site: Sandbox) -> None:
    first = site.submit("sleep 5", *FULL, "--time=2", "--hold")
    site.submit("sleep 5", *FULL, "--time=2", f"--dependency=afterok:{first}")


def excluded_all(site: Sandbox) -> None:
    site.submit("sleep 5", *FULL, "--time=2", "--hold")
    job = site.submit("sleep 5", *FULL, "--time=2", "--exclude=pub[1-5]", "--hold")
    site.run(["scontrol", "update", f"jobid={job}", f"excnodelist={NODES}"])
    site.run(["scontrol", "release", str(job)])


def reservation(site: Sandbox, start: str, nodes: str, *more: str) -> None:
    site.run([
        "scontrol", "create", "reservation=window", f"starttime={start}", "duration=60",
        f"nodes={nodes}", *more,
    ])  # fmt: skip


def reservation_not_begun(site: Sandbox) -> None:
    reservation(site, "now+1hour", "pub[1-2]", "users=nobody")
    site.submit("sleep 5", *FULL, "--time=2", "--reservation=window")


def maintenance_window(site: Sandbox) -> None:
    reservation(site, "now+5minutes", NODES, "users=root", "flags=maint")
    site.submit("sleep 5", *FULL, "--time=8")


def no_licence(site: Sandbox) -> None:
    first = site.submit(
        "sleep 600", "--partition=batch", "--cpus-per-task=1", "--licenses=matlab:2", "--time=20"
    )
    site.wait_job(first, "RUNNING")
    site.submit("sleep 5", *FULL, "--time=2", "--licenses=matlab")


def drained(site: Sandbox, node: str) -> None:
    """By a person."""
    site.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=fan"])


def named_node_is_drained(site: Sandbox) -> None:
    drained(site, "pub6")
    site.submit("sleep 5", *FULL, "--time=2", "--nodelist=pub6")


def partition_is_inactive(site: Sandbox) -> None:
    """slurmctld refuses new jobs then, and releases none: this one's begin time comes later."""
    site.submit("sleep 5", *FULL, "--time=2", "--begin=now+5")
    site.run(["scontrol", "update", "partitionname=aws", "state=inactive"])


def time_over_max_time(site: Sandbox) -> None:
    """As its user asks. Slurm starts a job whose time root has set beyond MaxTime."""
    site.submit("sleep 5", *FULL, "--time=3-00:00:00")


def too_many_nodes(site: Sandbox) -> None:
    """One of six is drained by a person."""
    drained(site, "pub6")
    site.submit("sleep 5", *FULL, "--time=2", "--nodes=6")


def features_cannot_be_met(site: Sandbox) -> None:
    drained(site, "pub6")
    site.submit("sleep 5", *FULL, "--time=2", "--nodes=6", "--constraint=[pub*6]")


USELESS = (
    held_after_requeue, user_hold, begin_time, dependency, excluded_all, reservation_not_begun,
    maintenance_window, no_licence, named_node_is_drained, partition_is_inactive, time_over_max_time, too_many_nodes,
    features_cannot_be_met,
)  # fmt: skip


@pytest.mark.parametrize("submit", USELESS, ids=lambda submit: submit.__name__)
def test_a_job_that_no_machine_helps_gets_none(
    site: Sandbox, submit: Callable[[Sandbox], None]
) -> None:
    since = time.time()
    try:
        submit(site)
        assert in_vain(site, since) == 0
        assert live_ec2(site) == []
    finally:
        site.run(["scontrol", "update", "nodename=pub6", "state=resume"], check=False)


@pytest.mark.parametrize(
    ("options", "node"),
    [
        (("--nodelist=pub5",), "pub5"),
        (("--exclude=pub[1-3,5-6]",), "pub4"),
        (("--constraint=[pub*2]", "--nodes=2"), "pub[1-2]"),
        (("--array=1%1",), ""),
        ((), ""),
    ],
    ids=["named", "excluded", "counted", "array", "plain"],
)
def test_a_job_that_a_machine_helps_gets_the_right_one(
    site: Sandbox, options: tuple[str, ...], node: str
) -> None:
    job = site.submit("sleep 1", *FULL, "--time=2", *options)
    fields = site.wait_job(job)
    assert node in ("", fields["NodeList"])


def test_a_short_job_before_a_maintenance_is_served(site: Sandbox) -> None:
    reservation(site, "now+15minutes", NODES, "users=root", "flags=maint")
    job = site.submit("sleep 1", *FULL, "--time=5")
    site.wait_job(job)


def test_a_heterogeneous_job_starts(site: Sandbox) -> None:
    job = site.submit("sleep 1\n", *FULL, "--time=2", ":", *FULL, "--time=2")
    site.wait_for(lambda: not alive(site, job), 180, "both parts have run")
    assert site.job(job)["JobState"] == "COMPLETED"


def test_the_rest_of_an_array_whose_limit_is_over_the_clouds_gets_no_machine(site: Sandbox) -> None:
    """The first task starts at home, and Slurm gives its limit, which is none, to all others."""
    set_default_time(site, "")
    since = time.time()
    job = site.submit("sleep 20", "--partition=batch,aws", "--cpus-per-task=2", "--array=1-4")
    site.wait_for(lambda: len(alive(site, job)) >= 2, 30, "its first task has started")
    assert in_vain(site, since) == 0
    assert "first task started without a time limit" in told(site, "explain", str(job))


def test_a_purchase_that_helps_no_job_is_the_last_one(site_in_order: Sandbox) -> None:
    site = site_in_order
    since = time.time()
    drained(site, "pub6")
    try:
        first = site.submit("sleep 1", *FULL, "--time=2", "--nodes=6")
        job = site.submit("sleep 1", *FULL, "--time=2")
        site.wait_for(lambda: marked(site), 180, "it is known that no machine helps the job")
        assert marked(site) == [job]
        site.wait_for(lambda: not live_ec2(site), 120, "the machine went")
        assert in_vain(site, since) == 1, "one machine, and no second one"
        assert "no job used it" in told(site, "explain", str(job))
        assert f"clear job:{job}" in told(site, "status")
        site.daemon_stop()
        site.daemon_start()
        assert in_vain(site, since) == 1, "a new daemon knows it, too"
        # As soon as the job comes first, growth counts it again by itself.
        assert f"growth counts job {job} again" in told(site, "clear", f"job:{job}")
        site.run(["scancel", str(first)])
        site.wait_job(job)
    finally:
        site.run(["scontrol", "update", "nodename=pub6", "state=resume"])


def marked(site: Sandbox) -> list[int]:
    book = ledger(site)
    try:
        return [row.job for row in book.growth_guard.rows()]
    finally:
        book.close()
