"""Warm machines, times of the day, a month's budget, the order of idle machines and the fail-safe,
on real Slurm. One sandbox serves all tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import pytest

from slurm_elastic.config import configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.slurm.conf import install
from slurm_elastic.state.ledger import Ledger, Machine
from tests.e2e.policy_site import (
    FULL,
    HELD,
    LOOK,
    clear,
    configure,
    decisions,
    held,
    nodes,
    starts,
    told,
    up,
)
from tests.e2e.world import live_ec2, live_machines, machines, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
NEVER = "idle(seconds=80000)"
DAY = 86400.0
ONE_CPU = ("--cpus-per-task=1", "--partition=aws")
OUTSIDE = "outside the times at which machines may be started"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """With a long idle time at first: the partition's SuspendTime is written but once."""
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        resume_timeout=180.0,
        elastic={"policies": {"release": NEVER, "poll_interval": LOOK}},
    )


@pytest.fixture
def under(site: Sandbox) -> Iterator[Callable[..., float]]:
    """``under(growth=..., ...)``: from now on the site has these policies; the time now."""
    yield partial(configure, site)
    clear(site)


def test_a_warm_pool_is_topped_up_when_its_machine_gets_a_job(
    site: Sandbox, under: Callable[..., float]
) -> None:
    since = under(pool={"min_idle_machines": 1}, release="idle(seconds=4)")
    site.wait_for(lambda: len(up(site)) == 1, 120, "one machine is up for nobody")
    (warm,) = up(site)
    assert "1 more in pool pub: 1 machines are kept idle" in str(starts(site, since)[0].reason)
    (job,) = running_nodes(site, [site.submit("sleep 600", *FULL)])
    assert site.job(job)["NodeList"] == warm, "it need not wait for a boot"
    site.wait_for(lambda: len(up(site)) == 2, 120, "another one is up for nobody")
    assert [bool(d.detail) for d in starts(site, since)] == [True, True]
    site.run(["scancel", str(job)])
    site.wait_for(lambda: len(live_ec2(site)) == 1, 120, "of two idle ones one goes")
    seen = {len(live_ec2(site)) for _ in range(8) if not time.sleep(1)}
    assert seen == {1}, "the other one stays, idle for longer than it else might"
    assert len(_since(site, since)) == 2


def _since(site: Sandbox, since: float) -> list[Machine]:
    """The machines that were bought since then, whether they have ended or not."""
    return [m for m in machines(site, ended=True) if m.instance.launched >= since - 1]


def _window(begin: float, end: float) -> str:
    """From so many hours from now on."""
    now = time.time()
    times = (datetime.fromtimestamp(now + 3600 * hours, UTC) for hours in (begin, end))
    return "-".join(f"{at:%H:%M}" for at in times)


def test_a_window_stops_new_machines_only(site: Sandbox, under: Callable[..., float]) -> None:
    under(start_windows=[_window(-2, 2)])
    running = site.submit("sleep 600", *ONE_CPU)
    (node,) = running_nodes(site, [running])[running]
    under(start_windows=[_window(4, 6), _window(8, 10)])
    site.wait_for(lambda: len(held(site)) == 5, 60, "all others are kept from Slurm")
    assert all(nodes(site)[n].reason.startswith(f"{HELD}{OUTSIDE}") for n in held(site))
    second = site.submit("sleep 1", *ONE_CPU)
    assert site.wait_job(second)["NodeList"] == node, "a machine that is up is used"
    waiting = site.submit("sleep 1", *FULL)
    site.wait_for(lambda: OUTSIDE in told(site, "explain", str(waiting)), 60, "explain says why")
    assert site.job(waiting)["JobState"] == "PENDING"
    assert site.job(running)["JobState"] == "RUNNING", "running jobs go on"
    assert live_ec2(site) == [node]
    since = under(start_windows=[_window(4, 6), _window(-2, 2)])
    assert site.wait_job(waiting)["NodeList"] != node
    site.wait_for(lambda: not held(site), 60, "nothing is held any more")
    (new,) = [m for m in machines(site) if m.instance.node != node]
    assert new.instance.launched >= since - 1


def _bought(site: Sandbox, name: str, begin: float, end: float, dollars: float) -> None:
    """Write a machine of former times into the ledger. No daemon may run."""
    book = Ledger(site.layout.dir / "state" / "ledger.db")
    instance = Instance(
        id=name, cloud="aws", node="pub6", generation=name, instance_type="c5.large",
        zone="us-east-1a", market=Market.ON_DEMAND, price=dollars / (end - begin) * 3600,
        state=InstanceState.RUNNING, launched=begin,
    )  # fmt: skip
    try:
        book.machines.adopt(instance, "pub", begin)
        book.machines.record_end("aws", [name], Quoted(text="suspended by Slurm"), end)
    finally:
        book.close()


def test_what_earlier_days_have_cost_counts_for_the_months_budget(
    site: Sandbox, under: Callable[..., float]
) -> None:
    now = time.time()
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    month = today.replace(day=1).timestamp()
    site.daemon_stop()
    _bought(site, "i-of-last-month", month - DAY, month - DAY / 2, 100.0)
    earlier = max(month, now - DAY - 3600)  # yesterday, but on the first of a month
    _bought(site, "i-of-this-month", earlier, min(earlier + 3600, now), 3.0)
    under(budget={"per_month": 50})
    running = site.submit("sleep 600", *FULL)
    running_nodes(site, [running])
    assert held(site) == [], "last month is over"
    under(budget={"per_month": 2.5})
    why = "the budget of $2.50 a month is spent"
    site.wait_for(lambda: len(held(site)) == 5, 60, "no other node may be started")
    assert {nodes(site)[n].reason for n in held(site)} == {f"{HELD}{why}"}
    waiting = site.submit("sleep 1", *FULL)
    site.wait_for(lambda: why in told(site, "explain", str(waiting)), 60, "explain says why")
    assert site.job(running)["JobState"] == "RUNNING"
    assert site.job(waiting)["JobState"] == "PENDING"
    assert len(live_ec2(site)) == 1
    under(budget={"per_month": 50})
    site.wait_job(waiting)


def test_jobs_get_the_machine_with_most_or_least_of_its_paid_lease_left(
    site: Sandbox, under: Callable[..., float]
) -> None:
    """Hours that begin with each machine's launch: the one that was bought later has more left."""
    cloud = {"billing_increment": "1h", "release": NEVER}
    under(cloud={**cloud, "machine_order": "max_margin"})
    jobs = [site.submit("sleep 600", *FULL)]
    (old,) = running_nodes(site, jobs)[jobs[0]]
    jobs.append(site.submit("sleep 600", *FULL))
    (new,) = running_nodes(site, jobs)[jobs[1]]
    bought = {m.instance.node: m.instance.launched for m in machines(site)}
    assert bought[old] < bought[new]
    site.run(["scancel", *map(str, jobs)])
    site.wait_for(lambda: _weight(site, new) < _weight(site, old), 60, "the newer one comes first")
    assert site.wait_job(site.submit("sleep 1", *FULL))["NodeList"] == new
    under(cloud={**cloud, "machine_order": "min_margin"})
    site.wait_for(lambda: _weight(site, old) < _weight(site, new), 60, "the older one comes first")
    assert site.wait_job(site.submit("sleep 1", *FULL))["NodeList"] == old


def _weight(site: Sandbox, node: str) -> int:
    return nodes(site)[node].weight


def _suspend_time(site: Sandbox) -> str:
    """The cloud's partition's, as slurmctld has it."""
    shown = site.run(["scontrol", "--oneliner", "show", "partition", "aws"]).stdout
    return next(w for w in shown.split() if w.startswith("SuspendTime=")).partition("=")[2]


def _install(site: Sandbox) -> None:
    """The generated part of slurm.conf anew, and a slurmctld that goes by it."""
    site.slurmctld_stop()
    install.install(configfile.load(site.layout.config), site.layout.config, verify=False)
    site.slurmctld_start()


@pytest.fixture
def short(site: Sandbox) -> Iterator[str]:
    """A partition whose SuspendTime is that of a site without policies; which it is."""
    configure(site)
    _install(site)
    yield _suspend_time(site)
    configure(site, release=NEVER)
    _install(site)


def test_slurms_suspend_time_ends_what_a_policy_keeps_up_also_while_the_daemon_is_dead(
    site: Sandbox, short: str, under: Callable[..., float]
) -> None:
    """The policy would keep the machine for the rest of its hour."""
    assert short == f"{site.spec.suspend_time:g}"
    since = under(growth="on_demand", cloud={"billing_increment": "1h", "release": "delayed"})
    first = site.submit("sleep 1", *FULL)
    site.wait_job(first)
    site.wait_for(lambda: not live_ec2(site), 120, "a hold does not outlive SuspendTime")
    site.wait_for(lambda: len(held(site)) == 6, 60, "all are kept from Slurm")
    job = site.submit("sleep 600", *FULL)
    (node,) = running_nodes(site, [job])[job]
    site.daemon_kill()
    bought = [m.id for m in live_machines(site)]
    site.run(["scancel", str(job)])
    site.wait_for(lambda: _is_off(site, node), 120, "slurmctld powers the idle node down by itself")
    assert len(held(site)) == 5, "held nodes stay held"
    assert [m.id for m in live_machines(site)] == bought, "nobody but the daemon ends a machine"
    site.daemon_start()
    site.wait_for(lambda: not live_ec2(site), 120, "it serves what Slurm has asked for meanwhile")
    site.wait_for(lambda: len(held(site)) == 6, 60, "and keeps all of them from Slurm again")
    assert [d for d in decisions(site, since) if d.detail and d.detail["plan"]["leaves"]] == []
    assert [str(m.cause_text) for m in _since(site, since)] == ["suspended by Slurm"] * 2


def _is_off(site: Sandbox, node: str) -> bool:
    return phase(nodes(site)[node]) is Phase.POWERED_DOWN
