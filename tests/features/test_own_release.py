"""A release policy of another package: what the file, the daemon and the simulator make of a good
policy, and of one that raises, answers nonsense or cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, ReleaseError
from slurm_elastic.config import configfile, release_kinds
from slurm_elastic.config.pool_rules import MARGIN, fail_safe
from slurm_elastic.config.release_kinds import POINT, checked_release
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import PoolPolicies, SitePolicies
from slurm_elastic.features.growth import autoscaler
from slurm_elastic.features.growth.autoscaler import HEALTH
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.growth.capacity import OnDemand
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from tests.controller.world import PUB, SHAPE, World, make_config
from tests.outside import announce, imported_from, site_text

CODE = """
from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.growth.release import OwnRelease

class Mine(OwnRelease, frozen=True, tag="mine"):
    idle: int = 60
    longest = 900

    def leaves_at(self, machine):
        BODY

POLICY = PolicyKind(policy=Mine, api=1)
"""
GOOD = "return machine.since + self.idle"
WRONG = {
    "raises": ("raise ZeroDivisionError('x')", "release policy mine fails: ZeroDivisionError: x"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "float": ("return machine.now + 0.5", "expected a time in whole Unix seconds"),
    "true": ("return True", "found True, expected a time"),
    "none": ("return None", "found None, expected a time"),
}
SITE = site_text("policies: {growth: on_demand, release: mine(idle=30)}")


def put(folder: Path, body: str = GOOD) -> None:
    (folder / "outside_mine.py").write_text(CODE.replace("BODY", body))
    announce(folder, release_kinds.POINT.group, "mine", "outside_mine:POLICY")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with imported_from(tmp_path, monkeypatch, POINT.forget) as folder:
        yield folder


def make_world() -> World:
    """A public pool of three under the policy."""
    burst = replace(
        make_config(Path("/nonexistent")).pools[1], markets=(Market.ON_DEMAND,),
        policies=PoolPolicies(growth="on_demand", release="mine(idle=60)"),
    )  # fmt: skip
    pub = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
    )
    return World(
        allow=Who(accounts=("physics",)), clouds=(pub,), pools=(burst,), limits=Limits(),
        policies=SitePolicies(poll_interval=5.0),
    )  # fmt: skip


def health(world: World) -> str:
    return next((h.error or "" for h in world.ledger.health.all() if h.name == HEALTH), "")


def with_idle_machine(world: World) -> None:
    world.slurm.submit(1, PUB, 1, partitions=("pub",), limit=120, node_count=1)
    world.advance(60)
    assert len(world.alive()) == 1
    world.slurm.finish(1)


def test_a_file_may_name_it_and_suspend_time_comes_after_it(folder: Path) -> None:
    put(folder)
    config = configfile.parse(SITE, "site.yaml")
    assert fail_safe(config, config.clouds[0]) == 900 + MARGIN


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mien", "there is no 'mien', expected one of idle, on_demand,"),
        ("mine(least=2)", "mine: there is no parameter 'least', expected idle"),
    ],
)
def test_a_wrong_name_is_reported_with_the_right_ones(folder: Path, text: str, why: str) -> None:
    put(folder)
    with pytest.raises(ConfigError, match=r"policies\.release") as caught:
        configfile.parse(SITE.replace("mine(idle=30)", text), "site.yaml")
    assert why in str(caught.value)


def test_a_machine_goes_by_it(folder: Path) -> None:
    put(folder)
    world = make_world()
    try:
        with_idle_machine(world)
        world.advance(40)
        assert len(world.alive()) == 1
        world.advance(60)
        assert world.alive() == []
        assert health(world) == ""
    finally:
        world.close()


@pytest.mark.parametrize("wrong", [*WRONG, "mute", "unusable"])
def test_if_it_fails_no_machine_goes_by_it_and_machines_still_start(
    folder: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler, "POLICY_TIMEOUT_S", 0.2)
    extra = {
        "mute": ("import threading\n        threading.Event().wait()", "fails: no answer"),
        "unusable": ("return (", "release policy 'mine(idle=60)': 'mine', but outside_mine:POLICY"),
    }
    body, why = (WRONG | extra)[wrong]
    put(folder, body)
    world = make_world()
    try:
        with_idle_machine(world)
        world.advance(100)
        assert len(world.alive()) == 1
        assert why in health(world) or "earlier calls have not ended" in health(world)
        world.slurm.submit(2, PUB, 2, partitions=("pub",), limit=120, node_count=2)
        world.advance(60)
        assert len(world.alive()) == 2
    finally:
        world.close()


def test_the_longest_idle_time_bounds_it(folder: Path) -> None:
    put(folder, "return machine.now + 10**9")
    policy = checked_release("mine")
    assert policy.due(0, 1000, 1100, 1, public=True) == 1900
    assert policy.due(0, 1000, 5000, 1, public=True) == 5000


def test_the_simulator_releases_by_it_or_ends_with_the_sentence(folder: Path) -> None:
    put(folder, "return machine.since + self.idle if self.idle else None")
    jobs = Jobs([Job(number=i, submit=7200 * i, run=600, limit=900, procs=1) for i in range(5)])
    hours = []
    for idle in (60, 800):
        pool = PoolModel(
            name="burst", machines=2, procs=1, public=True,
            release=checked_release(f"mine(idle={idle})"),
        )  # fmt: skip
        result = simulate(jobs, Scenario(pools=(pool,), growth=OnDemand()))
        hours.append(result.figures.pools[0].hours)
    assert hours[1] - hours[0] == pytest.approx(5 * 740 / 3600, abs=0.1)
    broken = replace(pool, release=checked_release("mine(idle=0)"))
    with pytest.raises(ReleaseError, match="release policy mine fails: found None"):
        simulate(jobs, Scenario(pools=(broken,), growth=OnDemand()))
