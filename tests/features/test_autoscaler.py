"""Policies on a Slurm whose nodes take their time: what is held, started, let go, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from sqlite3 import Connection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.config.pool_rules import fail_safe
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import (
    Budget,
    CloudPolicies,
    PoolPolicies,
    SitePolicies,
    WhenSpent,
)
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.features.growth import autoscaler
from slurm_elastic.features.growth.autoscaler import Autoscaler
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.observe import observe, pool_groups
from slurm_elastic.features.growth.pool_nodes import Observation
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import GrowthStopped, StoppedPool
from slurm_elastic.model.causes.growth import GrowthPlanned
from slurm_elastic.model.changed_jobs import Barred, ChangedJob, JobValues
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest
from slurm_elastic.model.directive import Departure, LimitChange
from slurm_elastic.model.exclusion import POLICY, Exclusion
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.scaling import GroupSnapshot, PendingJob, ScaleDown, ScalingPlan
from slurm_elastic.policies.nodes.node_reasons import NOTICE_MARK
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.conf.fragment import slurm_weights
from slurm_elastic.state.ledger import Decision
from slurm_elastic.state.ledger.exclusions import Exclusions
from slurm_elastic.state.store.store import Store
from slurm_elastic.testing.in_memory import Inline
from slurm_elastic.watch.door.orders import carry_out
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from tests.controller.looks import Looks
from tests.controller.world import PUB, SHAPE, T0, World, make_config
from tests.simulate.replay import differences, entry


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(
        cloud: dict[str, Any] | None = None,
        pool: dict[str, Any] | None = None,
        allow: Who | None = None,
        max_booting: int | None = None,
        **site: Any,
    ) -> World:
        """One public cloud with a pool of three; policies of the cluster, the cloud, the pool."""
        plain = make_config(Path("/nonexistent"))
        burst = replace(
            plain.pools[1], markets=(Market.ON_DEMAND,), policies=PoolPolicies(**(pool or {})),
            max_booting=max_booting,
        )  # fmt: skip
        pub = FakeCloud(
            name="pub", location=Location.PUBLIC, types=SHAPE,
            limits=Limits(dollars_per_hour=10.0), policies=CloudPolicies(**(cloud or {})),
        )  # fmt: skip
        site.setdefault("poll_interval", 5.0)
        one = World(
            allow=allow or Who(accounts=("physics",)),
            clouds=(pub,),
            pools=(burst,),
            limits=Limits(),
            policies=SitePolicies(**site),
        )
        made.append(one)
        return one

    yield world
    for one in made:
        one.close()


KEPT = Budget(per_day=0.02, when_spent=WhenSpent.KEEP)
"""12 minutes of a machine."""


def submit(world: World, job: int, count: int = 1, **fields: Any) -> None:
    given = {"partitions": ("pub",), "limit": 120, "node_count": count} | fields
    world.slurm.submit(job, PUB, count, **given)


def drained(world: World) -> list[str]:
    return [n for n in PUB if is_drained(world.slurm.node(n))]


def up(world: World) -> list[str]:
    return [n for n in PUB if phase(world.slurm.node(n)) is Phase.UP]


@pytest.fixture(autouse=True)
def _simulator_agrees(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The simulator decides what the daemon journalled in any of these tests."""
    kept: list[tuple[GroupSnapshot, ScalingPlan]] = []
    record = Site.record

    def keep(site: Site, *args: Any, **kwargs: Any) -> None:
        detail = next((a for a in args if isinstance(a, dict)), None)
        if found := entry(detail):
            kept.append(found)
        record(site, *args, **kwargs)

    monkeypatch.setattr(Site, "record", keep)
    yield
    assert differences(kept) == []


def policies(world: World) -> list[Decision]:
    return [d for d in world.ledger.decisions.about("pool:burst") if d.kind == "policy"]


def running(world: World) -> list[int]:
    return sorted(j.id for j in world.slurm.queue().values() if "RUNNING" in j.states)


def test_without_policies_nothing_is_measured_and_nothing_done(make: Callable[..., World]) -> None:
    world = make()
    world.advance(600)
    before = world.slurm.calls["jobs"]
    world.advance(600, step=1)
    assert world.slurm.calls["jobs"] == before
    assert world.ledger.exclusions.holds() == ()


def test_bursts_start_machines_ahead_and_keep_the_others_from_slurm(
    make: Callable[..., World],
) -> None:
    world = make(growth="bursts(waste=120)", release="idle(seconds=60)")
    world.advance(20)
    assert drained(world) == list(PUB)
    for job in (1, 2, 3, 4):
        submit(world, job)  # 480 s of work, 240 s a machine: two
    world.advance(30)
    assert running(world) == [1, 2]
    assert drained(world) == ["pub3"]
    (first,) = policies(world)
    assert "8m of new work, 4m a machine" in str(first.reason)
    assert [d.kind for d in world.ledger.decisions.about("job:4")] == ["awaited"]
    for job in (1, 2):
        world.slurm.finish(job)
    world.advance(20)
    assert running(world) == [3, 4]
    for job in (3, 4):
        world.slurm.finish(job)
    world.advance(45)
    assert up(world) == ["pub1", "pub2"]
    world.advance(60)
    assert up(world) == []
    world.advance(60)
    assert drained(world) == list(PUB)
    assert world.alive() == []


NEXT = tuple(f"next{n}" for n in range(1, 4))


def two_groups(growths: tuple[str, str], **first: Any) -> World:
    """Two public clouds, each with a pool of three and a growth policy of its own."""
    plain = make_config(Path("/nonexistent"))
    clouds = tuple(
        FakeCloud(
            name=name, location=Location.PUBLIC, types=SHAPE,
            limits=Limits(dollars_per_hour=10.0), policies=CloudPolicies(growth=growth),
        )
        for name, growth in zip(("pub", "next"), growths, strict=True)
    )  # fmt: skip
    burst = replace(plain.pools[1], markets=(Market.ON_DEMAND,))
    pools = (
        replace(burst, **first),
        replace(burst, name="later", cloud="next", nodes=compress(NEXT)),
    )
    return World(
        allow=Who(accounts=("physics",)), clouds=clouds, pools=pools, limits=Limits(),
        policies=SitePolicies(poll_interval=5.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("growths", "first", "bought"),
    [
        (("on_demand", "group_bursts(group=1)"), {}, (2, 0)),
        (("group_bursts(group=1)", "on_demand"), {}, (2, 0)),
        (("on_demand", "group_bursts(group=1)"), {"max_nodes": 1}, (1, 1)),
        (("ratio", "on_demand"), {}, (2, 0)),
        (("semi_elastic(wait_limit=0)", "ratio"), {}, (2, 0)),
    ],
)
def test_a_job_that_may_use_pools_of_two_policies_gets_machines_once(
    growths: tuple[str, str], first: dict[str, Any], bought: tuple[int, int]
) -> None:
    world = two_groups(growths, **first)
    for name in NEXT:
        world.slurm.set_node(name, partitions=("next",))
    world.advance(30)
    for id_ in (1, 2):
        submit(world, id_, partitions=("pub", "next"), limit=600)
        world.slurm.set_wish(id_, (*PUB, *NEXT))
    world.advance(120)
    rows = world.ledger.machines.live(ended_since=0.0)
    waiting = [job.id for job in world.slurm.queue().values() if "PENDING" in job.states]
    world.close()
    assert not waiting
    assert (
        tuple(
            len([row for row in rows if row.instance.cloud == cloud]) for cloud in ("pub", "next")
        )
        == bought
    )


def test_machines_of_two_policies_that_came_up_together_serve_different_jobs() -> None:
    """Otherwise both seem to serve the first jobs, and the others get a second machine."""
    world = two_groups(("on_demand", "on_demand(period=30)"), max_booting=1)
    for name in NEXT:
        world.slurm.set_node(name, partitions=("next",))
    world.advance(30)
    for id_ in (1, 2):
        submit(world, id_, partitions=("pub", "next"), limit=600)
        world.slurm.set_wish(id_, (*PUB, *NEXT))
    world.advance(180)
    rows = world.ledger.machines.live(ended_since=0.0)
    world.close()
    assert sorted(row.instance.cloud for row in rows) == ["next", "pub"]


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 1)])
def test_the_tasks_of_an_array_get_machines_of_one_group_or_another_once(
    first: int, second: int
) -> None:
    """The first group has room for a part of the array."""
    tasks = 4
    world = two_groups(("on_demand", "on_demand(period=30)"), max_nodes=first)
    for name in NEXT:
        world.slurm.set_node(name, partitions=("next",))
    world.advance(30)
    world.slurm.submit(
        1, (*PUB, *NEXT), tasks + 1, partitions=("pub", "next"), limit=600, node_count=1,
        tasks=tasks,
    )  # fmt: skip
    world.advance(60)
    alive = [row.instance.cloud for row in world.ledger.machines.live(ended_since=0.0)]
    world.close()
    assert (alive.count("pub"), alive.count("next")) == (first, tasks - first)


def test_idle_machines_of_an_earlier_group_are_taken_off_the_queue_of_a_later_one_once() -> None:
    groups: Any = [
        SimpleNamespace(name=name, served={1: count}) for name, count in (("a", 2), ("b", 3))
    ]
    started = {"a": {1: 4}, "b": {1: 5}}
    found = [dict(autoscaler.find_elsewhere(groups, started, place)) for place in (0, 1)]
    assert found == [{1: 3 + 5}, {1: 4}]


@pytest.mark.parametrize("bound", ["limit of the cloud", "max_nodes", "stock"])
def test_a_job_that_lacks_room_for_all_its_machines_gets_none(
    make: Callable[..., World], bound: str
) -> None:
    world = make(growth="on_demand")
    if bound == "stock":
        world.clouds["pub"].limit("*", 2)
    else:
        scope, key = ("pool:burst", bound) if bound == "max_nodes" else ("cloud:pub", "nodes")
        change = LimitChange(scope=scope, key=key, value=2)
        carry_out(world.config, DirectAsk(word=change), "alice", world.now)
    world.advance(20)
    submit(world, 1, count=3)
    submit(world, 2, count=2)
    world.advance(120)
    assert running(world) == [2]
    assert len(world.ledger.machines.live(ended_since=0.0)) == 2


def test_a_launch_knows_which_machines_a_policy_started_for_one_job(
    make: Callable[..., World],
) -> None:
    """Slurm does not tell for which job these nodes start."""
    world = make(growth="on_demand")
    pool = world.site.pools["burst"]

    def known() -> list[Mapping[str, int]]:
        request = NodeRequest(id="r", pool=pool, nodes=pool.nodes)
        split, *_ = world.site.extensions.split_requests
        return [part.least_by_node for part in split(request)]

    world.advance(20)
    world.hears = False
    submit(world, 1, count=3, limit=864_000)
    world.advance(20)
    assert known() == [dict.fromkeys(pool.nodes, 3)]
    world.restart()
    assert known() == [dict.fromkeys(pool.nodes, 3)], "before the first look"
    world.advance(20)
    assert known() == [dict.fromkeys(pool.nodes, 3)]
    world.hears = True
    world.advance(240)
    assert running(world) == [1]
    assert known() == [{}]


@pytest.mark.parametrize("growth", ["on_demand", "ratio", "semi_elastic", "group_bursts"])
def test_machines_whose_turns_outlast_suspend_time_wait_for_the_last_one(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, growth: str
) -> None:
    """Otherwise Slurm ends the first ones before the last one is up, and growth buys them again."""
    monkeypatch.setattr("tests.controller.world.BOOT", 400.0)
    world = make(growth=growth, max_booting=1)
    assert world.site.config.suspend_time(world.site.clouds["pub"]) < 800.0
    world.advance(20)
    submit(world, 1, count=3, limit=600)
    world.advance(3 * 430, step=5)
    assert running(world) == [1]
    assert len(world.ledger.machines.live(ended_since=0.0)) == 3


def test_a_job_whose_machine_another_job_took_gets_a_new_one(make: Callable[..., World]) -> None:
    """Otherwise it waits beside free nodes for as long as anything runs."""
    world = make(growth="on_demand")
    world.advance(30)
    world.hears = False
    submit(world, 20, limit=864_000, priority=1)
    world.advance(20)
    world.hears = True
    submit(world, 10, limit=864_000, priority=1000)
    world.advance(240)
    assert running(world) == [10, 20]
    assert len(world.ledger.machines.live(ended_since=0.0)) == 2


def test_jobs_count_once_also_after_a_restart(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(growth="bursts(waste=120)", release="idle(seconds=60)")
    world.advance(20)
    for job in (1, 2, 3, 4):
        submit(world, job)
    world.advance(30)
    assert len(up(world)) == 2
    world.restart()
    world.advance(60)
    assert len(up(world)) == 2
    assert len(policies(world)) == 1
    assert "failed; the next try" not in caplog.text


def test_a_steady_stream_keeps_one_machine_warm(make: Callable[..., World]) -> None:
    world = make(growth="steady_stream(waste=60)", release="flagged")
    world.advance(60)
    assert up(world) == ["pub1"]
    for job in range(1, 5):
        submit(world, job)  # 480 s, over 300
    world.advance(60)
    assert len(up(world)) == 2
    for job in list(world.slurm.queue()):
        world.slurm.finish(job)
        world.advance(30)
    world.advance(120)
    assert len(up(world)) == 1
    assert len(world.alive()) == 1


def test_a_delayed_release_waits_for_the_end_of_the_paid_hour(make: Callable[..., World]) -> None:
    world = make(
        cloud={"billing_increment": 3600.0, "release": "delayed(before_end=180)"},
        poll_interval=15.0,
    )
    assert world.config.timings.suspend_time == 300  # the fragment's is later: see test_fragment
    world.slurm.set_suspend_time(3900)
    submit(world, 1)
    world.advance(60)
    world.slurm.finish(1)
    launched = world.alive()[0].launched
    world.advance(3000, step=15)
    assert up(world) == ["pub1"]
    world.advance(launched + 3600 - world.now, step=15)
    assert up(world) == []
    (gone,) = [d for d in policies(world) if "may go" in str(d.reason)]
    assert 3600 - 180 <= gone.at - launched <= 3600
    assert gone in world.ledger.decisions.about("pub1"), "it is told of the node, too"


def test_a_budget_stops_new_machines_and_no_running_job(make: Callable[..., World]) -> None:
    world = make(budget=KEPT)
    submit(world, 1)
    world.advance(60)
    assert running(world) == [1]
    world.advance(900)
    assert running(world) == [1]
    assert drained(world) == ["pub2", "pub3"]
    assert world.slurm.node("pub2").reason == (
        "slurm-elastic:hold:the budget of $0.02 a day is spent"
    )
    submit(world, 2)
    world.advance(120)
    assert "PENDING" in world.slurm.queue()[2].states
    assert "budget of $0.02 a day" in str(world.ledger.decisions.about("job:2")[-1].reason)
    assert world.kinds("job:2").count("awaited") == 1, "it is told once"
    assert "budget of $0.02 a day" in str(world.ledger.decisions.about("pub3")[-1].reason)
    world.slurm.finish(1)
    world.advance(60)
    assert running(world) == [2], "a machine that is there may be used"
    world.slurm.finish(2)
    world.advance(400)
    assert world.alive() == []
    submit(world, 3)
    world.advance(86400 - (world.now % 86400) - 5, step=300)
    assert "PENDING" in world.slurm.queue()[3].states
    world.advance(120)
    assert running(world) == [3], "a new day, a new budget"
    assert [row for row in world.ledger.exclusions.holds() if row.kind == POLICY] == []


def test_a_spent_budget_lets_no_job_start_on_a_running_machine(make: Callable[..., World]) -> None:
    world = make(budget=Budget(per_day=0.02))
    submit(world, 1, limit=3600)
    world.advance(60)
    assert running(world) == [1]
    world.advance(900)
    assert running(world) == [1], "no budget ends a job"
    submit(world, 2)
    world.slurm.finish(1)
    world.advance(400)
    assert running(world) == []
    assert world.alive() == [], "the machine ended after its job, although another waits"
    assert "budget of $0.02 a day" in str(world.ledger.decisions.about("pub1")[-1].reason)
    world.advance(86400 - (world.now % 86400) - 5, step=300)
    assert running(world) == []
    world.advance(120)
    assert running(world) == [2], "a new day, a new budget"


def test_what_running_jobs_may_still_cost_counts_as_spent(make: Callable[..., World]) -> None:
    """A job of four hours commits $0.40 of the day's dollar, two jobs $0.80, three jobs $1.20."""
    world = make(budget=Budget(per_day=1.0))
    for number in range(1, 4):
        submit(world, number, limit=4 * 3600)
        world.advance(60)
    world.advance(60)
    assert running(world) == [1, 2, 3], "what they commit is known when they run"
    third = world.slurm.queue()[3].nodes
    launched = {m.instance.node: m.instance.launched for m in world.ledger.state().machines}
    submit(world, 4)
    world.slurm.finish(3)
    world.advance(300)
    (again,) = (m for m in world.ledger.state().machines if m.instance.node in third)
    assert again.instance.launched > launched[again.instance.node], (
        "the machine ended after its job, and another came for the money that the job left"
    )


def test_a_request_that_comes_when_the_budget_is_spent_starts_nothing(
    make: Callable[..., World],
) -> None:
    """Slurm may have asked before the nodes were held."""
    world = make(budget=KEPT, poll_interval=3600.0)
    submit(world, 1)
    world.advance(900)
    submit(world, 2)
    world.advance(30)
    assert "PENDING" in world.slurm.queue()[2].states
    assert len(world.alive()) == 1
    assert any("budget" in str(d.reason) for d in world.ledger.decisions.about("job:2"))


def test_a_holds_reason_follows_what_is_in_the_way(make: Callable[..., World]) -> None:
    world = make(growth="bursts(waste=120)", release="idle(seconds=60)", budget=KEPT)
    world.advance(20)
    assert {row.cause for row in world.ledger.exclusions.holds()} == {holds.BY_POLICY}
    submit(world, 1)
    world.advance(900)
    assert running(world) == [1]
    assert {str(row.cause) for row in world.ledger.exclusions.holds()} == {
        "the budget of $0.02 a day is spent"
    }


@pytest.fixture
def held_together(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The nodes of each transaction of the ledger that adds holds."""
    together: list[list[str]] = []
    really_add, really_begin = Exclusions.add, Store.transaction

    def add(rows: Exclusions, *exclusions: Exclusion) -> None:
        begun: list[None] = []

        def begin(store: Store, *changes: str | None) -> AbstractContextManager[Connection]:
            begun.append(None)
            return really_begin(store, *changes)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "transaction", begin)
            really_add(rows, *exclusions)
        assert len(begun) == 1
        together.append(sorted(row.scope for row in exclusions if row.kind == POLICY))

    monkeypatch.setattr(Exclusions, "add", add)
    return together


def test_the_nodes_of_a_pool_are_held_in_one_transaction(
    make: Callable[..., World], held_together: list[list[str]]
) -> None:
    """Each costs a sync of the disk, and reads all holds once more: a pool may be large."""
    world = make(growth="bursts(waste=120)", budget=KEPT)
    world.advance(20)
    assert drained(world) == list(PUB)
    assert held_together == [list(PUB)]
    submit(world, 1)
    world.advance(900)
    assert held_together[1:] == [["pub2", "pub3"]], "for another cause: the budget is spent"


def test_nodes_that_are_given_back_together_are_held_in_one_transaction(
    make: Callable[..., World], held_together: list[list[str]]
) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.slurm.set_suspend_time(3600)
    world.advance(20)
    for job in (1, 2, 3):
        submit(world, job)
    world.advance(60)
    assert running(world) == [1, 2, 3]
    held_together.clear()
    for job in (1, 2, 3):
        world.slurm.finish(job)
    world.advance(200)
    assert up(world) == []
    assert held_together == [list(PUB)]


@pytest.mark.parametrize(("growth", "held"), [("bursts(waste=120)", True), ("slurm", False)])
def test_a_node_that_is_given_back_is_held_first_where_a_policy_starts_it(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, growth: str, *, held: bool
) -> None:
    """Else Slurm would start it for the next job before the next look."""
    world = make(growth=growth, release="idle(seconds=60)")
    world.slurm.set_suspend_time(3600)
    back: list[bool] = []
    power_down = autoscaler.node_updates.power_down_when_idle

    def given_back(slurm: Any, nodes: Sequence[str]) -> None:
        back.append(set(nodes) <= {row.scope for row in world.ledger.exclusions.holds()})
        power_down(slurm, nodes)

    monkeypatch.setattr(autoscaler.node_updates, "power_down_when_idle", given_back)
    world.advance(20)
    submit(world, 1)
    world.advance(60)
    world.slurm.finish(1)
    world.advance(200)
    assert back == [held]


def test_where_something_is_done_nothing_is_said_of_what_is_not() -> None:
    pool = SimpleNamespace(name="burst", stop=Quoted(text="it is closed"))
    now: Any = SimpleNamespace(pools=(pool, pool))
    leave = ScaleDown(node="pub1", reason="idle")
    told = autoscaler.outlook_of(now, ScalingPlan(leaves=(leave,)))
    assert told == GrowthPlanned(starts=(), leaving=1, leave_reason="idle")
    assert str(told) == "1 may go: idle"
    told = autoscaler.outlook_of(now, ScalingPlan())
    assert told == GrowthStopped(pools=(StoppedPool(pool="burst", cause=pool.stop),))
    assert str(told) == "nothing is started in pool burst: it is closed"
    now.pools = ()
    assert autoscaler.outlook_of(now, ScalingPlan()) is None


def test_windows_stop_new_machines(make: Callable[..., World]) -> None:
    hour = int(T0 % 86400 // 3600)
    world = make(start_windows=(f"{(hour + 2) % 24:02}:00-{(hour + 4) % 24:02}:00",))
    world.advance(20)
    assert drained(world) == list(PUB)
    submit(world, 1)
    world.advance(2 * 3600 + 120, step=20)
    assert running(world) == [1]


def test_what_is_up_is_held_no_longer(make: Callable[..., World]) -> None:
    """Slurm started it in the moment before the hold."""
    world = make(growth="bursts(waste=120)")
    world.slurm.submit(1, ("pub1",))
    world.advance(20)
    assert up(world) == ["pub1"]
    world.advance(10)
    holds.hold_back(world.site, ["pub1"], holds.BY_POLICY)
    world.advance(20)
    assert "pub1" not in {row.scope for row in world.ledger.exclusions.holds()}
    assert "pub1" not in drained(world)
    assert [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "released"][
        -1
    ] == ("it is up or coming")


def test_an_admins_drain_stays_and_counts_as_no_room(make: Callable[..., World]) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason="fan is broken")
    world.advance(20)
    submit(world, 1)
    world.advance(30)
    assert running(world) == [1]
    assert world.slurm.node("pub1").reason == "fan is broken"
    assert is_drained(world.slurm.node("pub1"))
    assert "pub1" not in {row.scope for row in world.ledger.exclusions.holds()}


def drain_nodes(world: World, *nodes: str) -> None:
    word = Departure(verb="drain", about=",".join(nodes), nodes=nodes)
    carry_out(world.config, DirectAsk(word=word), "alice", world.now)


def bought(world: World) -> list[str]:
    """The nodes of all machines that the cloud has ever made, one for each machine."""
    return [machine.instance.node for machine in world.ledger.machines.live(ended_since=0)]


def test_a_node_that_an_operator_closed_is_not_started_and_another_one_is(
    make: Callable[..., World],
) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.advance(20)
    drain_nodes(world, "pub1")
    world.advance(60)
    assert drained(world) == list(PUB)
    submit(world, 1)
    world.advance(300)
    assert running(world) == [1]
    assert bought(world) == ["pub2"]
    assert is_drained(world.slurm.node("pub1"))
    assert "is drained by alice" in world.slurm.node("pub1").reason


def test_a_closed_node_is_used_again_when_its_order_is_over(make: Callable[..., World]) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.advance(20)
    drain_nodes(world, *PUB)
    world.advance(60)
    submit(world, 1)
    world.advance(60)
    assert bought(world) == []
    (order,) = world.ledger.directives.all()
    carry_out(world.config, EndAsk(numbers=(order.number,)), "bob", world.now)
    world.advance(120)
    assert running(world) == [1]
    assert bought(world) == ["pub1"]


def test_no_warm_machine_is_kept_on_a_closed_node(make: Callable[..., World]) -> None:
    world = make(pool={"min_idle_machines": 1}, growth="on_demand", release="idle(seconds=30)")
    world.slurm.set_suspend_time(86400)
    world.advance(60)
    assert up(world) == ["pub1"]
    drain_nodes(world, "pub2")
    world.advance(30)
    submit(world, 1)
    world.advance(60)
    assert up(world) == ["pub1", "pub3"]
    assert bought(world) == ["pub1", "pub3"]


def test_an_order_that_comes_during_a_look_closes_its_nodes(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.advance(20)

    def observe_then_drain(site: Site) -> Observation:
        seen = observe(site)
        if seen.jobs and not site.ledger.directives.all():
            drain_nodes(world, "pub1")
        return seen

    monkeypatch.setattr(autoscaler, "observe", observe_then_drain)
    submit(world, 1)
    world.advance(300)
    assert bought(world) == ["pub2"]


def test_a_pool_without_capacity_is_left_alone_until_it_has_some(
    make: Callable[..., World],
) -> None:
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.advance(20)
    world.clouds["pub"].limit("*", 0)
    submit(world, 1)
    world.advance(100)
    assert len(policies(world)) <= 2, "not again and again"
    assert drained(world) == list(PUB)
    world.clouds["pub"].limit("*", None)
    world.advance(900)
    assert running(world) == [1]


def test_warm_machines_are_kept_and_replaced(make: Callable[..., World]) -> None:
    world = make(pool={"min_idle_machines": 1}, release="idle(seconds=30)")
    world.slurm.set_suspend_time(86400)
    world.advance(60)
    assert up(world) == ["pub1"]
    submit(world, 1)
    world.advance(60)
    assert len(up(world)) == 2
    world.slurm.finish(1)
    world.advance(120)
    assert len(up(world)) == 1


def test_no_warm_machine_is_kept_while_a_maintenance_has_the_pool(
    make: Callable[..., World],
) -> None:
    world = make(pool={"min_idle_machines": 1}, release="idle(seconds=30)")
    world.slurm.set_suspend_time(86400)
    world.advance(60)
    assert up(world) == ["pub1"]
    maintenance = Reservation(
        name="upgrade", start=world.now, end=world.now + 1000, flags=frozenset({"MAINT"}),
        nodes=("pub1", "pub2", "pub3"),
    )  # fmt: skip
    world.slurm.reserved = [maintenance]
    world.advance(120)
    assert up(world) == []
    assert bought(world) == ["pub1"]
    world.slurm.reserved = []
    world.advance(60)
    assert len(up(world)) == 1


def test_warm_machines_start_outside_a_maintenance(make: Callable[..., World]) -> None:
    world = make(pool={"min_idle_machines": 1}, release="idle(seconds=30)")
    maintenance = Reservation(
        name="upgrade", start=world.now, end=world.now + 1000, nodes=("pub1", "pub2"),
        flags=frozenset({"MAINT"}),
    )  # fmt: skip
    world.slurm.reserved = [maintenance]
    world.advance(60)
    assert up(world) == ["pub3"]


def test_a_machine_keeps_the_billing_increment_of_its_purchase(
    make: Callable[..., World],
) -> None:
    world = make(cloud={"billing_increment": 3600.0})
    submit(world, 1)
    world.advance(600)
    assert {m.terms.billing_increment_s for m in world.ledger.machines.live()} == {3600}


def test_idle_machines_are_weighed_by_what_is_left_of_their_lease(
    make: Callable[..., World],
) -> None:
    world = make(
        cloud={"billing_increment": 3600.0},
        machine_order="max_margin",
        release="delayed(before_end=180)",
    )
    world.slurm.set_suspend_time(7200)
    submit(world, 1)
    world.advance(600)
    submit(world, 2)
    world.advance(60)
    for job in (1, 2):
        world.slurm.finish(job)
    world.advance(30)
    first, second, off = (world.slurm.node(n).weight for n in PUB)
    assert second < first < off
    base = slurm_weights(world.config, tuple(world.site.pools.values()))["burst"]
    assert base <= second
    assert off < base + 10, "the next pool's begin there"
    calls = world.slurm.calls["set_weights"]
    world.advance(300)
    assert world.slurm.calls["set_weights"] == calls, "only on change"


def test_a_job_that_is_about_to_start_does_not_turn_the_weights_round(
    make: Callable[..., World],
) -> None:
    """slurmctld chooses by them in the next moment."""
    world = make(
        cloud={"billing_increment": 3600.0},
        machine_order="min_margin",
        release="idle(seconds=80000)",
    )
    world.slurm.set_suspend_time(86400)
    submit(world, 1)
    world.advance(600)
    submit(world, 2)
    world.advance(60)
    for job in (1, 2):
        world.slurm.finish(job)
    world.advance(30)
    before = [world.slurm.node(n).weight for n in PUB]
    assert before[0] < before[1]
    view = observe(world.site)
    waits = SlurmJob(
        id=3, states=frozenset({"PENDING"}), partitions=("pub",), submit=view.at, cpus=1
    )
    (name,) = world.site.pools
    (group,) = pool_groups(world.site, replace(view, jobs=(waits,)), {name: CoveredJobs()})
    assert len(group.now.pools[0].idle) == 1, "one is promised to the job"
    assert [one.node for one in group.idle[name]] == ["pub1", "pub2"]


def test_policies_that_leave_the_configuration_let_go_of_their_nodes(
    make: Callable[..., World],
) -> None:
    world = make(growth="bursts", release="idle(seconds=60)")
    world.advance(20)
    assert drained(world) == list(PUB)
    world.stop()
    world.config = replace(world.config, policies=SitePolicies())
    world.start()
    world.advance(30)
    assert drained(world) == []
    assert world.ledger.exclusions.holds() == ()


def test_without_policies_a_deferral_ends_however_many_looks_it_takes(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    aside = ChangedJob(
        key=JobKey(number=7), own=JobValues(partitions=("pub",)),
        latest=JobValues(partitions=("onp",)), wishes=(Barred(until=0.0),),
    )  # fmt: skip
    world.ledger.changed_jobs.keep([aside])
    world.slurm.set_job(7, "PENDING", account="physics", partitions=("pub",))
    made = Autoscaler(world.site, Inline())  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.changed_jobs, "forget", lambda _: None)
        made.task.tick()
    world.now += 3600
    assert made.task.is_due
    made.task.tick()
    assert world.ledger.changed_jobs.all() == ()


def test_a_budget_that_an_operator_sets_is_kept_where_the_file_has_no_policies(
    make: Callable[..., World],
) -> None:
    world = make()
    world.advance(30)
    change = LimitChange(scope="", key="per_day", value=0.02)
    carry_out(world.config, DirectAsk(word=change), "alice", world.now)
    for job in range(1, 30):
        submit(world, job, limit=240)
        world.advance(120)
        for number in running(world):
            world.slurm.finish(number)
    world.advance(900)
    assert world.alive() == []
    assert len(world.ledger.machines.live(ended_since=0.0)) == 1
    assert "PENDING" in world.slurm.queue()[29].states


def test_a_new_daemon_goes_by_the_last_fifty_decisions(make: Callable[..., World]) -> None:
    world = make(growth="on_demand")
    for number in range(51):
        plan = msgspec.to_builtins(ScalingPlan(covered=(number,)))
        world.site.record("policy", "policy", ("pool:burst",), Quoted(text="x"), {"plan": plan})
    waiting = [
        SlurmJob(id=number, states=frozenset({"PENDING"}), partitions=("pub",))
        for number in range(51)
    ]
    assert autoscaler.recalled(world.site, "burst").remaining(waiting, {}) == tuple(range(1, 51))


def test_a_new_daemon_knows_for_which_jobs_each_node_was_started(
    make: Callable[..., World],
) -> None:
    """Of all decisions, so that the jobs of a machine that never comes up count again, and only
    these: others would get a second machine.
    """
    world = make(growth="on_demand")
    first, second = (f"pub{number}" for number in (1, 2))
    for nodes, covered in (((first,), (1,)), ((second,), (1, 2)), ((), (1, 2))):
        plan = msgspec.to_builtins(ScalingPlan(covered=covered))
        world.site.record(
            "policy", "policy", ("pool:burst", *nodes), Quoted(text="x"), {"plan": plan}
        )
    waiting = [SlurmJob(id=n, states=frozenset({"PENDING"}), partitions=("pub",)) for n in (1, 2)]
    boots, down = frozenset({"POWERING_UP"}), frozenset({"IDLE", "POWERED_DOWN"})
    nodes = {name: SlurmNode(name=name, states=boots) for name in (first, second)}
    counted = autoscaler.recalled(world.site, "burst")
    assert counted.remaining(waiting, nodes) == (1, 2)
    nodes[first] = SlurmNode(name=first, states=down)
    assert counted.remaining(waiting, nodes) == (2,)


@pytest.mark.parametrize("plan", [{"covered": "of another release"}, "no plan", None])
def test_growth_goes_on_after_a_decision_that_it_cannot_read(
    make: Callable[..., World], plan: object
) -> None:
    world = make(growth="on_demand")
    world.site.record("policy", "policy", ("pool:burst",), Quoted(text="x"), {"plan": plan})
    assert autoscaler.recalled(world.site, "burst").remaining([], {}) == ()


@pytest.mark.parametrize(("took", "due"), [(0.0, 5.0), (0.25, 5.0), (0.5, 10.0)])
def test_a_look_is_due_when_the_site_says_and_takes_a_twentieth_of_the_time_at_most(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, took: float, due: float
) -> None:
    world = make(growth="on_demand")
    looks = Looks(world, took)
    monkeypatch.setattr(Autoscaler, "look", looks)
    made = Autoscaler(world.site, Inline())  # type: ignore[arg-type]
    assert looks.begun(made.task, due) == [-took, due]


def test_a_hundred_jobs_hear_of_a_decision_and_each_once(make: Callable[..., World]) -> None:
    world = make(growth="on_demand")
    made = Autoscaler(world.site, Inline())  # type: ignore[arg-type]
    queue = [PendingJob(number, 1, 60, 0) for number in range(150)]

    def heard() -> list[int]:
        made.tell_jobs("burst", queue, Quoted(text="none is free"), has_starts=False)
        return [len(world.ledger.decisions.about(f"job:{n}")) for n in (0, 99, 100, 149)]

    assert heard() == [1, 1, 0, 0]
    assert heard() == heard() == [1, 1, 1, 1]
    made.tell_jobs("burst", queue[:1], Quoted(text="one starts"), has_starts=True)
    assert len(world.ledger.decisions.about("job:0")) == 2


def test_each_job_gets_a_machine_although_max_booting_admits_one_at_a_time(
    make: Callable[..., World],
) -> None:
    world = make(growth="on_demand", max_booting=1)
    world.advance(20)
    for number in range(1, 4):
        submit(world, number, limit=86400)
    for _ in range(40):
        world.advance(10)
    assert [job.states for job in world.slurm.jobs()] == [{"RUNNING"}] * 3
    assert len(world.ledger.state().machines) == 3


def test_jobs_that_wait_no_more_are_forgotten(make: Callable[..., World]) -> None:
    world = make(growth="bursts(waste=120)")
    made = Autoscaler(world.site, Inline())  # type: ignore[arg-type]
    world.advance(20)
    for number in range(1, 4):
        submit(world, number)
        made.look()
        assert any(number in heard._reports for heard in made._reasons.values())
    for number in range(1, 4):
        world.slurm.finish(number)
    made.look()
    assert not any(heard._reports for heard in made._reasons.values())


@pytest.mark.parametrize(
    ("covered", "paid"),
    [((), {"bio": 1, "physics": 6}), ((1,), {"physics": 6}), ((1, 2), {"bio": 1, "physics": 6})],
)
def test_those_who_wait_for_them_anew_pay_machines_that_are_started_ahead(
    make: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    covered: tuple[int, ...],
    paid: dict[str, int],
) -> None:
    """All that wait, where machines were started for each of them before."""
    world = make(growth="on_demand", account_budgets={"physics": Budget(per_day=9)})
    made = Autoscaler(world.site, Inline())  # type: ignore[arg-type]
    wanted: list[Any] = []
    monkeypatch.setattr(world.ledger.books, "record_payers", lambda *of: wanted.append(of))
    jobs = (PendingJob(1, 1, 60, 0, times=0), PendingJob(2, 3, 60, 0, times=2))
    now = SimpleNamespace(covered=covered, queue=jobs)
    made.charge(now, [], {})  # type: ignore[arg-type]
    assert wanted == []
    made.charge(now, ["pub1"], {1: "bio", 2: "physics"})  # type: ignore[arg-type]
    assert wanted == [({"pub1": paid}, world.now)]


def test_no_account_pays_for_warm_machines_that_start_with_a_jobs_machine(
    make: Callable[..., World],
) -> None:
    world = make(
        pool={"min_idle_machines": 2},
        growth="on_demand",
        account_budgets={"physics": Budget(per_day=9)},
    )
    submit(world, 1)
    world.advance(60)
    accounts = [m.accounts for m in world.ledger.machines.live()]
    assert sorted(map(len, accounts)) == [0, 0, 1]


def test_what_is_decided_is_in_the_log(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.advance(20)
    submit(world, 1)
    world.advance(30)
    assert "policy group=burst nodes=pub1 reason=1 more in pool burst: " in caplog.text
    kinds = [d.kind for d in world.ledger.decisions.about("pub2")]
    assert kinds.count("held-back") == 1


@pytest.mark.parametrize(
    ("seconds", "idle", "queue"), [(29, 0, 0), (30, 1, 1)], ids=["about to start", "not for it"]
)
def test_for_half_a_minute_a_job_and_an_idle_machine_are_for_each_other(
    make: Callable[..., World], seconds: int, idle: int, queue: int
) -> None:
    world = make(growth="on_demand")
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    world.slurm.finish(1)
    view = observe(world.site)
    node = replace(view.nodes["pub1"], last_busy=float(view.at), boot_time=0.0)
    waits = SlurmJob(
        id=3, states=frozenset({"PENDING"}), partitions=("pub",), submit=view.at, cpus=1
    )
    later = replace(view, at=view.at + seconds, jobs=(waits,), nodes={**view.nodes, "pub1": node})
    (group,) = pool_groups(world.site, later, {"burst": CoveredJobs()})
    assert (len(group.now.pools[0].idle), len(group.now.queue)) == (idle, queue)


def test_semi_elastic_holds_a_burst_until_the_wait_limit(make: Callable[..., World]) -> None:
    world = make(
        growth="semi_elastic(wait_limit=300)", release="idle(seconds=600)", expected_boot_time=10.0
    )
    world.advance(20)
    submit(world, 1, limit=240)
    world.advance(60)
    assert running(world) == [1]
    submit(world, 2, limit=600)
    world.advance(60)
    assert "PENDING" in world.slurm.queue()[2].states, "it would start in time"
    world.slurm.finish(1)
    world.advance(20)
    assert running(world) == [2]
    submit(world, 3)
    world.advance(60)
    assert running(world) == [2, 3], "it would have waited for ten minutes"
    assert "the head would have waited" in str(policies(world)[-1].reason)


def test_slurms_own_power_saving_goes_on_while_no_daemon_runs(make: Callable[..., World]) -> None:
    """The fail-safe: a machine that a policy would have let go is suspended later all the same."""
    world = make(growth="on_demand", release="idle(seconds=60)")
    world.slurm.set_suspend_time(fail_safe(world.config, world.config.clouds[0]))
    world.advance(20)
    submit(world, 1)
    world.advance(30)
    world.stop()
    world.slurm.finish(1)
    world.advance(200)
    assert up(world) == ["pub1"]
    world.advance(400)
    assert up(world) == []
    submit(world, 2)  # Slurm asks for pub1; without a daemon nobody launches
    world.start()
    world.advance(180)
    assert running(world) == [2]
    assert drained(world) == ["pub2", "pub3"]
    assert len(world.alive()) == 1


def test_nothing_is_started_where_nobody_may_burst(make: Callable[..., World]) -> None:
    world = make(growth="steady_stream", release="flagged", allow=Who())
    world.advance(300)
    assert world.alive() == []
    assert world.requests == []
    assert "nobody is allowed" in world.slurm.node("pub1").reason


def test_a_job_that_no_machine_helped_counts_again_after_a_pause(
    make: Callable[..., World],
) -> None:
    """Its verdict may be wrong, as after a clock that was set. It must not wait for ever."""
    world = make(growth="on_demand", release="idle(seconds=120)")
    world.slurm.set_job(
        1, "PENDING", partitions=("pub",), node_count=1, reason="Resources", submit=world.now
    )

    def bought() -> int:
        return sum(d.kind == "policy" and "more in pool" in str(d.reason) for d in policies(world))

    guard = world.ledger.growth_guard
    world.advance(600)
    assert (bought(), [row.job for row in guard.jobs(world.now)]) == (1, [1])
    assert up(world) == []
    world.advance(2 * 3600, 30)
    assert (bought(), [row.strikes for row in guard.rows()]) == (2, [2])
    world.advance(2 * 3600, 30)
    assert bought() == 2, "the second pause is four hours"


def test_a_machine_that_its_cloud_takes_away_is_no_proof_against_its_job(
    make: Callable[..., World],
) -> None:
    """It left half a minute after it came up, when slurmctld may not have looked at the job yet."""
    world = make(growth="on_demand", release="idle(seconds=120)")
    waits = {"partitions": ("pub",), "node_count": 1, "reason": "Resources", "submit": world.now}
    world.slurm.set_job(1, "PENDING", **waits)
    while up(world) == []:
        world.advance(10)
    world.advance(20)
    notice = f"{NOTICE_MARK} interruption notice"
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason=notice)
    world.advance(300)
    (row,) = world.ledger.growth_guard.rows()
    assert (row.nodes, row.strikes) == (("pub2",), 1), "pub1 is no first strike"
