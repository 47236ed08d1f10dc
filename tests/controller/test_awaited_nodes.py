"""A request that takes long: no machine starts too late, or for a node that Slurm has given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.config import Timings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.controller.launching.awaited_nodes import READING_TTL_S, AwaitedNodes
from slurm_elastic.model.causes.limits import RequestTooLate
from slurm_elastic.model.causes.repairs import NotAwaited, NotPoweringUp
from slurm_elastic.model.cluster import LaunchSpec, Limits, Market
from slurm_elastic.policies.launch.boots import longest_wait
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.test_stopped import idle, pools, run, stopped
from tests.controller.world import PUB, World, make_config

TIMEOUT_S = 420.0
SLOW_S = 12.0


class SlowWorld(World):
    """Slurm goes on while a cloud takes its time."""

    def pause(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1, end)
            self.slurm.step()

    def wait(self, seconds: float) -> bool:
        self.pause(seconds)
        return False


def build(directory: Path, offers: int) -> SlowWorld:
    """A cloud that refuses all its types but the dearest one, each after SLOW_S."""
    types = {
        f"t{i:02d}": InstanceType(cpus=2, memory=4096, price=0.1 + i / 1000) for i in range(offers)
    }
    config = make_config(directory)
    cloud = replace(config.clouds[1], types=types, limits=Limits(dollars_per_hour=10.0))
    pool = replace(config.pools[1], markets=(Market.ON_DEMAND,))
    world = SlowWorld(
        directory, clouds=(config.clouds[0], cloud), pools=(config.pools[0], pool),
        limits=Limits(nodes=10),
        timings=Timings(suspend_time=300, suspend_timeout=30, resume_timeout=TIMEOUT_S),
    )  # fmt: skip
    world.advance(60)
    provider = world.clouds["pub"]
    provider.tells_free = False
    for name in list(types)[:-1]:
        provider.limit(f"{name}/*", 0)
    launch = provider.launch

    def slowly(spec: LaunchSpec) -> Any:
        world.pause(SLOW_S)
        return launch(spec)

    provider.launch = slowly  # type: ignore[method-assign]
    return world


def states_of(world: World, job: int) -> frozenset[str]:
    return world.slurm.queue()[job].states


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowWorld]:
    world = build(tmp_path, offers=40)
    yield world
    world.close()


def on_call(world: World, number: int, do: Callable[[], object]) -> list[LaunchSpec]:
    """``do`` during this launch of the cloud. Returns all launches."""
    provider, calls = world.clouds["pub"], list[LaunchSpec]()
    launch = provider.launch

    def launch_and_do(spec: LaunchSpec) -> Any:
        calls.append(spec)
        if len(calls) == number:
            do()
        return launch(spec)

    provider.launch = launch_and_do  # type: ignore[method-assign]
    return calls


def test_a_request_that_many_offers_refuse_slowly_ends_in_time(slow: SlowWorld) -> None:
    calls = on_call(slow, 0, lambda: None)
    slow.slurm.submit(1, ("pub1",), 1, requeue=False)
    begin = slow.now
    slow.advance(5)
    assert slow.now - begin < longest_wait(TIMEOUT_S) + SLOW_S + 5
    assert len(calls) < 40
    assert slow.alive("pub") == [], "the machine would have come too late"
    assert "PENDING" in states_of(slow, 1), "Slurm has not failed the job"
    (refused,) = [d for d in slow.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert isinstance(refused.cause, RequestTooLate)


def test_the_next_request_tries_the_offers_that_nobody_had_the_time_to_try(
    slow: SlowWorld,
) -> None:
    slow.slurm.submit(1, ("pub1",), 1)
    for _ in range(400):
        slow.advance(5)
        if "RUNNING" in states_of(slow, 1):
            break
    assert [i.instance_type for i in slow.alive("pub")] == ["t39"]


def test_a_node_that_slurm_has_given_up_gets_no_machine(slow: SlowWorld) -> None:
    calls = on_call(slow, 2, lambda: slow.slurm.set_node("pub1", "DOWN", "CLOUD", "POWERED_DOWN"))
    slow.slurm.submit(1, ("pub1",), 1)
    slow.advance(5)
    assert len(calls) == 2
    assert slow.alive("pub") == []
    assert slow.ledger.exclusions.holds() == (), "nothing is wrong with the node"
    dropped = slow.ledger.decisions.about("pub1")[-1]
    assert (dropped.kind, dropped.cause) == ("dropped", NotPoweringUp())


def test_without_a_node_of_its_job_no_other_one_gets_a_machine(slow: SlowWorld) -> None:
    on_call(slow, 2, lambda: slow.slurm.set_node("pub1", "DOWN", "CLOUD", "POWERED_DOWN"))
    slow.slurm.submit(1, PUB[:2], 2)
    slow.slurm.submit(2, PUB[2:], 1)
    slow.advance(5)
    kinds = slow.kinds("pub2")
    (refused,) = [d for d in slow.ledger.decisions.about("pub2") if d.kind == "refused"]
    assert NotAwaited(nodes="pub1") == refused.cause
    assert "launched" not in kinds
    assert phase(slow.slurm.node("pub2")) is not Phase.POWERING_UP


def test_slurm_is_asked_once_for_all_nodes_of_a_request(
    slow: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = AwaitedNodes(slow.site, "pub", PUB, slow.now)
    asked: list[tuple[str, ...]] = []
    nodes = slow.slurm.nodes
    monkeypatch.setattr(slow.slurm, "nodes", lambda names: asked.append(names) or nodes(names))
    awaited.look()
    assert asked == []
    slow.now += READING_TTL_S
    awaited.look()
    awaited.look()
    assert asked == [PUB]


def test_while_slurm_does_not_answer_its_last_word_counts(
    slow: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = AwaitedNodes(slow.site, "pub", PUB, slow.now)

    def fails(_: object) -> Any:
        raise SlurmError(("scontrol",), 1, "slurmctld does not answer")

    monkeypatch.setattr(slow.slurm, "nodes", fails)
    slow.now += READING_TTL_S
    awaited.look()
    assert (awaited.gone, awaited.up) == (frozenset(), frozenset())
    assert awaited.whole((Gang(nodes=PUB),))


@pytest.mark.parametrize("asked_ago", [-100.0, TIMEOUT_S, 9000.0])
def test_an_age_outside_its_bound_is_unknown(slow: SlowWorld, asked_ago: float) -> None:
    assert AwaitedNodes(slow.site, "pub", PUB, slow.now - asked_ago).find_lateness() is None


def test_a_clock_that_is_set_makes_no_request_late(slow: SlowWorld) -> None:
    awaited = AwaitedNodes(slow.site, "pub", PUB, slow.now)
    object.__setattr__(slow.site, "now", lambda: slow.now + 3000)
    assert awaited.find_lateness() is None


def test_the_time_counts_from_the_newest_request_for_a_node(slow: SlowWorld) -> None:
    asked_at = slow.now - longest_wait(TIMEOUT_S)
    assert AwaitedNodes(slow.site, "pub", PUB, asked_at).find_lateness() is not None
    slow.program("resume", ["pub1"], {})
    assert AwaitedNodes(slow.site, "pub", PUB, asked_at).find_lateness() is None


def test_stopped_machines_whose_cloud_does_not_answer_are_not_started_too_late(
    tmp_path: Path,
) -> None:
    names = [f"pub{n}" for n in range(1, 11)]
    rack, burst = pools(max_stopped=10)
    settings = (rack, replace(burst, nodes="pub[1-10]"))
    timings = Timings(suspend_time=60, suspend_timeout=30, resume_timeout=TIMEOUT_S)
    config = make_config(tmp_path)
    cloud = replace(config.clouds[1], limits=Limits(dollars_per_hour=10.0))
    world = SlowWorld(
        tmp_path, pools=settings, timings=timings, limits=Limits(nodes=20),
        clouds=(config.clouds[0], cloud),
    )  # fmt: skip
    run(world, 1, *names)
    idle(world)
    assert len(stopped(world)) == 10
    world.clouds["pub"].fail_next(TransientError, 5000, "start")
    for number, name in enumerate(names):
        world.slurm.submit(100 + number, (name,), 1, requeue=False)
    begin = world.now
    world.advance(5)
    assert world.now - begin < TIMEOUT_S * 0.75
    assert len(world.slurm.queue()) == 10, "Slurm has failed none of the jobs"
    world.close()
