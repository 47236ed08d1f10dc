"""People's orders are carried out whatever fails in between, and a node whose notice is over is let
go again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from patience import patience

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.ckptman.decide import NO_DEADLINE
from slurm_elastic.ckptman.executor import KeyedExecutor, WorkKind
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.state.ckptstate.orders import SaveOrder, WithdrawOrder
from tests.ckptman.world import CkptWorld

AWAY = SlurmError(("scontrol", "show", "nodes"), 1, "Unable to contact slurm controller")


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def files(world: CkptWorld) -> list[str]:
    return [path.name for path in (world.dir / "notices").glob("*.json")]


def poll(world: CkptWorld) -> None:
    for one in world.pollers:
        assert one.poll()


def drained(world: CkptWorld, reason: str = "new kernel", left: float = 9000.0) -> str:
    """A node of ours that an operator announced the end of; its job cannot be saved."""
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    world.order("notice", node=node, reason=reason, deadline=world.now + left)
    world.advance(20)
    assert "DRAIN" in world.slurm.node(node).states
    return node


def free(world: CkptWorld, node: str) -> bool:
    return "DRAIN" not in world.slurm.node(node).states


def test_a_withdrawal_while_slurm_does_not_answer_releases_the_node_later(world: CkptWorld) -> None:
    node = drained(world)
    world.order("withdraw", node=node)
    world.slurm.broken = AWAY
    world.advance(30)
    assert not world.state.notices(), "no job is moved any more"
    world.slurm.broken = None
    world.until(lambda: free(world, node))
    assert world.kinds(node).count("ckpt-released") == 1
    assert world.state.releases() == ()


def test_a_resume_that_fails_once_is_done_soon(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = drained(world)
    update, failures = world.slurm.update_nodes, [AWAY]

    def fails(names: object, **fields: object) -> None:
        if fields.get("state") == "RESUME" and failures:
            raise failures.pop()
        update(names, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(world.slurm, "update_nodes", fails)
    world.order("withdraw", node=node)
    world.until(lambda: free(world, node))
    assert not failures


def test_a_service_that_ends_before_the_release_does_it_when_it_is_back(world: CkptWorld) -> None:
    node = drained(world)
    world.order("withdraw", node=node)
    world.slurm.broken = AWAY
    world.advance(10)
    world.slurm.broken = None
    world.restart_ckptman()
    world.until(lambda: free(world, node))


def test_a_false_alarm_while_slurm_does_not_answer_releases_the_node_later(
    world: CkptWorld,
) -> None:
    node = drained(world, left=100.0)
    world.slurm.broken = AWAY
    world.advance(800)
    assert not world.state.notices()
    world.slurm.broken = None
    world.until(lambda: free(world, node))


def test_an_admins_own_drain_that_came_after_ours_is_never_undone(world: CkptWorld) -> None:
    node = drained(world)
    world.order("withdraw", node=node)
    poll(world)
    world.slurm.set_node(node, reason="disk")
    world.advance(60)
    assert not free(world, node)
    assert world.slurm.node(node).reason == "disk"
    assert world.state.releases() == ()


def test_the_nodes_present_state_counts_and_not_that_of_the_looks_beginning(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = drained(world, left=100.0)
    world.slurm.broken = AWAY
    world.advance(800)
    world.slurm.broken = None
    assert node in world.state.releases()
    assert world.service is not None
    view = world.service.reader._read_nodes

    def later(*found: Any) -> Any:
        seen = view(*found)
        world.slurm.set_node(node, reason="disk")
        return seen

    monkeypatch.setattr(world.service.reader, "_read_nodes", later)
    world.advance(10)
    assert not free(world, node)


def test_a_node_that_is_warned_of_again_meanwhile_stays_drained_until_that_is_over(
    world: CkptWorld,
) -> None:
    node = drained(world)
    world.order("withdraw", node=node)
    world.slurm.broken = AWAY
    world.advance(10)
    world.order("notice", node=node, reason="fan", deadline=world.now + 9000)
    world.slurm.broken = None
    world.advance(30)
    assert len(world.state.notices()) == 1
    assert not free(world, node)
    world.order("withdraw", node=node)
    world.until(lambda: free(world, node))


def test_an_order_that_fails_takes_no_other_one_along(world: CkptWorld) -> None:
    node = drained(world)
    world.saver.broken = None
    world.slurm.set_job(9, "RUNNING", nodes=("pub3",), start=world.now - 100)
    world.order("withdraw", node=node)
    world.now += 1
    world.order("save", job=9)
    poll(world)
    assert len(files(world)) == 2
    world.slurm.broken = AWAY
    assert world.service is not None
    world.service.guarded_tick()
    world.slurm.broken = None
    world.until(lambda: free(world, node) and bool(world.state.images(9)))


@pytest.mark.parametrize("kind", ["withdraw", "save"])
def test_an_order_is_on_the_disk_until_it_was_carried_out(world: CkptWorld, kind: str) -> None:
    """kill -9 after it was read, and before the look at which it would have been carried out."""
    node = drained(world)
    world.saver.broken = None
    world.slurm.set_job(9, "RUNNING", nodes=("pub3",), start=world.now - 100)
    world.order(kind, **({"node": node} if kind == "withdraw" else {"job": 9}))
    poll(world)
    assert len(files(world)) == 1
    world.restart_ckptman()
    world.until(lambda: free(world, node) if kind == "withdraw" else bool(world.state.images(9)))
    world.advance(10)
    assert files(world) == []


def test_an_order_that_cannot_be_acknowledged_is_not_repeated_and_holds_up_no_notice(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.runs(7).nodes[0]

    def cannot(handles: list[str]) -> None:
        if handles:
            raise OSError(30, "Read-only file system", handles[0])

    monkeypatch.setattr(world.drop, "done", cannot)
    world.order("save", job=7)
    world.advance(60)
    assert world.saver.calls.count(("checkpoint", 7)) == 1
    world.order("notice", node=node, deadline=world.now + 9000)
    world.advance(10)
    assert len(world.state.notices()) == 1


def test_a_save_that_fails_is_not_tried_again_for_ever(world: CkptWorld) -> None:
    world.runs(7)
    world.saver.broken = CheckpointError("cannot")
    world.order("save", job=7)
    world.advance(60)
    assert world.saver.calls.count(("checkpoint", 7)) == 1
    assert files(world) == []


def test_a_job_that_is_busy_is_saved_after_that(world: CkptWorld) -> None:
    world.runs(7)
    assert world.service is not None
    crew = world.service.applier.crew
    meanwhile: list[object] = []

    def work() -> None:
        world.order("save", job=7)
        world.advance(10)
        meanwhile.append(world.state.images(7))

    assert crew.submit(7, (0.0, 0.0), work)
    assert meanwhile == [()]
    world.advance(10)
    assert len(world.state.images(7)) == 1
    assert files(world) == []


def test_a_save_that_is_asked_for_and_waits_makes_way_for_a_move(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    assert world.service is not None
    crew = world.service.applier.crew = KeyedExecutor(2)
    runs, go = threading.Event(), threading.Event()

    def lasts() -> None:
        runs.set()
        go.wait(patience(60))

    crew.submit(99, (NO_DEADLINE, 0.0), lasts, kind=WorkKind.PERIODIC)
    assert runs.wait(patience(60))
    world.order("save", job=7)
    for _ in range(2):
        poll(world)
        world.service.guarded_tick()
        world.now += 6
        world.interrupt(node)
    go.set()
    crew.close()
    assert world.state.open_migration(7, 0) is not None
    assert world.told(7).count("ckpt-refused") == 1
    poll(world)
    assert files(world) == []


def test_what_is_said_after_a_withdrawal_is_not_taken_back_with_it(world: CkptWorld) -> None:
    node = drained(world)
    world.order("withdraw", node=node)
    world.now += 1
    world.order("notice", node=node, reason="fan", deadline=world.now + 9000)
    world.advance(30)
    assert [w.notice.reason for w in world.state.notices()] == ["fan"]
    assert files(world) == []


def test_an_order_is_told_once_however_often_its_source_tells_it() -> None:
    woken: list[int] = []
    orders = Orders(lambda: woken.append(1))
    first, other = (ReceivedOrder("f.json", SaveOrder(job=job)) for job in (7, 8))
    assert not orders.receive(first)
    assert not orders.receive(first)
    assert (orders.waiting(), len(woken)) == ([first], 1)
    orders.mark_begun(first)
    assert not orders.receive(first)
    assert orders.waiting() == []
    assert not orders.receive(other), "the same name, written anew"
    orders.mark_done(first)
    assert orders.receive(first)
    orders.forget([first])
    assert not orders.receive(first), "asked for once more"
    assert orders.waiting() == [other, first]
    orders.mark_done(ReceivedOrder("g.json", WithdrawOrder(node="n")))
