"""The facts for a growth policy: in which class each node is, what waits, and what is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ledger_cases import instance, offer
from machine_cases import machine_with
from msgspec.structs import replace

from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.features.growth import observe as observe_module
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.observe import PoolGroup, observe, pool_groups
from slurm_elastic.features.growth.pool_nodes import Observation, PoolNodes, is_fresh
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.money.account_budgets import Overdrawn
from slurm_elastic.state.ledger import Machine
from tests.controller.world import PUB, World, make_config

NOW = 1_800_000_000
OURS = "slurm-elastic:hold:x"
WHY = Quoted(text="why")
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Any) -> Iterator[Make]:
    made: list[World] = []

    def world(pool: dict[str, Any] | None = None, allow: Who | None = None, **site: Any) -> World:
        """One public cloud with a pool of three."""
        plain = make_config(tmp_path)
        burst = replace(plain.pools[1], **(pool or {}))
        policies = SitePolicies(**({"growth": "on_demand"} | site))
        one = World(
            clouds=(plain.clouds[1],), pools=(burst,), limits=Limits(), policies=policies,
            allow=allow or Who(accounts=("physics",)),
        )  # fmt: skip
        made.append(one)
        return one

    yield world
    for one in made:
        one.close()


def node(name: str, states: str, **fields: Any) -> SlurmNode:
    return SlurmNode(name=name, states=frozenset(states.split()), **fields)


def machine(name: str, launched: float = NOW - 1000.0) -> Machine:
    one = instance(f"i-{name}", name, launched=launched, bought=offer(cloud="pub"))
    return machine_with(instance=one, pool="burst", registered=launched)


def view(*nodes: SlurmNode, **fields: Any) -> Observation:
    values: dict[str, Any] = {
        "at": NOW, "nodes": {n.name: n for n in nodes}, "jobs": (), "machines": {}, "policy": {},
        "capacity": frozenset(), "stops": {}, "over": {}, "pool_nodes": {},
    }  # fmt: skip
    return Observation(**(values | fields))


def group(world: World, seen: Observation) -> PoolGroup:
    (found,) = pool_groups(world.site, seen, {"burst": CoveredJobs()})
    return found


def job(number: int, *states: str, **fields: Any) -> SlurmJob:
    values = {"partitions": ("pub",), "submit": NOW - 600.0}
    return SlurmJob(id=number, states=frozenset(states or ("PENDING",)), **(values | fields))


def test_what_is_measured_is_what_slurm_and_the_ledger_have_now(make: Make) -> None:
    world = make(pool={"max_nodes": 2})
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    world.now += 0.7
    rows = [
        Exclusion(
            kind=kind, scope=name, pool="burst", cause=Quoted(text="x"), since=NOW, until=1e12
        )
        for kind, name in ((POLICY, "pub2"), (CAPACITY, "pub3"), (OPERATOR, "pub1"))
    ]
    world.ledger.exclusions.add(*rows)
    seen = observe(world.site)
    assert seen.at == int(world.now)
    assert seen.nodes.keys() == {"pub1", "pub2", "pub3"}
    assert [one.id for one in seen.jobs] == [1]
    assert seen.machines.keys() == {"pub1"}
    assert (seen.policy.keys(), seen.policy["pub2"]) == ({"pub2", "pub3"}, rows[0])
    assert seen.capacity == {"pub3"}
    assert (seen.stops, seen.over, seen.pool_nodes) == ({}, {}, {"burst": 2})
    shut = dataclasses.replace(world.site, blocked={"pub": "nobody may", "onp": "x"})
    assert observe(shut).stops == {"burst": "nobody may"}


@pytest.mark.parametrize(
    ("states", "held", "full", "reason", "classes"),
    [
        ("IDLE CLOUD POWERED_DOWN", False, False, "", "off unheld"),
        ("IDLE CLOUD POWERED_DOWN", True, False, "", "held off"),
        ("IDLE CLOUD POWERED_DOWN", False, True, "", "unheld"),
        ("IDLE CLOUD POWERING_DOWN", False, False, "", "unheld"),
        ("IDLE CLOUD POWERING_DOWN", True, False, "", "held"),
        ("DOWN CLOUD POWERED_DOWN", False, False, "", ""),
        ("IDLE CLOUD DRAIN POWERED_DOWN", False, False, OURS, ""),
        ("IDLE CLOUD DRAIN POWERED_DOWN", True, False, OURS, "held off"),
        ("IDLE CLOUD DRAIN POWERED_DOWN", False, True, OURS, "unheld"),
        ("IDLE CLOUD DRAIN POWERED_DOWN", True, False, "fan is broken", ""),
        ("IDLE CLOUD", False, False, "", "idle"),
        ("IDLE CLOUD", True, False, "", "idle loose"),
        ("ALLOCATED CLOUD", False, False, "", "taken"),
        ("ALLOCATED CLOUD", True, False, "", "loose taken"),
        ("ALLOCATED CLOUD POWER_DOWN", True, False, "", ""),
        ("ALLOCATED CLOUD POWERING_UP", False, False, "", "booting"),
        ("IDLE CLOUD POWERING_UP", True, False, "", "booting loose"),
    ],
)
def test_a_node_is_in_the_class_that_slurm_and_the_holds_say(
    make: Make, states: str, held: bool, full: bool, reason: str, classes: str
) -> None:
    world = make()
    row = Exclusion(
        kind=POLICY, scope="pub1", pool="burst", cause=Quoted(text="why"), since=NOW, until=NOW
    )
    seen = view(
        node("pub1", states, reason=reason),
        machines={"pub1": machine("pub1")},
        policy={"pub1": row} if held else {},
        capacity=frozenset({"pub1"} if full else ()),
    )
    one = PoolNodes(world.site, seen, world.site.pools["burst"])
    found = {
        "off": one.off, "unheld": one.unheld, "held": list(one.held), "loose": one.needless_holds,
        "taken": one.busy, "idle": [i.node for i in one.idle], "booting": one.booting,
    }  # fmt: skip
    assert " ".join(sorted(name for name, nodes in found.items() if nodes)) == classes
    assert all(nodes in ([], ["pub1"]) for nodes in found.values())
    assert one.held in ({}, {"pub1": Quoted(text="why")})


@pytest.mark.parametrize(("stop", "startable"), [({}, ("pub2",)), ({"burst": WHY}, PUB[:2])])
def test_a_node_that_an_operator_still_holds_is_not_startable(
    make: Make, stop: dict[str, Quoted], startable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the order is over, until its hold is released. In a pool that is stopped as a
    whole the stop alone counts, so that waiting jobs hear of it.
    """
    world = make()
    world.slurm.update_nodes(PUB[2:], state="DOWN", reason="broken")
    world.ledger.exclusions.add(
        *(
            Exclusion(kind=kind, scope="pub1", pool="burst", cause=WHY)
            for kind in (POLICY, OPERATOR)
        )
    )
    monkeypatch.setattr(observe_module, "find_stops", lambda *_: stop)
    assert group(world, observe(world.site)).startable["burst"] == startable


def test_a_node_that_is_up_without_a_machine_of_ours_is_no_idle_machine(make: Make) -> None:
    assert group(make(), view(node("pub1", "IDLE CLOUD"))).now.pools[0].idle == ()


@pytest.mark.parametrize(
    ("launched", "boot", "busy", "expected"),
    [
        (-1000.0, 0.0, 0.0, (-1000, -1000)),
        (-1000.0, -900.0, 0.0, (-1000, -900)),
        (-1000.0, -900.0, -50.0, (-1000, -50)),
        (-1000.0, -900.0, 50.0, (-1000, 0)),
        (20.0, 0.0, 0.0, (0, 0)),
    ],
)
def test_a_machine_is_idle_since_its_last_job_its_boot_or_its_launch(
    make: Make, launched: float, boot: float, busy: float, expected: tuple[int, int]
) -> None:
    up = node("pub1", "IDLE CLOUD", boot_time=NOW + boot, last_busy=NOW + busy)
    seen = view(up, machines={"pub1": machine("pub1", NOW + launched)})
    if boot == 0.0:
        seen = replace(seen, nodes={"pub1": replace(up, boot_time=0.0)})
    if busy == 0.0:
        nodes = {"pub1": replace(seen.nodes["pub1"], last_busy=0.0)}
        seen = replace(seen, nodes=nodes)
    (idle,) = group(make(), seen).now.pools[0].idle
    assert (idle.started - NOW, idle.since - NOW) == expected


OFF = [node(f"pub{n}", "IDLE CLOUD POWERED_DOWN") for n in (1, 2, 3)]
BOOTING = node("pub3", "IDLE CLOUD POWERING_UP")


@pytest.mark.parametrize(
    ("pool", "most", "nodes", "room"),
    [
        ({}, None, OFF, 3),
        ({}, 2, OFF, 2),
        ({}, 2, [*OFF[:2], BOOTING], 1),
        ({}, 0, [*OFF[:2], BOOTING], 0),
        ({"max_booting": 2}, None, OFF, 2),
        ({"max_booting": 2}, None, [*OFF[:2], BOOTING], 1),
        ({"max_booting": 1}, None, [*OFF[:2], BOOTING], 0),
        ({"max_booting": 2}, 1, OFF, 1),
    ],
)
def test_there_is_room_for_what_is_off_within_the_pools_bounds(
    make: Make, pool: dict[str, Any], most: int | None, nodes: list[SlurmNode], room: int
) -> None:
    seen = view(*nodes, pool_nodes={"burst": most})
    assert group(make(pool), seen).now.pools[0].room == room


def test_when_machines_are_expected_to_be_free_is_told_where_a_policy_asks(make: Make) -> None:
    nodes = [
        node("pub1", "IDLE CLOUD"),
        node("pub2", "ALLOCATED CLOUD"),
        node("pub3", "IDLE CLOUD POWERING_UP"),
    ]
    machines = {name: machine(name) for name in ("pub1", "pub2", "pub3")}
    runs = job(1, "RUNNING", nodes=("pub2",), start=NOW - 100.0, limit=700)
    seen = view(*nodes, machines=machines, jobs=(runs,))
    asks = make(growth="semi_elastic(wait_limit=300)", expected_boot_time=90.0)
    assert group(asks, seen).now.pools[0].free == (NOW - 910, NOW, NOW + 600)
    assert group(make(), seen).now.pools[0].free == ()
    endless = replace(seen, jobs=(replace(runs, limit=None),))
    assert group(asks, endless).now.pools[0].free[-1] == NOW - 100 + 10 * 365 * 86400
    resumed = replace(seen, jobs=(replace(runs, limit_ends_at=NOW + 640.0),))
    assert group(asks, resumed).now.pools[0].free[-1] == NOW + 640, "it was suspended for 40 s"
    suspended = replace(runs, states=frozenset({"SUSPENDED"}), suspended=NOW - 50.0)
    assert group(asks, replace(seen, jobs=(suspended,))).now.pools[0].free[-1] == NOW + 700
    unknown = replace(seen, machines={})
    assert group(asks, unknown).now.pools[0].free == (NOW + 90, NOW + 600)
    two = replace(seen, jobs=(runs, replace(runs, id=2, limit=900)))
    assert group(asks, two).now.pools[0].free[-1] == NOW + 800, "the last of them counts"


@pytest.mark.parametrize("release", ["flagged", "idle(seconds=60)"])
def test_nodes_with_jobs_are_named_where_they_may_be_flagged(make: Make, release: str) -> None:
    busy = view(node("pub1", "ALLOCATED CLOUD"), machines={"pub1": machine("pub1")})
    pool = group(make(release=release), busy).now.pools[0]
    assert (pool.taken, pool.promised) == ((("pub1",), 0) if release == "flagged" else ((), 1))
    assert pool.running == 1, "its job is gone, but it is no rest either"
    jobs = tuple(job(n, "RUNNING", nodes=("pub1",)) for n in (1, 2))
    elsewhere = job(3, "RUNNING", nodes=("other",))
    pool = group(make(release=release), replace(busy, jobs=(*jobs, elsewhere))).now.pools[0]
    assert pool.running == 2


@pytest.mark.parametrize(
    ("limit", "allow", "told"),
    [
        (120, Who(accounts=("a",), default_time=240), 120),
        (None, Who(accounts=("a",), default_time=240, max_time=500), 240),
        (None, Who(accounts=("a",), max_time=500), 500),
        (None, Who(accounts=("a",)), 3600),
    ],
)
def test_a_job_counts_for_its_limit_or_the_sites_or_an_hour(
    make: Make, limit: int | None, allow: Who, told: int
) -> None:
    seen = view(*OFF, jobs=(job(1, limit=limit),))
    assert [one.limit for one in group(make(allow=allow), seen).now.queue] == [told]


def test_of_an_array_ten_thousand_tasks_are_told_under_its_own_number(make: Make) -> None:
    jobs = (
        job(9, array=9, tasks=20_000), job(11, array=9, task=3), job(12, tasks=10_000)
    )  # fmt: skip
    found = {one.id: one.times for one in group(make(), view(*OFF, jobs=jobs)).now.queue}
    assert found == {9: 10_000, 11: 1, 12: 10_000}


def test_of_an_array_only_the_tasks_count_that_may_run_together(make: Make) -> None:
    jobs = (
        job(10, array=10, tasks=100, max_running_tasks=4),
        job(11, tasks=3, max_running_tasks=4),
    )
    found = {one.id: one.times for one in group(make(), view(*OFF, jobs=jobs)).now.queue}
    assert found == {10: 4, 11: 3}


def test_who_comes_first_is_who_has_the_priority_then_who_came_first(make: Make) -> None:
    jobs = (
        job(4, submit=NOW - 700.0, priority=5), job(3, priority=5), job(2, priority=5),
        job(1, priority=1), job(5, priority=9),
    )  # fmt: skip
    found = group(make(), view(*OFF, jobs=jobs)).now.queue
    assert [one.id for one in found] == [5, 4, 2, 3, 1]


def test_only_jobs_that_wait_for_nodes_of_the_partition_and_may_have_them_count(
    make: Make,
) -> None:
    jobs = (
        job(1), job(2, partitions=("other",)), job(3, reason="Dependency"), job(4, "RUNNING"),
        job(5, account="physics"), job(6, "COMPLETING"),
    )  # fmt: skip
    over = {"account:physics": Overdrawn(NOW + 100.0, Quoted(text="spent"))}
    world = make()
    assert [o.id for o in group(world, view(*OFF, jobs=jobs)).now.queue] == [1, 5]
    assert [o.id for o in group(world, view(*OFF, jobs=jobs, over=over)).now.queue] == [1]


def test_a_job_whose_machines_boot_counts_with_so_many_as_do_and_is_covered(make: Make) -> None:
    nodes = [
        node("pub1", "ALLOCATED CLOUD"),
        node("pub2", "ALLOCATED CLOUD POWERING_UP"),
        node("pub3", "IDLE CLOUD POWERED_DOWN"),
    ]
    starts = job(1, "CONFIGURING", "RUNNING", nodes=("pub1", "pub2"), tasks=3)
    found = group(make(), view(*nodes, jobs=(starts, job(2, "RUNNING", nodes=("pub2",))))).now
    assert [(o.id, o.nodes, o.times, o.pools) for o in found.queue] == [(1, 1, 1, ("burst",))]
    assert found.covered == (1,)
    assert found.pools[0].running == 1, "the other one"


def idle(count: int, since: float) -> tuple[list[SlurmNode], dict[str, Machine]]:
    names = [f"pub{n + 1}" for n in range(count)]
    nodes = [node(name, "IDLE CLOUD", last_busy=NOW - since) for name in names]
    return nodes, {name: machine(name) for name in names}


@pytest.mark.parametrize(
    ("since", "waited", "count", "left", "promised"),
    [
        (600.0, 29.0, 1, 0, 1),
        (600.0, 30.0, 1, 1, 0),
        (29.0, 600.0, 1, 0, 1),
        (30.0, 600.0, 1, 1, 0),
        (600.0, 5.0, 3, 1, 0),
        (600.0, 5.0, 2, 0, 2),
    ],
    ids=["new job", "old job", "new machines", "old machines", "too few", "just enough"],
)
def test_a_job_is_about_to_start_for_half_a_minute(
    make: Make, since: float, waited: float, count: int, left: int, promised: int
) -> None:
    nodes, machines = idle(2, since)
    waits = job(1, submit=NOW - waited, node_count=count)
    found = group(make(), view(*nodes, OFF[2], machines=machines, jobs=(waits,))).now
    assert len(found.queue) == left
    pool = found.pools[0]
    assert (pool.promised, len(pool.idle)) == (promised, 2 - promised)
    assert pool.running == int(promised > 0)


def test_of_an_array_what_is_about_to_start_is_taken_off(make: Make) -> None:
    nodes, machines = idle(3, 600.0)
    waits = job(1, submit=NOW - 5.0, tasks=5)
    found = group(make(), view(*nodes, machines=machines, jobs=(waits,))).now
    assert [(one.id, one.times) for one in found.queue] == [(1, 2)]
    assert (found.pools[0].idle, found.pools[0].promised, found.pools[0].running) == ((), 3, 3)


def test_a_job_that_one_pool_serves_takes_no_machine_of_the_next(tmp_path: Any) -> None:
    plain = make_config(tmp_path)
    pools = [replace(plain.pools[1], name=f"p{n}", nodes=f"pub{n}") for n in (1, 2)]
    world = World(
        clouds=(plain.clouds[1],), pools=tuple(pools), limits=Limits(),
        policies=SitePolicies(growth="on_demand"), allow=Who(accounts=("physics",)),
    )  # fmt: skip
    nodes, machines = idle(2, 600.0)
    seen = view(*nodes, machines=machines, jobs=(job(1, submit=NOW - 5.0),))
    (found,) = pool_groups(world.site, seen, dict.fromkeys(("p1", "p2"), CoveredJobs()))
    world.close()
    assert [pool.promised for pool in found.now.pools] == [1, 0]


# which jobs were counted


UP, BOOTS, GONE = (
    {"pub1": node("pub1", states)} for states in ("IDLE", "IDLE POWERING_UP", "IDLE POWERED_DOWN")
)


def test_a_counted_job_counts_until_its_machines_prove_not_to_come() -> None:
    jobs = (job(1), job(2))
    counted = CoveredJobs()
    counted.add([1], ["pub1"], [1], jobs)
    assert counted.remaining(jobs, BOOTS) == (1,)
    assert counted.remaining(jobs, UP) == (1,), "its machine is there"
    assert counted.remaining(jobs, GONE) == (1,), "which is not looked at any more"
    counted.add([1, 2], ["pub2"], [1, 2], jobs)
    lost = {"pub2": node("pub2", "IDLE POWERED_DOWN")}
    assert counted.remaining(jobs, lost) == (1,), "only those that it was started for"


def test_a_job_served_over_two_looks_counts_again_if_its_first_machine_never_comes() -> None:
    large = (job(1),)
    counted = CoveredJobs()
    counted.add([], ["pub1"], [1], large)
    counted.add([1], ["pub2"], [1], large)
    boots = {name: node(name, "IDLE POWERING_UP") for name in ("pub1", "pub2")}
    assert counted.remaining(large, boots) == (1,)
    assert counted.remaining(large, boots | {"pub1": node("pub1", "IDLE POWERED_DOWN")}) == ()


@pytest.mark.parametrize("nodes", [{}, GONE, {"pub1": node("pub1", "DOWN POWERING_UP")}])
def test_a_job_whose_machine_never_comes_counts_again(nodes: dict[str, SlurmNode]) -> None:
    counted = CoveredJobs()
    counted.add([1], ["pub1"], [1], (job(1),))
    assert counted.remaining((job(1),), nodes) == ()


def test_a_job_that_is_gone_or_was_requeued_counts_again() -> None:
    jobs = (job(1), job(2), job(3))
    counted = CoveredJobs([1, 2, 3])
    assert counted.remaining(jobs, {}) == (1, 2, 3), "whatever their restarts, after a start"
    again = (job(1, restarts=1), job(3))
    assert counted.remaining(again, {}) == (3,)
    counted.add([1], [], [1], again)
    assert counted.remaining(again, {}) == (1,)


def test_hosts_of_machines_matter_once_per_cloud_and_not_per_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be ten thousand machines, and a look comes every fifteen seconds."""
    world = make()
    asked: list[str] = []
    machines = [machine(name) for name in ("pub1", "pub2", "pub3")]

    def counts(_: object, cloud: str) -> bool:
        asked.append(cloud)
        return True

    monkeypatch.setattr(observe_module, "_counts_hosts", counts)
    monkeypatch.setattr(type(world.site), "serving_machines", lambda *_: machines)
    seen = observe(world.site)
    assert asked == ["pub"]
    assert seen.machines_by_host.total() == 3


@pytest.mark.parametrize(
    ("age_s", "fresh"), [(0, True), (29, True), (30, False), (-5, True), (-5 * 86400, False)]
)
def test_a_job_of_before_the_clock_was_set_back_gets_no_idle_machine_for_days(
    age_s: int, *, fresh: bool
) -> None:
    assert is_fresh(NOW - age_s, NOW) is fresh
