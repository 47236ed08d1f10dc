"""Machines on a block that ends: which jobs get them, and what Slurm may place there later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.policies import Budget, CloudPolicies, SitePolicies
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.controller import giving_back
from slurm_elastic.controller.launching.budget import read_spending
from slurm_elastic.controller.launching.shortfall import Shortfall, refuse_jobs
from slurm_elastic.controller.oversized import find_too_long
from slurm_elastic.features.growth.lasting import LastingMachines
from slurm_elastic.features.money.reservation_ends import split
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import NeverInTime, NotYetInTime
from slurm_elastic.model.causes.threats import EndsWithReservation
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest
from slurm_elastic.model.directive import Departure, Directive, ReplacementMachine, Replacements
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.model.reserved import BLOCK_LEAD_S, ReservationKind
from slurm_elastic.model.slurm import Reservation as SlurmReservation
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import Response, ThreatCause, of_end
from slurm_elastic.policies.launch.gang import request_for
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.fake_timed import POWER_DOWN_LAG_S
from tests.controller.world import SHAPE, T0, World

HOUR = 3600.0
ENDS_AT = T0 + 2 * HOUR
BLOCK = Reservation(
    name="block", kind=ReservationKind.BLOCK, id="cr-1", type="small", zone="zone-1", count=2,
    upfront=10.0, begins_at=T0 - HOUR, ends_at=ENDS_AT + BLOCK_LEAD_S,
)  # fmt: skip
NODES = ("m1", "m2", "m3", "m4")
SAVED = "ckpt=signal,saved=file:state"
"""The comment of a job that can be saved."""


def build(directory: Path, site: SitePolicies | None = None, **cloud: Any) -> World:
    fields: dict[str, Any] = {"limits": Limits(dollars_per_hour=9.0), "reservations": (BLOCK,)}
    public = FakeCloud(name="pub", location=Location.PUBLIC, types=SHAPE, **(fields | cloud))
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-4]", cpus=2, memory=4096,
        markets=(Market.RESERVED, Market.ON_DEMAND),
    )  # fmt: skip
    return World(
        directory, clouds=(public,), pools=(pool,), limits=Limits(), policies=site or SitePolicies(),
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = build(tmp_path)
    yield made
    made.close()


def job(number: int, limit: int | None, comment: str = "") -> SlurmJob:
    return SlurmJob(
        id=number, states=frozenset({"RUNNING", "CONFIGURING"}), limit=limit, comment=comment
    )


class Queue(FakeSlurm):
    """A Slurm with these jobs."""

    def __init__(self, *jobs: SlurmJob) -> None:
        super().__init__([])
        self.listed, self.silent = jobs, False

    def jobs(self, *, ended: bool = False) -> tuple[SlurmJob, ...]:
        if self.silent:
            raise SlurmError(("squeue",), 1, "away")
        return self.listed


def parts(
    world: World, slurm: FakeSlurm, **jobs: tuple[str, ...]
) -> list[tuple[tuple[str, ...], float]]:
    site = world.site
    object.__setattr__(site, "slurm", slurm)
    of_job = {int(name[1:]): nodes for name, nodes in jobs.items()}
    request = NodeRequest(
        id="r", pool=site.pools["many"], nodes=NODES, jobs=tuple(of_job), job_nodes=of_job
    )
    found = split(site, [BLOCK.held("pub")], request)
    assert split(site, [BLOCK.held("other")], request) == (request,)
    assert split(site, [replace(BLOCK.held("pub"), ends_at=T0 + 60)], request) == (request,)
    return [(part.nodes, part.needs_s) for part in found]


def test_a_request_is_split_by_how_long_its_jobs_may_run(world: World) -> None:
    queue = Queue(job(1, 600), job(2, None), job(3, None, SAVED))
    assert parts(world, queue, j1=("m1",), j2=("m2", "m3"), j3=("m4",)) == [
        (("m1", "m4"), 600.0), (("m2", "m3"), float("inf")),
    ]  # fmt: skip


def test_where_slurm_says_nothing_jobs_may_run_for_ever(world: World) -> None:
    queue = Queue()
    queue.silent = True
    assert parts(world, queue, j1=("m1",)) == [
        (("m2", "m3", "m4"), 0.0), (("m1",), float("inf")),
    ]  # fmt: skip


def growing(directory: Path, growth: str, *jobs: tuple[int, float], **policies: Any) -> World:
    """A site whose ``growth`` policy sees these jobs (nodes, time limit) at once."""
    world = build(directory, SitePolicies(growth=growth, poll_interval=5.0, **policies))
    world.advance(20)
    for number, (nodes, limit) in enumerate(jobs, 1):
        world.slurm.submit(number, NODES, nodes, partitions=("pub",), limit=limit, node_count=nodes)
    return world


def on_block(world: World) -> list[bool]:
    return sorted(m.reservation == "block" for m in world.alive())


def test_growth_starts_no_machine_that_ends_before_the_waiting_job(tmp_path: Path) -> None:
    world = growing(tmp_path, "on_demand", (2, 3 * HOUR))
    world.advance(60)
    assert on_block(world) == [False, False]
    assert [j.id for j in world.slurm.queue().values() if "RUNNING" in j.states] == [1]
    world.close()


def test_growth_starts_machines_of_a_block_for_the_jobs_that_end_in_time(tmp_path: Path) -> None:
    world = growing(tmp_path, "on_demand", (1, 600), (2, 3 * HOUR), (1, 900))
    world.advance(60)
    assert on_block(world) == [False, False, True, True]
    world.close()


def test_machines_that_are_for_no_job_may_end_early(tmp_path: Path) -> None:
    """The policy starts two machines for the one job. The others keep the pool warm."""
    world = growing(tmp_path, "group_bursts(group=2)", (1, 3 * HOUR))
    world.advance(60)
    assert on_block(world) == [False, True]
    world.close()


def test_a_restarted_daemon_knows_for_which_jobs_growth_started_a_node(tmp_path: Path) -> None:
    """It ends before slurmctld asks for the machines."""
    world = growing(tmp_path, "on_demand", (1, 3 * HOUR))
    world.programs = lambda *_: None
    world.advance(10)
    assert world.alive() == []
    world.restart()
    world.programs = world.program
    world.program("resume", ["m1"], {})
    world.advance(10)
    assert on_block(world) == [False]
    world.close()


@pytest.mark.parametrize(
    ("jobs", "parts"),
    [
        ((job(1, 600), job(2, 3600)), [(("m2", "m3"), 600.0)]),
        ((job(1, 3 * 3600),), [(("m3",), 0.0), (("m2",), 3 * HOUR)]),
        ((job(1, 3 * 3600, SAVED),), [(("m3",), 0.0), (("m2",), 3 * HOUR)]),
        ((job(1, None),), [(("m3",), 0.0), (("m2",), float("inf"))]),
        ((), [(("m2", "m3"), 0.0)]),
        (None, [(("m3",), 0.0), (("m2",), float("inf"))]),
    ],
)
def test_a_machine_that_starts_ahead_of_a_migration_lasts_for_the_jobs_that_leave(
    world: World,
    jobs: tuple[SlurmJob, ...] | None,
    parts: list[tuple[tuple[str, ...], float]],
) -> None:
    """A machine starts on m2 in place of the one of m1. The one on m3 has had its job."""
    queue = Queue(*(replace(one, nodes=(f"m{one.id}",)) for one in jobs or ()))
    queue.silent = jobs is None
    object.__setattr__(world.site, "slurm", queue)
    machines = (
        ReplacementMachine(node="m2", instead_of="m1"),
        ReplacementMachine(node="m3", instead_of="m1", is_over=True),
    )
    word = Departure(
        verb="migrate", about="m1", nodes=("m1",), to="pub", start_replacements=True,
        replacements=Replacements(wanted=2, kept_until=world.now + 600, machines=machines),
    )  # fmt: skip
    order = Directive(word=word, who="alice", since=world.now, starts=world.now)
    world.ledger.directives.give(order)
    request = NodeRequest(id="r", pool=world.site.pools["many"], nodes=("m2", "m3"))
    found = split(world.site, [BLOCK.held("pub")], request)
    assert [(part.nodes, part.needs_s) for part in found] == parts


def test_a_node_that_is_powered_up_much_later_has_no_job_of_the_past(tmp_path: Path) -> None:
    world = growing(tmp_path, "on_demand", (1, 3 * HOUR))
    world.advance(30)
    request = NodeRequest(id="r", pool=world.site.pools["many"], nodes=("m1",))
    assert [p.needs_s for p in split(world.site, [BLOCK.held("pub")], request)] == [3 * HOUR]
    world.now += world.config.timings.resume_timeout
    assert [p.needs_s for p in split(world.site, [BLOCK.held("pub")], request)] == [0.0]
    world.close()


def only_block(
    directory: Path, *pools: PoolSettings, site: SitePolicies | None = None, **cloud: Any
) -> World:
    """A site whose pool ``many`` has the machines of the block only."""
    fields: dict[str, Any] = {"limits": Limits(dollars_per_hour=50.0), "reservations": (BLOCK,)}
    public = FakeCloud(name="pub", location=Location.PUBLIC, types=SHAPE, **(fields | cloud))
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-4]", cpus=2, memory=4096, markets=(Market.RESERVED,)
    )
    made = World(
        directory, clouds=(public,), pools=(pool, *pools), limits=Limits(),
        policies=site or SitePolicies(),
    )  # fmt: skip
    made.advance(20)
    return made


def submit(world: World, number: int, limit: float | None, size: int = 1, **changes: Any) -> None:
    fields: dict[str, Any] = {"partitions": ("pub",), "limit": limit, "node_count": size}
    world.slurm.submit(number, NODES, size, **(fields | changes))


def never(world: World, number: int) -> list[str]:
    about = world.ledger.decisions.about(f"job:{number}")
    return [str(d.reason) for d in about if d.kind == "never"]


def test_jobs_too_long_for_the_only_block_do_not_keep_its_machines_from_others(
    tmp_path: Path,
) -> None:
    world = only_block(tmp_path)
    for number in (1, 2, 3, 4):
        submit(world, number, 3 * HOUR)
    world.advance(15)
    submit(world, 9, 600)
    world.advance(120)
    queue = world.slurm.queue()
    assert "RUNNING" in queue[9].states
    assert world.ledger.exclusions.holds() == (), "nothing is wrong with the nodes"
    assert {n: queue[n].reason for n in (1, 2, 3, 4)} == dict.fromkeys((1, 2, 3, 4), "JobHeldUser")
    (told,) = never(world, 1)
    assert told == (
        "reservation block ends its machines at 2027-01-15T10:00:00Z, too soon for a job of up to"
        " 3h that cannot be saved. Cloud pub has too few other machines, so the job is held; do:"
        " scontrol update jobid=1 timelimit=MINUTES && scontrol release 1"
    )
    world.advance(900)
    assert {world.slurm.queue()[n].restarts for n in (1, 2, 3, 4)} == {1}
    world.close()


def test_a_job_that_is_too_long_keeps_its_other_partitions(tmp_path: Path) -> None:
    world = only_block(tmp_path)
    for name in NODES:
        world.slurm.set_node(name, partitions=("pub",))
    submit(world, 1, None, partitions=("static", "pub"))
    world.advance(60)
    assert world.slurm.queue()[1].partitions == ("static",)
    (told,) = never(world, 1)
    assert "a job without a time limit" in told
    assert told.endswith(". Cloud pub has too few other machines, so the job may start in static")
    world.close()


@pytest.mark.parametrize(
    ("limit", "size", "others", "is_kept_out"),
    [
        (600, 2, 0, False),
        (3 * HOUR, 1, 0, True),
        (3 * HOUR, 1, 1, False),
        (3 * HOUR, 2, 1, True),
        (3 * HOUR, 2, 2, False),
        (3 * HOUR, 4, 1, False),
    ],
)
def test_a_job_is_kept_out_only_if_too_few_machines_last_and_the_end_is_the_cause(
    tmp_path: Path, *, limit: float, size: int, others: int, is_kept_out: bool
) -> None:
    """The block has two machines, and ``others`` can be bought. For four the limit is the cause."""
    markets = (Market.RESERVED, Market.ON_DEMAND) if others else (Market.RESERVED,)
    world = build(tmp_path, limits=Limits(on_demand=others), reservations=(BLOCK,))
    site = world.site
    pool = replace(site.pools["many"], markets=markets)
    object.__setattr__(site, "pools", {"many": pool})
    object.__setattr__(site, "slurm", Queue(job(1, int(limit))))
    jobs = {1: NODES[:size]}
    found = find_too_long(site, "pub", jobs, jobs, {1: limit})
    assert set(found) == ({1} if is_kept_out else set())
    world.close()


TOMORROW = T0 + 24 * HOUR
LATER = replace(
    BLOCK, name="later", id="cr-2", begins_at=TOMORROW, ends_at=TOMORROW + 4 * HOUR + BLOCK_LEAD_S
)
"""A block of the same machines for the four hours of tomorrow in which the cloud lets them run."""
OPEN_END = replace(LATER, kind=ReservationKind.CAPACITY, ends_at=TOMORROW + HOUR)
"""Machines of this reservation run on after its end, at another price."""


@pytest.mark.parametrize(
    ("reservations", "limit", "size", "kept_out"),
    [
        ((BLOCK, LATER), 3 * HOUR, 2, NotYetInTime),
        ((BLOCK, LATER), 4 * HOUR, 2, NeverInTime),
        ((BLOCK, LATER), 3 * HOUR, 3, NeverInTime),
        ((BLOCK, OPEN_END), 4 * HOUR, 2, NotYetInTime),
        ((LATER,), 3 * HOUR, 2, None),
        ((LATER,), 4 * HOUR, 2, None),
    ],
)
def test_a_job_waits_for_a_reservation_that_begins_later_and_lasts_long_enough(
    tmp_path: Path,
    *,
    reservations: tuple[Reservation, ...],
    limit: float,
    size: int,
    kept_out: type | None,
) -> None:
    """A job of 4 h leaves the later block no time for the boot."""
    world = only_block(tmp_path, reservations=reservations)
    object.__setattr__(world.site, "slurm", Queue(job(1, int(limit))))
    jobs = {1: NODES[:size]}
    found = find_too_long(world.site, "pub", jobs, jobs, {1: limit})
    assert [type(cause) for cause in found.values()] == ([kept_out] if kept_out else [])
    world.close()


def test_a_job_that_waits_for_a_later_block_leaves_the_machines_of_now_to_others(
    tmp_path: Path,
) -> None:
    world = only_block(tmp_path, reservations=(BLOCK, LATER))
    for number in (1, 2, 3, 4):
        submit(world, number, 3 * HOUR)
    world.advance(15)
    submit(world, 9, 600)
    world.advance(120)
    queue = world.slurm.queue()
    assert "RUNNING" in queue[9].states
    assert world.ledger.exclusions.holds() == (), "nothing is wrong with the nodes"
    assert {queue[n].begin for n in (1, 2, 3, 4)} == {TOMORROW}
    (told,) = (
        str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "set-aside"
    )
    assert told == (
        "reservation block ends its machines at 2027-01-15T10:00:00Z, too soon for a job of up to"
        " 3h that cannot be saved. Cloud pub has machines for it from 2027-01-16T08:00:00Z, so the"
        " job begins then; to start a shorter job earlier, do: scontrol update jobid=1"
        " timelimit=MINUTES starttime=now"
    )
    world.advance(900)
    assert {world.slurm.queue()[n].restarts for n in (1, 2, 3, 4)} == {1}
    world.close()


def test_a_job_that_waits_for_a_later_block_may_start_in_its_other_partitions(
    tmp_path: Path,
) -> None:
    world = only_block(tmp_path, reservations=(BLOCK, LATER))
    for name in NODES:
        world.slurm.set_node(name, partitions=("pub",))
    submit(world, 1, 3 * HOUR, partitions=("static", "pub"))
    world.advance(60)
    waiting = world.slurm.queue()[1]
    assert waiting.partitions == ("static",), "else slurmctld gives it a node of the cloud again"
    assert waiting.begin < world.now + HOUR
    assert world.ledger.exclusions.holds() == ()
    (told,) = (
        str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "set-aside"
    )
    assert told.endswith("08:00:00Z, so until then the job may start in static")
    world.now = TOMORROW + 1
    world.advance(120)
    assert world.slurm.queue()[1].partitions == ("static", "pub")
    world.close()


def test_a_job_that_keeps_its_other_partitions_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = only_block(tmp_path, reservations=(BLOCK, LATER))
    for name in NODES:
        world.slurm.set_node(name, partitions=("pub",))
    submit(world, 1, 3 * HOUR, partitions=("static", "pub"))
    world.advance(HOUR)
    assert world.slurm.queue()[1].restarts == 1
    assert caplog.text.count("cannot start here yet job=1 ") == 1
    assert world.kinds("job:1").count("set-aside") == 1
    world.slurm.change_pending([1], partitions=("static", "other", "pub"))
    world.advance(HOUR / 2)
    assert world.kinds("job:1").count("set-aside") == 2, "the job has other partitions now"
    world.slurm.remove_job(1)
    submit(world, 2, 3 * HOUR, partitions=("static", "pub"))
    world.advance(300)
    assert world.site.set_aside.snapshot().keys() == {2}
    world.close()


GROWTHS = ("on_demand", "bursts", "group_bursts(group=1)", "semi_elastic", "ratio")


def wait_beyond(world: World, number: int, limit: float, size: int = 1, **changes: Any) -> None:
    """Submit a job that slurmctld never starts here, because it reaches into our reservation."""
    fields: dict[str, Any] = {"partitions": ("pub",), "limit": limit, "node_count": size}
    world.slurm.submit(number, (), size, **(fields | changes))


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("reservations", [(BLOCK,), (BLOCK, LATER)], ids=["only", "and later"])
def test_growth_counts_no_job_that_outlasts_the_only_block(
    tmp_path: Path, growth: str, reservations: tuple[Reservation, ...]
) -> None:
    policies = SitePolicies(growth=growth, poll_interval=5.0)
    world = only_block(tmp_path, site=policies, reservations=reservations)
    for number in (1, 2, 3, 4):
        wait_beyond(world, number, 3 * HOUR)
    world.advance(15)
    assert world.alive() == []
    submit(world, 9, 600)
    world.advance(120)
    assert "RUNNING" in world.slurm.queue()[9].states
    assert on_block(world) == [True]
    assert {row.kind for row in world.ledger.exclusions.holds()} == {POLICY}
    (told,) = (str(d.reason) for d in world.ledger.decisions.about("job:1"))
    assert told == (
        "reservation block ends its machines at 2027-01-15T10:00:00Z, too soon for a job of up to"
        " 3h. Pool many has too few other machines, so none starts there for it now"
    )
    world.close()


@pytest.mark.parametrize(
    ("changes", "size", "counted"),
    [
        ({"limits": Limits(dollars_per_hour=50.0, on_demand=1)}, 1, True),
        ({"limits": Limits(dollars_per_hour=50.0, on_demand=1)}, 2, False),
        ({"limits": Limits(dollars_per_hour=50.0, on_demand=0)}, 1, False),
        ({"reservations": (BLOCK, replace(BLOCK, name="b", id="cr-2", ends_at=TOMORROW))}, 2, True),
        (
            {"reservations": (BLOCK, replace(BLOCK, name="b", id="cr-2", ends_at=TOMORROW))},
            3,
            False,
        ),
    ],
)
def test_growth_counts_a_job_if_enough_machines_last(
    tmp_path: Path, changes: dict[str, Any], size: int, *, counted: bool
) -> None:
    world = only_block(
        tmp_path, site=SitePolicies(growth="on_demand", poll_interval=5.0), **changes
    )
    site = world.site
    if "limits" in changes:
        pool = replace(site.pools["many"], markets=(Market.RESERVED, Market.ON_DEMAND))
        object.__setattr__(site, "pools", {"many": pool})
    pools = tuple(site.pools.values())
    lasting = LastingMachines(site, world.now)
    assert lasting.without_short(1, size, 3 * HOUR, pools) == (list(pools) if counted else [])
    assert (1 in lasting.too_long) is not counted
    assert lasting.without_short(2, 1, 600, pools) == list(pools)
    world.close()


def beside_block(directory: Path, on_demand: int | None = None) -> World:
    """The pool of the block beside a pool of the same cloud that buys on demand."""
    more = PoolSettings(
        name="more", cloud="pub", nodes="o[1-4]", cpus=2, memory=4096, markets=(Market.ON_DEMAND,)
    )
    limits = Limits(dollars_per_hour=50.0, on_demand=on_demand)
    policies = SitePolicies(growth="on_demand", poll_interval=5.0)
    return only_block(directory, more, site=policies, limits=limits)


@pytest.mark.parametrize(
    ("size", "limit", "on_demand", "names"),
    [
        (1, 3 * HOUR, None, {"more"}),
        (1, 600, None, {"many", "more"}),
        (4, 3 * HOUR, None, {"more"}),
        (1, 3 * HOUR, 0, set()),
        # The cloud never has as many machines. The launch is refused with that cause.
        (4, 3 * HOUR, 1, {"more"}),
    ],
)
def test_growth_counts_a_job_only_in_the_pools_whose_machines_last(
    tmp_path: Path, *, size: int, limit: float, on_demand: int | None, names: set[str]
) -> None:
    world = beside_block(tmp_path, on_demand)
    lasting = LastingMachines(world.site, world.now)
    pools = tuple(world.site.pools.values())
    assert {p.name for p in lasting.without_short(1, size, limit, pools)} == names
    assert (1 in lasting.too_long) is (not names)
    world.close()


def test_the_block_is_left_to_short_jobs_if_another_pool_has_machines_that_last(
    tmp_path: Path,
) -> None:
    world = beside_block(tmp_path)
    nodes = (*NODES, "o1", "o2", "o3", "o4")
    world.slurm.submit(1, nodes, 1, partitions=("pub",), limit=3 * HOUR, node_count=1)
    world.advance(30)
    world.slurm.submit(2, nodes, 1, partitions=("pub",), limit=600, node_count=1)
    world.advance(120)
    assert [j.id for j in world.slurm.queue().values() if "RUNNING" in j.states] == [1, 2]
    assert on_block(world) == [False, True]
    assert {row.kind for row in world.ledger.exclusions.holds()} <= {POLICY}
    world.close()


def test_a_job_that_is_larger_than_the_block_is_counted_and_refused_for_its_size(
    tmp_path: Path,
) -> None:
    world = only_block(tmp_path, site=SitePolicies(growth="on_demand", poll_interval=5.0))
    lasting = LastingMachines(world.site, world.now)
    pools = tuple(world.site.pools.values())
    assert list(lasting.without_short(1, 3, 3 * HOUR, pools)) == list(pools)
    assert lasting.too_long == {}
    world.close()


def test_growth_counts_jobs_if_a_block_ends_too_soon_for_any(tmp_path: Path) -> None:
    """No shorter job loses anything, and the nodes are held with the cause."""
    world = only_block(tmp_path, site=SitePolicies(growth="on_demand", poll_interval=5.0))
    pools = tuple(world.site.pools.values())
    boot_s = world.config.resume_timeout(world.config.cloud("pub"))
    for left, counted in ((boot_s + 61, False), (boot_s + 59, True)):
        lasting = LastingMachines(world.site, ENDS_AT - left)
        assert bool(lasting.without_short(1, 1, 600, pools)) is counted
    world.close()


def test_a_job_that_is_saved_or_not_listed_is_not_judged(tmp_path: Path) -> None:
    world = only_block(tmp_path)
    site, jobs = world.site, {1: NODES[:1]}
    object.__setattr__(site, "slurm", Queue())
    for needs in ({}, {1: 0.0}, {1: 3 * HOUR}):
        assert find_too_long(site, "pub", jobs, jobs, needs) == {}
    world.close()


def test_shortly_before_its_end_a_block_serves_nobody_and_no_job_is_kept_out(
    tmp_path: Path,
) -> None:
    world = only_block(tmp_path)
    object.__setattr__(world.site, "slurm", Queue(job(1, 600)))
    jobs = {1: NODES[:1]}
    boot_s = world.config.resume_timeout(world.config.cloud("pub"))
    world.now = ENDS_AT - boot_s - 300
    assert find_too_long(world.site, "pub", jobs, jobs, {1: 600.0}).keys() == {1}
    world.now = ENDS_AT - boot_s
    assert find_too_long(world.site, "pub", jobs, jobs, {1: 600.0}) == {}
    world.close()


@pytest.mark.parametrize(("cpus", "is_kept_out"), [(2, False), (1, True)])
def test_another_pool_counts_if_the_job_fits_its_nodes(
    tmp_path: Path, *, cpus: int, is_kept_out: bool
) -> None:
    other = PoolSettings(
        name="other", cloud="pub", nodes="o[1-2]", cpus=cpus, memory=4096,
        markets=(Market.ON_DEMAND,),
    )  # fmt: skip
    world = only_block(tmp_path, other)
    object.__setattr__(world.site, "slurm", Queue(replace(job(1, 3 * 3600), node_cpus=2)))
    jobs = {1: NODES[:1]}
    found = find_too_long(world.site, "pub", jobs, jobs, {1: 3 * HOUR})
    assert set(found) == ({1} if is_kept_out else set())
    world.close()


def test_of_two_jobs_on_a_node_only_the_long_one_is_kept_out(tmp_path: Path) -> None:
    world = only_block(tmp_path)
    queue = Queue(job(1, 3 * 3600), job(2, 600))
    object.__setattr__(world.site, "slurm", queue)
    of_job = {1: ("m1",), 2: ("m1",)}
    request = NodeRequest(
        id="r", pool=world.site.pools["many"], nodes=("m1",), jobs=(1, 2), job_nodes=of_job
    )
    (part,) = split(world.site, [BLOCK.held("pub")], request)
    assert part.job_needs_s == {1: 3 * HOUR, 2: 600.0}
    found = find_too_long(world.site, "pub", of_job, of_job, part.job_needs_s)
    assert set(found) == {1}
    queue.silent = True
    (part,) = split(world.site, [BLOCK.held("pub")], request)
    assert (part.needs_s, part.job_needs_s) == (float("inf"), {}), "nobody is judged"
    world.close()


@pytest.mark.parametrize(
    ("spare", "held"),
    [
        ((1, 0), {"m1": "a", "m2": "b", "m4": "a"}),
        ((0, 1), {"m1": "a", "m2": "b", "m4": "a"}),
        ((2, 1), {"m1": "a", "m2": "b"}),
        ((0, 0), {"m1": "a", "m2": "b", "m3": "a", "m4": "a"}),
    ],
)
def test_each_part_of_a_pool_is_refused_with_its_own_cause_and_leaves_the_spare_nodes(
    world: World, monkeypatch: pytest.MonkeyPatch, *, spare: tuple[int, int], held: dict[str, str]
) -> None:
    """The node of the first part is POWERING_DOWN already when the second part is refused."""

    def reach(point: str) -> None:
        if point == "refuse.after-force":
            world.now += POWER_DOWN_LAG_S
            world.slurm.step()

    monkeypatch.setattr(giving_back, "reach", reach)
    jobs = {1: ("m1",), 2: ("m2",)}
    for name in ("m1", "m2"):
        world.slurm.set_node(name, "IDLE", "CLOUD", "POWERING_UP")
    pool = world.site.pools["many"]
    parts = [
        Shortfall(
            request=request_for("r", pool, jobs[number], jobs), nodes=jobs[number],
            cause=Quoted(text=cause), spare_nodes=count,
        )
        for (number, cause), count in zip(((1, "a"), (2, "b")), spare, strict=True)
    ]  # fmt: skip
    refuse_jobs(world.site, "pub", parts, ("m1", "m2"), jobs)
    assert all("POWERING_DOWN" in world.slurm.node(name).states for name in ("m1", "m2"))
    assert {row.scope: str(row.cause) for row in world.ledger.exclusions.holds()} == held


def test_nodes_that_a_job_has_had_before_belong_to_its_part(world: World) -> None:
    """Node m4 has a machine, which an earlier round has launched."""
    _machine(world, "m4")
    jobs = {1: ("m1", "m2"), 2: ("m3", "m4")}
    for name in NODES:
        world.slurm.set_node(name, "IDLE", "CLOUD", "POWERING_UP")
    pool = world.site.pools["many"]
    parts = [
        Shortfall(
            request=request_for("r", pool, nodes, jobs), nodes=nodes,
            cause=Quoted(text=nodes[0]), spare_nodes=0,
        )
        for nodes in (("m1", "m2"), ("m3",))
    ]  # fmt: skip
    refuse_jobs(world.site, "pub", parts, ("m1", "m2", "m3"), jobs)
    held = {row.scope: str(row.cause) for row in world.ledger.exclusions.holds()}
    assert held == {"m1": "m1", "m2": "m1", "m3": "m3", "m4": "m3"}


def test_machines_of_a_block_are_counted_and_the_rest_is_bought(world: World) -> None:
    for number, node in enumerate(NODES, 1):
        world.slurm.submit(number, (node,), 1)
    world.advance(60)
    bought = sorted((m.market, m.reservation) for m in world.alive())
    assert bought[:2] == [(Market.ON_DEMAND, "")] * 2 or bought == [(Market.ON_DEMAND, "")] * 4
    assert sum(m.reservation == "block" for m in world.alive()) <= 2


def test_slurm_keeps_the_nodes_free_from_the_end_on_and_no_longer_than_the_machines(
    world: World,
) -> None:
    look = _look(world)
    look()
    assert world.site.slurm.reservations() == ()
    _machine(world, "m1")
    look()
    (made,) = world.site.slurm.reservations()
    assert (made.name, made.nodes) == ("slurm-elastic-pub-block", ("m1",))
    assert (made.start, made.end) == (ENDS_AT, ENDS_AT + BLOCK_LEAD_S)
    _machine(world, "m2")
    look()
    (made,) = world.site.slurm.reservations()
    assert made.nodes == ("m1", "m2")
    for node in ("m1", "m2"):
        world.ledger.machines.record_end("pub", [f"i-{node}"], Quoted(text="gone"), world.now)
    look()
    assert world.site.slurm.reservations() == ()


@pytest.mark.parametrize("others", [(), (replace(BLOCK, name="other", id="cr-2"),)])
def test_slurm_keeps_no_node_free_for_a_block_that_was_removed_from_the_configuration(
    tmp_path: Path, others: tuple[Reservation, ...]
) -> None:
    before = build(tmp_path)
    before.ledger.books.record_reservations(before.site.clouds["pub"].held, before.now)
    before.stop()
    after = build(tmp_path, reservations=others)
    after.slurm.reserved = [
        SlurmReservation(name=name, start=ENDS_AT, end=ENDS_AT + HOUR, nodes=("m1",))
        for name in ("slurm-elastic-pub-block", "slurm-elastic-pub-another's")
    ]
    _look(after)()
    assert [r.name for r in after.slurm.reserved] == ["slurm-elastic-pub-another's"]
    after.close()


@pytest.mark.parametrize("others", [(), (replace(BLOCK, name="renamed"),)])
def test_a_removed_block_keeps_its_reservation_in_slurm_while_its_machines_run(
    tmp_path: Path, others: tuple[Reservation, ...]
) -> None:
    before = build(tmp_path)
    before.ledger.books.record_reservations(before.site.clouds["pub"].held, before.now)
    _machine(before, "m1")
    _machine(before, "m2")
    _look(before)()
    reserved = before.slurm.reserved
    before.stop()
    after = build(tmp_path, reservations=others)
    after.slurm.reserved = reserved
    look = _look(after)
    look()
    assert _reserved(after) == {"block": ("m1", "m2")}
    after.ledger.machines.record_end("pub", ["i-m1"], Quoted(text="gone"), after.now)
    look()
    assert _reserved(after) == {"block": ("m2",)}
    after.ledger.machines.record_end("pub", ["i-m2"], Quoted(text="gone"), after.now)
    look()
    assert _reserved(after) == {}
    after.close()


def test_a_removed_block_that_slurm_does_not_delete_keeps_no_other_from_its_nodes(
    tmp_path: Path,
) -> None:
    before = build(tmp_path)
    before.ledger.books.record_reservations(before.site.clouds["pub"].held, before.now)
    before.stop()
    after = build(tmp_path, reservations=(replace(BLOCK, name="second", id="cr-2"),))
    after.slurm.reserved = [
        SlurmReservation(
            name="slurm-elastic-pub-block", start=ENDS_AT, end=ENDS_AT + HOUR, nodes=("m1",)
        )
    ]
    _machine(after, "m2", "second")
    refused = SlurmError(("scontrol",), 1, "a job uses it")
    with pytest.MonkeyPatch.context() as patched:
        refuse = RefusesTo(after.slurm.unreserve, {"slurm-elastic-pub-block": refused})
        patched.setattr(after.slurm, "unreserve", refuse)
        with pytest.raises(SlurmError, match="a job uses it"):
            _look(after)()
    assert _reserved(after) == {"block": ("m1",), "second": ("m2",)}
    after.close()


def test_a_site_without_blocks_reads_no_reservations(tmp_path: Path) -> None:
    world = build(tmp_path, reservations=())
    assert "reservations" not in dict(world.site.extensions.parts)
    world.close()


def test_a_node_that_its_users_have_reserved_keeps_no_other_from_slurms_reservation(
    world: World,
) -> None:
    others = SlurmReservation(
        name="course", start=ENDS_AT + 60, end=ENDS_AT + HOUR, nodes=("m2", "m4")
    )
    world.slurm.reserved.append(others)
    look = _look(world)
    _machine(world, "m1")
    _machine(world, "m2")
    look()
    assert _reserved(world) == {"block": ("m1", "m2")}
    _machine(world, "m4")
    look()
    assert _reserved(world) == {"block": ("m1", "m2", "m4")}


def test_a_reservation_of_an_earlier_version_grows_beside_those_of_users(world: World) -> None:
    """It lacks the flag that slurmctld asks for."""
    own = SlurmReservation(
        name="slurm-elastic-pub-block", start=ENDS_AT, end=ENDS_AT + BLOCK_LEAD_S, nodes=("m1",),
        flags=frozenset({"IGNORE_JOBS", "SPEC_NODES"}),
    )  # fmt: skip
    course = replace(own, name="course", nodes=("m2",))
    world.slurm.reserved += [own, course]
    _machine(world, "m1")
    _machine(world, "m2")
    _look(world)()
    assert _reserved(world) == {"block": ("m1", "m2")}


SECOND = replace(BLOCK, name="second", id="cr-2")


@pytest.fixture
def two_blocks(tmp_path: Path) -> Iterator[World]:
    """``second`` is listed before ``block``."""
    made = build(tmp_path, reservations=(SECOND, BLOCK))
    yield made
    made.close()


def test_a_node_goes_over_to_a_block_that_is_listed_before_its_old_one(two_blocks: World) -> None:
    world = two_blocks
    look = _look(world)
    for node in ("m1", "m2"):
        _machine(world, node)
    _machine(world, "m3", "second")
    look()
    assert _reserved(world) == {"block": ("m1", "m2"), "second": ("m3",)}
    world.ledger.machines.record_end("pub", ["i-m1"], Quoted(text="lost"), world.now)
    _machine(world, "m1", "second", machine="i-later")
    before = len(world.slurm.updates)
    look()
    assert _reserved(world) == {"block": ("m2",), "second": ("m1", "m3")}
    changed = [fields["reservation"] for _, fields in world.slurm.updates[before:]]
    assert changed == ["slurm-elastic-pub-block", "slurm-elastic-pub-second"], "it is free first"


def test_a_reservation_that_slurm_refuses_keeps_no_other_from_its_nodes(
    two_blocks: World,
) -> None:
    world = two_blocks
    _machine(world, "m1")
    _machine(world, "m3", "second")
    first, later = (SlurmError(("scontrol",), 1, text) for text in ("Invalid node", "busy"))
    refuse = RefusesTo(world.slurm.reserve, {"slurm-elastic-pub-second": first})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.slurm, "reserve", refuse)
        with pytest.raises(SlurmError, match="Invalid node"):
            _look(world)()
        assert _reserved(world) == {"block": ("m1",)}
        world.slurm.unreserve("slurm-elastic-pub-block")
        refuse.errors["slurm-elastic-pub-block"] = later
        with pytest.raises(SlurmError, match="Invalid node"):
            _look(world)()
    _look(world)()
    assert _reserved(world) == {"block": ("m1",), "second": ("m3",)}


def test_a_look_ends_with_the_first_command_that_slurm_does_not_answer(two_blocks: World) -> None:
    """Each further command would take slurmctld's time-out."""
    world = two_blocks
    _machine(world, "m1")
    _machine(world, "m3", "second")
    silent = SlurmError(("scontrol",), None, "no answer")
    refuse = RefusesTo(world.slurm.reserve, {"slurm-elastic-pub-second": silent})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.slurm, "reserve", refuse)
        with pytest.raises(SlurmError, match="no answer"):
            _look(world)()
    assert refuse.asked == ["slurm-elastic-pub-second"]


class RefusesTo:
    """The command ``run``, which fails for the reservations of ``errors``."""

    def __init__(self, run: Callable[..., None], errors: dict[str, SlurmError]) -> None:
        self.run, self.errors = run, errors
        self.asked: list[str] = []

    def __call__(self, name: str, *fields: Any) -> None:
        self.asked.append(name)
        if name in self.errors:
            raise self.errors[name]
        self.run(name, *fields)


def test_its_end_is_a_planned_end_that_moves_jobs() -> None:
    assert of_end("m1", "block", ENDS_AT, ENDS_AT - HOUR) is None
    threat = of_end("m1", "block", ENDS_AT, ENDS_AT - 100)
    assert threat is not None
    assert (threat.cause, threat.answer, threat.until) == (
        ThreatCause.RESERVATION_END, Response.MOVE, ENDS_AT,
    )  # fmt: skip
    assert threat.reason == EndsWithReservation(reservation="block")
    assert of_end("m1", "other", None, ENDS_AT) is None


def test_budgets_and_caps_count_the_whole_price(tmp_path: Path) -> None:
    world = build(tmp_path, policies=CloudPolicies(budget=Budget(per_month=99.0)))
    world.now = T0 + HOUR / 2
    _machine(world, "m1")
    spent = read_spending(world.config, world.ledger, world.now)["pub"]
    whole_hours = (ENDS_AT + BLOCK_LEAD_S - BLOCK.begins_at) / HOUR
    assert spent.month == pytest.approx(10.0 * 1.5 / whole_hours)
    assert world.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(10.0 / whole_hours)
    assert world.site.usage().nodes["reservation:pub/block"] == 1
    world.close()


def _look(world: World) -> Any:
    (make,) = [make for name, make in world.site.extensions.parts if name == "reservations"]
    return make(None).look  # type: ignore[arg-type,attr-defined]


def _reserved(world: World) -> dict[str, tuple[str, ...]]:
    """The nodes of our reservations in Slurm by block."""
    prefix = "slurm-elastic-pub-"
    return {
        r.name.removeprefix(prefix): r.nodes
        for r in world.slurm.reserved
        if r.name.startswith(prefix)
    }


def _machine(world: World, node: str, block: str = "block", *, machine: str = "") -> None:
    one = instance(
        machine or f"i-{node}", node, f"g-{machine or node}", launched=world.now,
        bought=offer(cloud="pub"),
    )  # fmt: skip
    on_block = replace(one, reservation=block, market=Market.RESERVED)
    world.ledger.machines.adopt(on_block, "many", world.now)
