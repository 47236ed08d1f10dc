"""A resume request: what Slurm still wants, once each, on the best offer that there is."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, TransientError
from slurm_elastic.controller.launching import provision
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import NO_SPOT, Exclusion
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.launch.gang import request_for
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.audit_trail import tell_job
from slurm_elastic.state.ledger import Decision
from tests.controller.world import PUB, World


def spot_first(world: World) -> list[str]:
    return [str(i.market) for i in world.alive("pub")]


def test_a_job_that_cannot_be_saved_gets_an_on_demand_machine(world: World) -> None:
    rule = Exclusion(
        kind=NO_SPOT, scope="job:1", until=world.now + 9000, cause=Quoted(text="it holds a lock")
    )
    world.ledger.exclusions.add(rule)
    world.slurm.submit(1, ("pub1",))
    world.advance(10)
    assert spot_first(world) == ["on-demand"]
    world.slurm.submit(2, ("pub2",))
    world.advance(10)
    assert sorted(spot_first(world)) == ["on-demand", "spot"]


def test_a_request_nobody_waits_for_any_more_is_dropped(world: World) -> None:
    world.program("resume", ["pub1"], {1: ["pub1"]})
    world.advance(10)
    assert world.alive() == []
    assert world.kinds("pub1") == ["dropped"]
    assert world.spool.count() == 0


def test_a_node_that_slurm_does_not_know_is_dropped(world: World) -> None:
    world.slurm.remove_node("pub1")
    world.program("resume", ["pub1"], {})
    world.tick()
    world.tick()
    assert world.alive() == []
    assert world.kinds("pub1") == ["dropped"]


def test_nodes_of_no_pool_are_dropped_and_the_others_served(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    (file,) = (world.dir / "requests").glob("*.json")
    file.write_text(file.read_text().replace('"pub1"', '"pub1,strange[1-2]"', 1))
    world.advance(10)
    assert len(world.machines_of("pub1")) == 1
    assert world.kinds("strange2") == ["dropped"]


def test_a_program_run_twice_buys_once(world: World) -> None:
    world.slurm.submit(1, PUB, 2)
    for _ in range(2):
        world.program(*world.requests[-1], received=world.now)
    world.advance(20)
    assert sorted(i.node for i in world.alive()) == ["pub1", "pub2"]
    assert world.kinds("pub1").count("dropped") == 2


def test_the_next_offer_serves_inside_the_same_request(world: World) -> None:
    world.clouds["pub"].fail_next(CapacityError, 1, "launch")
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    assert spot_first(world) == ["on-demand"]
    refused = next(d for d in world.ledger.decisions.about("job:1") if d.kind == "launch-refused")
    launched = next(d for d in world.ledger.decisions.about("job:1") if d.kind == "launched")
    assert refused.correlation == launched.correlation != ""


def test_what_one_offer_lacks_the_next_one_gives(world: World) -> None:
    world.clouds["pub"].limit("small/zone-1/spot", 1)
    world.slurm.submit(1, PUB, 2)
    world.advance(5)
    assert sorted(spot_first(world)) == ["on-demand", "spot"]
    # It gave what it had said it has: nothing was refused, and it need not rest.
    assert "launch-refused" not in world.kinds("pub1") + world.kinds("pub2")
    assert not world.ledger.exclusions.cool_downs(world.now)


def test_nodes_in_doubt_get_no_other_offer(world: World) -> None:
    world.hears = False  # it takes long to boot
    world.clouds["pub"].visible_after = 200
    world.clouds["pub"].lose_answer_next(1000)
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    assert "launch-in-doubt" in world.kinds("pub1")
    world.program(*world.requests[-1], received=world.now)  # and it is asked for again
    world.advance(100)
    assert len(world.machines_of("pub1")) == 1
    world.clouds["pub"].heal()
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1
    assert world.ledger.launches.open() == ()


def test_a_launch_in_doubt_is_not_repeated_before_a_suspend_request_that_would_end_its_machine(
    world: World,
) -> None:
    """Slurm wants the node again, and the daemon comes to the earlier request only later."""
    world.clouds["pub"].fail_next(TransientError, 100, "launch")
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    assert "launch-in-doubt" in world.kinds("pub1")
    waiting = Request(id="r9", kind="suspend", nodes=("pub1",), received=world.now)
    world.site.suspends[waiting.id] = waiting
    world.clouds["pub"].heal()
    world.advance(60)
    assert world.alive() == []
    world.site.suspends.pop(waiting.id)
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1


def test_a_suspend_request_waits_no_longer_than_it_takes(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    world.slurm.finish(1)
    world.advance(600)
    assert world.alive() == []
    assert not world.site.suspends


@pytest.mark.parametrize("error", [AuthError, TransientError])
def test_a_cloud_without_offers_gives_the_nodes_back_with_its_words(
    world: World, error: type[ProviderError]
) -> None:
    world.clouds["pub"].fail_next(error, 10_000, "offers")
    world.slurm.submit(1, ("pub1",))
    world.advance(40)
    assert phase(world.slurm.node("pub1")) in (Phase.POWERING_DOWN, Phase.POWERED_DOWN)
    refused = [str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert refused == [f"pub: Fake{error.__name__}: as it was asked to"]


@pytest.mark.parametrize(("error", "told"), [(AuthError, ["auth"]), (CapacityError, [])])
def test_only_where_offers_are_refused_for_our_credentials_somebody_has_to_renew_them(
    world: World, error: type[ProviderError], told: list[str]
) -> None:
    world.clouds["pub"].fail_next(error, 1, "offers")
    request = request_for("r1", world.site.pools["burst"], ["pub1"], {})
    offers, why = provision.ask_for_offers(world.site, request)
    assert (offers, str(why)) == ((), f"pub: Fake{error.__name__}: as it was asked to")
    assert [health.code for health in world.ledger.health.all()] == told


def test_offers_that_are_only_slow_to_come_are_waited_for(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, 3, "offers")
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    assert len(world.machines_of("pub1")) == 1


def test_offers_that_raise_something_unknown_fail_that_request_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.clouds["pub"], "offers", broken)
    world.slurm.submit(1, ("pub1",))
    world.slurm.submit(2, ("op1",))
    world.advance(10)
    assert "refused" in world.kinds("pub1")
    assert len(world.machines_of("op1")) == 1


def test_the_ranking_tells_which_job_waits_for_which_node(world: World) -> None:
    world.slurm.submit(1, PUB, 2)
    world.advance(5)
    (ranked,) = [d for d in world.ledger.decisions.about("job:1") if d.kind == "ranked"]
    assert ranked.detail is not None
    assert ranked.detail["jobs"] == {"1": "pub[1-2]"}


def test_every_decision_has_a_correlation_and_a_reason(world: World) -> None:
    world.clouds["pub"].limit("*", 0)
    world.slurm.submit(1, PUB, 2, requeue=False)
    world.slurm.submit(2, ("op1",))
    world.advance(400)
    for subject in (*PUB, "op1", "job:1", "job:2"):
        for decision in world.ledger.decisions.about(subject):
            assert decision.correlation
            assert str(decision.reason)
    kinds = {d.kind: d.correlation for d in world.ledger.decisions.about("job:1")}
    assert kinds["requeued"] == kinds["refused"]


def test_a_jobs_story_leaves_out_the_other_nodes_of_its_request(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.slurm.submit(2, ("pub2",))
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.program("resume", ["pub1", "pub2"], {1: ["pub1"], 2: ["pub2"]})
    world.advance(30)
    world.ledger.decisions.record(
        Decision(
            at=world.now, correlation="x", kind="other", subjects=("pub2",), cause=Quoted(text="x")
        )
    )
    assert "other" not in [d.kind for d in tell_job(1, world.ledger.decisions.about)]
    assert "other" in [d.kind for d in tell_job(2, world.ledger.decisions.about)]
