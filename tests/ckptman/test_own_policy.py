"""A checkpoint policy of another package: what the file, the service and the simulator make of a
good policy, and of one that raises, answers nonsense, never answers or cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError, SavePolicyError
from slurm_elastic.ckptman import bounded_policies
from slurm_elastic.config import checkpoint_kinds, configfile
from slurm_elastic.config.checkpoint_kinds import POINT, checked_policy, policy_of
from slurm_elastic.policies.checkpoint.checkpoint import is_ours, watches_prices
from slurm_elastic.simulate.checkpointed_run import Checkpoints, Trip, ride
from tests.ckptman.world import CkptWorld
from tests.outside import announce, imported_from, site_text

CODE = """
from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint

class Mine(OwnCheckpoint, frozen=True, tag="mine"):
    every: int = 100
    watches_prices = True

    def save_now(self, situation):
        is_over = situation.now >= situation.since + self.every
        BODY

POLICY = PolicyKind(policy=Mine, api=API)
"""
GOOD = "return 'as I like it' if is_over else None"
WRONG = {
    "raises": ("raise ZeroDivisionError('a\\nb')", "ZeroDivisionError: a b"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "true": ("return True", "found True, expected None, or the reason as text"),
    "empty": ("return ''", "found '', expected None"),
}
TEXT = "first_of(on_notice, mine(every=50))"
SITE = site_text(f"checkpoint: {{prices: {{source: file, file: /p.csv}}, policy: '{TEXT}'}}")


def put(folder: Path, body: str = GOOD, api: int = 1) -> None:
    (folder / "outside_mine.py").write_text(CODE.replace("BODY", body).replace("API", str(api)))
    announce(folder, checkpoint_kinds.POINT.group, "mine", "outside_mine:POLICY")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    def forget() -> None:
        POINT.forget()
        policy_of.cache_clear()

    with imported_from(tmp_path, monkeypatch, forget) as folder:
        yield folder


def health(world: CkptWorld) -> str:
    rows = world.ledger.health.all()
    return next((row.error or "" for row in rows if row.name.startswith("checkpoint policy")), "")


def saves(world: CkptWorld) -> int:
    return world.saver.calls.count(("checkpoint", 7))


# what the file says


def test_a_file_may_name_it_inside_of_first_of(folder: Path) -> None:
    put(folder)
    assert configfile.parse(SITE, "site.yaml").checkpoint.policy == TEXT
    assert not is_ours(checked_policy(TEXT))
    assert watches_prices(checked_policy(TEXT))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mien", "there is no 'mien', expected one of none, hour,"),
        ("mien", "did you mean mine?"),
        ("mine(most=2)", "mine: there is no parameter 'most', expected every"),
    ],
)
def test_a_wrong_name_is_reported_with_the_right_ones(folder: Path, text: str, why: str) -> None:
    put(folder)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace(TEXT, text), "site.yaml")
    assert why in str(caught.value)
    assert "site.yaml:3: checkpoint.policy" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "api", "why"),
    [
        (GOOD, 2, "'mine', but outside_mine:POLICY is made for interface 2 of checkpoint policies"),
        ("return (", 1, "'mine', but outside_mine:POLICY cannot be imported: SyntaxError"),
    ],
    ids=["another interface", "no Python"],
)
def test_an_unusable_policy_is_refused_and_a_running_service_goes_on_without_it(
    folder: Path, code: str, api: int, why: str
) -> None:
    put(folder, code, api)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE, "site.yaml")
    assert why in str(caught.value)
    assert configfile.parse(SITE, "site.yaml", whole=False).checkpoint.policy == TEXT
    world = CkptWorld(policy=TEXT)
    try:
        world.runs(7)
        assert why in health(world)
        world.interrupt(world.job(7).nodes[0])
        world.until(lambda: world.job(7).restarts == 1)
        assert saves(world) == 1, "the default policy answers the notice"
    finally:
        world.close()


# what the service does


def test_the_service_saves_by_it_and_answers_notices_by_the_other(folder: Path) -> None:
    put(folder)
    world = CkptWorld(policy=TEXT)
    try:
        world.runs(7)
        world.advance(60)
        assert saves(world) >= 2
        assert health(world) == ""
        reasons = [d.reason for d in world.ledger.decisions.about("job:7", 100)]
        assert any("as I like it" in str(reason) for reason in reasons)
        world.interrupt(world.job(7).nodes[0])
        world.until(lambda: world.job(7).restarts == 1)
    finally:
        world.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_if_it_fails_the_default_policy_decides(folder: Path, wrong: str) -> None:
    body, why = WRONG[wrong]
    put(folder, body)
    world = CkptWorld(policy="mine")
    try:
        world.runs(7)
        assert why in health(world)
        assert "first_of(on_notice, daly) decides instead" in health(world)
        world.interrupt(world.job(7).nodes[0])
        world.until(lambda: world.job(7).restarts == 1)
        assert saves(world) == 1
    finally:
        world.close()


def test_one_that_never_answers_holds_up_no_other_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_policies, "TIMEOUT_S", 0.1)
    put(folder, "import threading\n        threading.Event().wait()")
    world = CkptWorld(policy="mine")
    try:
        world.runs(7)
        assert "decides instead" in health(world)
        world.interrupt(world.job(7).nodes[0])
        world.until(lambda: world.job(7).restarts == 1)
    finally:
        world.close()


# what the simulator does


def test_the_simulator_saves_by_it(folder: Path) -> None:
    put(folder)
    trip = Trip(job=7, start=1000, work=1000, launched=900)
    result = ride(Checkpoints(policy=checked_policy("mine(every=300)"), dump=10), trip)
    assert (result.done, result.checkpoints) == (True, 3)


def test_the_simulator_ends_with_the_sentence_of_a_failure(folder: Path) -> None:
    put(folder, WRONG["raises"][0])
    with pytest.raises(SavePolicyError, match="checkpoint policy mine fails: ZeroDivisionError"):
        ride(Checkpoints(policy=checked_policy("mine")), Trip(job=7, start=0, work=90, launched=0))
