"""One cause is told once, whoever remembers it or suffers from it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import mkdtemp

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, SlurmError
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.controller import holds
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.composed import (
    CoolsDown,
    NoOfferServes,
    OffersRefused,
    PoolPaused,
    RequestsRefused,
    ScopeCoolsDown,
    ScopesCoolDown,
)
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import (
    BootsFailed,
    CheckFailed,
    MachinesFailed,
    SecretMissing,
)
from slurm_elastic.model.causes.refusals import CloudSilent, CloudUnlisted
from slurm_elastic.model.causes.stops import OutsideTimes, StoppedByOrder
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.memory import Health
from slurm_elastic.policies.launch.exclusions import DENIED
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch import causes
from tests.controller.world import World

FAILED = MachinesFailed(nodes="pub3", count=1, failure=BootsFailed())
EXPLAINED = replace(FAILED, detail=SecretMissing(name="munge key", error="refused"))
NONE_LEFT = Quoted(text="none")
UNTIL = Deadline(at=1e9)


def offers(*found: AnyCause) -> NoOfferServes:
    """A hold for want of offers, which have these causes."""
    groups = (OffersRefused(first_offer="aws/m1/a/spot", count=8, cause=cause) for cause in found)
    return NoOfferServes(groups=tuple(groups))


def pool_rests(cause: AnyCause) -> ScopesCoolDown:
    """A hold of a pool that cools down as a whole."""
    scope = ScopeCoolsDown(
        scope="aws/*/*/*/burst", until=UNTIL, code="BootFailed", cause=cause, pool="burst"
    )
    return ScopesCoolDown(scopes=(scope,))


def test_the_first_who_has_a_cause_tells_it_and_what_has_none_is_told_each_time() -> None:
    found = [
        Finding.wrong("credentials", "refused", cause="cloud:aws"),
        Finding.wrong("last errors", "refused", cause="cloud:aws"),
        *(Finding.note("spool", "unreadable") for _ in range(2)),
    ]
    assert list(causes.once_per_cause(found, set())) == [found[0], *found[2:]]
    assert list(causes.once_per_cause(found, {"cloud:aws"})) == found[2:], "another part told it"


ORDER = StoppedByOrder.of(
    Directive(word=Pause(scope=""), who="ann", since=1.0, starts=1.0, number=3)
)
SOLD_OUT = CoolsDown(until=UNTIL, code="ICE", cause=NONE_LEFT)


def cool_down(scope: str, code: str, cause: AnyCause) -> Exclusion:
    return Exclusion(kind=COOL_DOWN, scope=scope, code=code, cause=cause, until=1e9)


@pytest.mark.parametrize(
    ("cause", "at_fault"),
    [
        (CloudSilent(cloud="aws", error="ExpiredToken: no"), "cloud:aws"),
        (CloudUnlisted(cloud="aws", error="ExpiredToken: no"), "cloud:aws"),
        (pool_rests(FAILED), "pool:burst"),
        (PoolPaused(pool="burst", until=UNTIL, cause=BootsFailed(in_a_row=9)), "pool:burst"),
        (offers(PoolPaused(pool="burst", until=UNTIL, cause=BootsFailed())), "pool:burst"),
        (offers(ORDER), "order:3"),
        (ORDER, "order:3"),
        (RequestsRefused(causes=(ORDER, offers(ORDER))), "order:3"),
        (offers(ORDER, SOLD_OUT), ""),
        (OutsideTimes(times=("08:00-09:00",)), ""),
        (Quoted(text="pool burst cools down until 09:05:05 UTC: an earlier release"), ""),
    ],
)
def test_the_cause_of_a_hold_names_what_is_at_fault(cause: AnyCause, at_fault: str) -> None:
    assert causes.cause_of_hold(cause) == at_fault


@pytest.mark.parametrize(
    ("scope", "code", "cause", "at_fault"),
    [
        ("aws/*/*/*", "ExpiredToken", NONE_LEFT, "cloud:aws"),
        ("aws/*/*/*/burst", "BootFailed", FAILED, "pool:burst"),
        ("aws/m1/a/spot", DENIED, NONE_LEFT, ""),
    ],
)
def test_a_cool_down_has_the_cause_of_what_it_covers(
    scope: str, code: str, cause: AnyCause, at_fault: str
) -> None:
    assert causes.cause_of_cool_down(cool_down(scope, code, cause)) == at_fault


def test_an_answer_of_a_cloud_is_one_cause_in_a_hold_and_in_its_cool_downs() -> None:
    of_offer = causes.cause_of_cool_down(cool_down("aws/m1/a/spot", "ICE", NONE_LEFT))
    assert of_offer == causes.cause_of_cool_down(cool_down("aws/m2/a/spot", "ICE", NONE_LEFT))
    assert of_offer == causes.cause_of_hold(offers(SOLD_OUT)) != ""
    assert of_offer != causes.cause_of_cool_down(cool_down("aws/m1/a/spot", "Throttled", NONE_LEFT))


def test_what_keeps_a_machine_from_registering_is_told_beside_its_pools_breaker() -> None:
    of_pool = causes.cause_of_cool_down(cool_down("aws/*/*/*/burst", "BootFailed", EXPLAINED))
    assert of_pool == causes.cause_of_hold(pool_rests(EXPLAINED))
    assert of_pool not in ("", "pool:burst")


@pytest.mark.parametrize("words", ["no /scratch", 'the "GPU" has pending retirements; ' * 10])
def test_a_long_cause_is_the_same_in_a_hold_and_in_its_cool_down(words: str) -> None:
    """Slurm has the reason of a node cut. The hold has the cause itself, and no words to cut."""
    world = World(Path(mkdtemp()))
    failed = replace(FAILED, detail=CheckFailed(check_output=words))
    holds.hold(world.site, world.site.pools["burst"], ["pub2"], pool_rests(failed))
    (row,) = world.ledger.exclusions.holds()
    cool = cool_down("aws/*/*/*/burst", "BootFailed", failed)
    assert causes.cause_of_hold(row.cause) == causes.cause_of_cool_down(cool) != "pool:burst"
    world.close()


def test_other_words_change_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [offers(ORDER), offers(SOLD_OUT), pool_rests(FAILED), pool_rests(EXPLAINED)]
    before = [causes.cause_of_hold(cause) for cause in found]
    for kind in {type(cause) for cause in (*found, ORDER, SOLD_OUT, FAILED, EXPLAINED)}:
        monkeypatch.setattr(kind, "words", "x")
    assert [causes.cause_of_hold(cause) for cause in found] == before


def test_services_that_fail_because_slurm_or_a_cloud_does_are_not_told_beside_it() -> None:
    health = [
        Health(name="plans of Slurm", checked=1.0, error="scontrol: timed out", code="slurm"),
        Health(name="slurm", checked=2.0, error="sinfo: timed out", code="slurm"),
        Health(name="slurm (ckptman)", checked=1.0, error="squeue: timed out", code="slurm"),
        Health(name="aws", checked=1.0, error="aws: ExpiredToken: no", code="auth"),
        Health(name="notices of aws", checked=1.0, error="aws: ExpiredToken", code="cloud:aws"),
        Health(name="the network", checked=1.0, error="no route", code="network"),
        Health(name="growth policies", checked=1.0),
    ]
    named = [one.name for one in causes.service_errors(health, {"aws"}, set())]
    assert named == ["slurm", "the network"]
    assert [one.name for one in causes.service_errors(health, {"aws"}, {"slurm"})] == [
        "the network"
    ]


def test_a_source_of_ckptman_says_whether_slurm_or_a_cloud_is_at_fault(tmp_path: Path) -> None:
    with (
        contextlib.closing(Ledger(tmp_path / "ledger.db")) as ledger,
        contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state,
    ):
        recorder = BufferedRecorder(ledger, state, lambda: 1.0)
        recorder.report_failure("plans of Slurm", SlurmError(("scontrol",), 1, "away"))
        recorder.report_failure("notices of aws", AuthError("aws", "ExpiredToken", "no"))
        recorder.report_failure("notices in /x", OSError("gone"))
        found = {one.name: (one.code, one.named_error) for one in ledger.health.all()}
    assert found == {
        "plans of Slurm": ("slurm", "Slurm's reservations and drains: scontrol: exit 1: away"),
        "notices of aws": ("cloud:aws", "notices of aws: aws: ExpiredToken: no"),
        "notices in /x": ("ckpt", "notices in /x: OSError: gone"),
    }
