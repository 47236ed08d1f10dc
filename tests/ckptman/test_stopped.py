"""Machines that we stop and start ourselves, as ckptman sees them: nobody takes these away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_elastic.base.hostlist import compress
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.sources import NodeComments
from slurm_elastic.config import PoolSettings
from slurm_elastic.model.cluster import Market, Notice, NoticeKind
from tests.ckptman.world import CkptWorld
from tests.controller.world import PUB

POOL = PoolSettings(
    name="burst", cloud="pub", nodes=compress(PUB), cpus=2, memory=4096, max_stopped=1,
    markets=(Market.ON_DEMAND,),
)  # fmt: skip


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld(site={"pools": (POOL,)})
    yield made
    made.close()


def idle(world: CkptWorld, job: int) -> str:
    """The end of a job and the stop of its machine, which this returns."""
    world.slurm.finish(job)
    world.until(lambda: bool(world.ledger.stops.machines()), 900)
    world.advance(60)
    (one,) = world.ledger.stops.machines()
    return one.instance.id


def host_leaves(world: CkptWorld, machine: str) -> None:
    """The cloud says of its host, as long as that stands, that it is taken out of service."""
    word = Notice(instance=machine, kind=NoticeKind.REBALANCE, seen=world.now)
    world.accounts["pub"].notices[machine] = word


def test_our_own_stop_is_no_loss_and_no_threat(world: CkptWorld) -> None:
    world.runs(1)
    machine = idle(world, 1)
    node = world.runs(2).nodes[0]
    assert world.machine(node) == machine
    assert world.state.notices() == ()
    assert world.state.interruptions(0.0) == {}
    assert world.state.migrations(since=0.0) == ()
    assert world.saver.calls == []
    assert world.job(2).restarts == 0
    assert [k for k in world.kinds(node) if k.startswith("ckpt")] == []


def test_what_was_told_of_it_before_its_stop_threatens_nothing_after(world: CkptWorld) -> None:
    node = world.runs(1).nodes[0]
    machine = world.machine(node)
    host_leaves(world, machine)
    world.advance(30)
    assert world.saver.calls.count(("checkpoint", 1)) == 1
    world.accounts["pub"].notices.clear()
    assert idle(world, 1) == machine
    assert world.state.notices() == ()
    world.runs(2)
    assert world.saver.calls.count(("checkpoint", 2)) == 0


def test_the_same_word_of_its_cloud_is_news_after_its_start(world: CkptWorld) -> None:
    node = world.runs(1).nodes[0]
    machine = world.machine(node)
    host_leaves(world, machine)
    world.advance(30)
    world.accounts["pub"].notices.clear()
    idle(world, 1)
    world.runs(2)
    host_leaves(world, machine)
    world.advance(30)
    assert world.machine(node) == machine
    assert world.saver.calls.count(("checkpoint", 2)) == 1


def test_a_comment_of_before_its_stop_is_no_news_after_its_start(world: CkptWorld) -> None:
    """It stands on the node until somebody writes another."""
    node = world.runs(1).nodes[0]
    machine = world.machine(node)
    assert world.service is not None
    watch = world.service.reader
    source = NodeComments(world.slurm, watch.machines)
    world.pollers.append(
        Poller(world.ckpt, source, 1.0, watch.machines, lambda: None, world.service.orders)
    )
    mark = f"slurm-elastic:notice:rebalance:{int(world.now)}:{machine}"
    world.slurm.set_node(node, "ALLOCATED", "CLOUD", comment=mark)
    world.advance(30)
    assert world.saver.calls.count(("checkpoint", 1)) == 1
    idle(world, 1)
    assert world.runs(2).nodes == (node,)
    assert world.slurm.node(node).comment == mark
    assert world.saver.calls.count(("checkpoint", 2)) == 0
