"""The engine and a second simulator that was written from the rules alone agree to the second and to
the micro-dollar: on random sites, and on slices of public histories.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.traces import VARIABLE, history
from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import OnDemand, Slurm
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from tests.simulate import independent
from tests.simulate.independent_cases import cases, differences

EXAMPLES = int(os.environ.get("SLURM_ELASTIC_EXAMPLES") or 80)
MORE = 10 * EXAMPLES
SLICE = 200
HISTORIES = {
    "KTH-SP2-1996-2.1-cln": 100,
    "SDSC-DS-2004-2.1-cln": 1664,
    "SDSC-SP2-1998-4.2-cln": 128,
    "lublin_256": 256,
}
"""Histories, and the processors of their machines."""
FIRST = ("SDSC-SP2-1998-4.2-cln",)
NAMES = [n if n in FIRST else pytest.param(n, marks=pytest.mark.release) for n in HISTORIES]
"""One history in the first tier."""


@pytest.fixture(autouse=True, scope="module")
def _soon_given_up() -> object:
    """A queue that nothing serves is given up after some hours, not weeks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grower, "patience", 5_000)
        patch.setattr(independent, "GIVEN_UP", 5_000)
        yield


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_random_sites(case: tuple[Jobs, Scenario]) -> None:
    assert not differences(*case)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(competing=True))
def test_random_sites_whose_clouds_compete(case: tuple[Jobs, Scenario]) -> None:
    assert not differences(*case)


@pytest.mark.release
@settings(max_examples=MORE, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_more_random_sites(case: tuple[Jobs, Scenario]) -> None:
    assert not differences(*case)


def slice_of(name: str, begin: int) -> Jobs:
    """Jobs of a history from one on."""
    path = history(name)
    if path is None:
        pytest.skip(f"{name} is not at hand (${VARIABLE})")
    jobs = swf.load(path, begin + SLICE).jobs
    return jobs.only(range(begin, begin + SLICE))


@pytest.mark.parametrize("begin", [0, pytest.param(2000, marks=pytest.mark.release)])
@pytest.mark.parametrize("name", NAMES)
def test_slices_of_public_histories(name: str, begin: int) -> None:
    """A third of the machines stand there, the others are a cloud's."""
    jobs = slice_of(name, begin)
    procs = 16 if HISTORIES[name] > 256 else 4
    own = HISTORIES[name] // procs // 3
    most = max(max(jobs.procs), HISTORIES[name]) // procs + 1
    for shared in (False, True):
        pools = (
            PoolModel(name="own", limited=False, machines=own, standing=own, procs=procs, shared=shared, public=False),
            PoolModel(
                name="cloud", machines=most, procs=procs, shared=shared, price=1.0,
                release=Idle(600), boot=BootTimes(((1, 120),)),
            ),
        )  # fmt: skip
        assert not differences(jobs, Scenario(pools=pools))
        standing = PoolModel(
            name="own",
            limited=False,
            machines=most,
            standing=most,
            procs=procs,
            shared=shared,
            public=False,
        )
        assert not differences(jobs, Scenario(pools=(standing,)))


@pytest.mark.parametrize("growth", [Slurm(), OnDemand()], ids=lambda growth: type(growth).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_slices_on_spot_machines_that_are_lost(name: str, growth: Slurm | OnDemand) -> None:
    jobs, draw = slice_of(name, 2000), random.Random(name)
    procs = 16 if HISTORIES[name] > 256 else 4
    own = HISTORIES[name] // procs // 3
    most = max(max(jobs.procs), HISTORIES[name]) // procs + 1
    first, last = jobs.submit[0], jobs.submit[-1]
    steps = sorted({first, *(draw.randint(first, last) for _ in range(40))})
    curve = Curve(steps, [draw.choice((0.2, 0.3, 0.5)) for _ in steps])
    market = SpotMarket(curve, available=[(when, draw.randint(0, most)) for when in steps])
    pools = (
        PoolModel(name="own", limited=False, machines=own, standing=own, procs=procs, shared=True, public=False),
        PoolModel(
            name="cloud", machines=most, procs=procs, shared=True, price=1.0, spot=market,
            release=Idle(600), boot=BootTimes(((1, 120), (16, 200))),
        ),
    )  # fmt: skip
    assert not differences(
        jobs, Scenario(pools=pools, growth=growth, limits=Limits(nodes=most + 2))
    )


@pytest.mark.parametrize("growth", [Slurm(), OnDemand()], ids=lambda growth: type(growth).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_slices_on_three_clouds_in_all_orders_of_the_file(
    name: str, growth: Slurm | OnDemand
) -> None:
    jobs, draw = slice_of(name, 2000).only(range(SLICE // 4)), random.Random(name)
    procs = 16 if HISTORIES[name] > 256 else 4
    most = max(max(jobs.procs), HISTORIES[name]) // procs + 1
    first, last = jobs.submit[0], jobs.submit[-1]
    clouds = []
    for cloud in "abc":
        steps = sorted({first, *(draw.randint(first, last) for _ in range(40))})
        curve = Curve(steps, [draw.uniform(0.3, 1.2) for _ in steps])
        clouds.append(
            PoolModel(
                name=cloud, machines=most, procs=procs, price=1.0, release=Idle(600),
                boot=BootTimes(((1, draw.randint(60, 240)),)),
                spot=SpotMarket(curve, bid=1.0),
            )
        )  # fmt: skip
    limits = Limits(nodes=most, dollars_per_hour=0.8 * most)
    assert not differences(jobs, Scenario(pools=tuple(clouds), growth=growth))
    pools = tuple(reversed(clouds))
    assert not differences(jobs, Scenario(pools=pools, growth=growth, limits=limits))


def test_what_a_market_has_is_not_looked_up_by_the_engines_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prices, stocks and boots that the engine read wrongly would be wrong in one of the two."""
    pool = PoolModel(
        name="cloud", machines=4, procs=1, price=1.0, release=Idle(60),
        boot=BootTimes(((1, 20), (4, 90))),
        spot=SpotMarket(Curve([0, 100], [0.2, 0.5]), available=[(0, 4), (300, 1)]),
    )  # fmt: skip
    jobs = Jobs([Job(0, 100, 400, 400, 3)])
    scenario = Scenario(pools=(pool,))
    assert not differences(jobs, scenario)
    for owner, name, wrong in (
        (Curve, "at", lambda _, __: 0.2),
        (SpotMarket, "next_fall", lambda _, __, ___: (2**62, range(5))),
        (BootTimes, "seconds", lambda _, __: 20),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, wrong)
            assert differences(jobs, scenario), f"{owner.__name__}.{name}"
