"""A cloud that was not read since the start, and nodes that are overdue when the daemon starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NoReturn

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.config.sections.policies import Budget, PayerBudget, SitePolicies
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Directive, LimitChange
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import BOOT, World


def never_read(world: World, cloud: str, error: type[ProviderError] = AuthError) -> None:
    world.lose_ledger()
    world.clouds[cloud].fail_next(error, 10**6, "instances")


@pytest.mark.parametrize("error", [AuthError, TransientError])
@pytest.mark.parametrize("requeue", [True, False])
def test_jobs_start_elsewhere_at_once(
    world: World, error: type[ProviderError], requeue: bool
) -> None:
    never_read(world, "onp", error)
    world.slurm.submit(1, ("op1", "pub1"), requeue=requeue)
    world.advance(60)
    job = world.slurm.queue()[1]
    assert job.nodes == ("pub1",)
    assert "RUNNING" in job.states
    assert job.restarts <= 1
    assert world.alive("onp") == [], "nothing is bought: it may have the machine already"
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("op1") if d.kind == "refused"]
    assert why.startswith("its machines could not be listed, so it sells none: onp: ")


def test_a_job_with_no_other_place_waits_and_starts_when_the_cloud_is_read(world: World) -> None:
    never_read(world, "onp")
    world.slurm.submit(1, ("op1",), requeue=False)
    world.advance(3600, step=10)
    job = world.slurm.queue()[1]
    assert "PENDING" in job.states
    assert job.restarts <= 1, "its nodes are held as long as that lasts"
    assert world.kinds("op1").count("refused") == 1
    assert world.spool.count() == 0
    world.clouds["onp"].heal()
    world.advance(world.config.timings.capacity_cooldown + 240)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert len(world.alive("onp")) == 1


def test_while_nothing_is_known_only_nodes_that_slurm_waits_for_wait(world: World) -> None:
    never_read(world, "onp")
    assert world.daemon is not None
    world.daemon.rounds["onp"].run = lambda: None  # type: ignore[method-assign]
    world.slurm.submit(1, ("op1",))
    world.advance(60)
    assert world.spool.count() == 1
    assert phase(world.slurm.node("op1")) is Phase.POWERING_UP
    assert world.alive() == []
    world.slurm.finish(1)
    world.slurm.set_node("op1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.advance(60)
    assert world.spool.count() == 0
    assert world.kinds("op1") == ["dropped"]


def test_what_is_dropped_meanwhile_is_told_once(world: World) -> None:
    never_read(world, "onp")
    assert world.daemon is not None
    world.daemon.rounds["onp"].run = lambda: None  # type: ignore[method-assign]
    world.slurm.submit(1, ("op2",))
    world.program("resume", ["op1", "op2"], {1: ["op2"]})
    world.advance(600)
    assert world.spool.count() == 2
    assert world.kinds("op1") == ["dropped"]


def test_a_start_after_a_time_away_invents_no_boot_that_failed(world: World) -> None:
    """Up, powered down and asked for again meanwhile: the requests wait behind the cloud's read."""
    timings = world.config.timings
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    world.stop()
    world.advance(120)
    world.slurm.finish(1)
    world.advance(timings.suspend_time + timings.suspend_timeout + 70)
    world.slurm.submit(2, ("pub1",))
    world.advance(200)
    world.start()
    assert world.daemon is not None
    world.daemon.overdue.task.tick()
    world.advance(60)
    assert "boot-failed" not in world.kinds("pub1")
    job = world.slurm.queue()[2]
    assert (job.restarts, "RUNNING" in job.states) == (0, True)
    assert world.ledger.exclusions.breakers() == ()
    assert world.ledger.exclusions.cool_downs(world.now) == ()


@pytest.mark.parametrize("requests", [True, False])
def test_a_node_that_is_asked_for_again_is_not_overdue_while_its_requests_wait(
    world: World, requests: bool
) -> None:
    """Also where the round was first, and ResumeTimeout is not over."""
    world.hears = False
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    assert world.daemon is not None
    world.daemon._begin_requests = lambda: None  # type: ignore[method-assign]  # behind a slow cloud
    if requests:
        world.now += 1
        world.program("suspend", ("pub1",), {})
        world.program("resume", ("pub1",), {1: ("pub1",)})
    world.advance(given_up_after(world.config.timings.resume_timeout) + BOOT)
    assert ("boot-failed" in world.kinds("pub1")) is not requests


@pytest.mark.parametrize("left", [2.0, 25.0])
def test_a_node_that_is_overdue_is_given_back_before_its_timeout_all_the_same(
    world: World, left: float
) -> None:
    """A cloud's first read may take longer than is left."""
    world.hears = False
    world.slurm.submit(1, ("pub1",), requeue=False)
    world.advance(5)
    world.stop()
    asked, timeout = world.slurm.asked("pub1"), world.config.timings.resume_timeout
    world.advance(asked + timeout - left - world.now)
    world.start()
    assert world.daemon is not None
    while world.now < asked + timeout - 1:
        world.daemon.overdue.task.tick()
        world.now += 1
        world.live()
    assert "boot-failed" in world.kinds("pub1")
    assert 1 in world.slurm.queue()
    assert not [kind for kind, *_ in world.requests if kind == "resume-fail"]


@pytest.mark.parametrize("kind", [LookupError, lambda page: ProviderError("pub", "Bad", page)])
@pytest.mark.parametrize("name", ["instances", "offers"])
def test_an_error_as_long_as_an_answer_is_cut_before_it_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, kind: Callable[[str], Exception]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise kind("<item>" * 100_000)

    monkeypatch.setattr(world.clouds["pub"], name, fail)
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    kept = [str(d.reason) for d in world.ledger.decisions.about("pub1")]
    kept += [one.error or "" for one in world.ledger.health.all()]
    assert any("<item>" in text for text in kept)
    assert max(map(len, kept)) < 1200


@pytest.mark.parametrize(
    ("order", "policies", "awaited"),
    [
        (None, SitePolicies(), ""),
        (LimitChange(scope="", key="nodes", value=3), SitePolicies(), "onp"),
        (LimitChange(scope="cloud:pub", key="nodes", value=3), SitePolicies(), ""),
        (LimitChange(scope="", key="per_day", value=9.0), SitePolicies(), "onp"),
        (LimitChange(scope="cloud:pub", key="per_day", value=9.0), SitePolicies(), ""),
        (None, SitePolicies(budget=Budget(per_month=9.0)), "onp"),
        (None, SitePolicies(account_budgets={"physics": PayerBudget(per_day=9.0)}), "onp"),
    ],
)
def test_all_clouds_are_read_first_if_a_bound_counts_the_machines_of_all(
    world: World, order: LimitChange | None, policies: SitePolicies, awaited: str
) -> None:
    """Also a limit or a budget that an operator ordered, and a budget."""
    if order is not None:
        world.ledger.directives.give(
            Directive(word=order, who="root", since=world.now, starts=world.now)
        )
    config = replace(world.config, limits=Limits(), policies=policies)
    site = dataclasses.replace(world.site, config=config)
    assert site.first_unread_cloud("pub", {"pub"}) == awaited
    assert site.first_unread_cloud("pub", {"pub", "onp"}) == ""
