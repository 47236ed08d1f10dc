"""The compiled part of the simulator and the engine in Python give the same results, to the last digit."""

from __future__ import annotations

import os
import random
from array import array
from functools import partial

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from needs import not_installed

from benchmarks.traces import VARIABLE
from benchmarks.traces import history as trace
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth import allotting
from slurm_elastic.policies.growth.capacity import (
    Bursts,
    GroupBursts,
    Growth,
    OnDemand,
    OwnGrowth,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import AtOnce, Delayed, Flagged, Idle, IdleOrder
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate import core, engine, remembered, scaler
from slurm_elastic.simulate.bills import leases
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.core.growing import COMPILED
from slurm_elastic.simulate.core.modelled import unmodelled
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from tests.simulate.independent_cases import cases

EXAMPLES = int(os.environ.get("SLURM_ELASTIC_EXAMPLES") or 300)
SEED = int(os.environ.get("SLURM_ELASTIC_SEED") or 1)

needs_compiled = pytest.mark.skipif(
    core.compiled() is None, reason=not_installed("gcc", "python3-dev")
)


def history(draw: random.Random, nodes: int) -> Jobs:
    """Up to 60 jobs, some of which exceed their limits."""
    span = draw.choice((10, 300, 3000))
    return Jobs(
        Job(
            number, draw.randint(0, span), draw.randint(0, 200), draw.randint(1, 200),
            draw.choice((1, draw.randint(1, nodes), nodes)),
        )
        for number in range(draw.randint(1, 60))
    )  # fmt: skip


@needs_compiled
def test_random_histories_on_fixed_nodes_start_at_the_same_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(SEED, SEED + EXAMPLES):
        draw = random.Random(seed)
        nodes = draw.choice((1, 3, 8, 40))
        jobs = history(draw, nodes)
        found = easy.starts(jobs, nodes)
        with monkeypatch.context() as patch:
            patch.setenv(core.SWITCH, "0")
            assert found == easy.starts(jobs, nodes), f"seed {seed}"


@needs_compiled
def test_machines_are_allotted_to_the_same_jobs() -> None:
    """Clouds of one and of several pools, and bounds that they share in whole and in part."""
    part = core.compiled()
    assert part is not None
    for seed in range(SEED, SEED + EXAMPLES):
        draw = random.Random(seed)
        jobs, clouds = draw.randint(0, 9), draw.randint(1, 3)
        needs = [[draw.choice((1, 1, 2, 3, 7)) for _ in range(jobs)] for _ in range(clouds)]
        may_start = draw.choice((None, [draw.random() < 0.7 for _ in range(jobs)]))
        found = []
        for ours in (allotting.allot, partial(part.allot, allotting.Share)):
            again = random.Random(seed + 1)
            rooms, bounds = rooms_of(again, clouds)
            shares = ours(needs, rooms, bounds, may_start)
            assert all(share is None or type(share) is allotting.Share for share in shares)
            state = [(room.free, room.now, room.total) for cloud in rooms for room in cloud]
            found.append((shares, state, [bound.left for bound in bounds]))
        assert found[0] == found[1], f"seed {seed}"


def rooms_of(
    draw: random.Random, clouds: int
) -> tuple[list[list[allotting.Room[int]]], list[allotting.CommonBound[int]]]:
    rooms = [
        [
            allotting.Room(
                10 * cloud + n, draw.randint(0, 3), draw.randint(-1, 4),
                draw.choice((None, draw.randint(0, 8))),
            )
            for n in range(draw.choice((1, 1, 2, 3)))
        ]
        for cloud in range(clouds)
    ]  # fmt: skip
    pools = [room.pool for cloud in rooms for room in cloud]
    bounds = [
        allotting.CommonBound(
            draw.choice((0, 3, 7, 1.0, 0.3)),
            {pool: draw.choice((1.0, 0.1, 0.0)) for pool in pools if draw.random() < 0.7},
            is_turn=draw.random() < 0.3,
        )
        for _ in range(draw.randint(0, 3))
    ]
    return rooms, bounds


@needs_compiled
def test_columns_that_do_not_fit_are_refused() -> None:
    part = core.compiled()
    assert part is not None
    short, long = array("q", [1]), array("q", [1, 1])
    with pytest.raises(ValueError, match="different lengths"):
        part.easy_starts(long, long, long, short, 4, long)
    with pytest.raises(ValueError, match="more nodes than there are"):
        part.easy_starts(short, short, short, array("q", [5]), 4, array("q", [0]))


@needs_compiled
def test_a_compiled_part_of_other_sources_is_not_used(tmp_path) -> None:
    (tmp_path / "core.c").write_text("changed\n")
    part = core.compiled()
    assert part is not None
    assert core.sources_checksum(tmp_path) not in (0, part.SOURCES)
    assert core.sources_checksum(tmp_path / "wheel") == 0


def test_without_the_compiled_part_jobs_start_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_loaded", None)
    assert core.compiled() is None
    assert list(easy.starts(Jobs([Job(1, 0, 10, 10, 2), Job(2, 0, 10, 10, 2)]), 2)) == [0, 10]


class Fewer(OwnGrowth, frozen=True, tag="fewer"):
    """A policy of another package: it keeps a machine more than jobs wait, even if none does."""

    def grow(self, demand):
        lack = len(demand.queue) + 1 - demand.up
        return Growth(lack, "one more") if lack > 0 else None

    def surplus(self, demand):
        return max(demand.idle - 2, 0)


class Foreign(SemiElastic, frozen=True, tag="foreign"):
    """A policy of another package that changes one of ours: only Python knows what it does."""

    def grow(self, demand):
        return super().grow(demand) if demand.queue and demand.queue[0].nodes > 1 else None


GROWTHS = (
    Slurm(), OnDemand(), Bursts(waste=60), GroupBursts(), Ratio(), Ratio(period=None),
    SemiElastic(wait_limit=60), SemiElastic(wait_limit=0, size="sum"),
    Bursts(waste=30, per_machine=1.5, period=None), GroupBursts(group=3, period=None),
    OnDemand(period=None), Ratio(slots=2, period=10), SemiElastic(wait_limit=30, size="first"),
    SemiElastic(wait_limit=0, short=90, period=15), Foreign(wait_limit=10),
    SteadyStream(waste=60), SteadyStream(waste=20, more_over=2.5, fewer_under=0.5), Fewer(),
)  # fmt: skip
BOUNDS = (
    Bounds(), Bounds(), Bounds(), Bounds(machines=3), Bounds(booting=1), Bounds(per_day=0.02),
)  # fmt: skip


@st.composite
def sites(draw: st.DrawFn) -> tuple[Jobs, Scenario]:
    """Sites of the independent simulator with more policies: what it does not know, too."""
    jobs, scenario = draw(cases(competing=draw(st.integers(0, 3)) == 0))
    growth = draw(st.sampled_from(GROWTHS))
    # Machines that boot in no time and go at once would be bought for ever within one second.
    lasting = {"release": Idle(60), "boot": BootTimes(((1, 10), (4, 90)))}
    pools = tuple(
        replace(pool, **lasting)
        if isinstance(pool.release, AtOnce) or not pool.boot.seconds(1) else pool
        for pool in scenario.pools
    )  # fmt: skip
    if isinstance(growth, SteadyStream | Fewer) or draw(st.integers(0, 5)) == 0:
        pools = tuple(
            pool if pool.machines == pool.standing else replace(pool, release=Flagged())
            for pool in pools
        )
    return jobs, replace(
        scenario, pools=pools, growth=growth, guarded=draw(st.booleans()),
        bounds=draw(st.sampled_from(BOUNDS)),
        # The other policies start machines for no job in particular.
        reuse=not isinstance(growth, Slurm) or draw(st.integers(0, 3)) > 0,
        checkpoints=draw(st.sampled_from((Checkpoints(), scenario.checkpoints))),
    )  # fmt: skip


def outcome(jobs: Jobs, scenario: Scenario) -> object:
    """Everything that a replay says, or its error."""
    try:
        found = simulate(jobs, scenario, origin=1_000_000_000)
    except SlurmElasticError as error:
        return str(error)
    books = [
        (
            sorted(m.leases.rows()), list(m.batch_start), list(m.batch_offer), list(m.batch_ready),
            list(m.batch_spot), m.leases.dollars, m.leases.billed, m.busy_area, m.up_area,
        )
        for m in found.pools
    ]  # fmt: skip
    rows = [list(column) for column in (found.starts, found.ends, found.where)]
    return found.figures, rows, dict(found.refusals), books


def unlike(jobs: Jobs, scenario: Scenario) -> list[object]:
    """Both outcomes if the engines do not agree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grower, "patience", 5_000)
        patch.setenv(core.SWITCH, "1")
        compiled = outcome(jobs, scenario)
        patch.setenv(core.SWITCH, "0")
        interpreted = outcome(jobs, scenario)
    return [] if compiled == interpreted else [compiled, interpreted]


@needs_compiled
@hypothesis.seed(SEED)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites())
def test_random_sites_have_equal_books(case: tuple[Jobs, Scenario]) -> None:
    assert not unlike(*case)


@needs_compiled
@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites())
def test_purchases_decided_before_are_the_same_again(case: tuple[Jobs, Scenario]) -> None:
    assert_decided_again(*case)


@needs_compiled
def test_purchases_of_busy_sites_decided_before_are_the_same_again() -> None:
    for seed in range(SEED, SEED + EXAMPLES // 5):
        assert_decided_again(*busy_site(seed))


def assert_decided_again(jobs: Jobs, scenario: Scenario) -> None:
    """Also if another run with another release asked first."""
    pools = [replace(pool, spot=None) for pool in scenario.pools]
    scenario = replace(scenario, pools=tuple(pools))
    other = replace(scenario, pools=tuple(replace(pool, release=Idle(300)) for pool in pools))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grower, "patience", 5_000)
        patch.setattr(remembered, "_sites", [])
        outcome(jobs, other)
        again = outcome(jobs, scenario)
        patch.setattr(Purchases, "_answers_for_ever", lambda _: None)
        patch.setattr(Purchases, "answers", lambda *_: {})
        assert again == outcome(jobs, scenario)


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites())
def test_a_policy_asked_before_machines_are_dealt_starts_the_same(
    case: tuple[Jobs, Scenario],
) -> None:
    begin = Grower.__init__

    def dealt_first(grower: Grower, *given: object) -> None:
        begin(grower, *given)  # type: ignore[arg-type]
        grower._asks_first = grower._counts_new_jobs = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grower, "patience", 5_000)
        quick = outcome(*case)
        patch.setattr(Grower, "__init__", dealt_first)
        assert quick == outcome(*case)


@pytest.mark.release
@needs_compiled
@hypothesis.seed(SEED)
@settings(max_examples=34 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites())
def test_more_random_sites_have_equal_books(case: tuple[Jobs, Scenario]) -> None:
    """10,000 sites; ``SLURM_ELASTIC_SEED`` draws others."""
    assert not unlike(*case)


CLOUD = PoolModel(
    name="cloud", machines=40, procs=4, shared=True, price=1.0, release=Idle(600), check=60,
    boot=BootTimes(((1, 126), (8, 270))), billing=Hourly(),
    spot=SpotMarket(Curve([0, 90_000], [0.2, 0.4]), available=[(0, 30), (50_000, 4), (52_000, 30)]),
)  # fmt: skip
SITE = Scenario(
    pools=(
        PoolModel(name="rack", machines=6, standing=6, procs=4, shared=True, public=False),
        CLOUD,
    ),
    depth=500,
    guarded=True,
)


NAMES = (
    "KTH-SP2-1996-2.1-cln",
    "SDSC-DS-2004-2.1-cln",
    "SDSC-SP2-1998-4.2-cln",
    "lublin_256",
)


def jobs_of(name: str, count: int | None) -> Jobs:
    """The first jobs of a history that the site can hold."""
    path = trace(name)
    if path is None:
        pytest.skip(f"{name} is not at hand (${VARIABLE})")
    jobs = swf.load(path, count).jobs
    return jobs.only([job for job in range(len(jobs)) if jobs.procs[job] <= 160])


@needs_compiled
@pytest.mark.parametrize("growth", [Slurm(), Ratio()], ids=lambda growth: type(growth).__name__)
def test_a_part_of_a_history_has_equal_books(growth: Slurm | Ratio) -> None:
    assert not unlike(jobs_of(NAMES[0], 3000), replace(SITE, growth=growth))


@pytest.mark.release
@needs_compiled
@pytest.mark.parametrize("growth", GROWTHS[:-2], ids=lambda growth: type(growth).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_whole_histories_have_equal_books(name: str, growth: Slurm | Ratio) -> None:
    assert not unlike(jobs_of(name, None), replace(SITE, growth=growth))


@needs_compiled
def test_a_rule_changed_in_one_engine_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that need one machine more would start in Python's engine only where nobody sees it."""
    jobs = Jobs([Job(1, 0, 100, 100, 4), Job(2, 0, 50, 60, 30), Job(3, 1, 200, 200, 2)])
    assert not unlike(jobs, SITE)
    monkeypatch.setattr(engine.Engine, "_return_job", lambda *_: None)
    falls = replace(
        CLOUD, spot=SpotMarket(Curve.flat(0.2), available=[(0, 30), (160, 0), (900, 30)])
    )
    assert unlike(jobs, replace(SITE, pools=(SITE.pools[0], falls)))


BURSTS = (Bursts(waste=200), Bursts(waste=45, per_machine=1.3, period=None), GroupBursts(period=60))
WATCHED = (SteadyStream(waste=60), SteadyStream(waste=20, more_over=2.5, fewer_under=0.5))


def busy_site(seed: int) -> tuple[Jobs, Scenario]:
    """A site with room for many machines, and more work than the drawn sites have: one of our own
    policies starts machines for jobs that wait together.
    """
    draw = random.Random(seed)
    jobs = Jobs(
        Job(
            number, draw.randint(0, 12_000), draw.randint(1, 900), draw.choice((60, 900, 3000)),
            draw.choice((1, 4, 4, 9, draw.randint(1, 160))), memory=draw.choice((0, 0, 3000)),
        )
        for number in range(draw.choice((30, 150)))
    )  # fmt: skip
    growth = draw.choice((*BURSTS, *WATCHED, *[one for one in GROWTHS if type(one) in COMPILED]))
    pools = [SITE.pools[0]]
    for number in range(draw.choice((1, 2, 3))):
        release = Flagged() if isinstance(growth, SteadyStream) else Idle(draw.choice((30, 600)))
        pool = replace(
            CLOUD, name=f"cloud{number}", release=release, machines=draw.choice((3, 12, 40)),
            procs=draw.choice((1, 4, 12)), memory=draw.choice((0, 2000)),
            spot=draw.choice((CLOUD.spot, None, None)), price=draw.choice((0.5, 1.0)),
            max_booting=draw.choice((None, None, 1, 3)), shared=draw.random() < 0.5,
        )  # fmt: skip
        pools.append(pool)
    if draw.random() < 0.3:
        del pools[0]
    limits = draw.choice((Limits(), Limits(), Limits(nodes=9), Limits(dollars_per_hour=7.7)))
    bounds = draw.choice((Bounds(), Bounds(), Bounds(machines=14), Bounds(booting=2)))
    return jobs, Scenario(
        pools=tuple(pools), growth=growth, limits=limits, bounds=bounds,
        guarded=draw.random() < 0.5, depth=draw.choice((None, 3, 500)), seed=seed,
    )  # fmt: skip


@needs_compiled
def test_busy_sites_have_equal_books() -> None:
    for seed in range(SEED, SEED + EXAMPLES // 2):
        assert not unlike(*busy_site(seed)), f"seed {seed}"


def one_more(rule):
    """The policy's ``grow`` with a machine more."""

    def grow(policy, demand):
        growth = rule(policy, demand)
        return growth and growth._replace(machines=growth.machines + 1)

    return grow


CHANGED = {
    **{f"{kind.__name__}.grow": (kind, "grow", one_more(kind.grow)) for kind in COMPILED[1:]},
    "machines for a job": (allotting, "_started", lambda _: None),
    "jobs that count once": (Grower, "_cover", lambda *_: None),
    "jobs that never fit": (scaler, "find_fitting", lambda fresh, *_: list(fresh)),
    "machines without work": (scaler, "useful_machines", lambda *of: of[-1]),
    "paid seconds": (Hourly, "billed", lambda _, start, end, **__: end - start),
    "most machines at a time": (leases, "peak", lambda *_: 0),
    "the surplus": (SteadyStream, "surplus", lambda *_: 0),
    "a site where nothing runs": (Grower, "_is_stuck", lambda *_: False),
}


@needs_compiled
@pytest.mark.parametrize("rule", CHANGED)
def test_each_rule_of_both_engines_changed_in_python_alone_is_found(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The compiled part knows our growth policies and bills, so their rules are there twice."""
    monkeypatch.setattr(*CHANGED[rule])
    assert any(unlike(*busy_site(seed)) for seed in range(SEED, SEED + 2 * EXAMPLES))


@needs_compiled
@pytest.mark.parametrize(
    "growth", [policy() for policy in COMPILED], ids=lambda of: type(of).__name__
)
def test_our_own_policies_are_not_asked(monkeypatch: pytest.MonkeyPatch, growth: Ratio) -> None:
    asked = []
    monkeypatch.setattr(type(growth), "grow", lambda *_: asked.append(1))
    release = Flagged() if isinstance(growth, SteadyStream) else Idle(600)
    site = replace(SITE, growth=growth, guarded=False, pools=(replace(CLOUD, release=release),))
    simulate(Jobs([Job(n, 400 * n, 300, 400, 5) for n in range(20)]), site)
    assert not asked


@needs_compiled
def test_an_error_of_a_policy_ends_the_run() -> None:
    class Wrong(OwnGrowth, frozen=True, tag="wrong"):
        def grow(self, demand):
            raise ValueError(len(demand.queue))

    found = outcome(
        Jobs([Job(1, 0, 10, 10, 300)]),
        replace(SITE, growth=Wrong(), pools=(replace(CLOUD, machines=80),)),
    )
    assert isinstance(found, str)
    assert "growth policy wrong fails" in found


@needs_compiled
@pytest.mark.parametrize(
    "change",
    [
        {"reservations": 2},
        {"order": IdleOrder.RANDOM},
        {"checkpoints": Checkpoints(policy=Hour())},
        {"payers": {"account:1": Bounds(per_day=1.0)}},
        {"pools": (replace(CLOUD, min_idle=2),)},
        {"finishes": True, "bounds": Bounds(per_month=5.0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_rule_that_is_not_compiled_is_replayed_in_python(change: dict[str, object]) -> None:
    jobs = Jobs([Job(1, 0, 10, 10, 4)])
    assert not unmodelled(jobs, SITE)
    assert engine._engine(jobs, SITE) is not Engine
    scenario = replace(SITE, **change)
    assert unmodelled(jobs, scenario)
    assert engine._engine(jobs, scenario) is Engine


@needs_compiled
def test_release_by_leases_asks_the_policy_in_both_engines() -> None:
    pool = replace(CLOUD, release=Delayed(before_end=180), spot=None)
    jobs = Jobs([Job(n, 400 * n, 300, 400, 5) for n in range(20)])
    assert not unlike(jobs, replace(SITE, pools=(pool,), growth=Ratio(period=None)))
