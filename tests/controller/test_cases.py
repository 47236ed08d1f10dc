"""Single cases of the daemon over fakes: what each of them must not cost."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config.sections.access import Who
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.giving_back import power_down_and_requeue, reject_nodes
from slurm_elastic.controller.settling import Settler
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.model.exclusion import CAPACITY, COOL_DOWN, Exclusion
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.exclusions import strikes_of
from tests.controller.world import ONP, PUB, Inline, Silent, World

SPOT = "pub/small/zone-1/spot"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def running(world: World, job: int) -> bool:
    return "RUNNING" in world.slurm.queue()[job].states


# a suspend that is served late


def test_a_node_asked_for_again_before_its_suspend_was_served_gets_a_new_machine(
    world: World,
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (old,) = world.machines_of("pub1")
    world.slurm.finish(1)
    world.stop()
    world.advance(world.config.timings.suspend_time + 60)  # suspended, nobody serves it
    world.slurm.submit(2, ("pub1",))  # and asked for again
    asked = world.now
    world.start()
    world.advance(60)
    (new,) = world.machines_of("pub1")
    assert new != old
    assert running(world, 2)
    assert world.now - asked < world.config.timings.resume_timeout


def test_a_machine_younger_than_the_suspend_is_kept(world: World) -> None:
    world.program("suspend", ["pub1"], {}, received=world.now - 1)
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    assert running(world, 1)
    assert len(world.machines_of("pub1")) == 1


# cool-downs


def strikes(world: World, key: str = SPOT) -> int:
    return strikes_of(world.ledger.exclusions.all(), key, world.now)


def test_an_offer_that_gives_again_starts_from_the_shortest_cool_down(world: World) -> None:
    for key in (SPOT, "pub/*/*/spot", "pub/*/*/*"):
        over = Exclusion(
            kind=COOL_DOWN,
            scope=key,
            until=world.now - 1,
            code="X",
            cause=Quoted(text="none"),
            count=4,
        )
        world.ledger.exclusions.add(over)
    world.slurm.submit(1, PUB)
    world.advance(10)
    assert [strikes(world, k) for k in (SPOT, "pub/*/*/spot", "pub/*/*/*")] == [0, 0, 0]


def test_another_offers_refusals_are_not_forgiven(world: World) -> None:
    other = "pub/small/zone-1/on-demand"
    over = Exclusion(
        kind=COOL_DOWN,
        scope=other,
        until=world.now - 1,
        code="X",
        cause=Quoted(text="none"),
        count=4,
    )
    world.ledger.exclusions.add(over)
    world.slurm.submit(1, PUB)
    world.advance(10)
    assert strikes(world, other) == 4


def test_an_offer_that_gave_some_cools_down_no_longer_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Exclusion(
        kind=COOL_DOWN,
        scope=SPOT,
        until=world.now - 1,
        code="X",
        cause=Quoted(text="none"),
        count=4,
    )
    world.ledger.exclusions.add(over)
    cloud = world.clouds["pub"]
    cloud.limit("small/zone-1/spot", 1)
    offers = cloud.offers  # a cloud that does not say how many it has
    monkeypatch.setattr(
        cloud, "offers", lambda pool: tuple(replace(o, free=None) for o in offers(pool))
    )
    world.slurm.submit(1, PUB, 2)
    world.tick()
    (cool,) = world.ledger.exclusions.cool_downs(world.now)
    assert (cool.scope, cool.code) == (SPOT, "Partial")
    assert cool.until <= world.now + world.config.timings.capacity_cooldown
    assert strikes(world) == 0


# nodes given back


@pytest.mark.parametrize(("state", "allowed"), [("CONFIGURING", True), ("RUNNING", False)])
def test_only_a_job_that_never_started_is_requeued_against_its_will(
    world: World, state: str, allowed: bool
) -> None:
    world.slurm.set_node("op1", "ALLOCATED", "CLOUD", "POWERING_UP")
    world.slurm.set_job(7, state, nodes=("op1", "op2"), requeue=False)
    power_down_and_requeue(world.site, ["op1"], world.slurm.nodes(), Quoted(text="none left"), "r1")
    lifted = [u for u in world.slurm.updates if u[0] == "set_requeue"]
    assert lifted == ([("set_requeue", {"job": 7, "requeue": True})] if allowed else [])


# clouds that may not be used yet


def test_a_blocked_clouds_nodes_are_only_held_where_a_job_walks_into_them(tmp_path: Path) -> None:
    """Its partition is INACTIVE in the fragment; an older fragment may still let jobs in."""
    world = World(tmp_path, allow=Who())
    world.advance(60)
    assert world.ledger.exclusions.holds() == ()
    world.slurm.submit(1, PUB)
    world.advance(60)
    assert {row.scope for row in world.ledger.exclusions.holds()} == set(PUB)
    assert all("DRAIN" in world.slurm.node(n).states for n in PUB)
    assert all("DRAIN" not in world.slurm.node(n).states for n in ONP)
    world.close()


# ten thousand nodes


class Counted(tuple):  # type: ignore[type-arg]
    """How often somebody searched it from end to end."""

    searches = 0

    def __contains__(self, item: object) -> bool:
        Counted.searches += 1
        return super().__contains__(item)


def test_refusing_many_nodes_does_not_search_them_for_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    pool = replace(world.site.pools["burst"], nodes=Counted(PUB))
    request = NodeRequest(id="r1", pool=pool, nodes=Counted(PUB[:2]))
    monkeypatch.setattr(Counted, "searches", 0)
    reject_nodes(world.site, request, Counted(PUB[:2]), Quoted(text="none left"), spare=0)
    assert Counted.searches == 0
    world.close()


# a clock that is set back


def test_a_clock_set_back_stops_nothing(world: World) -> None:
    set_back = [0.0]
    world.site = dataclasses.replace(world.site, now=lambda: world.now - set_back[0])
    world.daemon = Daemon(
        world.site, world.spool, Silent(), lambda _: Inline(),  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    world.advance(30)
    set_back[0] = 86400.0
    world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP")  # its request was lost
    world.advance(world.config.timings.orphan_timeout + 120)
    beat = world.ledger.health.heartbeat("slurm-elasticd")
    assert beat is not None
    assert beat[0] > world.now - 86400 - 30
    assert len(world.machines_of("pub1")) == 1


# jobs whose --no-requeue is lifted


def refused(world: World, job: int) -> None:
    """A --no-requeue job whose nodes cannot be had, before anything settles."""
    assert world.daemon is not None
    settle = world.daemon.settler.task
    settle.tick = lambda *_: None  # type: ignore[method-assign]
    world.clouds["pub"].limit("*", 0)
    world.slurm.submit(job, PUB, requeue=False)
    world.tick()
    assert world.slurm.queue()[job].requeue
    assert world.ledger.requeues.lifted() == ((job, 0),)
    del settle.tick  # type: ignore[method-assign]


def test_a_no_requeue_job_is_one_again_although_the_daemon_died_meanwhile(world: World) -> None:
    refused(world, 1)
    world.stop()
    world.now += 5
    world.start()
    world.clouds["pub"].limit("*", None)
    world.advance(200)
    assert not world.slurm.queue()[1].requeue
    assert world.ledger.requeues.lifted() == ()


def test_a_no_requeue_job_that_cannot_be_put_back_now_is_later(world: World) -> None:
    refused(world, 1)
    world.slurm.broken = SlurmError(("scontrol",), 1, "Unable to contact slurm controller")
    world.advance(300)
    world.slurm.broken = None
    world.advance(60)
    assert not world.slurm.queue()[1].requeue
    assert world.ledger.requeues.lifted() == ()


def test_a_no_requeue_job_that_is_gone_is_forgotten(world: World) -> None:
    refused(world, 1)
    world.restart()
    world.slurm.remove_job(1)
    world.advance(10)
    assert world.ledger.requeues.lifted() == ()


# a slow Slurm


def test_the_loop_goes_on_while_slurm_takes_its_time(world: World) -> None:
    answers = threading.Event()
    jobs = world.slurm.jobs

    def slow() -> Sequence[SlurmJob]:
        assert answers.wait(patience(60))
        return jobs()

    site = dataclasses.replace(world.site, slurm=world.slurm)
    worker = ThreadPoolExecutor(1)
    settler = Settler(site, worker)
    world.slurm.set_job(1, "PENDING")
    site.requeues.expect(world.slurm.queue()[1], site.monotonic(), PUB)
    world.slurm.jobs = slow  # type: ignore[method-assign]
    for _ in range(3):
        settler.task.tick()  # would wait for ever
    assert settler.is_busy
    answers.set()
    worker.shutdown(wait=True)
    assert world.slurm.calls["jobs"] == 1


def test_settling_takes_a_sixth_of_a_slow_slurms_time(world: World) -> None:
    readings: list[float] = []
    nodes = world.slurm.nodes

    def slow(names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        readings.append(world.now)
        world.now += 4
        return nodes(names)

    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWER_DOWN")
    hold = Exclusion(
        kind=CAPACITY,
        scope="pub1",
        pool="burst",
        cause=Quoted(text="none"),
        since=world.now,
        until=world.now + 900,
    )
    world.ledger.exclusions.add(*[hold])
    world.slurm.nodes = slow  # type: ignore[method-assign]
    settler = Settler(world.site, Inline())
    end = world.now + 240
    while world.now < end:
        settler.task.tick()
        world.now += 0.3
    assert len(readings) == pytest.approx(240 / 24, abs=1)


def test_the_first_failing_job_ends_the_pass_and_comes_last_in_the_next(world: World) -> None:
    asked: list[int] = []

    def start_now(job: int) -> None:
        asked.append(job)
        if job == 1:
            raise SlurmError(("scontrol",), 1, "no")

    world.slurm.start_now = start_now  # type: ignore[method-assign]
    for job in (1, 2, 3):
        world.slurm.set_job(job, "CONFIGURING", nodes=("pub1",))
        world.site.requeues.expect(world.slurm.queue()[job], world.site.monotonic(), PUB)
        held = {"start": world.now + 121, "restarts": 1}
        world.slurm.set_job(job, "PENDING", reason="BeginTime", nodes=(), **held)
    settler = Settler(world.site, Inline())
    settler.task.tick()
    assert asked == [1]
    world.now += 5
    settler.task.tick()
    assert asked == [1, 2, 3, 1]
