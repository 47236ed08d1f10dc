"""When a boot is given up, what is counted against a pool, and why: bound by bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import cast

import pytest
from ledger_cases import instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import Timings
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.launching import boot_timeouts, boots
from slurm_elastic.controller.launching.boot_timeouts import BootTimeouts, expect_requeued
from slurm_elastic.controller.launching.boots import (
    GATE_PREFIX,
    KEY_FAILED,
    KEY_REFUSED,
    PREPARE_PREFIX,
    record_boot_failures,
)
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import BootsFailed, KeyNotBrought
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.memory import generation_time
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.launch.boots import TimedOut
from slurm_elastic.state.ledger import Machine
from tests.controller.world import PUB, Inline, World

RESUME = 100.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    timings = Timings(suspend_time=900, suspend_timeout=30, resume_timeout=RESUME)
    made = World(tmp_path, timings=timings)
    yield made
    made.close()


def booting(
    world: World, ident: str = "i-1", node: str = "pub1", age: float = 0.0, **fields: object
) -> Machine:
    launched = world.now - age
    one = instance(
        ident,
        node,
        f"g{launched * 1000:.0f}-{ident[2:] * 8}x",
        launched=launched,
        bought=offer(cloud="pub"),
    )
    world.ledger.machines.adopt(replace(one, **fields), "burst", launched)
    return next(m for m in world.ledger.machines.live() if m.instance.id == ident)


def launched(world: World, request: str, created: float, *jobs: int) -> Machine:
    """A machine that boots, of a launch that the ledger has."""
    made = spec(
        f"g{created * 1000:.0f}-x", ("pub1",), world.site.pools["burst"], offer(cloud="pub"), jobs
    )
    world.ledger.launches.record_intent(made, request, created)
    one = instance("i-1", "pub1", made.generation, launched=created, bought=made.offer)
    world.ledger.machines.record_launch(made.generation, [one], created)
    (machine,) = world.ledger.machines.live()
    return machine


def last(world: World, subject: str, kind: str) -> str:
    return next(
        str(d.reason) for d in reversed(world.ledger.decisions.about(subject)) if d.kind == kind
    )


def timeouts(
    world: World, had_round: Callable[[str], bool] = lambda _: True, site: Site | None = None
) -> BootTimeouts:
    worker = cast(Executor, Inline())
    clouds = dict.fromkeys(("onp", "pub"), worker)
    return BootTimeouts(site or world.site, worker, clouds, world.spool, had_round)


def powers_up(world: World, *nodes: str) -> None:
    for node in nodes:
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERING_UP")


def doomed(world: World) -> list[str]:
    """Machines whose end is decided."""
    rows = world.ledger.machines.live(ended_since=0.0)
    return sorted(m.instance.id for m in rows if not m.is_wanted)


# when


@pytest.mark.parametrize(
    ("looked", "waited", "due"),
    [
        (True, 89.5, False),
        (True, 90.0, True),
        (True, 1000.0, True),
        (False, 94.5, False),
        (False, 95.0, True),
        (False, 159.5, True),
        (False, 160.0, False),
    ],
)
def test_a_boot_is_due_a_little_before_the_timeout_or_later_where_nobody_has_looked_yet(
    world: World, looked: bool, waited: float, due: bool
) -> None:
    """Until a minute after the timeout, when slurmctld itself has surely given it up."""
    booting(world, age=waited)
    powers_up(world, "pub1")
    timeouts(world, lambda cloud: looked and cloud == "pub").task.tick()
    assert bool(doomed(world)) is due


def test_the_time_since_slurm_asked_goes_by_no_clock_that_may_be_set(world: World) -> None:
    powers_up(world, "pub1", "pub2")
    booting(world, age=30.0)
    booting(world, "i-2", "pub2", age=-50.0)  # the clock was set back since
    clock = 1000.0
    looks = timeouts(world, site=dataclasses.replace(world.site, monotonic=lambda: clock)).task
    looks.tick()
    world.now -= 5000.0
    for at, ended in ((59, []), (60, ["i-1"]), (89, ["i-1"]), (90, ["i-1", "i-2"])):
        clock = 1000.0 + at
        looks.tick()
        assert doomed(world) == ended


@pytest.mark.parametrize(
    ("before", "asked"),
    [(20.0, -20.0), (50.0, -50.0), (70.0, -50.0), (-10.0, 0.0)],
    ids=["its request", "the longest wait", "not before that", "not after its launch"],
)
def test_a_launch_was_asked_for_with_its_request(world: World, before: float, asked: float) -> None:
    created = world.now
    request = f"{int((created - before) * 1e9)}-000001-resume"
    machine = launched(world, request, created)
    assert boot_timeouts.find_asked_at(world.site, machine.instance) - created == pytest.approx(
        asked
    )


@pytest.mark.parametrize(("after", "asked"), [(RESUME - 30.0, -20.0), (RESUME, RESUME)])
def test_a_launch_that_was_made_again_after_its_time_was_asked_for_anew(
    world: World, after: float, asked: float
) -> None:
    """By a head that took over: Slurm has given the node up, and asked once more."""
    created = world.now
    request = f"{int((created - 20.0) * 1e9)}-000001-resume"
    one = replace(launched(world, request, created).instance, launched=created + after)
    assert boot_timeouts.find_asked_at(world.site, one) - created == pytest.approx(asked)


def test_without_a_request_a_launch_was_asked_for_when_it_was_made(world: World) -> None:
    machine = launched(world, "reconcile", world.now)
    assert boot_timeouts.find_asked_at(world.site, machine.instance) == world.now
    unknown = replace(machine.instance, generation="g1800000123000-y", launched=7.0)
    assert boot_timeouts.find_asked_at(world.site, unknown) == 1800000123.0
    assert boot_timeouts.find_asked_at(world.site, replace(unknown, generation="strange")) == 7.0


@pytest.mark.parametrize(
    ("request_", "received", "left"),
    [
        ("r2", 1.0, ()),
        ("r2", 0.0, ("pub1",)),
        ("r2", -1.0, ("pub1",)),
        ("r1", 1.0, ("pub1",)),
    ],
    ids=["later", "at once", "earlier", "its own"],
)
def test_a_node_that_slurm_asked_something_else_for_is_not_given_up(
    world: World, request_: str, received: float, left: tuple[str, ...]
) -> None:
    machine = launched(world, "r1", world.now)
    late = TimedOut(cloud="pub", machines=(machine,), doubtful=())
    request = Request(
        id=request_, kind="suspend", nodes=("pub1", "pub9"), received=world.now + received
    )
    assert boot_timeouts.leave_out_asked_again(world.site, late, [request]).nodes == left


@pytest.mark.parametrize(
    ("number", "fields", "expected"),
    [
        (7, {}, [7]),
        (7, {"restarts": 0}, []),
        (7, {"states": frozenset({"RUNNING"})}, []),
        (7, {"start": 0.0}, []),
        (7, {"states": frozenset({"COMPLETING"}), "start": 0.0}, [7]),
        (8, {}, []),
    ],
    ids=["held", "never ran", "runs", "not held", "completing", "another"],
)
def test_jobs_that_slurmctld_has_requeued_itself_are_hurried(
    world: World, number: int, fields: dict[str, object], expected: list[int]
) -> None:
    machine = launched(world, "r1", world.now, 7)
    job = {"states": frozenset({"PENDING"}), "restarts": 1, "start": world.now + 121}
    job |= {"reason": "BeginTime", **fields}
    world.slurm.set_job(number, **job)
    assert expect_requeued(world.site, [machine]) == expected
    assert bool(world.site.requeues) is bool(expected)
    assert expect_requeued(world.site, []) == []


# against whom


def cool_downs(world: World) -> dict[str, float]:
    return {c.scope: c.until - world.now for c in world.ledger.exclusions.cool_downs(world.now)}


def test_a_pool_rests_for_a_while_after_its_machine_and_the_next_at_once_counts_once(
    world: World,
) -> None:
    first = booting(world, "i-1", "pub1", age=100.0)
    record_boot_failures(world.site, [first], "boots", [7])
    ((key, seconds),) = cool_downs(world).items()
    assert seconds == world.config.timings.capacity_cooldown == 180.0
    assert last(world, "pool:burst", "cooled-down") == (
        "pool burst cools down until 08:03:00 UTC: the machine of pub1 did not register"
    )
    world.now += 60.0
    record_boot_failures(world.site, [booting(world, "i-2", "pub2", age=100.0)], "boots", [])
    assert cool_downs(world) == {key: 120.0}, "it was on its way already"
    assert [b.count for b in world.ledger.exclusions.breakers()] == [2]
    assert all(not b.until for b in world.ledger.exclusions.breakers())
    assert key.startswith("pub/")


def test_what_slurm_took_out_of_service_is_told_in_its_words(world: World) -> None:
    record_boot_failures(
        world.site,
        [booting(world, age=100.0)],
        "boots",
        [7],
        taken_out=BootsFailed(node_reason="low memory"),
    )
    told = last(world, "job:7", "boot-failed")
    assert told == "Slurm took it out of service: low memory; 1 in a row in pool burst"
    assert last(world, "job:7", "cooled-down").endswith(
        "Slurm took pub1 out of service: low memory"
    )
    (breaker,) = world.ledger.exclusions.breakers()
    assert "were taken out of service by Slurm: low memory" in str(breaker.cause)


def test_at_the_limit_the_pool_is_paused_and_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    limit = world.config.timings.max_boot_failures
    some = [booting(world, f"i-{n}", PUB[n % 3], age=100.0) for n in range(limit)]
    record_boot_failures(world.site, some, "boots", [7])
    record_boot_failures(world.site, [booting(world, "i-x", "pub1", age=100.0)], "boots", [7])
    told = [r for r in caplog.records if r.getMessage().startswith("pool paused pool=burst")]
    assert [r.levelname for r in told] == ["ERROR"]
    assert f"seconds={world.config.timings.boot_cooldown:.0f} " in told[0].getMessage()
    assert "`slurm-elastic clear burst` ends it" in told[0].getMessage()
    assert [d.kind for d in world.ledger.decisions.about("job:7")].count("breaker-open") == 1
    held = {row.scope for row in world.ledger.exclusions.holds()}
    assert held == set(PUB), "nothing of the pool is for Slurm to start"


def test_machines_of_a_pool_that_is_no_more_count_against_nobody(world: World) -> None:
    one = replace(booting(world, age=100.0), pool="gone")
    record_boot_failures(world.site, [one], "boots", [7])
    assert world.ledger.exclusions.breakers() == ()
    assert world.kinds("job:7") == []


def test_of_sixteen_machines_the_cause_is_looked_for(world: World) -> None:
    some = [replace(booting(world), instance=instance(f"i-{n}", f"n{n}")) for n in range(17)]
    world.site.record("join", KEY_FAILED, ("n16",), KeyNotBrought(machine="i-16", error="too late"))
    assert boots.find_known_cause(world.site, some) is None
    assert str(boots.find_known_cause(world.site, some[1:])) == "munge key not brought: too late"
    world.site.record(
        "join", KEY_REFUSED, ("n15",), KeyNotBrought(machine="i-99", error="of another machine")
    )
    world.site.record("join", "other", ("n15",), Quoted(text="i-15: of another kind"))
    assert boots.find_known_cause(world.site, some[:16]) is None
    world.site.record(
        "join", KEY_REFUSED, ("n15",), KeyNotBrought(machine="i-15", error="an older word")
    )
    world.site.record(
        "join", KEY_REFUSED, ("n15",), KeyNotBrought(machine="i-15", error="wrong host key")
    )
    assert (
        str(boots.find_known_cause(world.site, some[:16]))
        == "munge key not brought: wrong host key"
    )


def test_the_words_of_the_sites_check_are_told_where_they_are_of_this_launch(world: World) -> None:
    machine = booting(world, age=100.0)
    mark = f"{GATE_PREFIX}{machine.instance.generation}:"
    for comment, told in (
        (f"{mark}no scratch disk", "its check failed: no scratch disk"),
        (f"{GATE_PREFIX}another:no scratch disk", "None"),
        (
            f"{PREPARE_PREFIX}{machine.instance.generation}:cannot mount b:/home at /home: refused",
            "its slurmd did not start: cannot mount b:/home at /home: refused",
        ),
        ("", "None"),
    ):
        world.slurm.set_node("pub1", comment=comment)
        assert str(boots.find_known_cause(world.site, [machine])) == told
    world.slurm.broken = SlurmError(("sinfo",), 1, "away")
    assert boots.find_known_cause(world.site, [machine]) is None


def test_a_machine_that_was_stopped_since_says_the_word_of_its_first_launch(world: World) -> None:
    first, second = new_generation(world.now - 500), new_generation(world.now)
    machine = booting(world)
    machine = replace(machine, instance=replace(machine.instance, generation=second))
    world.slurm.set_node("pub1", comment=f"{GATE_PREFIX}{first}:no scratch disk")
    assert boots.find_known_cause(world.site, [machine]) is None
    machine = replace(machine, first_launched_at=generation_time(first))
    assert str(boots.find_known_cause(world.site, [machine])) == "its check failed: no scratch disk"
    between = new_generation(world.now - 100)
    world.slurm.set_node("pub1", comment=f"{GATE_PREFIX}{between}:no scratch disk")
    assert boots.find_known_cause(world.site, [machine]) is None, (
        "that is of another machine of the node"
    )


@pytest.mark.parametrize(("left", "rests"), [(1.0, True), (0.0, False)])
def test_a_pool_rests_until_its_time_is_over(world: World, left: float, rests: bool) -> None:
    pool = world.site.pools["burst"]
    for row in (
        Exclusion(
            kind="breaker", scope="burst", until=world.now + left, count=3, cause=Quoted(text="x")
        ),
        Exclusion(
            kind=COOL_DOWN,
            scope=boots.pool_key(pool),
            until=world.now + left,
            cause=Quoted(text="x"),
        ),
    ):
        world.ledger.exclusions.add(row)
        assert boots.is_cooling(world.site, pool) is rests
        assert boots.is_cooling(world.site, world.site.pools["rack"]) is False
        world.ledger.exclusions.readmit(row.kind, row.scope)


def test_only_a_cloud_whose_machines_boot_has_slurm_asked_who_came_up(world: World) -> None:
    booting(world, "i-1", "pub1", age=100.0)
    booting(world, "i-2", "pub2", age=100.0, cloud="onp")
    world.ledger.machines.record_registration("pub", ["i-1"], world.now)
    before = world.slurm.calls["nodes"]
    boots.record_registrations(world.site, "pub")
    assert world.slurm.calls["nodes"] == before, "it is up, the other one is another cloud's"
    boots.record_registrations(world.site, "onp")
    assert world.slurm.calls["nodes"] == before + 1


def held(world: World) -> set[str]:
    return {row.scope for row in world.ledger.exclusions.holds()}


def drained(world: World) -> set[str]:
    return {name for name in PUB if "DRAIN" in world.slurm.node(name).states}


def test_a_pool_that_rests_is_kept_from_slurm_with_all_of_its_nodes(world: World) -> None:
    record_boot_failures(world.site, [booting(world, age=100.0)], "boots", [7])
    assert drained(world) == {"pub2", "pub3"}, "pub1 as soon as it has powered down"
    assert held(world) == set(PUB)


def test_where_the_pool_works_only_the_nodes_of_its_job_are_kept_from_slurm(world: World) -> None:
    booting(world, "i-2", "pub3", age=100.0)
    world.ledger.machines.record_registration("pub", ["i-2"], world.now - 10.0)
    late = booting(world, age=100.0)
    record_boot_failures(world.site, [late], "boots", [7], mates=("pub2", "op1", "pub1"))
    assert cool_downs(world) == {}
    assert held(world) == {"pub1", "pub2"}
    assert drained(world) == set()


@pytest.mark.parametrize(
    ("pool", "up", "rests"),
    [("burst", 50.0, False), ("burst", 150.0, True), ("rack", 50.0, True)],
    ids=["since the first of them was launched", "before that", "of another pool"],
)
def test_a_machine_that_has_come_up_meanwhile_proves_that_its_pool_works(
    world: World, pool: str, up: float, rests: bool
) -> None:
    """Also one that has ended since."""
    one = instance("i-9", "pub3", f"g{(world.now - 200) * 1000:.0f}-x", launched=world.now - 200,
                   bought=offer(cloud="pub"))  # fmt: skip
    world.ledger.machines.adopt(one, pool, world.now - 200)
    world.ledger.machines.record_registration("pub", ["i-9"], world.now - up)
    world.ledger.machines.record_end("pub", ["i-9"], Quoted(text="idle"), world.now - up + 5)
    failed = [booting(world, "i-1", "pub1", age=100.0), booting(world, "i-2", "pub2", age=10.0)]
    record_boot_failures(world.site, failed, "boots", [7])
    assert bool(cool_downs(world)) is rests


def test_words_on_a_node_that_are_none_of_the_sites_check_are_not_told(world: World) -> None:
    machine = booting(world, age=100.0)
    world.slurm.set_node("pub1", comment=f"{machine.instance.generation}:fan is broken")
    assert boots.find_known_cause(world.site, [machine]) is None


@pytest.mark.parametrize("listed", [True, False])
def test_a_machine_that_its_cloud_does_not_list_counts_against_nobody_and_others_once(
    world: World, listed: bool
) -> None:
    """Also where Slurm has to be asked again."""
    booting(world, age=100.0)
    powers_up(world, "pub1")
    if not listed:
        world.ledger.machines.observe("pub", [], world.now)
    looks, silent = timeouts(world).task, SlurmError(("scontrol",), 1, "away")

    def before(name: str) -> None:
        if name == "update_nodes":
            raise silent

    world.slurm.before_command = before
    looks.tick()
    assert doomed(world) == []
    world.slurm.before_command = lambda _: None
    world.now += 1.0
    looks.tick()
    assert doomed(world) == ["i-1"]
    assert [b.count for b in world.ledger.exclusions.breakers()] == [1] * listed


@pytest.mark.parametrize("states", ["POWERING_UP DRAIN", "IDLE", ""])
def test_a_node_that_is_not_ours_to_power_down_is_not_given_up(world: World, states: str) -> None:
    """An admin has drained it, it came up, or Slurm does not know it any more."""
    booting(world, age=100.0)
    if states:
        world.slurm.set_node("pub1", "CLOUD", *states.split(), reason="fan is broken")
    else:
        world.slurm.remove_node("pub1")
    timeouts(world).task.tick()
    assert world.ledger.exclusions.breakers() == ()
    assert doomed(world) == []


def test_nodes_of_one_cloud_are_given_up_though_those_of_another_are_no_more(
    world: World,
) -> None:
    booting(world, "i-1", "op1", age=100.0, cloud="onp")
    booting(world, "i-2", "pub1", age=100.0)
    powers_up(world, "op1", "pub1")
    world.program("suspend", ["op1"], {})
    timeouts(world).task.tick()
    assert doomed(world) == ["i-2"]
