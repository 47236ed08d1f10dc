"""A job that no limit lets have its nodes together is told "never", and is not tried again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import PoolSettings
from slurm_elastic.controller.oversized import (
    REQUEUE_TIMEOUT_S,
    find_too_large,
    keep_job_out,
    move_or_hold_jobs,
)
from slurm_elastic.model.causes.composed import NeverTogether
from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Pool
from slurm_elastic.model.directive import LimitChange
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.test_provision import MANY, build, mute
from tests.controller.world import SHAPE, World
from tests.features.test_directives import say

TOO_LARGE = NeverTogether(cloud="pub", wanted=9, max_nodes=3, bound=None)
ALL = ("static", "pub")


@pytest.fixture
def small(tmp_path: Path) -> Any:
    world = build(tmp_path, max_nodes=3)
    yield world
    world.close()


def resumes(world: World) -> int:
    return sum(kind == "resume" for kind, _, _ in world.requests)


def test_a_job_that_can_never_fit_leaves_the_clouds_partition(small: World) -> None:
    for name in MANY:
        small.slurm.set_node(name, partitions=("pub",))
    small.slurm.submit(1, MANY, 4, partitions=ALL)
    small.advance(300)
    job = small.slurm.queue()[1]
    assert job.partitions == ("static",)
    assert job.start <= small.now, "nothing keeps it from starting there"
    (told,) = [d for d in small.ledger.decisions.about("job:1") if d.kind == "never"]
    assert str(told.reason) == (
        "its 4 nodes can never run together in cloud pub, 3 at most: pool many is limited to 3 "
        "nodes, 0 are in use; the job may start in static"
    )


def test_one_that_has_no_other_partition_is_held_and_not_tried_again(small: World) -> None:
    small.slurm.submit(1, MANY, 4, partitions=("pub",))
    small.advance(300)
    tries = resumes(small)
    small.advance(3600)
    assert small.slurm.queue()[1].reason == "JobHeldUser"
    assert resumes(small) == tries
    (told,) = [d for d in small.ledger.decisions.about("job:1") if d.kind == "never"]
    assert str(told.reason).endswith(
        "the job is held until the limit allows it; to try it before: scontrol release 1"
    )


@pytest.mark.parametrize("others", [(), ("static",)])
def test_it_comes_back_when_the_limit_is_raised(tmp_path: Path, others: tuple[str, ...]) -> None:
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE,
        limits=Limits(dollars_per_hour=9.0, nodes=2),
    )  # fmt: skip
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096, markets=(Market.SPOT,)
    )
    world = World(tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits())
    for name in MANY:
        world.slurm.set_node(name, partitions=("pub",))
    world.slurm.submit(1, MANY, 4, partitions=(*others, "pub"))
    world.advance(300)
    job = world.slurm.queue()[1]
    assert job.partitions == (others or ("pub",))
    assert job.is_held is not bool(others)
    world.restart()
    say(world, LimitChange(scope="cloud:pub", key="nodes", value=8))
    world.advance(300)
    job = world.slurm.queue()[1]
    assert job.partitions == (*others, "pub")
    assert "RUNNING" in job.states
    (back,) = [d for d in world.ledger.decisions.about("job:1") if d.kind == "let-back"]
    assert str(back.reason) == "cloud pub may serve it now"
    world.close()


def test_one_that_its_other_partitions_refuse_is_held_and_not_tried_again(small: World) -> None:
    """As with EnforcePartLimits: it would be given the cloud's nodes again and again."""

    def refuse(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Requested node configuration is not available")

    small.slurm.change_pending = refuse  # type: ignore[method-assign]
    small.slurm.submit(1, MANY, 4, partitions=ALL)
    small.advance(300)
    tries = resumes(small)
    small.advance(900)
    assert small.slurm.queue()[1].reason == "JobHeldUser"
    assert resumes(small) == tries


def test_it_is_held_when_slurmctld_answers_again(small: World) -> None:
    hold = small.slurm.hold

    def silent(_: int) -> None:
        raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")

    small.slurm.hold = silent  # type: ignore[method-assign]
    small.slurm.submit(1, MANY, 4, partitions=("pub",))
    small.advance(30)
    small.slurm.hold = hold  # type: ignore[method-assign]
    small.advance(30)
    assert small.slurm.queue()[1].reason == "JobHeldUser"


def test_it_is_looked_for_until_it_is_requeued_and_then_no_more(small: World) -> None:
    small.slurm.submit(1, MANY, 3, partitions=ALL)
    small.advance(60)
    assert "RUNNING" in small.slurm.queue()[1].states
    site = small.site
    keep_job_out(site, 1, "pub", TOO_LARGE, "r1")
    keep_job_out(site, 2, "pub", TOO_LARGE, "r1")
    move_or_hold_jobs(site)
    assert set(site.oversized.snapshot()) == {1}, "nobody has heard of the other job any more"
    small.now += REQUEUE_TIMEOUT_S - 1
    move_or_hold_jobs(site)
    assert set(site.oversized.snapshot()) == {1}
    small.now += 1
    move_or_hold_jobs(site)
    assert not site.oversized
    assert small.slurm.queue()[1].partitions == ALL
    assert "never" not in small.kinds("job:1")


def test_a_job_that_slurm_does_not_have_changed_is_told_of_and_left(
    small: World, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Access/permission denied")

    small.slurm.submit(1, MANY, 4, partitions=ALL)
    small.slurm.set_job(1, "PENDING", nodes=())
    small.slurm.change_pending = small.slurm.hold = refuse  # type: ignore[method-assign]
    site = small.site
    keep_job_out(site, 1, "pub", TOO_LARGE, "r1")
    move_or_hold_jobs(site)
    assert "job not changed job=1 error=" in caplog.text
    assert not site.oversized
    assert "never" not in small.kinds("job:1")


@pytest.mark.parametrize("restarts", [0, 1])
def test_one_that_waits_for_its_requeue_may_start_elsewhere_at_once(
    small: World, restarts: int
) -> None:
    """A begin time that its user gave it stays."""
    small.slurm.submit(1, MANY, 4, partitions=ALL)
    begin = small.now + 60
    small.slurm.set_job(1, "PENDING", nodes=(), eligible=begin, restarts=restarts)
    site = small.site
    keep_job_out(site, 1, "pub", TOO_LARGE, "r1")
    move_or_hold_jobs(site)
    moved = small.slurm.queue()[1]
    assert moved.partitions == ("static",)
    assert moved.begin == (small.now if restarts else begin), "at once, or when its user said"


def test_who_never_fits_or_is_not_moved_is_in_the_log(
    small: World, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Requested node configuration is not available")

    caplog.set_level(logging.INFO)
    small.slurm.submit(1, MANY, 4, partitions=ALL)
    small.slurm.set_job(1, "PENDING", nodes=())
    small.slurm.change_pending = refuse  # type: ignore[method-assign]
    site = small.site
    keep_job_out(site, 1, "pub", TOO_LARGE, "r1")
    move_or_hold_jobs(site)
    assert "job not changed job=1 error=scontrol" in caplog.text
    assert "job can never start here job=1 reason=its 9 nodes" in caplog.text


@pytest.mark.parametrize(
    ("most", "jobs", "told"),
    [
        (4, {1: MANY[:4]}, {}),
        (3, {1: MANY[:4], 2: MANY[4:6]}, {1: 3}),
        (1, {1: MANY[:2], 2: MANY[2:3]}, {1: 1}),
    ],
)
def test_a_job_is_too_large_from_one_node_more_than_could_ever_be_had(
    tmp_path: Path, most: int, jobs: dict[int, Sequence[str]], told: dict[int, int]
) -> None:
    world = build(tmp_path, max_nodes=most)
    found = find_too_large(world.site, "pub", jobs, jobs)
    assert {
        job: f"{left} at most" in str(found[job]) for job, left in told.items()
    } == dict.fromkeys(told, True)
    assert found.keys() == told.keys()
    world.close()


def test_for_a_job_of_one_node_no_cloud_is_asked(small: World) -> None:
    before = len(small.clouds["pub"].calls)
    assert find_too_large(small.site, "pub", {1: MANY[:1]}, {1: MANY[:1]}) == {}
    assert len(small.clouds["pub"].calls) == before


def test_a_job_with_some_nodes_of_a_pool_that_serves_jobs_in_part_is_never_too_large(
    tmp_path: Path,
) -> None:
    fields: dict[str, Any] = {"cloud": "pub", "cpus": 2, "memory": 4096, "max_nodes": 1}
    pools = (
        PoolSettings(name="whole", nodes="w[1-4]", **fields),
        PoolSettings(name="part", nodes="p[1-4]", partial_jobs=True, **fields),
    )
    cloud = FakeCloud(name="pub", location=Location.PUBLIC, types=SHAPE)
    world = World(tmp_path, clouds=(cloud,), pools=pools, limits=Limits())
    mute(world)
    for nodes, told in (("w1", "w2", "w3"), {1}), (("w1", "w2", "p1"), set()):
        assert find_too_large(world.site, "pub", {1: nodes}, {1: nodes}).keys() == told
    world.close()


def test_where_nothing_can_be_had_at_all_or_is_not_known_no_job_is_too_large(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = build(tmp_path, max_nodes=3)
    jobs = {1: MANY[:4]}
    told: list[Sequence[Offer]] = [()]

    def offers(_pool: Pool) -> Sequence[Offer]:
        return told.pop()

    world.clouds["pub"].offers = offers  # type: ignore[method-assign]
    assert find_too_large(world.site, "pub", jobs, jobs) == {}
    assert "not asked how much" not in caplog.text
    assert find_too_large(world.site, "pub", jobs, jobs) == {}, "it fails"
    assert "largest possible size not known pool=many error=IndexError" in caplog.text
    world.close()


def test_an_administrators_hold_stays_one(small: World) -> None:
    """``scontrol uhold`` by SlurmUser would make it one that the user may end."""
    small.slurm.submit(1, MANY, 4, partitions=("pub",))
    small.slurm.set_job(1, "PENDING", nodes=(), reason="JobHeldAdmin", priority=0)
    site = small.site
    keep_job_out(site, 1, "pub", TOO_LARGE, "r1")
    move_or_hold_jobs(site)
    assert small.slurm.queue()[1].reason == "JobHeldAdmin"


def test_nobody_else_is_kept_from_its_nodes(small: World) -> None:
    small.slurm.submit(1, MANY, 4, partitions=("pub",))
    small.advance(120)
    assert small.ledger.exclusions.holds() == ()
    small.slurm.submit(2, MANY, 3, partitions=("pub",))
    small.advance(60)
    assert "RUNNING" in small.slurm.queue()[2].states
    assert small.slurm.queue()[1].reason == "JobHeldUser"


def test_what_is_only_in_use_or_out_of_stock_now_is_not_never(tmp_path: Path) -> None:
    world = build(tmp_path)
    world.clouds["pub"].limit("*", 2)
    world.slurm.submit(1, MANY, 4, partitions=("pub",))
    world.advance(300)
    assert world.slurm.queue()[1].reason != "JobHeldUser"
    assert "never" not in world.kinds("job:1")
    world.close()


@pytest.mark.parametrize(("scope", "key"), [("cloud:pub", "nodes"), ("pool:many", "max_nodes")])
def test_a_limit_that_an_operator_raised_makes_no_job_too_large(
    tmp_path: Path, scope: str, key: str
) -> None:
    is_of_cloud = scope == "cloud:pub"
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE,
        limits=Limits(dollars_per_hour=9.0, nodes=2 if is_of_cloud else None),
    )  # fmt: skip
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096, markets=(Market.SPOT,),
        max_nodes=None if is_of_cloud else 2,
    )  # fmt: skip
    world = World(tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits())
    jobs = {1: MANY[:4]}
    assert find_too_large(world.site, "pub", [1], jobs)[1].max_nodes == 2
    say(world, LimitChange(scope=scope, key=key, value=8))
    assert find_too_large(world.site, "pub", [1], jobs) == {}
    world.close()


def test_the_spending_limit_counts_at_the_on_demand_price(tmp_path: Path) -> None:
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=0.35)
    )
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096,
        markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    world = World(tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits())
    mute(world)
    world.slurm.submit(1, MANY, 4, partitions=("pub",))
    world.advance(200)
    (told,) = [d for d in world.ledger.decisions.about("job:1") if d.kind == "never"]
    assert "cloud pub may spend $0.35/h" in str(told.reason)
    assert world.alive() == []
    world.close()


def test_never_is_not_said_for_the_order_in_which_the_site_buys(tmp_path: Path) -> None:
    """The dear type is the one in stock, and wastes less; of the cheap one all would fit the
    cap.
    """
    types = SHAPE | {"dear": replace(SHAPE["small"], price=0.5)}
    types["small"] = replace(SHAPE["small"], cpus=2 * SHAPE["small"].cpus)
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=types, limits=Limits(dollars_per_hour=1.0)
    )
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096, markets=(Market.SPOT,)
    )
    world = World(tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits())
    mute(world)
    world.clouds["pub"].limit("small/*", 0)
    world.slurm.submit(1, MANY, 4, partitions=("pub",))
    world.advance(300)
    assert world.slurm.queue()[1].reason != "JobHeldUser"
    assert "never" not in world.kinds("job:1")
    world.close()


def test_never_is_not_said_for_a_price_that_was_typed_wrong(tmp_path: Path) -> None:
    """Whoever puts it right need not know which jobs were turned away for it."""
    types = SHAPE | {"dear": replace(SHAPE["small"], price=0.5)}
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=types, limits=Limits(dollars_per_hour=1.0)
    )
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096, markets=(Market.ON_DEMAND,)
    )
    world = World(tmp_path, clouds=(cloud,), pools=(pool,), limits=Limits())
    mute(world)
    world.clouds["pub"].tell_price("small", 2 * SHAPE["small"].price)
    world.slurm.submit(1, MANY, 4, partitions=("pub",))
    world.advance(300)
    assert world.slurm.queue()[1].reason != "JobHeldUser"
    assert "never" not in world.kinds("job:1")
    world.close()


def test_a_cloud_that_fails_in_an_unknown_way_keeps_no_job_waiting(tmp_path: Path) -> None:
    def offers(_pool: Pool) -> Sequence[Offer]:
        raise RuntimeError("as no SDK should")

    world = build(tmp_path)
    world.clouds["pub"].offers = offers  # type: ignore[method-assign]
    world.slurm.submit(1, MANY[:4], 4, partitions=ALL)
    world.advance(20)
    assert "PENDING" in world.slurm.queue()[1].states, "it may start elsewhere"
    assert "never" not in world.kinds("job:1")
    world.close()


def test_a_job_on_a_node_of_no_pool_any_more_is_given_back_as_well(tmp_path: Path) -> None:
    world = build(tmp_path, max_nodes=2)
    world.slurm.set_node("old", *world.slurm.node("m1").states)
    world.slurm.submit(1, (*MANY[:3], "old"), 4, partitions=ALL)
    world.advance(20)
    assert "PENDING" in world.slurm.queue()[1].states
    assert "requeued" in world.kinds("job:1")
    world.close()


def test_a_daemon_that_was_killed_finds_it_too_large_again(small: World) -> None:
    small.slurm.submit(1, MANY, 4, partitions=("pub",))
    small.tick()
    small.restart()
    small.advance(900)
    assert small.slurm.queue()[1].reason == "JobHeldUser"
    assert small.alive() == []
