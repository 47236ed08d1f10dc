"""Which announcement is news: an earlier deadline and a later recommendation are, one message that
is delivered twice is not.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.ckptman.event_bridge import INTERRUPTION, REBALANCE, reading_of_event
from slurm_elastic.ckptman.poller import ENDED_AFTER_S, Poller
from slurm_elastic.ckptman.sources import CloudNotices, NodeComments, SourceReading
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.threat import FALSE_AFTER
from tests.ckptman.world import CkptWorld


class Said:
    """A source that tells what a test has it tell."""

    name = "a source"

    def __init__(self) -> None:
        self.told: list[SourceReading] = []

    def read(self, now: float) -> Sequence[SourceReading]:
        return self.told

    def done(self, handles: Sequence[str]) -> None:
        pass


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def listen(world: CkptWorld, source: Any) -> Any:
    assert world.service is not None
    service = world.service
    one = Poller(world.ckpt, source, 1.0, service.reader.machines, lambda: None, service.orders)
    world.pollers.append(one)
    return source


def warning(world: CkptWorld, node: str, left: float, reason: str = "") -> Notice:
    return Notice(
        instance=world.machine(node), kind=NoticeKind.INTERRUPTION, seen=world.now,
        deadline=world.now + left, reason=reason,
    )  # fmt: skip


def event(world: CkptWorld, node: str, kind: str) -> SourceReading:
    """EventBridge's message of this moment."""
    body = {
        "detail-type": kind,
        "time": datetime.fromtimestamp(world.now, UTC).isoformat(),
        "detail": {"instance-id": world.machine(node)},
    }
    return reading_of_event(json.dumps(body), f"h{world.now}", world.now)


@pytest.mark.parametrize("first", ["maintenance", "interruption", "both"])
def test_the_least_deadline_of_a_machine_counts_however_they_come(
    world: CkptWorld, first: str
) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    source = listen(world, Said())
    maintenance = SourceReading(notice=warning(world, node, 3000, "system-maintenance"))
    mark = SourceReading(notice=warning(world, node, 120))
    source.told = {"maintenance": [maintenance], "interruption": [mark]}.get(first, [])
    world.advance(1, step=1.0)
    source.told = [mark, maintenance]
    world.advance(5, step=1.0)
    least = min(w.notice.deadline or 0.0 for w in world.state.notices())
    assert least == mark.notice.deadline  # type: ignore[union-attr]
    (moved,) = world.migrations()
    assert moved.deadline == least
    assert len(world.state.notices()) == 2, "each once, however often they are told"


def test_an_earlier_deadline_hurries_a_job_that_waits_for_its_last_moment(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.broken = CheckpointError("cannot")
    source = listen(world, Said())
    source.told = [SourceReading(notice=warning(world, node, 3000, "system-maintenance"))]
    world.advance(60)
    assert world.job(7).restarts == 0, "it may end by itself until then"
    sooner = warning(world, node, 100)
    source.told.insert(0, SourceReading(notice=sooner))
    world.until(lambda: world.job(7).restarts == 1, most=100)
    assert "ckpt-sooner" in world.told(7)


def test_a_message_that_is_delivered_twice_is_one_announcement(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    source = listen(world, Said())
    for kind in (INTERRUPTION, REBALANCE):
        told = event(world, node, kind)
        source.told = [told, told]
        world.pollers[-1].poll()
        world.now += 30
        source.told = [told]
        world.pollers[-1].poll()
    assert [str(w.notice.kind) for w in world.state.notices()] == ["interruption", "rebalance"]


def test_a_second_recommendation_is_answered_by_a_second_save(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    source = listen(world, Said())
    for saves in (1, 2):
        source.told = [event(world, node, REBALANCE)]
        world.advance(600, step=5.0)
        assert world.saver.calls.count(("checkpoint", 7)) == saves
    assert world.job(7).restarts == 0


def test_a_recommendation_on_the_node_is_told_from_the_next_by_its_time(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    machine = world.machine(node)
    assert world.service is not None
    source = NodeComments(world.slurm, world.service.reader.machines)
    listen(world, source)
    mark = f"slurm-elastic:notice:rebalance:{int(world.now)}:{machine}"
    world.slurm.set_node(node, "ALLOCATED", "CLOUD", comment=mark)
    world.advance(60, step=5.0)
    assert world.saver.calls.count(("checkpoint", 7)) == 1
    mark = f"slurm-elastic:notice:rebalance:{int(world.now)}:{machine}"
    world.slurm.set_node(node, "ALLOCATED", "CLOUD", comment=mark)
    world.advance(60, step=5.0)
    assert world.saver.calls.count(("checkpoint", 7)) == 2


def test_what_was_taken_back_is_news_only_with_another_deadline(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    source = listen(world, Said())
    world.saver.broken = CheckpointError("cannot")
    source.told = [SourceReading(notice=warning(world, node, 3000))]
    world.advance(5, step=1.0)
    world.order("withdraw", node=node)
    world.advance(20, step=1.0)
    assert not world.state.notices(), "the source goes on telling it"
    source.told = [SourceReading(notice=warning(world, node, 2000))]
    world.advance(5, step=1.0)
    assert len(world.state.notices()) == 1


def test_a_cloud_that_names_no_deadline_is_heard_once(world: CkptWorld) -> None:
    """It tells the same one, seen now, at every look."""
    node = world.runs(7).nodes[0]
    machine = world.machine(node)

    class Cloud:
        name = "x"

        def notices(self) -> Sequence[Notice]:
            kind = NoticeKind.REBALANCE
            return [Notice(instance=machine, kind=kind, seen=world.now)]

    listen(world, CloudNotices(Cloud()))  # type: ignore[arg-type]
    world.advance(60, step=5.0)
    assert len(world.state.notices()) == 1
    assert world.saver.calls.count(("checkpoint", 7)) == 1


def test_a_withdrawn_notice_is_news_after_its_cloud_has_ended_it(world: CkptWorld) -> None:
    """The host of the machine goes into maintenance, comes back, and goes again a day later."""
    node = world.runs(7, comment="ckpt=none").nodes[0]
    machine, notices = world.machine(node), world.clouds["pub"].account.notices

    def host_goes_into_maintenance() -> None:
        notices[machine] = Notice(instance=machine, kind=NoticeKind.INTERRUPTION, seen=world.now)
        world.advance(30)

    host_goes_into_maintenance()
    world.order("withdraw", node=node)
    world.advance(1800, step=30.0)
    assert not world.state.notices(), "while the cloud repeats it, it stays withdrawn"
    notices.clear()
    world.advance(30)
    host_goes_into_maintenance()
    assert not world.state.notices(), "one reading may lack it by mistake"
    notices.clear()
    world.advance(1800, step=30.0)
    host_goes_into_maintenance()
    assert len(world.state.notices()) == 1
    assert "DRAIN" in world.slurm.nodes()[node].states


def test_a_list_of_machines_that_lacks_one_ends_no_notice(world: CkptWorld) -> None:
    """A ledger that was lost or restored lacks machines until slurm-elasticd has adopted them."""
    node = world.runs(7).nodes[0]
    machine = world.machine(node)
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node, 900)
    world.advance(20)
    assert world.service is not None
    assert world.service.applier is not None
    seen = world.service.reader.read()
    world.service.applier.apply(msgspec.structs.replace(seen, machines={}, machine_of={}), [], [])
    world.saver.broken = None
    world.until(lambda: world.job(7).restarts == 1, most=900)
    assert len(world.state.notices()) == 1
    world.clouds["pub"].take(machine)
    world.until(lambda: world.state.notices() == ())


def test_a_notice_ends_with_its_machine_though_the_clock_was_set_back(world: CkptWorld) -> None:
    """The end of the machine is recorded with an earlier time than its notice. The node's next
    machine is not meant.
    """
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    world.order("notice", node=node, deadline=world.now + 300)
    world.advance(10)
    (recorded,) = world.state.notices()
    seen = recorded.notice.seen + 1800
    later = msgspec.structs.replace(recorded.notice, seen=seen)
    world.state.update_notice(msgspec.structs.replace(recorded, notice=later))
    world.take(node)
    world.until(lambda: world.state.notices() == ())


def later_machine(world: CkptWorld, node: str) -> None:
    """The machine of job 7 on this node ends, and job 8 runs on the next machine of the node."""
    earlier = world.machine(node)
    world.advance(60)
    world.slurm.finish(7)
    world.until(lambda: not world.machines_of(node), 3000)
    world.advance(300)
    world.slurm.submit(8, (node,))
    world.until(lambda: 8 in world.slurm.queue() and "RUNNING" in world.job(8).states, 900)
    assert world.job(8).nodes == (node,)
    assert world.machine(node) != earlier


@pytest.mark.parametrize("departure", [True, False])
def test_an_order_that_waited_for_the_service_is_not_for_a_later_machine_of_the_node(
    world: CkptWorld, *, departure: bool
) -> None:
    """The job there would be moved, and its machine ended, because of a drain of last week."""
    node = world.runs(7).nodes[0]
    world.stop_ckptman()
    world.order("notice", node=node, reason="drained", departure=departure)
    later_machine(world, node)
    world.start_ckptman()
    world.advance(300)
    assert not world.migrations()
    assert (world.job(8).states, world.job(8).restarts) == ({"RUNNING"}, 0)
    assert not world.state.notices()
    assert "ckpt-notice-over" in world.kinds(node)


def test_an_order_that_waited_for_the_service_is_for_the_machine_that_the_node_had(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.stop_ckptman()
    world.order("notice", node=node, reason="drained", departure=True)
    world.advance(60)
    world.start_ckptman()
    world.until(lambda: world.back(7, 1))


def test_a_notice_whose_machine_ended_without_the_service_moves_no_job_of_the_next_machine(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.order("notice", node=node, reason="disk errors")
    world.tick()
    assert world.state.notices()
    world.stop_ckptman()
    later_machine(world, node)
    world.start_ckptman()
    world.advance(300)
    assert [move.run.job for move in world.migrations() if move.run.job != 7] == []
    assert (world.job(8).states, world.job(8).restarts) == ({"RUNNING"}, 0)
    assert not world.state.notices()


def test_a_notice_that_came_before_its_machine_was_on_record_ends_with_it(
    world: CkptWorld,
) -> None:
    """The ledger was lost or could not be read at that moment, so the notice has no offer. The
    screens must not warn of the node's next machine.
    """
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node, 300)
    world.advance(20)
    (recorded,) = world.state.notices()
    world.state.update_notice(msgspec.structs.replace(recorded, offer=""))
    world.take(node)
    world.until(lambda: world.state.notices() == ())


def test_a_warning_that_was_wrong_does_not_let_go_a_node_that_another_keeps(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    source = listen(world, Said())
    source.told = [
        SourceReading(notice=warning(world, node, 60)),
        SourceReading(notice=warning(world, node, 9000)),
    ]
    world.advance(60 + 600 + 30, step=10.0)
    assert len(world.state.notices()) == 1
    assert "DRAIN" in world.slurm.nodes()[node].states


def agent_writes(world: CkptWorld, node: str, **fields: Any) -> None:
    """An agent of the site writes its file, which always has the node's name."""
    draft = world.dir / "notices" / "draft"
    draft.write_text(json.dumps({"kind": "notice", "node": node} | fields))
    draft.rename(draft.with_name(f"{node}.json"))


def test_a_file_with_the_name_of_an_earlier_one_is_another_notice(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    later, sooner = world.now + 7200, world.now + 300
    agent_writes(world, node, deadline=later, reason="the row goes at 20:00")
    world.advance(10)
    agent_writes(world, node, deadline=sooner, reason="the row goes now")
    world.advance(10)
    assert {w.notice.deadline for w in world.state.notices()} == {later, sooner}
    (moved,) = world.migrations()
    assert moved.deadline == sooner


@pytest.mark.parametrize("taken_back_by", ["a person", "its agent"])
def test_the_same_warning_after_a_withdrawal_is_another_notice(
    world: CkptWorld, taken_back_by: str
) -> None:
    world.slurm.set_node("st1", "MIXED")
    for _ in range(2):
        agent_writes(world, "st1")
        world.advance(10)
        assert world.slurm.node("st1").states == {"MIXED", "DRAIN"}
        if taken_back_by == "a person":
            world.order("withdraw", node="st1")
            world.advance(ENDED_AFTER_S + 10, step=10.0)
        else:
            agent_writes(world, "st1", kind="withdraw")
            world.advance(10)
        assert world.slurm.node("st1").states == {"MIXED"}


def test_a_warning_that_its_agent_repeats_stays_withdrawn(world: CkptWorld) -> None:
    """Otherwise each of its files would drain the node and move its jobs again."""
    world.slurm.set_node("st1", "MIXED")
    agent_writes(world, "st1", reason="hot")
    world.advance(10)
    world.order("withdraw", node="st1")
    for _ in range(10):
        agent_writes(world, "st1", reason="hot")
        world.advance(60, step=10.0)
        assert world.state.notices() == ()
        assert world.slurm.node("st1").states == {"MIXED"}
    agent_writes(world, "st1", reason="burning")
    world.advance(10)
    assert len(world.state.notices()) == 1


def test_a_warning_that_could_not_be_written_is_no_repetition(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.set_node("st1", "MIXED")

    def refused(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(world.state, "add_notices", refused)
        agent_writes(world, "st1")
        world.advance(10)
    assert world.state.notices() == ()
    agent_writes(world, "st1")
    world.advance(10)
    assert len(world.state.notices()) == 1


def test_a_warning_that_its_agent_writes_again_and_again_is_one_notice(world: CkptWorld) -> None:
    world.slurm.set_node("st1", "MIXED")
    deadline = world.now + 600
    for _ in range(5):
        agent_writes(world, "st1", deadline=deadline, reason="hot")
        world.advance(10)
    assert len(world.state.notices()) == 1
    assert not list((world.dir / "notices").iterdir())


def drained_for_kernel(world: CkptWorld, wait_s: float = 130.0) -> float:
    """Node st1 of the site gets a notice of two minutes. Return its deadline."""
    world.slurm.set_node("st1", "MIXED")
    deadline = world.now + 120
    world.order("notice", node="st1", deadline=deadline, reason="new kernel")
    world.advance(wait_s, step=10.0)
    assert world.slurm.node("st1").states == {"MIXED", "DRAIN"}
    return deadline


def reboots(world: CkptWorld, away_s: float, *states: str) -> None:
    """``states``: those in which slurmctld leaves the node after its slurmd has registered."""
    reason = world.slurm.node("st1").reason
    world.slurm.set_node("st1", "DOWN", "DRAIN", "NOT_RESPONDING", reason=reason)
    world.advance(away_s, step=10.0)
    assert "DOWN" in world.slurm.node("st1").states
    found = states or ("MIXED", "DRAIN")
    world.slurm.set_node("st1", *found, reason=reason, boot_time=world.now)


def is_in_service(world: CkptWorld) -> bool:
    return world.slurm.node("st1").states.isdisjoint({"DOWN", "DRAIN"})


def serves_again(world: CkptWorld, why: str) -> None:
    assert is_in_service(world)
    assert world.state.notices() == ()
    told = [
        str(one.cause)
        for one in world.ledger.decisions.about("st1")
        if one.kind == "ckpt-notice-over"
    ]
    assert told == [why]
    drains = world.kinds("st1").count("ckpt-drained")
    world.advance(3600, step=10.0)
    assert is_in_service(world)
    assert world.kinds("st1").count("ckpt-drained") == drains


@pytest.mark.parametrize(("works_s", "away_s"), [(0, 60), (0, 900), (900, 300)])
def test_a_node_of_the_site_that_is_back_after_its_deadline_is_released(
    world: CkptWorld, works_s: float, away_s: float
) -> None:
    """It boots a new kernel. An administrator may work on it before that."""
    deadline = drained_for_kernel(world)
    world.advance(works_s, step=10.0)
    assert world.slurm.node("st1").states == {"MIXED", "DRAIN"}
    reboots(world, away_s)
    world.restart_ckptman()
    world.until(lambda: world.now > deadline + FALSE_AFTER)
    world.advance(10)
    serves_again(world, "its node did not answer for a while, and is back")


def test_a_node_that_slurmctld_leaves_down_after_its_boot_is_released(world: CkptWorld) -> None:
    """ReturnToService 0 and 1 return no node that has another reason than slurmctld's own."""
    deadline = drained_for_kernel(world)
    reboots(world, 400.0, "DOWN", "DRAIN")
    world.until(lambda: world.now > deadline + FALSE_AFTER)
    world.advance(10)
    serves_again(world, "its node did not answer for a while, and is back")


def test_a_node_that_is_away_while_slurmctld_restarts_is_not_released(world: CkptWorld) -> None:
    """slurmctld then shows it without NOT_RESPONDING (22.05)."""
    drained_for_kernel(world)
    reason = world.slurm.node("st1").reason
    world.slurm.set_node("st1", "DOWN", "DRAIN", "NOT_RESPONDING", reason=reason, boot_time=1.0)
    world.advance(60)
    world.slurm.set_node("st1", "DOWN", "DRAIN", reason=reason, boot_time=0.0)
    world.advance(3600, step=10.0)
    assert world.slurm.node("st1").states == {"DOWN", "DRAIN"}
    assert len(world.state.notices()) == 1


def test_a_node_that_an_administrator_sets_down_after_its_boot_stays_down(world: CkptWorld) -> None:
    drained_for_kernel(world)
    reboots(world, 400.0)
    world.slurm.set_node("st1", "DOWN", "DRAIN", reason="a fan is broken")
    world.advance(3600, step=10.0)
    assert world.slurm.node("st1").states == {"DOWN", "DRAIN"}
    assert world.slurm.node("st1").reason == "a fan is broken"


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_node_of_the_site_that_took_a_job_with_it_is_released(
    world: CkptWorld, is_withdrawn: bool
) -> None:
    world.slurm.set_node("st1", "ALLOCATED")
    world.slurm.submit(9, ("st1",), comment="ckpt=none")
    world.slurm.set_job(9, "RUNNING", nodes=("st1",), start=world.now)
    deadline = drained_for_kernel(world)
    reason = world.slurm.node("st1").reason
    world.slurm.set_node("st1", "ALLOCATED", "DRAIN", "NOT_RESPONDING", reason=reason)
    world.advance(10)
    lost = world.slurm.node("st1")
    assert {"DOWN", "DRAIN"} <= lost.states, "its job is requeued at once"
    world.slurm.set_node("st1", "DOWN", "DRAIN", reason=lost.reason, boot_time=world.now)
    if is_withdrawn:
        world.order("withdraw", node="st1")
    else:
        world.until(lambda: world.now > deadline + FALSE_AFTER, most=900)
    world.advance(10)
    assert is_in_service(world)
    assert world.state.notices() == ()


def test_a_node_of_the_site_that_was_not_away_stays_drained_until_a_person_says_so(
    world: CkptWorld,
) -> None:
    drained_for_kernel(world, 4 * 3600.0)
    assert len(world.state.notices()) == 1
    world.order("withdraw", node="st1")
    world.advance(10)
    assert world.slurm.node("st1").states == {"MIXED"}


@pytest.mark.parametrize("away_s", [0.0, 60.0])
def test_a_node_of_the_site_that_a_person_resumes_after_its_deadline_is_not_drained_again(
    world: CkptWorld, away_s: float
) -> None:
    drained_for_kernel(world)
    drains = world.kinds("st1").count("ckpt-drained")
    if away_s:
        reboots(world, away_s)
        world.advance(10)
    world.slurm.set_node("st1", "MIXED", reason="")
    world.advance(10, step=1.0)
    serves_again(world, "a person has resumed its node")
    assert world.kinds("st1").count("ckpt-drained") == drains


def test_a_node_of_the_site_that_is_resumed_before_its_deadline_is_drained_again(
    world: CkptWorld,
) -> None:
    drained_for_kernel(world, 60.0)
    world.slurm.set_node("st1", "MIXED", reason="")
    world.advance(30, step=1.0)
    assert world.slurm.node("st1").states == {"MIXED", "DRAIN"}


def test_the_notice_of_a_node_that_slurm_no_longer_knows_ends(world: CkptWorld) -> None:
    drained_for_kernel(world)
    del world.slurm._nodes["st1"]
    world.advance(FALSE_AFTER + 30, step=10.0)
    assert world.state.notices() == ()
    assert world.state.releases() == ()
