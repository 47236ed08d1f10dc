"""Machines that leave by an operator's word: after their jobs, or with them moved."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from ckpt_cases import migration_of
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.controller.context import new_generation
from slurm_elastic.features.orders.departures import Departures
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Departure, LimitChange
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.repair.departure import concerned
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.ledger import Machine
from slurm_elastic.watch.door.orders import carry_out
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from tests.controller.world import ONP, PUB, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World(limits=Limits(nodes=10, dollars_per_hour=10))
    yield made
    made.close()


def leave(
    world: World,
    verb: str = "drain",
    scope: str = "pool:rack",
    nodes: tuple[str, ...] = ONP,
    after: float | None = None,
    **fields: object,
) -> None:
    about = scope.replace(":", " ") or ",".join(nodes)
    word = Departure(verb=verb, about=about, nodes=nodes, scope=scope, **fields)  # type: ignore[arg-type]
    starts = None if after is None else world.now + after
    carry_out(world.config, DirectAsk(word=word, starts=starts), "alice", world.now)


def running(world: World) -> dict[int, tuple[str, ...]]:
    return {j.id: j.nodes for j in world.slurm.queue().values() if "RUNNING" in j.states}


def busy(world: World, *jobs: int, among: tuple[str, ...] = ONP) -> None:
    for job in jobs:
        world.slurm.submit(job, (*among, *PUB), 1, partitions=("onp", "pub"))
    world.advance(60)
    assert set(running(world)) >= set(jobs)


def notices(world: World) -> list[dict[str, object]]:
    place = world.dir / "notices"
    return [json.loads(p.read_text()) for p in sorted(place.glob("*.json"))]


def test_an_ordered_drain_loses_no_job_and_starts_nothing_new(world: World) -> None:
    busy(world, 1, 2)
    leave(world)
    world.slurm.submit(3, ONP, 1, partitions=("onp",))
    world.advance(120)
    assert set(running(world)) == {1, 2}, "they go on"
    world.slurm.finish(1)
    world.advance(120)
    assert len(world.alive("onp")) == 1
    world.slurm.finish(2)
    world.advance(120)
    assert world.alive("onp") == []
    assert 3 not in running(world)
    assert [j.restarts for j in world.slurm.queue().values()] == [0]
    assert all(is_drained(world.slurm.node(n)) for n in ONP)
    assert "pool rack is drained by alice" in world.slurm.node("op1").reason
    assert "departed" in world.kinds("op1")


def test_after_resume_it_is_used_again(world: World) -> None:
    busy(world, 1)
    leave(world)
    world.slurm.finish(1)
    world.advance(120)
    (one,) = world.ledger.directives.all()
    carry_out(world.config, EndAsk(numbers=(one.number,)), "bob", world.now)
    world.slurm.submit(2, ONP, 1)
    world.advance(120)
    assert set(running(world)) == {2}


def test_single_nodes_leave_and_the_others_stay(world: World) -> None:
    busy(world, 1, 2)
    (node,) = running(world)[1]
    other = running(world)[2][0]
    leave(world, scope="", nodes=(node,))
    world.slurm.finish(1)
    world.advance(120)
    assert is_drained(world.slurm.node(node))
    assert [i.node for i in world.alive("onp")] == [other]
    assert not is_drained(world.slurm.node(other))


def test_it_begins_at_its_time(world: World) -> None:
    busy(world, 1)
    leave(world, after=300)
    world.slurm.finish(1)
    world.slurm.submit(2, ONP, 2)
    world.advance(200)
    assert set(running(world)) == {2}, "until then all is as ever"
    world.advance(150)
    world.slurm.finish(2)
    world.advance(120)
    assert world.alive("onp") == []


def test_a_restarted_daemon_goes_on_with_it(world: World) -> None:
    busy(world, 1, 2)
    leave(world)
    world.advance(10)
    world.restart()
    world.slurm.finish(1)
    world.slurm.finish(2)
    world.advance(180)
    assert world.alive("onp") == []


def test_at_most_so_many_are_replaced_at_a_time_and_others_take_their_place(world: World) -> None:
    busy(world, 1, 2)
    before = {i.id for i in world.alive("onp")}
    leave(world, "replace", unavailable=1)
    world.advance(30)
    going = [n for n in ONP if "POWER_DOWN" in world.slurm.node(n).states]
    assert len(going) == 1
    world.slurm.submit(3, ONP, 1)
    done = next(j for j, nodes in running(world).items() if nodes == (going[0],))
    world.slurm.finish(done)
    world.advance(180)
    assert len({i.id for i in world.alive("onp")} - before) >= 1, "job 3 got a new machine"
    assert 3 in running(world)
    for job in list(running(world)):
        world.slurm.finish(job)
    world.advance(240)
    assert before.isdisjoint(i.id for i in world.alive("onp"))
    assert world.ledger.directives.all() == (), "it is over when all have been replaced"


def test_a_node_that_a_person_has_drained_is_theirs(world: World) -> None:
    busy(world, 1)
    (node,) = running(world)[1]
    world.slurm.update_nodes([node], state="DRAIN", reason="disk")
    leave(world)
    world.advance(60)
    assert "POWER_DOWN" not in world.slurm.node(node).states
    assert world.slurm.node(node).reason == "disk"
    assert world.kinds(node).count("kept") == 1


def test_an_aggressive_drain_asks_ckptman_once_and_leaves_what_it_moves_alone(
    world: World,
) -> None:
    (world.dir / "notices").mkdir()
    CheckpointState(world.dir / FILE).close()
    busy(world, 1, 2)
    nodes = {running(world)[job][0] for job in (1, 2)}
    leave(world, aggressive=True)
    world.advance(40)
    told = notices(world)
    assert {(one["kind"], one["node"]) for one in told} == {("notice", node) for node in nodes}
    assert len(told) == 2, "one for each node, once"
    assert all(one["departure"] is True for one in told), "else it is shown as the cloud's reclaim"
    assert "pool rack is drained by alice" in str(told[0]["reason"])
    assert set(running(world)) == {1, 2}
    world.advance(60)
    assert world.kinds("job:1").count("not-moved") == 1, "nobody has begun to move it"
    for job in (1, 2):
        world.slurm.requeue(job)  # as ckptman does
    world.advance(300)
    assert {nodes[0] for nodes in running(world).values()} <= set(PUB)
    assert world.alive("onp") == []


def test_a_second_drain_of_a_node_gives_notice_anew(world: World) -> None:
    (world.dir / "notices").mkdir()
    CheckpointState(world.dir / FILE).close()
    busy(world, 1)
    (node,) = running(world)[1]
    leave(world, aggressive=True)
    world.advance(20)
    world.slurm.finish(1)
    world.advance(120)
    (one,) = world.ledger.directives.all()
    carry_out(world.config, EndAsk(numbers=(one.number,)), "bob", world.now)
    world.advance(20)
    busy(world, 2, among=(node,))
    leave(world, "migrate", "cloud:onp", aggressive=True, to="pub")
    world.advance(20)
    assert [told["node"] for told in notices(world)] == [node, node]


def test_a_job_of_which_nothing_can_be_saved_is_requeued_once(world: World) -> None:
    (world.dir / "notices").mkdir()
    state = CheckpointState(world.dir / FILE)
    busy(world, 1)
    leave(world, aggressive=True)
    run = JobRun(
        job=1, label="1", attempt=0, user="u", uid=1, gid=1, nodes=running(world)[1],
        partition="onp", started=world.now,
    )  # fmt: skip
    waits = Migration(
        run=run, method="none", threatened=run.nodes, reason=Quoted(text="x"), step=MigrationStep.WAITING,
        began=world.now, changed=world.now, note=Quoted(text="there is no image"),
    )  # fmt: skip
    state.put(waits)
    state.close()
    world.advance(200)
    assert world.slurm.queue()[1].restarts == 1
    assert running(world)[1][0] in PUB
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "requeued"]
    assert why.startswith("it starts over (there is no image): pool rack is drained by alice")


def test_without_ckptman_jobs_start_anew_elsewhere_and_those_that_must_not_are_waited_for(
    world: World,
) -> None:
    busy(world, 1)
    world.slurm.set_job(1, "RUNNING", nodes=running(world)[1], requeue=False)
    busy(world, 2)
    leave(world, aggressive=True)
    world.advance(240)
    assert running(world)[2][0] in PUB
    assert running(world)[1][0] in ONP
    assert world.kinds("job:1").count("waited-for") == 1
    world.slurm.finish(1)
    world.advance(120)
    assert world.alive("onp") == []


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_a_job_that_stands_still_keeps_no_machine(world: World, state: str) -> None:
    """Its limit never ends it, so the machine would be paid without end."""
    busy(world, 1)
    if state == "SUSPENDED":
        world.slurm.suspend(1)
    else:
        world.slurm.set_job(1, state, nodes=running(world)[1])
    leave(world, aggressive=True)
    world.advance(240)
    assert world.slurm.queue()[1].restarts == 1
    assert world.kinds("job:1").count("requeued") == 1
    assert world.alive("onp") == []


@pytest.mark.parametrize(("state", "restarts"), [("COMPLETED", 0), ("RUNNING", 1)])
def test_a_job_that_changed_after_the_list_was_read_is_not_requeued(
    world: World, monkeypatch: pytest.MonkeyPatch, state: str, restarts: int
) -> None:
    """Its work is done, or its next run has begun, and it would run once more."""
    busy(world, 1)
    node, move = running(world)[1], Departures._move

    requeues: list[int] = []

    def move_late(*arguments: Any) -> None:
        world.slurm.set_job(1, state, nodes=node, restarts=restarts)
        move(*arguments)
        requeues.append(world.slurm.calls["requeue"])

    monkeypatch.setattr(Departures, "_move", move_late)
    leave(world, aggressive=True)
    world.advance(60)
    assert requeues[0] == 0


def test_nothing_is_bought_for_a_drained_node_that_slurm_asks_for_before_its_hold(
    world: World,
) -> None:
    """Nor for the other node of the job, which starts elsewhere."""
    leave(world, scope="", nodes=("op1",))
    world.slurm.submit(1, (*ONP, *PUB), 2, partitions=("onp", "pub"))
    world.advance(120)
    assert "launched" not in (*world.kinds("op1"), *world.kinds("op2"))
    assert set(running(world)[1]) <= set(PUB)


def test_what_still_boots_is_given_up_and_its_job_starts_elsewhere(world: World) -> None:
    world.slurm.submit(1, (*ONP, *PUB), 1, partitions=("onp", "pub"))
    world.advance(5)
    assert [n for n in ONP if phase(world.slurm.node(n)) is Phase.POWERING_UP]
    (node,) = world.slurm.queue()[1].nodes
    leave(world, aggressive=True)
    world.advance(5, step=1)
    assert phase(world.slurm.node(node)) is Phase.POWERING_DOWN, "before it could run anything"
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "requeued"]
    assert "no machine is available for its nodes: pool rack is drained by alice" in why
    world.advance(235)
    assert running(world)[1][0] in PUB
    assert world.alive("onp") == []


def test_a_partition_that_refuses_waiting_jobs_is_told_once(world: World) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Requested node configuration is not available")

    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 1200)
    world.slurm.change_pending = refuse  # type: ignore[method-assign]
    leave(world, "migrate", "cloud:onp", aggressive=True, to="pub")
    world.advance(120)
    assert world.slurm.queue()[1].partitions == ("onp",)
    (why,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "not-redirected"
    ]
    assert why.startswith("pub refuses it: ")
    assert "redirected" not in world.kinds("job:1")


def test_while_slurm_does_not_answer_nobody_is_told_of_a_refusal(world: World) -> None:
    def silent(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")

    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 1200)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.slurm, "change_pending", silent)
        leave(world, "migrate", "cloud:onp", aggressive=True, to="pub")
        world.advance(60)
    assert "not-redirected" not in world.kinds("job:1")
    world.advance(60)
    assert world.slurm.queue()[1].partitions == ("pub",)


def test_while_it_is_unknown_what_ckptman_moves_nobody_is_requeued(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.dir / "notices").mkdir()
    (world.dir / FILE).write_bytes(b"no database" * 1000)
    busy(world, 1)
    nodes = running(world)[1]
    leave(world, aggressive=True)
    world.advance(40)
    assert "moves of jobs cannot be read" in caplog.text
    assert running(world) == {1: nodes}
    assert world.slurm.queue()[1].restarts == 0


def test_a_migration_sends_running_and_waiting_jobs_to_the_other_cloud(world: World) -> None:
    raised = LimitChange(scope="cloud:pub", key="dollars_per_hour", value=1)
    carry_out(world.config, DirectAsk(word=raised), "alice", world.now)
    for job, begin in ((1, 0.0), (2, 0.0), (3, world.now + 120)):
        world.slurm.submit(job, ONP, 1, partitions=("onp",), start=begin)
    world.advance(60)
    assert set(running(world)) == {1, 2}
    leave(world, "migrate", "cloud:onp", aggressive=True, to="pub")
    for job in (1, 2, 3):  # the nodes of the partition, as slurmctld knows them
        world.slurm.set_wish(job, PUB)
    world.advance(300)
    assert set(running(world)) == {1, 2, 3}
    assert all(nodes[0] in PUB for nodes in running(world).values())
    assert world.slurm.queue()[3].partitions == ("pub",)
    assert world.alive("onp") == []
    assert "redirected" in world.kinds("job:3")


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": ("static1",)},
        {"verb": "explode"},
        {"to": "nowhere", "scope": "cloud:onp"},
        {"to": "pub", "scope": "pool:rack"},
    ],
)
def test_an_order_that_is_not_possible_changes_nothing(
    world: World, fields: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        leave(world, **fields)  # type: ignore[arg-type]
    assert world.ledger.directives.all() == ()


@pytest.mark.parametrize(("seconds", "told"), [(60.0, 0), (61.0, 1)])
def test_a_job_that_nobody_moves_is_told_of_after_a_minute(
    world: World, seconds: float, told: int
) -> None:
    CheckpointState(world.dir / FILE).close()
    busy(world, 1)
    leave(world, aggressive=True)
    world.ledger.refresh()
    departures = Departures(world.site)
    departures.look()
    world.now += seconds
    departures.look()
    departures.look()
    assert world.kinds("job:1").count("not-moved") == told


def test_a_job_of_two_machines_is_told_of_a_minute_after_the_first_was_to_leave(
    world: World,
) -> None:
    CheckpointState(world.dir / FILE).close()
    world.slurm.submit(1, ONP, 2, partitions=("onp",))
    world.advance(60)
    assert running(world) == {1: ONP}
    leave(world, aggressive=True)
    world.ledger.refresh()
    departures = Departures(world.site)
    departures.look()
    (one,) = world.ledger.directives.all()
    departures._noticed[one.number, "op1"] -= 61
    departures.look()
    assert world.kinds("job:1").count("not-moved") == 1


def test_slurm_is_told_two_hundred_characters_of_why_a_node_leaves(world: World) -> None:
    busy(world, 1)
    (node,) = running(world)[1]
    word = Departure(verb="drain", about="pool rack", nodes=ONP, scope="pool:rack")
    carry_out(world.config, DirectAsk(word=word, reason="y" * 200), "alice", world.now)
    world.advance(20)
    reason = world.slurm.node(node).reason
    assert (len(reason), reason[-20:]) == (200, "y" * 20)


def test_what_leaves_and_who_is_waited_for_is_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    busy(world, 1)
    (node,) = running(world)[1]
    world.slurm.set_job(1, "RUNNING", nodes=(node,), requeue=False)
    leave(world, aggressive=True)
    world.advance(20)
    assert f"leaving nodes={node} reason=pool rack is drained by alice" in caplog.text
    told = (
        "waited-for subjects=job:1 reason=it must not be requeued: its machine leaves after the job"
    )
    assert caplog.text.count(told) == 1
    world.slurm.finish(1)
    world.advance(120)
    assert caplog.text.count("departed subjects=op1,op2 reason=all machines have left: ") == 1


def test_a_job_that_runs_in_no_batch_script_is_waited_for(world: World) -> None:
    busy(world, 1)
    world.slurm.set_job(1, "RUNNING", nodes=running(world)[1], batch=False)
    leave(world, aggressive=True)
    world.advance(20)
    (why,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "waited-for"
    ]
    assert why == "it is no batch job: its machine leaves after the job"


@pytest.mark.parametrize(
    ("verb", "age", "concerns"),
    [("drain", -10.0, True), ("drain", 10.0, True), ("replace", 10.0, True),
     ("replace", 0.0, True), ("replace", -10.0, False)],
)  # fmt: skip
def test_of_nodes_that_may_start_again_only_machines_from_before_leave(
    world: World, verb: str, age: float, concerns: bool
) -> None:
    one = instance("i-1", "op1", new_generation(world.now - age), bought=offer(cloud="onp"))
    word = Departure(verb=verb, about="x", nodes=("op1",), scope="pool:rack")
    machine = Machine(instance=one, pool="rack")
    other = Machine(instance=instance("i-2", "op2", one.generation), pool="rack")
    assert concerned([machine, other], word, world.now) == ([machine] if concerns else [])


@pytest.mark.parametrize(
    ("fields", "hopeless"),
    [
        ({"step": MigrationStep.WAITING}, True),
        ({"step": MigrationStep.BACK}, False),
        ({"step": MigrationStep.WAITING, "at": 5.0}, False),
        ({"step": MigrationStep.WAITING, "again": 5.0}, False),
    ],
)
def test_a_run_that_ckptman_leaves_where_it_is_cannot_be_saved(
    fields: dict[str, Any], hopeless: bool
) -> None:
    move = replace(migration_of(1, 1000), **({"at": None, "again": 0.0} | fields))
    assert move.is_hopeless is hopeless
