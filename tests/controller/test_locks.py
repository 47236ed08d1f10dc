"""Two threads of the daemon at the one place where they must not be at once: the later one waits.

Each test stops one thread there and lets the other one run until it is through or has to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meanwhile import Meanwhile, Watched
from msgspec import structs

from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.policies import PoolPolicies, SitePolicies
from slurm_elastic.controller import holds
from slurm_elastic.controller.launching import provision
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.settling import Settler
from slurm_elastic.controller.snapshot import build_terms, take_request_snapshot
from slurm_elastic.features.growth.autoscaler import Autoscaler
from slurm_elastic.features.power import starting
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import LaunchSpec, Limits, Location, Market
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.actions import Drop
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.policies.repair.request_rules import requested
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.state.ledger import LedgerState
from tests.controller.world import PUB, SHAPE, Inline, World


def public(name: str, limits: Limits) -> FakeCloud:
    return FakeCloud(name=name, location=Location.PUBLIC, types=SHAPE, limits=limits)


def pool(cloud: str, nodes: str) -> PoolSettings:
    return PoolSettings(
        name=f"pool-{cloud}", cloud=cloud, nodes=nodes, cpus=2, memory=4096,
        markets=(Market.ON_DEMAND,),
    )  # fmt: skip


def while_decided(
    world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> Meanwhile:
    """Another thread comes when a launch is decided, and not written down."""
    lock = Watched(threading.RLock)
    monkeypatch.setattr(world.ledger.store, "lock", lock)
    other = Meanwhile(lock, act)
    monkeypatch.setattr(provision, "reach", lambda _: other())
    return other


@pytest.mark.parametrize(
    "cap", [Limits(nodes=1), Limits(dollars_per_hour=0.15)], ids=["machines", "dollars"]
)
def test_two_clouds_that_decide_at_once_share_the_clusters_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: Limits
) -> None:
    own = Limits(dollars_per_hour=10.0)
    world = World(
        tmp_path, clouds=(public("a", own), public("b", own)),
        pools=(pool("a", "a1"), pool("b", "b1")), limits=cap,
    )  # fmt: skip
    world.tick()
    site = world.site
    other = while_decided(
        world, monkeypatch, lambda: provision.provision(site, "b", "r2", ("b1",), {})
    )
    provision.provision(site, "a", "r1", ("a1",), {})
    other.end()
    assert [machine.node for machine in world.alive()] == ["a1"]
    assert "refused" in world.kinds("b1")
    world.close()


def test_a_start_and_a_purchase_that_are_decided_at_once_share_the_clusters_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Limits(dollars_per_hour=10.0)
    keeping = structs.replace(pool("a", "a1"), max_stopped=1, stopped_price=0.01)
    world = World(
        tmp_path, clouds=(public("a", own), public("b", own)),
        pools=(keeping, pool("b", "b1")), limits=Limits(dollars_per_hour=0.15),
    )  # fmt: skip
    world.slurm.submit(1, ("a1",))
    world.advance(40)
    world.slurm.finish(1)
    world.advance(400)
    assert [str(machine.state) for machine in world.alive()] == ["stopped"]
    site, real = world.site, starting.new_generation
    other = while_decided(
        world, monkeypatch, lambda: provision.provision(site, "b", "r2", ("b1",), {})
    )

    def new_generation(now: float, after: float = 0.0, epoch: int = 0) -> str:
        other()
        return real(now, after, epoch)

    monkeypatch.setattr(starting, "new_generation", new_generation)
    provision.provision(site, "a", "r1", ("a1",), {})
    other.end()
    assert [(machine.node, str(machine.state)) for machine in world.alive()] == [("a1", "running")]
    assert "refused" in world.kinds("b1")
    world.close()


def test_a_machine_that_a_list_has_again_is_counted_before_a_decision_or_after_its_intent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Limits(dollars_per_hour=10.0)
    world = World(
        tmp_path, clouds=(public("a", own), public("b", own)),
        pools=(pool("a", "a1"), pool("b", "b1")), limits=Limits(nodes=1),
    )  # fmt: skip
    world.tick()
    provision.provision(world.site, "a", "r1", ("a1",), {})
    (machine,) = world.alive()
    world.ledger.machines.record_end("a", [machine.id], Quoted(text="not listed"), world.now)
    world.now += 1
    other = while_decided(
        world, monkeypatch, lambda: world.ledger.machines.observe("a", [machine], world.now)
    )
    really, there = world.ledger.launches.record_intent, []

    def intend(spec: LaunchSpec, request: str, now: float, *terms: Any) -> None:
        there.append(world.ledger.machines.live())
        really(spec, request, now, *terms)

    monkeypatch.setattr(world.ledger.launches, "record_intent", intend)
    provision.provision(world.site, "b", "r2", ("b1",), {})
    other.end()
    assert there == [()]
    assert [m.instance.node for m in world.ledger.machines.live()] == ["a1", "b1"]
    world.close()


@pytest.fixture
def held() -> Iterator[World]:
    """A public cloud whose growth policy holds its nodes, and a job that waits for it to start one.
    An admin has just lifted the drains, which come back.
    """
    world = World(
        clouds=(public("pub", Limits(dollars_per_hour=10.0)),),
        pools=(
            PoolSettings(
                name="burst", cloud="pub", nodes="pub[1-3]", cpus=2, memory=4096,
                markets=(Market.ON_DEMAND,), policies=PoolPolicies(growth="bursts(waste=120)"),
            ),
        ),
        limits=Limits(),
        policies=SitePolicies(poll_interval=5.0),
    )  # fmt: skip
    holds.hold_back(world.site, PUB, holds.BY_POLICY)
    holds.drain_when_powered_down(world.site)
    world.slurm.submit(1, PUB, partitions=("pub",), limit=120)
    world.slurm.update_nodes(PUB, state="RESUME")
    yield world
    world.close()


def drained(world: World) -> list[str]:
    return [node for node in PUB if is_drained(world.slurm.node(node))]


def settle_while(
    world: World, monkeypatch: pytest.MonkeyPatch, let_go: Callable[[Any], object]
) -> None:
    """The settler has read the holds and is about to drain their nodes; ``let_go`` comes then."""
    lock = Watched()
    site = replace(world.site, hold_lock=lock)  # type: ignore[arg-type]
    other = Meanwhile(lock, lambda: let_go(site))
    drain = other.before(holds.node_updates.drain)
    monkeypatch.setattr(holds.node_updates, "drain", drain)
    settler = Settler(site, Inline())
    settler.must_recheck = True
    settler.task.tick()
    other.end()


def test_a_node_that_a_policy_starts_is_not_drained_after_it_was_let_go(
    held: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_while(held, monkeypatch, lambda site: Autoscaler(site, Inline()).look())
    starting = [node for node in PUB if "POWERING_UP" in held.slurm.node(node).states]
    assert len(starting) == 1
    assert sorted([*starting, *drained(held)]) == list(PUB)


def test_a_node_whose_cloud_has_room_again_is_not_drained_after_it_was_let_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ledger.machines.record_whole_list("pub", world.now)
    row = Exclusion(
        kind=CAPACITY,
        scope="pub1",
        pool="burst",
        cause=Quoted(text="none left"),
        since=world.now,
        until=world.now,
    )
    world.ledger.exclusions.add(*[row])
    settle_while(world, monkeypatch, lambda site: Round(site, "pub").run())
    assert world.ledger.exclusions.holds() == ()
    assert drained(world) == []


def test_what_policies_held_is_not_drained_after_there_are_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds.hold_back(world.site, ("pub1",), holds.BY_POLICY)
    settle_while(world, monkeypatch, lambda site: Autoscaler(site, Inline()).task.tick())
    assert world.ledger.exclusions.holds() == ()
    assert drained(world) == []


def served_by_request(site: Any) -> int:
    """Of a request for the node, whether it is dropped for a machine or an open launch."""
    site.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_UP")
    request = Request(id="r2", kind="resume", nodes=("pub1",), received=site.now())
    (action,) = requested(take_request_snapshot(site, build_terms(site, "pub"), request))
    return int(isinstance(action, Drop))


def in_view(state: LedgerState) -> int:
    return len(state.machines) or len(state.launches)


@pytest.mark.parametrize("of", ["machines.live", "launches.open"])
@pytest.mark.parametrize(
    "counted",
    [
        lambda site: site.usage().nodes.get("", 0),
        lambda site: site.scope(site.pools["burst"]).usage.nodes.get("", 0),
        lambda site: len(site.served_nodes()),
        lambda site: in_view(site.ledger.state()),
        served_by_request,
    ],
    ids=["usage", "bounds", "served", "repair", "request"],
)
def test_a_launch_that_is_answered_meanwhile_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, counted: Callable[[Any], int], of: str
) -> None:
    """Between the reading of the ledger's machines and that of its launches, whichever comes
    first.
    """
    offer = world.clouds["pub"].offers(world.site.pools["burst"])[0]
    spec = LaunchSpec(
        generation="g0000000000001-a", pool=world.site.pools["burst"], nodes=("pub1",), offer=offer
    )
    world.ledger.launches.record_intent(spec, "r1", world.now)
    made = world.clouds["pub"].launch(spec)
    concern, read = of.split(".")
    part = getattr(world.ledger, concern)
    real = getattr(part, read)
    answers = iter([lambda: world.ledger.machines.record_launch(spec.generation, made, world.now)])

    def reading() -> Any:
        found = real()
        next(answers, lambda: None)()
        return found

    monkeypatch.setattr(part, read, reading)
    assert counted(world.site) == 1
