"""A growth policy of another package: what the file, the daemon and the simulator make of a good one,
of one that raises or answers nonsense, and of one that cannot be used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, GrowthError
from slurm_elastic.config import configfile, growth_kinds
from slurm_elastic.config.growth_kinds import POINT, checked_growth, growth_of
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import PoolPolicies, SitePolicies
from slurm_elastic.features.growth import autoscaler
from slurm_elastic.features.growth.autoscaler import HEALTH
from slurm_elastic.features.money import budget_enforcement
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.growth.capacity import Demand, parse_growth
from slurm_elastic.policies.growth.guarded import grown, surplus
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.watch.doctor import services
from tests.controller.world import PUB, SHAPE, World, make_config
from tests.outside import announce, imported_from, site_text

CODE = """
from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.growth.capacity import Growth, OwnGrowth

class Mine(OwnGrowth, frozen=True, tag="mine"):
    most: int = 1
    PERIOD

    def grow(self, demand):
        lacking = len(demand.queue) - demand.up
        GROW

    def surplus(self, demand):
        SURPLUS

POLICY = PolicyKind(policy=Mine, api=1)
"""
GOOD = "return Growth(min(lacking, self.most), 'as I like it') if lacking > 0 else None"
WRONG = {
    "raises": ("raise ZeroDivisionError('a\\nb')", "ZeroDivisionError: a b"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "negative": (
        "return Growth(-1, 'x')",
        "found Growth(machines=-1, reason='x'), expected None or",
    ),
    "text": ("return 'many'", "found 'many', expected None or Growth"),
    "half": ("return Growth(1.5, 'x')", "found Growth(machines=1.5"),
    "true": ("return Growth(True, 'x')", "found Growth(machines=True"),
    "no reason": ("return Growth(1, None)", "reason=None"),
    "long": ("raise ValueError('x' * 10**6)", "more characters"),
    "mute": ("raise type('E', (Exception,), {'__str__': None})", "fails: E"),
}
SITE = site_text("policies: {growth: mine(most=2)}")


def code_of(grow: str = GOOD, surplus: str = "return 0", period: str = "") -> str:
    found = CODE.replace("GROW\n", f"{grow}\n").replace("SURPLUS", surplus)
    return found.replace("PERIOD", period)


def put(folder: Path, grow: str = GOOD, name: str = "mine", **code: str) -> None:
    (folder / "outside_mine.py").write_text(code_of(grow, **code))
    announce(folder, growth_kinds.POINT.group, name, "outside_mine:POLICY")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with imported_from(tmp_path, monkeypatch, POINT.forget) as folder:
        yield folder


@pytest.fixture
def make() -> Iterator[Callable[[], World]]:
    """A public pool of three under the policy, which is put there before the world begins."""
    made: list[World] = []
    burst = replace(
        make_config(Path("/nonexistent")).pools[1], markets=(Market.ON_DEMAND,),
        policies=PoolPolicies(growth="mine(most=3)", release="idle(seconds=60)"),
    )  # fmt: skip
    pub = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
    )

    def world() -> World:
        one = World(
            allow=Who(accounts=("physics",)), clouds=(pub,), pools=(burst,), limits=Limits(),
            policies=SitePolicies(poll_interval=5.0),
        )  # fmt: skip
        made.append(one)
        return one

    yield world
    for one in made:
        one.close()


def submit(world: World, job: int) -> None:
    world.slurm.submit(job, PUB, 1, partitions=("pub",), limit=120, node_count=1)


def health(world: World) -> str:
    return next((h.error or "" for h in world.ledger.health.all() if h.name == HEALTH), "")


# what the file says


def test_a_file_may_name_it_with_its_numbers(folder: Path) -> None:
    put(folder)
    assert configfile.parse(SITE, "site.yaml").policies.growth == "mine(most=2)"
    assert type(growth_of("mine(most=2)")).__module__ == "outside_mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mien", "there is no 'mien', expected one of slurm, on_demand,"),
        ("mien", "did you mean mine?"),
        ("mine(least=2)", "mine: there is no parameter 'least', expected most"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(folder: Path, text: str, why: str) -> None:
    put(folder)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace("mine(most=2)", text), "site.yaml")
    assert why in str(caught.value)
    assert "site.yaml:3: policies.growth" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import a_module_that_is_not_there", "outside_mine:POLICY cannot be imported: Module"),
        ("raise SystemExit(3)", "outside_mine:POLICY cannot be imported: SystemExit: 3"),
        ("POLICY = 7", "outside_mine:POLICY is no PolicyKind"),
        (code_of().replace("api=1", "api=9"),
         "made for interface 9 of growth policies, this release has 1"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_used_is_a_mistake_of_the_file_and_keeps_no_service_away(
    folder: Path, code: str, why: str
) -> None:
    put(folder)
    (folder / "outside_mine.py").write_text(code)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE, "site.yaml")
    assert why in str(caught.value)
    assert configfile.parse(SITE, "site.yaml", whole=False).policies.growth == "mine(most=2)"
    with pytest.raises(GrowthError) as failed:
        grown(growth_of("mine(most=2)"), Demand(now=0))
    assert why in str(failed.value)


def test_a_name_that_is_ours_is_a_mistake_and_ours_is_used(folder: Path) -> None:
    put(folder, name="bursts")
    with pytest.raises(ValueError, match="'bursts', which several packages have: slurm_elastic"):
        checked_growth("bursts(waste=60)")
    assert growth_of("bursts(waste=60)") == parse_growth("bursts(waste=60)")


def test_one_that_is_no_own_growth_is_a_mistake(folder: Path) -> None:
    put(folder)
    code = code_of().replace("class Mine(OwnGrowth", "class Mine(Policy")
    code = code.replace("import Growth, OwnGrowth", "import Growth, Policy")
    (folder / "outside_mine.py").write_text(
        code.replace("most: int = 1", "most: int = 1\n    period = None")
    )
    with pytest.raises(ValueError, match="Mine is no OwnGrowth"):
        checked_growth("mine")


def test_nothing_is_imported_that_no_file_names(folder: Path) -> None:
    put(folder)
    (folder / "outside_mine.py").write_text("raise SystemExit(3)")
    checked_growth("bursts(waste=60)")
    assert "mine" in POINT.table().names()


@pytest.mark.parametrize("period", ["0", "-5", "1.5", "'x'"])
def test_a_period_that_makes_no_sense_is_told(folder: Path, period: str) -> None:
    put(folder, period=f"period = {period}")
    with pytest.raises(ValueError, match=r"period is .*, expected whole seconds over 0, or None"):
        checked_growth("mine")


# what the daemon does


def test_the_daemon_starts_what_it_asks_for(folder: Path, make: Callable[[], World]) -> None:
    put(folder)
    world = make()
    world.advance(20)
    submit(world, 1)
    world.advance(40)
    assert [j.id for j in world.slurm.queue().values() if "RUNNING" in j.states] == [1]
    (first,) = [d for d in world.ledger.decisions.about("pool:burst") if d.kind == "policy"]
    assert "as I like it" in str(first.reason)
    assert health(world) == ""


@pytest.mark.parametrize("kind", WRONG)
def test_one_that_fails_starts_nothing_and_ends_nothing_and_is_told_once(
    folder: Path, make: Callable[[], World], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    code, why = WRONG[kind]
    broken = folder / "broken"
    when = f"import pathlib\n        if pathlib.Path({str(broken)!r}).exists():\n            "
    put(folder, f"{when}{code}\n        {GOOD}")
    world = make()
    submit(world, 1)
    world.advance(40)
    assert len(world.alive()) == 1
    broken.touch()
    with caplog.at_level(logging.WARNING):
        for job in (2, 3):
            submit(world, job)
        world.advance(30)
        assert len(world.alive()) == 1, "two jobs wait, and nothing is started"
        for job in (1, 2, 3):
            world.slurm.finish(job)
        world.advance(100)
    assert len(world.alive()) == 1, "60 idle seconds are over, and nothing is ended"
    lines = [r.getMessage() for r in caplog.records if "growth policy mine fails" in r.getMessage()]
    assert len(lines) == 1
    assert why in lines[0]
    assert max(map(len, lines)) < 1500
    assert why in health(world)
    found = services._ledger_findings(world.config, world.ledger, None, world.now)
    assert any("growth policy mine fails" in f.observed for f in found)
    broken.unlink()
    world.advance(100)
    assert world.alive() == []
    assert health(world) == ""


def test_one_that_never_answers_has_failed_and_holds_up_no_other_decision(
    folder: Path, make: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler, "POLICY_TIMEOUT_S", 0.2)
    put(folder, "import threading\n        threading.Event().wait()")
    world = make()
    looks: list[object] = []
    enforce = budget_enforcement.enforce
    monkeypatch.setattr(
        budget_enforcement, "enforce", lambda *given: (looks.append(given), enforce(*given))
    )
    world.advance(10)
    submit(world, 1)
    world.advance(60)
    assert "growth policy mine fails: " in health(world)
    assert world.alive() == []
    assert len(looks) > 3


def test_a_policy_that_raises_text_of_no_encoding_is_told(
    folder: Path, make: Callable[[], World]
) -> None:
    put(folder, "raise ValueError('file \\udcff')")
    world = make()
    submit(world, 1)
    world.advance(30)
    assert "file \\udcff" in health(world)


# what the simulator does


def test_the_simulator_asks_it_at_times_of_the_calendar(folder: Path) -> None:
    put(
        folder,
        f"assert demand.now >= 10**9 and all(j.submit >= 10**9 for j in demand.queue)\n        {GOOD}",
    )
    jobs = Jobs([Job(number=i, submit=60 * i, run=600, limit=900, procs=1) for i in range(5)])
    pools = (PoolModel(name="burst", machines=2, procs=1, public=True),)
    scenario = Scenario(pools=pools, growth=checked_growth("mine(most=2)"))
    result = simulate(jobs, scenario, origin=10**9)
    assert all(start >= 0 for start in result.starts)


def test_the_simulator_says_in_a_sentence_that_it_fails(folder: Path) -> None:
    put(folder, "raise ZeroDivisionError('x')")
    jobs = Jobs([Job(number=1, submit=0, run=600, limit=900, procs=1)])
    pools = (PoolModel(name="burst", machines=2, procs=1, public=True),)
    with pytest.raises(GrowthError, match="growth policy mine fails: ZeroDivisionError: x"):
        simulate(jobs, Scenario(pools=pools, growth=checked_growth("mine")))


@pytest.mark.parametrize("answer", ["-1", "True", "None", "1/0", "'all'"])
def test_a_surplus_that_makes_no_sense_flags_nothing(folder: Path, answer: str) -> None:
    put(folder, surplus=f"return {answer}")
    with pytest.raises(GrowthError, match="growth policy mine fails"):
        surplus(checked_growth("mine"), Demand(now=0, idle=3))  # type: ignore[arg-type]
