"""A growth policy counts a waiting job only with the nodes that Slurm would give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.observe import observe, pool_groups
from slurm_elastic.features.growth.pool_nodes import Observation, QueueFacts
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.dealing import split_demand
from tests.controller.world import World, make_config

NOW = 1_800_000_000
OFF, DRAINED, BUSY = "IDLE CLOUD POWERED_DOWN", "IDLE CLOUD DRAIN POWERED_DOWN", "ALLOCATED CLOUD"
HOUR = 3600
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Any) -> Iterator[Make]:
    made: list[World] = []

    def world(max_time: float | None = HOUR, **site: Any) -> World:
        """One public cloud with two pools: pub[1-3] and big[1-2]."""
        plain = make_config(tmp_path)
        pool = plain.pools[1]
        pools = (
            replace(pool, name="pub", nodes="pub[1-3]", features=("small",)),
            replace(pool, name="big", nodes="big[1-2]", features=("large",)),
        )
        one = World(
            clouds=(plain.clouds[1],), pools=pools, limits=Limits(),
            policies=SitePolicies(**({"growth": "on_demand"} | site)),
            allow=Who(accounts=("physics",), max_time=max_time),
        )  # fmt: skip
        made.append(one)
        return one

    yield world
    for one in made:
        one.close()


def job(number: int = 1, **fields: Any) -> SlurmJob:
    values = {"partitions": ("pub",), "submit": NOW - 600.0, "limit": 600}
    return SlurmJob(id=number, states=frozenset({"PENDING"}), **(values | fields))


def nodes(**states: str) -> dict[str, SlurmNode]:
    """All of them are powered down, but for these."""
    names = ("pub1", "pub2", "pub3", "big1", "big2")
    found = {name: states.get(name, OFF) for name in names}
    return {n: SlurmNode(name=n, states=frozenset(s.split())) for n, s in found.items()}


def bought(
    world: World, *jobs: SlurmJob, states: dict[str, str] | None = None, **facts: Any
) -> Any:
    """The nodes that are started for these jobs, or their number by pool if any may serve."""
    seen = Observation(
        at=NOW, nodes=nodes(**(states or {})), jobs=jobs, machines={}, policy={},
        capacity=frozenset(), stops={}, over={}, pool_nodes={}, facts=QueueFacts(**facts),
    )  # fmt: skip
    (group,) = pool_groups(world.site, seen, dict.fromkeys(("pub", "big"), CoveredJobs()))
    starts = [start for _, plan in split_demand(group.now) for start in plan.starts]
    named = [node for start in starts for node in start.nodes]
    return named or {start.pool: start.machines for start in starts}


def reserved(*names: str, begin: float = 300, end: float = 1500, **fields: Any) -> Reservation:
    return Reservation(
        name="fut",
        start=NOW + begin,
        end=NOW + end,
        nodes=names,
        flags=frozenset({"MAINT"}),
        **fields,
    )


def test_a_plain_job_may_have_any_node(make: Make) -> None:
    assert bought(make(), job(), job(2)) == {"pub": 2}


@pytest.mark.parametrize(
    ("fields", "states", "expected"),
    [
        ({"required": ("pub3",)}, {}, ["pub3"]),
        ({"required": ("big2",)}, {}, ["big2"]),
        ({"required": ("pub3",), "node_count": 2}, {}, ["pub3", "pub1"]),
        ({"required": ("pub2", "big1"), "node_count": 2}, {}, ["pub2", "big1"]),
        # An administrator has drained it, another job has it, or it is up: no machine helps.
        ({"required": ("pub3",)}, {"pub3": DRAINED}, {}),
        ({"required": ("pub3",)}, {"pub3": BUSY}, {}),
        ({"required": ("pub3",)}, {"pub3": "IDLE CLOUD"}, {}),
        ({"required": ("pub3", "pub1"), "node_count": 2}, {"pub3": "IDLE CLOUD"}, ["pub1"]),
        ({"required": ("op1",)}, {}, {}),
    ],
)
def test_a_job_that_names_nodes_gets_these(
    make: Make, fields: dict[str, Any], states: dict[str, str], expected: Any
) -> None:
    assert bought(make(), job(**fields), states=states) == expected


@pytest.mark.parametrize("reason", ["BadConstraints", "PartitionConfig", "PartitionNodeLimit"])
def test_a_job_that_another_partition_cannot_hold_gets_a_machine_of_ours(
    make: Make, reason: str
) -> None:
    both = ("static", "pub")
    assert bought(make(), job(reason=reason, partitions=both)) == {"pub": 1}
    assert bought(make(), job(reason=reason, partitions=both, node_cpus=4096)) == {}
    assert bought(make(), job(reason=reason)) == {}


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [
        (("pub1",), ["pub2"]),
        (("pub1", "pub2", "pub3"), ["big1"]),
        (("pub1", "pub2", "pub3", "big1", "big2"), {}),
        (("op1",), {"pub": 1}),
    ],
)
def test_a_job_gets_no_node_that_it_excludes(
    make: Make, excluded: tuple[str, ...], expected: Any
) -> None:
    assert bought(make(), job(), excluded={1: excluded}) == expected


ALL = ("pub1", "pub2", "pub3", "big1", "big2")


@pytest.mark.parametrize(
    ("fields", "rows", "expected"),
    [
        # A machine takes two minutes to boot, the job ten minutes to run.
        ({}, [reserved(*ALL)], {}),
        ({"limit": 120}, [reserved(*ALL)], {"pub": 1}),
        ({"limit": 240}, [reserved(*ALL)], {}),
        ({}, [reserved("pub1", "pub2")], ["pub3"]),
        ({}, [reserved(*ALL, is_partial=True)], {"pub": 1}),
        ({}, [reserved(*ALL, begin=-900, end=-300)], {"pub": 1}),
        ({"reservation": "fut"}, [reserved("pub2", begin=-300)], ["pub2"]),
        ({"reservation": "fut", "node_count": 2}, [reserved("pub2", begin=-300)], {}),
        ({"required": ("pub2",)}, [reserved("pub2")], {}),
    ],
)
def test_a_reservation_keeps_its_nodes_for_its_jobs(
    make: Make, fields: dict[str, Any], rows: list[Reservation], expected: Any
) -> None:
    assert bought(make(), job(**fields), reservations=tuple(rows)) == expected


@pytest.mark.parametrize(
    ("features", "count", "expected"),
    [
        ("[small*2&large*1]", 3, {"pub": 2, "big": 1}),
        ("[small*1&large*2]", 3, {"pub": 1, "big": 2}),
        ("[small*1&large*3]", 4, {}),
        ("[small|large]", 3, {"pub": 3}),
        ("[large|small]", 3, {"pub": 3}),
        ("[large|small]", 2, {"big": 2}),
        ("[large|small]", 4, {}),
        ("large*1", 3, {"big": 1, "pub": 2}),
    ],
)
def test_counted_features_are_bought_part_by_part_or_not_at_all(
    make: Make, features: str, count: int, expected: Any
) -> None:
    found = bought(make(), job(features=features, node_count=count))
    if isinstance(found, list):
        found = {pool: sum(n.startswith(pool) for n in found) for pool in ("pub", "big")}
        found = {pool: number for pool, number in found.items() if number}
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "facts", "expected"),
    [
        ({"licenses": "matlab:2", "tasks": 3}, {"tasks": {1: 1}}, {"pub": 1}),
        ({"licenses": "matlab:2", "tasks": 3}, {"tasks": {1: 0}}, {}),
        ({"limit": 2 * HOUR}, {"max_times": {"pub": HOUR}}, {}),
        ({"limit": HOUR}, {"max_times": {"pub": HOUR}}, {"pub": 1}),
        (
            {"id": 7, "array": 7, "limit": None, "tasks": 5, "partitions": ("batch", "pub")},
            {"max_times": {"pub": HOUR, "batch": None}, "fixed_arrays": frozenset({7})},
            {},
        ),
        (
            {"limit": None, "partitions": ("batch", "pub")},
            {"max_times": {"pub": HOUR, "batch": None}},
            {"pub": 1},
        ),
    ],
)
def test_licences_and_the_time_limit_count(
    make: Make, fields: dict[str, Any], facts: dict[str, Any], expected: Any
) -> None:
    number = fields.pop("id", 1)
    assert bought(make(), job(number, **fields), **facts) == expected


def test_a_time_limit_that_the_partition_inherits_counts_as_well(make: Make) -> None:
    """Of several partitions Slurm's reason is of the one that it tried last."""
    world, jobs = make(max_time=None), {1: 2 * HOUR, 2: HOUR}
    world.slurm.partition_max_times = {"batch": None, "pub": HOUR}
    fields = {"partitions": ("batch", "pub"), "submit": NOW - 60.0}
    for number, limit in jobs.items():
        world.slurm.set_job(number, "PENDING", limit=limit, **fields)
    max_times = observe(world.site).facts.max_times
    found = [
        bought(world, job(limit=limit, **fields), max_times=max_times) for limit in jobs.values()
    ]
    assert found == [{}, {"pub": 1}]


@pytest.mark.parametrize(
    ("state", "expected"), [("UP", ["pub"]), ("DRAIN", ["pub"]), ("DOWN", []), ("INACTIVE", [])]
)
def test_jobs_in_a_partition_that_starts_nothing_do_not_count(
    make: Make, state: str, expected: list[str]
) -> None:
    """Their reason is of Slurm's last look at them: a begin time, which has come since then."""
    world = make()
    world.slurm.set_job(
        1, "PENDING", partitions=("batch", "pub"), reason="BeginTime", submit=world.site.now() - 60
    )
    world.slurm.partitions = {"pub": state, "batch": "UP"}
    closed = observe(world.site).facts.closed_partitions
    assert closed == (frozenset() if expected else {"pub"})
    assert [*bought(world, job(partitions=("batch", "pub")), closed_partitions=closed)] == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"submit": NOW - 5.0}, []),
        ({"submit": NOW - 5.0, "reason": "Resources"}, ["pub"]),
        ({"submit": NOW - 5.0, "partitions": ("pub",)}, ["pub"]),
        # A long queue: slurmctld does not look at all of it each time.
        ({"submit": NOW - 31.0}, ["pub"]),
        ({"submit": NOW - 300.0, "eligible": NOW - 5.0}, []),
    ],
)
def test_a_new_job_is_left_to_slurmctld_while_other_nodes_may_be_free(
    make: Make, fields: dict[str, Any], expected: list[str]
) -> None:
    assert [*bought(make(), job(**({"partitions": ("batch", "pub")} | fields)))] == expected


def test_jobs_with_other_nodes_do_not_take_each_others(make: Make) -> None:
    """The plain job comes first, but the node that another job names is left to that one."""
    found = bought(make(), job(1, priority=9), job(2, required=("pub1",)), job(3, priority=1))
    assert found == ["pub1"]
    jobs = [job(n, required=("pub2",)) for n in range(4)]
    assert bought(make(), *jobs) == ["pub2"], "once, though four jobs wait for it"


def test_few_commands_are_asked(make: Make) -> None:
    """And none of them while nothing waits, or where Slurm itself starts the nodes."""
    plain, world = make(growth="slurm"), make()
    for one in (plain, world):
        one.slurm.submit(1, ("pub1",))
    observe(plain.site)
    assert not {"reservations", "max_times", "free_licenses"} & plain.slurm.calls.keys()
    observe(world.site)
    assert world.slurm.calls.get("max_times", 0) == 0, "no limit is over MaxTime"


def test_only_the_tasks_that_may_run_together_take_licenses(make: Make) -> None:
    world = make()
    world.slurm.licenses = {"matlab": 10}
    fields = {"partitions": ("pub",), "submit": NOW - 60.0, "licenses": "matlab"}
    world.slurm.set_job(1, "PENDING", tasks=100, max_running_tasks=4, priority=2, **fields)
    world.slurm.set_job(2, "PENDING", tasks=100, priority=1, **fields)
    assert observe(world.site).facts.tasks == {1: 4, 2: 6}


@given(
    required=st.sets(st.sampled_from(ALL), max_size=2),
    excluded=st.sets(st.sampled_from(ALL), max_size=4),
    kept=st.sets(st.sampled_from(ALL), max_size=4),
    drained=st.sets(st.sampled_from(ALL), max_size=3),
    count=st.integers(1, 5),
)
def test_what_is_bought_is_enough_for_the_job_or_nothing(
    tmp_path_factory: Any, required: set[str], excluded: set[str], kept: set[str],
    drained: set[str], count: int,
) -> None:  # fmt: skip
    """By a rule of one line: the nodes that are neither excluded, reserved nor drained."""
    world = _one_world(tmp_path_factory)
    may = set(ALL) - excluded - kept - drained
    count = max(count, len(required))
    found = bought(
        world,
        job(required=tuple(sorted(required)), node_count=count),
        states=dict.fromkeys(drained, DRAINED),
        excluded={1: tuple(excluded)},
        reservations=(reserved(*kept),),
    )
    is_served = required <= may and len(may) >= count
    number = sum(found.values()) if isinstance(found, dict) else len(found)
    assert number == (count if is_served else 0)
    if isinstance(found, list):
        assert set(found) <= may
        assert len(set(found)) == len(found)


_WORLDS: list[World] = []


def _one_world(factory: Any) -> World:
    if not _WORLDS:
        plain = make_config(factory.mktemp("site"))
        pools = tuple(
            replace(plain.pools[1], name=name, nodes=names)
            for name, names in (("pub", "pub[1-3]"), ("big", "big[1-2]"))
        )
        policies, allow = SitePolicies(growth="on_demand"), Who(accounts=("physics",))
        cloud = plain.clouds[1]
        _WORLDS.append(
            World(clouds=(cloud,), pools=pools, limits=Limits(), policies=policies, allow=allow)
        )
    return _WORLDS[0]
