"""One launch: what each failure of the cloud means, and that no answer is bought twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.controller.context import new_generation
from slurm_elastic.controller.launching import launch as launch_module
from slurm_elastic.controller.launching.launch import (
    RETRY_FOR_S,
    LaunchOutcome,
    forget_refusals,
    launch,
    make_cool_down,
    rebuild_spec,
    report_auth,
)
from slurm_elastic.controller.launching.provision import ask_for_offers
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.refusals import CloudSilent
from slurm_elastic.model.cluster import Instance, LaunchSpec, Market, NodeRequest
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.policies.launch.exclusions import DENIED
from tests.controller.world import PUB, World, make_config

FOREVER = 10_000


def spec_for(world: World, *nodes: str) -> LaunchSpec:
    pool = world.site.pools["burst"]
    offer = world.clouds["pub"].offers(pool)[0]
    spec = LaunchSpec(
        generation=new_generation(world.now), pool=pool, nodes=nodes, offer=offer, jobs=(7,)
    )
    world.ledger.launches.record_intent(spec, "r1", world.now)
    return spec


def launches(world: World) -> int:
    return sum(call.name == "launch" for call in world.clouds["pub"].calls)


def test_a_refusal_is_written_down_before_anything_else_can_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud has answered: the intent is closed, whatever becomes of the cool-down."""
    spec = spec_for(world, "pub1")
    world.clouds["pub"].fail_next(CapacityError, 1, "launch")
    monkeypatch.setattr(launch_module, "make_cool_down", lambda *_: 1 / 0)
    result = launch(world.site, spec, "r1")
    assert result.outcome is LaunchOutcome.REFUSED, "so the next offer is tried"
    assert world.ledger.launches.open() == ()


def test_a_throttled_call_is_repeated_under_its_token(world: World) -> None:
    spec = spec_for(world, "pub1", "pub2")
    world.clouds["pub"].fail_next(TransientError, 3, "launch")
    result = launch(world.site, spec, "r1")
    assert result.outcome is LaunchOutcome.STARTED
    assert launches(world) == 4
    assert len(world.alive()) == 2
    assert world.ledger.launches.open() == ()


def test_a_lost_answer_is_asked_for_again(world: World) -> None:
    world.clouds["pub"].lose_answer_next(2)
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is LaunchOutcome.STARTED
    assert len(world.alive()) == 1


def test_after_the_deadline_the_launch_stays_open(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is LaunchOutcome.IN_DOUBT
    assert 30 < world.now - began <= RETRY_FOR_S
    assert len(world.ledger.launches.open()) == 1


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[World]:
    """The on-premises cloud boots in seconds, the public one in minutes."""
    onp, pub = make_config(tmp_path).clouds
    clouds = (replace(onp, resume_timeout=20.0), replace(pub, resume_timeout=600.0))
    made = World(tmp_path, clouds=clouds)
    yield made
    made.close()


@pytest.mark.parametrize(("cloud", "least_s", "most_s"), [("onp", 1, 10), ("pub", 30, RETRY_FOR_S)])
def test_calls_of_a_cloud_are_repeated_for_half_of_its_own_time_to_boot_at_most(
    uneven: World, cloud: str, least_s: float, most_s: float
) -> None:
    pool = next(p for p in uneven.site.pools.values() if p.cloud == cloud)
    uneven.clouds[cloud].fail_next(TransientError, FOREVER, "offers")
    began = uneven.now
    offers, cause = ask_for_offers(
        uneven.site, NodeRequest(id="r1", pool=pool, nodes=pool.nodes[:1])
    )
    assert (offers, type(cause)) == ((), CloudSilent)
    assert least_s < uneven.now - began <= most_s


def test_a_short_throttle_refuses_no_request_though_another_cloud_boots_in_seconds(
    uneven: World,
) -> None:
    uneven.clouds["pub"].fail_next(TransientError, 6, "offers")
    uneven.clouds["pub"].fail_next(TransientError, 6, "launch")
    uneven.slurm.submit(1, PUB, 1, partitions=("pub",))
    uneven.advance(120)
    assert [i.node for i in uneven.alive("pub")] == [PUB[0]]
    assert "refused" not in uneven.kinds("job:1")
    assert uneven.ledger.exclusions.holds() == ()


def test_a_call_is_not_repeated_once_nothing_may_be_bought(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger fails between two tries; the launch stays open for a round that knows all."""
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    spec = spec_for(world, "pub1")
    wait = world.site.wait

    def meanwhile(seconds: float) -> bool:
        monkeypatch.setattr(type(world.ledger), "end_only", "the disk is full")
        return wait(seconds)

    object.__setattr__(world.site, "wait", meanwhile)
    result = launch(world.site, spec, "r1")
    assert (result.outcome, launches(world), world.alive()) == (LaunchOutcome.IN_DOUBT, 1, [])
    assert "the disk is full" in result.reason
    assert [row.generation for row in world.ledger.launches.open()] == [spec.generation]


def test_an_open_launch_is_repeated_without_waiting(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1", is_repetition=True)
    assert result.outcome is LaunchOutcome.IN_DOUBT
    assert (launches(world), world.now) == (1, began)


def test_what_only_time_can_tell_is_left_to_a_later_round(world: World) -> None:
    """The wait would hold up the cloud's other launches."""
    world.clouds["pub"].fail_next(UnsettledError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is LaunchOutcome.IN_DOUBT
    assert (launches(world), world.now) == (1, began)
    assert len(world.ledger.launches.open()) == 1


def test_a_launch_of_an_earlier_round_says_so_to_the_provider(world: World) -> None:
    spec = spec_for(world, "pub1")
    (row,) = world.ledger.launches.open()
    assert rebuild_spec(world.site, row) == replace(spec, is_repeated=True)


@pytest.mark.parametrize(
    ("error", "key", "seconds"),
    [
        (CapacityError, "pub/small/zone-1/spot", 180),
        (QuotaError, "pub/*/*/spot", 1800),
        (AuthError, "pub/*/*/*", 60),
        (DeniedError, "pub/small/zone-1/spot", 180),
        (InstanceNotFound, "pub/small/zone-1/spot", 180),
    ],
)
def test_a_refusal_cools_down_what_it_is_about(
    world: World, error: type[ProviderError], key: str, seconds: float
) -> None:
    world.clouds["pub"].fail_next(error, 1, "launch")
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is LaunchOutcome.REFUSED
    (cool_down,) = world.ledger.exclusions.cool_downs(world.now)
    assert (cool_down.scope, cool_down.until) == (key, world.now + seconds)
    assert world.ledger.launches.open() == ()
    assert world.alive() == []


def test_cool_downs_double_up_to_the_maximum(world: World) -> None:
    lengths = []
    for _ in range(7):
        world.clouds["pub"].fail_next(CapacityError, 1, "launch")
        launch(world.site, spec_for(world, "pub1"), "r1")
        (cool_down,) = world.ledger.exclusions.cool_downs(world.now)
        lengths.append(cool_down.until - world.now)
        world.now = cool_down.until + 1
    assert lengths == [180, 360, 720, 1440, 2880, 3600, 3600]


def test_a_refused_credential_is_reported(world: World) -> None:
    world.clouds["pub"].fail_next(AuthError, 1, "launch")
    launch(world.site, spec_for(world, "pub1"), "r1")
    (health,) = world.ledger.health.all()
    assert (health.name, health.code) == ("pub", "auth")


def test_a_denied_launch_is_no_word_on_the_credentials(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.clouds["pub"].fail_next(DeniedError, 1, "launch")
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is LaunchOutcome.REFUSED
    assert world.ledger.health.all() == ()
    assert "grant the right offer=pub/small/zone-1/spot" in caplog.text
    (cool_down,) = world.ledger.exclusions.cool_downs(world.now)
    assert cool_down.code == DENIED


def test_what_is_denied_for_all_of_a_market_cools_the_market_down(world: World) -> None:
    spec = spec_for(world, "pub1")
    error = DeniedError("pub", "Forbidden", "no right to it", of_market=True)
    one = make_cool_down(world.site, spec.offer, error)
    assert (one.scope, one.until, one.code) == ("pub/*/*/spot", world.now + 180, DENIED)
    assert str(one.cause) == "Forbidden: no right to it"


def test_a_call_that_is_denied_whole_is_denied_for_all_its_offers(world: World) -> None:
    spec = spec_for(world, "pub1")
    other = replace(spec.offer, zone="zone-2")
    world.clouds["pub"].fail_next(DeniedError, 1, "launch")
    launch(world.site, replace(spec, alternatives=(other,)), "r1")
    scopes = {one.scope for one in world.ledger.exclusions.cool_downs(world.now)}
    assert scopes == {spec.offer.key, other.key}


@pytest.mark.parametrize("error", [AuthError, DeniedError, InstanceNotFound])
def test_a_refusal_after_a_lost_answer_says_nothing_of_it(
    world: World, error: type[ProviderError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines are there: another offer for their nodes would double them."""
    spec = spec_for(world, "pub1")
    cloud = world.clouds["pub"]
    cloud.lose_answer_next()

    def then_refuse(seconds: float) -> bool:
        cloud.fail_next(error, 1, "launch")
        return world.wait(seconds)

    object.__setattr__(world.site, "wait", then_refuse)
    assert launch(world.site, spec, "r1").outcome is LaunchOutcome.IN_DOUBT
    assert [row.generation for row in world.ledger.launches.open()] == [spec.generation]
    assert len(world.alive()) == 1


def test_capacity_under_the_token_of_a_busy_call_is_an_answer(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    world.clouds["pub"].fail_next(CapacityError, 1, "launch")
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is LaunchOutcome.REFUSED
    assert world.ledger.launches.open() == ()


def test_an_unknown_exception_leaves_the_launch_open(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(spec: LaunchSpec) -> Sequence[Instance]:
        raise KeyError("InstanceId")

    monkeypatch.setattr(world.clouds["pub"], "launch", broken)
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is LaunchOutcome.IN_DOUBT
    assert len(world.ledger.launches.open()) == 1
    assert "Traceback" in caplog.text


def test_a_result_that_cannot_be_kept_leaves_the_launch_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    spec = spec_for(world, "pub1")
    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.machines, "record_launch", full)
        with pytest.raises(sqlite3.OperationalError):
            launch(world.site, spec, "r1")
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1
    assert world.ledger.launches.open() == ()


def test_a_stopping_service_does_not_wait_for_a_busy_cloud(world: World) -> None:
    object.__setattr__(world.site, "wait", lambda _: True)
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is LaunchOutcome.IN_DOUBT
    assert launches(world) == 1


@pytest.mark.parametrize(("deadline", "calls"), [(23.5, 7), (23.4, 6)])
def test_the_pauses_between_tries_double_up_to_eight_seconds_and_end_at_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch, deadline: float, calls: int
) -> None:
    """Each is anything from its half up to its whole: of these the longest are taken here."""
    monkeypatch.setattr("slurm_elastic.controller.launching.launch.RETRY_FOR_S", deadline)
    drawn: list[tuple[float, float]] = []

    def longest(least: float, most: float) -> float:
        drawn.append((least, most))
        return most

    monkeypatch.setattr("slurm_elastic.controller.launching.launch.random.uniform", longest)
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is LaunchOutcome.IN_DOUBT
    pauses = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0][: calls - 1]
    assert drawn == [(pause / 2, pause) for pause in pauses]
    assert launches(world) == calls


def test_a_launch_that_stands_is_called_for_once_though_nothing_may_be_bought_by_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for(world, "pub1")
    monkeypatch.setattr(type(world.ledger), "end_only", "the disk is full")
    assert launch(world.site, spec, "r1").outcome is LaunchOutcome.STARTED
    assert [i.node for i in world.alive()] == ["pub1"]


def cooled(world: World, scope: str, count: int) -> None:
    row = Exclusion(
        kind=COOL_DOWN, scope=scope, until=world.now - 1, cause=Quoted(text="x"), count=count
    )
    world.ledger.exclusions.add(row)


@pytest.mark.parametrize("several", [True, False])
def test_what_gave_all_that_was_asked_for_is_forgiven_its_refusals(
    world: World, *, several: bool
) -> None:
    spec = spec_for(world, "pub1")
    other = replace(spec.offer, market=Market.ON_DEMAND)
    spec = replace(spec, alternatives=(other,) if several else ())
    cooled(world, spec.offer.key, 2)
    cooled(world, "pub/*/*/*", 0)
    cooled(world, other.key, 3)
    forget_refusals(world.site, spec, world.clouds["pub"].launch(replace(spec, alternatives=())))
    left = {one.scope: one.count for one in world.ledger.exclusions.all()}
    assert left == {"pub/*/*/*": 0, other.key: 3}, "what refused nothing rests on"


def test_a_cloud_that_does_not_say_which_of_its_machines_it_gave_is_forgiven(world: World) -> None:
    """Where there was one offer alone, it was that one."""
    spec = spec_for(world, "pub1")
    cooled(world, spec.offer.key, 2)
    forget_refusals(world.site, spec, ())
    assert world.ledger.exclusions.all() == ()


def test_somebody_has_to_renew_the_credentials_of_a_cloud(world: World) -> None:
    report_auth(world.site, AuthError("pub", "Denied", "the token is over"))
    (health,) = world.ledger.health.all()
    assert (health.name, health.code, health.checked) == ("pub", "auth", world.now)
    assert "the token is over" in (health.error or "")


def test_an_error_as_long_as_an_answer_is_cut_before_the_log_and_the_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDKs put all of an answer that they cannot read into their errors."""
    page = "<item>" * 100_000

    def refuse(spec: LaunchSpec) -> Sequence[Instance]:
        raise ProviderError("pub", "Bad", page)

    monkeypatch.setattr(world.clouds["pub"], "launch", refuse)
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    (cool_down,) = world.ledger.exclusions.cool_downs(world.now)
    assert max(len(result.reason), len(str(cool_down.cause))) < 1100
    assert result.reason.endswith("(599000 more characters)")

    def unknown(spec: LaunchSpec) -> Sequence[Instance]:
        raise LookupError(page)

    monkeypatch.setattr(world.clouds["pub"], "launch", unknown)
    assert len(launch(world.site, spec_for(world, "pub2"), "r1").reason) < 1100
