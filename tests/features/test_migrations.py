"""Migrations of some nodes: after their jobs, with machines that start ahead, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.features.growth.kept_machines import keep_idle_machines
from slurm_elastic.features.orders import replacements
from slurm_elastic.model.causes.composed import ReplacementsMissing
from slurm_elastic.model.causes.departures import NoStandIn, StandInLack
from slurm_elastic.model.causes.stops import BudgetSpent
from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.model.directive import Departure, LimitChange
from slurm_elastic.policies.launch.order_note import with_order
from slurm_elastic.policies.repair.replacements import REPLACEMENT_KEPT_S
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.watch.door.orders import carry_out
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from tests.controller.world import ONP, PUB, World, make_config

MOVED = ("op1",)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(limits=Limits(nodes=10, dollars_per_hour=10))
    raised = LimitChange(scope="cloud:pub", key="dollars_per_hour", value=5)
    carry_out(made.config, DirectAsk(word=raised), "alice", made.now)
    yield made
    made.close()


def migrate(world: World, *nodes: str, scope: str = "", **fields: object) -> None:
    word = Departure(
        verb="migrate", about=scope.replace(":", " ") or ",".join(nodes), nodes=nodes, scope=scope,
        **{"to": "pub", **fields},  # type: ignore[arg-type]
    )  # fmt: skip
    carry_out(world.config, DirectAsk(word=word), "alice", world.now)


def resume(world: World) -> None:
    numbers = tuple(
        d.number for d in world.ledger.directives.all() if isinstance(d.word, Departure)
    )
    carry_out(world.config, EndAsk(numbers=numbers), "bob", world.now)


def order_in_force(world: World) -> Departure:
    (word,) = [d.word for d in world.ledger.directives.all() if isinstance(d.word, Departure)]
    return word


def running(world: World) -> dict[int, tuple[str, ...]]:
    return {j.id: j.nodes for j in world.slurm.queue().values() if "RUNNING" in j.states}


def partitions(world: World, job: int) -> tuple[str, ...]:
    return world.slurm.queue()[job].partitions


def busy(world: World) -> None:
    """Both own nodes have a job."""
    for job in (1, 2):
        world.slurm.submit(job, ONP, 1, partitions=("onp",))
    world.advance(60)
    assert len(running(world)) == 2


def up(world: World) -> list[str]:
    return sorted(i.node for i in world.alive("pub"))


def test_a_machine_gets_one_replacement_if_several_orders_name_it(world: World) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(60)
    first = up(world)
    assert first
    migrate(world, *ONP, start_replacements=True)
    migrate(world, *ONP, scope="pool:rack", start_replacements=True)
    world.advance(120)
    assert up(world) == first


def test_nodes_leave_after_their_jobs_and_waiting_jobs_may_start_in_the_other_cloud(
    world: World,
) -> None:
    busy(world)
    world.slurm.submit(3, ONP, 1, partitions=("onp",))
    migrate(world, *MOVED)
    world.advance(10)
    assert partitions(world, 3) == ("onp", "pub")
    world.slurm.set_wish(3, (*ONP, *PUB))
    world.advance(60)
    assert running(world)[3][0] in PUB
    (stays,) = [job for job, nodes in running(world).items() if nodes == MOVED]
    assert world.slurm.queue()[stays].restarts == 0
    world.slurm.finish(stays)
    world.advance(120)
    assert [i.node for i in world.alive("onp")] == ["op2"]


def test_replacements_start_at_once_and_stay_until_their_time(world: World) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(30)
    assert len(up(world)) == 2
    (cause,) = [
        d.cause for d in world.ledger.decisions.about(up(world)[0]) if d.kind == "replacement"
    ]
    assert "cloud onp is emptied to pub, with replacements by alice" in str(cause)
    world.advance(REPLACEMENT_KEPT_S - 60, step=20)
    assert len(up(world)) == 2, "SuspendTime is over long ago"
    world.advance(60 + world.config.timings.suspend_time + 60, step=20)
    assert up(world) == []
    assert world.kinds("pub1").count("replacement-over") == 1


def test_the_same_order_given_again_starts_no_second_set_of_replacements(tmp_path: Path) -> None:
    plain = make_config(tmp_path)
    burst = replace(plain.pools[1], nodes=compress([f"pub{n}" for n in range(1, 7)]))
    roomy = World(pools=(plain.pools[0], burst), limits=Limits(nodes=20, dollars_per_hour=10))
    raised = LimitChange(scope="cloud:pub", key="dollars_per_hour", value=5)
    carry_out(roomy.config, DirectAsk(word=raised), "alice", roomy.now)
    busy(roomy)
    started = []
    for _ in range(3):
        migrate(roomy, *ONP, scope="cloud:onp", start_replacements=True)
        roomy.advance(60)
        started.append(up(roomy))
    begun = order_in_force(roomy).replacements
    roomy.advance(REPLACEMENT_KEPT_S + 400, step=20)
    late = up(roomy)
    migrate(roomy, *ONP, scope="cloud:onp", start_replacements=True)
    roomy.advance(60)
    anew = up(roomy)
    roomy.close()
    assert len(started[0]) == 2
    assert started == [started[0]] * 3
    assert begun is not None
    assert [machine.node for machine in begun.machines] == started[0]
    assert late == []
    assert len(anew) == 2, "the time of the first replacements is over"


@pytest.mark.parametrize("state", ["DRAIN", "FAIL"])
def test_a_drain_after_the_first_read_of_the_nodes_stays(world: World, state: str) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(300, step=20)
    first, second = up(world)
    view = world.site.slurm.nodes([first, second])
    world.now += 300
    node = view[first]
    world.slurm.set_node(first, *node.states, state, reason="a notice of the cloud")
    kept: list[Sequence[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_updates, "keep_idle", lambda _, nodes: kept.append(nodes))
        keep_idle_machines(world.site, [first, second], view)
    assert kept == [[second]]


def test_replacements_start_although_slurmctld_was_restarting_at_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world)
    power_up, refusals = node_updates.power_up, [SlurmError(("scontrol",), 1, "Unable to contact")]

    def once_refused(slurm: FakeSlurm, nodes: Sequence[str]) -> None:
        if refusals:
            raise refusals.pop()
        power_up(slurm, nodes)

    monkeypatch.setattr(node_updates, "power_up", once_refused)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(120)
    assert len(up(world)) == 2


def test_a_restarted_daemon_starts_none_twice(world: World) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(30)
    before = {i.id for i in world.alive("pub")}
    world.restart()
    world.advance(900, step=20)
    assert {i.id for i in world.alive("pub")} == before


def test_a_restarted_daemon_starts_no_second_one_for_a_machine_that_has_ended(
    world: World,
) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(30)
    node, other = up(world)
    node_updates.power_down_when_idle(world.slurm, [node], "its admin's wish")
    world.advance(120, step=20)
    assert up(world) == [other]
    world.restart()
    world.advance(300, step=20)
    assert up(world) == [other]


def test_a_replacement_with_a_job_is_a_machine_like_any_other(world: World) -> None:
    busy(world)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(30)
    world.slurm.submit(3, PUB, 1, partitions=("pub",))
    world.advance(30)
    (node,) = running(world)[3]
    assert node in {m.node for m in order_in_force(world).replacements.machines}  # type: ignore[union-attr]
    world.slurm.finish(3)
    world.advance(world.config.timings.suspend_time + 90)
    assert node not in up(world)
    assert len(up(world)) == 1
    assert "the replacement has its first job" in "".join(
        str(d.reason) for d in world.ledger.decisions.about(node)
    )


def test_the_end_of_the_order_ends_the_keeping(world: World) -> None:
    busy(world)
    migrate(world, *MOVED, start_replacements=True)
    world.advance(30)
    assert len(up(world)) == 1
    resume(world)
    world.advance(world.config.timings.suspend_time + 90)
    assert up(world) == []


def test_limits_bound_them_and_the_reason_is_recorded(world: World) -> None:
    busy(world)
    lowered = LimitChange(scope="cloud:pub", key="nodes", value=1)
    carry_out(world.config, DirectAsk(word=lowered), "alice", world.now)
    migrate(world, *ONP, scope="cloud:onp", start_replacements=True)
    world.advance(120)
    assert len(up(world)) == 1
    (missing,) = (d for d in world.ledger.decisions.about("op2") if d.kind == "replacement-missing")
    assert isinstance(missing.cause, ReplacementsMissing)
    assert missing.cause.obstacle == NoStandIn(lack=StandInLack.ROOM, pool="rack")
    sentence = str(missing.reason)
    assert sentence.startswith("1 replacement cannot start now (the limits leave no room): ")


def test_a_spent_budget_is_the_recorded_obstacle_of_a_replacement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = BudgetSpent(period="day", dollars=5.0, owner="cloud pub")
    monkeypatch.setattr(replacements, "find_stops", lambda *_: {"burst": spent})
    busy(world)
    migrate(world, *MOVED, start_replacements=True)
    world.advance(120)
    causes = [
        d.cause
        for d in world.ledger.decisions.about(MOVED[0])
        if isinstance(d.cause, ReplacementsMissing)
    ]
    assert [cause.obstacle for cause in causes] == [spent]


def test_waiting_jobs_get_their_own_order_back_after_the_end(world: World) -> None:
    order = ("west", "onp")
    begin = world.now + 4000
    world.slurm.submit(1, ONP, 1, partitions=("onp", "site", "west"), start=begin)
    world.slurm.set_admin_comment(1, with_order("ticket 7", order))
    world.slurm.submit(2, ONP, 1, partitions=("onp",), start=begin)
    world.slurm.submit(3, ONP, 1, partitions=("onp",), start=begin)
    migrate(world, *ONP, scope="cloud:onp", aggressive=True)
    world.advance(30)
    assert partitions(world, 1) == ("site", "west", "pub")
    assert partitions(world, 2) == ("pub",)
    world.slurm.change_pending([3], partitions=("mine",))
    world.restart()
    world.advance(30)
    resume(world)
    world.advance(30)
    assert partitions(world, 1) == ("site", *order), "as the submit filter has noted"
    assert partitions(world, 2) == ("onp",)
    assert partitions(world, 3) == ("mine",), "its user's choice"
    (back,) = [d for d in world.ledger.decisions.about("job:2") if d.kind == "partitions-restored"]
    assert str(back.reason) == "it may start in onp again: the order is over"


@pytest.mark.parametrize("nodes", [MOVED, ONP], ids=["some nodes", "the whole cloud"])
def test_a_person_who_changes_a_redirected_job_is_obeyed(
    world: World, nodes: Sequence[str]
) -> None:
    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 4000)
    migrate(world, *nodes)
    world.advance(30)
    assert "pub" in partitions(world, 1)
    world.slurm.change_pending([1], partitions=("onp",))
    world.advance(60)
    assert partitions(world, 1) == ("onp",)
    assert world.kinds("job:1").count("redirected") == 1


def test_two_orders_move_a_job_once_each(world: World) -> None:
    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 4000)
    migrate(world, *ONP)
    world.advance(30)
    migrate(world, *PUB, to="onp")
    world.advance(60)
    assert world.kinds("job:1").count("redirected") == 2


def test_a_job_that_ran_at_the_end_gets_its_order_back_when_it_is_requeued(world: World) -> None:
    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 30)
    migrate(world, *ONP, scope="cloud:onp")
    world.slurm.set_wish(1, PUB)
    world.advance(90)
    assert running(world)[1][0] in PUB
    resume(world)
    world.advance(60)
    assert partitions(world, 1) == ("pub",)
    world.slurm.set_wish(1, ())
    world.slurm.requeue(1)
    world.restart()
    world.advance(60)
    assert partitions(world, 1) == ("onp",)
    world.slurm.remove_job(1)
    world.advance(60)


def test_a_refused_change_back_is_tried_again(world: World) -> None:
    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 4000)
    migrate(world, *ONP, scope="cloud:onp")
    world.advance(30)
    resume(world)
    failures = 1

    def before(name: str) -> None:
        nonlocal failures
        if name == "change_pending" and failures:
            failures -= 1
            raise SlurmError(("scontrol",), 1, "Access denied")

    world.slurm.before_command = before  # type: ignore[method-assign]
    world.advance(20)
    assert partitions(world, 1) == ("pub",)
    world.advance(40)
    assert partitions(world, 1) == ("onp",)


def test_a_lost_answer_of_slurm_loses_no_way_back(world: World) -> None:
    world.slurm.submit(1, ONP, 1, partitions=("onp",), start=world.now + 4000)
    change = world.slurm.change_pending
    failures = 1

    def lose_answer(*jobs: Any, **fields: Any) -> None:
        nonlocal failures
        change(*jobs, **fields)
        if failures:
            failures -= 1
            text = "Unable to contact slurm controller (connect failure)"
            raise SlurmError(("scontrol",), 1, text)

    world.slurm.change_pending = lose_answer  # type: ignore[method-assign]
    migrate(world, *ONP, scope="cloud:onp")
    world.advance(90)
    assert partitions(world, 1) == ("pub",)
    assert world.kinds("job:1").count("redirected") == 1
    resume(world)
    world.advance(60)
    assert partitions(world, 1) == ("onp",)


def test_a_job_that_the_target_never_allows_stays_and_starts_in_its_own_cloud(
    tmp_path: Path,
) -> None:
    plain = make_config(tmp_path)
    small = replace(plain.clouds[1], limits=Limits(nodes=1, dollars_per_hour=10))
    pools = (plain.pools[0], replace(plain.pools[1], markets=(Market.ON_DEMAND,)))
    world = World(tmp_path, clouds=(plain.clouds[0], small), pools=pools, limits=Limits())
    busy(world)
    world.slurm.submit(4, ONP, 2, partitions=("onp",), limit=3600, node_count=2)
    migrate(world, *ONP, scope="cloud:onp")
    world.advance(10)
    assert partitions(world, 4) == ("pub",)
    world.slurm.set_wish(4, PUB, 2)
    world.advance(400, step=2)
    job = world.slurm.queue()[4]
    assert (job.partitions, job.is_held) == (("onp",), False)
    assert world.kinds("job:4").count("redirected") == 1
    resume(world)
    world.slurm.set_wish(4, ONP, 2)
    for number in (1, 2):
        world.slurm.finish(number)
    world.advance(300)
    assert len(running(world)[4]) == 2
    world.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"verb": "drain"},
        {"to": "onp"},
        {"to": "", "start_replacements": True},
    ],
)
def test_what_is_no_migration_is_refused(world: World, fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"verb": "migrate", "about": "op1", "nodes": ("op1",), "to": "pub"}
    word = Departure(**given | fields)
    with pytest.raises(ConfigError):
        carry_out(world.config, DirectAsk(word=word), "alice", world.now)


@pytest.mark.parametrize("release", ["on_demand", "flagged"])
def test_no_policy_takes_a_replacement_back_in_its_time(release: str) -> None:
    """Growth policies hold nodes back from Slurm, and release idle machines at once."""
    policies = SitePolicies(growth="on_demand", release=release, poll_interval=5.0)
    world = World(limits=Limits(nodes=10, dollars_per_hour=10), policies=policies)
    try:
        raised = LimitChange(scope="cloud:pub", key="dollars_per_hour", value=5)
        carry_out(world.config, DirectAsk(word=raised), "alice", world.now)
        world.slurm.submit(1, ONP, 1, partitions=("onp",))
        world.advance(120)
        ((node,),) = running(world).values()
        migrate(world, node, start_replacements=True)
        world.advance(60)
        (replacement,) = up(world)
        world.advance(600)
        assert up(world) == [replacement]
        resume(world)
        world.advance(180)
        assert up(world) == []
    finally:
        world.close()
