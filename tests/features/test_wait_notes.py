"""The AdminComment of a job that waits for us says why, beside everything that others wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import CapacityError, SlurmError
from slurm_elastic.base.units import utc_minute
from slurm_elastic.config import SlurmSettings
from slurm_elastic.features.growth import closed_pools
from slurm_elastic.features.growth.closed_pools import bars
from slurm_elastic.features.waits import wait_notes
from slurm_elastic.features.waits.wait_notes import MAX_UPDATES, WaitNotes
from slurm_elastic.model.admin_comment import NoteKind, note_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.directive import Directive, LimitChange, Pause
from slurm_elastic.policies.launch.verdict import PoolBar
from slurm_elastic.policies.waits.wait_note import REFRESH_S
from tests.controller.world import Inline, World

SITE = "ticket 7 [slurm-elastic clouds=onp,pub]"


def world_in(place: Path, private: str = "", **config: Any) -> World:
    conf = place / "slurm.conf"
    conf.write_text(
        f"ClusterName=alps\nPrivateData={private}\n" if private else "ClusterName=alps\n"
    )
    return World(place, slurm=SlurmSettings(conf=str(conf)), **config)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = world_in(tmp_path)
    yield made
    made.close()


def job(world: World, number: int, *states: str, **fields: Any) -> None:
    fields = {"partitions": ("pub",), "reason": "Resources", "submit": world.now - 60} | fields
    world.slurm.set_job(number, *(states or ("PENDING",)), limit=3600, **fields)


def pause(world: World, scope: str = "pool:burst", reason: str = "licences") -> int:
    order = Directive(
        word=Pause(scope=scope), who="alice", since=world.now, starts=world.now, reason=reason
    )
    return world.ledger.directives.give(order).number


def part(world: World) -> WaitNotes:
    return WaitNotes(world.site, Inline())


def run(world: World, notes: WaitNotes, seconds: float) -> None:
    """As the daemon's main loop does, once a second."""
    for _ in range(round(seconds)):
        world.now += 1
        notes.task.tick()


def updates(world: World) -> list[int]:
    return [
        int(fields["job"]) for name, fields in world.slurm.updates if name == "set_admin_comment"
    ]


def note(world: World, number: int) -> str:
    return note_of(world.slurm.comments.get(number, ""), NoteKind.WAIT)


def test_a_job_carries_the_sentence_of_explain_until_it_starts(world: World) -> None:
    world.slurm.comments[7] = SITE
    job(world, 7)
    pause(world)
    notes = part(world)
    notes.look()
    (bar,) = (b for b in bars(world.config, world.ledger, world.now) if b.pool == "burst")
    assert note(world, 7) == f"pub: {bar.reason}"
    assert world.slurm.comments[7].startswith("ticket 7 [slurm-elastic: pub: ")
    assert world.slurm.comments[7].endswith(" [slurm-elastic clouds=onp,pub]")
    run(world, notes, 1200)
    assert updates(world) == [7], "one update for one cause"
    job(world, 7, "RUNNING", nodes=("pub1",))
    run(world, notes, 60)
    assert world.slurm.comments[7] == SITE
    run(world, notes, 1200)
    assert updates(world) == [7, 7]


def test_it_goes_when_the_cause_goes_and_changes_with_the_cause(world: World) -> None:
    job(world, 7)
    number = pause(world)
    notes = part(world)
    notes.look()
    first = note(world, 7)
    world.ledger.directives.end(number)
    pause(world, "cloud:pub", "maintenance")
    run(world, notes, 90)
    assert "maintenance" in note(world, 7)
    assert note(world, 7) != first
    for order in world.ledger.directives.all():
        world.ledger.directives.end(order.number)
    run(world, notes, 90)
    assert world.slurm.comments[7] == ""
    assert updates(world) == [7, 7, 7]


def test_a_cloud_that_is_open_for_a_moment_changes_no_note(world: World) -> None:
    job(world, 7)
    notes = part(world)
    for _ in range(10):
        number = pause(world)
        run(world, notes, 300)
        world.ledger.directives.end(number)
        run(world, notes, 30)
    assert updates(world) == [7]
    run(world, notes, 90)
    assert updates(world) == [7, 7]


def fill_own_cloud(world: World) -> None:
    world.slurm.submit(101, ("op1",))
    world.slurm.submit(102, ("op2",))
    world.advance(60)
    running = [one for one in world.slurm.jobs() if "RUNNING" in one.states]
    assert {node for one in running for node in one.nodes} == {"op1", "op2"}


def sell_out(world: World) -> None:
    """The cloud lists no free machines. It is asked again later."""
    world.clouds["pub"].limit("*", 0)
    ask_in_vain(world)


def refuse(world: World) -> None:
    """The cloud lists machines and refuses each, as EC2 does: its offers cool down."""
    world.clouds["pub"].fail_next(CapacityError, 20, "launch")
    ask_in_vain(world)


def ask_in_vain(world: World) -> None:
    world.slurm.submit(103, ("pub1",))
    world.advance(60)
    assert world.ledger.exclusions.holds()
    world.slurm.finish(103)


def limit(world: World) -> None:
    order = LimitChange(scope="cloud:pub", key="dollars_per_hour", value=0.0)
    world.ledger.directives.give(
        Directive(word=order, who="alice", since=world.now, starts=world.now)
    )


PLAIN = {"partitions": ("onp", "pub")}
"""As the submit filter lists the clouds of a job that names none."""


@pytest.mark.parametrize(
    ("close", "cause"),
    [
        (sell_out, "next try"),
        (refuse, "cooling down"),
        (lambda world: pause(world, "cloud:pub", "licences"), "licences"),
        (limit, "alice"),
    ],
    ids=["sold out", "refused", "paused", "limited"],
)
def test_a_plain_job_says_so_while_the_own_cloud_is_full(
    world: World, close: Callable[[World], object], cause: str
) -> None:
    fill_own_cloud(world)
    close(world)
    job(world, 7, **PLAIN)
    part(world).look()
    assert note(world, 7).startswith("onp: nodes in use; pub: ")
    assert cause in note(world, 7)


def test_with_hidden_nodes_a_plain_job_says_so_without_figures(tmp_path: Path) -> None:
    world = world_in(tmp_path, "nodes")
    try:
        fill_own_cloud(world)
        sell_out(world)
        job(world, 7, **PLAIN)
        part(world).look()
        assert note(world, 7).startswith(
            "onp: nodes in use; pub: its nodes take no jobs; next try "
        )
    finally:
        world.close()


def test_a_full_own_cloud_alone_is_no_reason_of_ours(world: World) -> None:
    fill_own_cloud(world)
    job(world, 7, partitions=("onp",))
    pause(world)
    part(world).look()
    assert updates(world) == []


def test_a_retry_after_a_requeue_keeps_the_note(world: World) -> None:
    """Each try that fails sets the submit time anew, and Slurm then waits for two minutes."""
    fill_own_cloud(world)
    sell_out(world)
    job(world, 7, **PLAIN)
    notes = part(world)
    notes.look()
    assert note(world, 7)
    begin = world.now + 121
    requeued = {"submit": world.now, "restarts": 1, "eligible": begin, "start": begin}
    job(world, 7, reason="BeginTime", **PLAIN, **requeued)
    run(world, notes, 100)
    assert note(world, 7).startswith("onp: nodes in use; pub: ")
    job(world, 8, reason="BeginTime", **PLAIN, **requeued)
    part(world).look()
    assert note(world, 8), "without a minimum wait"


def test_jobs_that_wait_for_something_else_get_none(world: World) -> None:
    pause(world)
    job(world, 1, reason="Dependency")
    job(world, 2, partitions=("onp", "pub"))
    job(world, 3, partitions=("batch",))
    job(world, 4, submit=world.now - 5)
    job(world, 5, "RUNNING", nodes=("pub1",))
    part(world).look()
    assert updates(world) == []


def boot(world: World, node: str) -> str:
    """A machine that boots now; the machine that the node had before has ended."""
    machine = Instance(
        id=f"i-{node}-{world.now:.0f}", cloud="pub", node=node, generation=f"{world.now:.0f}",
        instance_type="small", zone="a", market=Market.ON_DEMAND, price=0.1,
        state=InstanceState.RUNNING, launched=world.now,
    )  # fmt: skip
    world.ledger.machines.adopt(machine, "burst", world.now)
    return machine.id


def test_a_job_whose_machines_boot_says_so(world: World) -> None:
    job(world, 7, "CONFIGURING", nodes=("pub1", "pub2"), start=world.now)
    boot(world, "pub1")
    boot(world, "pub2")
    since = utc_minute(world.now)
    notes = part(world)
    notes.look()
    assert updates(world) == [], "most boots are short"
    run(world, notes, 61)
    assert note(world, 7) == f"its machines boot since {since}: pub(1-2)"
    job(world, 7, "RUNNING")
    run(world, notes, 61)
    assert note(world, 7) == ""
    assert updates(world) == [7, 7]


def test_the_boot_time_is_of_the_machines_that_boot_now(world: World) -> None:
    job(world, 7, "CONFIGURING", nodes=("pub1",), start=world.now)
    first = boot(world, "pub1")
    since = utc_minute(world.now)
    notes = part(world)
    run(world, notes, 64)
    assert note(world, 7) == f"its machines boot since {since}: pub1"
    world.ledger.machines.record_end("pub", [first], Quoted(text="lost"), world.now)
    run(world, notes, 12)
    assert note(world, 7) == "", "no machine boots"
    boot(world, "pub1")
    again = utc_minute(world.now)
    run(world, notes, 12)
    assert again != since
    assert note(world, 7) == f"its machines boot since {again}: pub1"


def test_a_restart_writes_nothing_again_and_still_removes_the_note(world: World) -> None:
    job(world, 7)
    job(world, 8)
    number = pause(world)
    part(world).look()
    assert updates(world) == [7, 8]
    job(world, 8, "RUNNING", nodes=("pub1",))
    after = part(world)
    after.look()
    assert updates(world) == [7, 8, 8], "the note of the job that started meanwhile"
    world.ledger.directives.end(number)
    run(world, after, 90)
    assert updates(world) == [7, 8, 8, 7]


def test_a_comment_that_lost_our_note_is_left_alone(world: World) -> None:
    job(world, 7)
    pause(world)
    notes = part(world)
    notes.look()
    world.slurm.comments[7] = "somebody's text"
    for order in world.ledger.directives.all():
        world.ledger.directives.end(order.number)
    pause(world, "cloud:pub", "maintenance")
    run(world, notes, 1200)
    assert world.slurm.comments[7] == "somebody's text"
    assert updates(world) == [7]


def test_at_10_000_pending_jobs_there_are_five_updates_a_second_at_most(world: World) -> None:
    for number in range(1, 10_001):
        job(world, number, priority=number)
    pause(world)
    notes = part(world)
    counts = []
    for _ in range(40):
        before = len(updates(world))
        run(world, notes, 1)
        counts.append(len(updates(world)) - before)
    assert max(counts) == MAX_UPDATES
    assert sum(counts) >= 35 * MAX_UPDATES, "and they are used"
    assert updates(world)[:3] == [10_000, 9_999, 9_998], "highest priority first"
    assert len(set(updates(world))) == len(updates(world))


def test_a_changed_time_alone_is_written_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        job(world, number)
    notes = part(world)
    monkeypatch.setattr(
        notes._texts, "of",
        lambda jobs: [(one.id, f"pub: sold out; next try {world.now:.0f}") for one in jobs],
    )  # fmt: skip
    run(world, notes, REFRESH_S)
    assert len(updates(world)) == 5
    before = world.now
    run(world, notes, 120)
    assert len(updates(world)) == 10, "each once"
    assert world.now - before >= 5


@pytest.mark.parametrize(
    ("private", "is_hidden"), [("usage", True), ("nodes", True), ("jobs", False), ("", False)]
)
def test_nothing_is_shown_that_private_data_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str, is_hidden: bool
) -> None:
    bar = PoolBar(pool="burst", reason="account art has spent $7 of $7", is_private=True)
    monkeypatch.setattr(closed_pools, "bars", lambda *_: (bar,))
    world = world_in(tmp_path, private)
    try:
        job(world, 7)
        part(world).look()
        hidden = "pub: a bound of the site on machines, dollars or hours is reached"
        assert note(world, 7) == (hidden if is_hidden else f"pub: {bar.reason}")
    finally:
        world.close()


def test_without_a_readable_slurm_conf_all_private_causes_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = PoolBar(pool="burst", reason="account art has spent $7 of $7", is_private=True)
    monkeypatch.setattr(closed_pools, "bars", lambda *_: (bar,))
    world = World(tmp_path, slurm=SlurmSettings(conf=str(tmp_path / "missing")))
    try:
        job(world, 7)
        part(world).look()
        assert "$" not in note(world, 7)
    finally:
        world.close()


def test_an_array_gets_a_note_only_while_all_of_it_waits(world: World) -> None:
    job(world, 7, array=7, tasks=10)
    number = pause(world)
    notes = part(world)
    notes.look()
    assert note(world, 7)
    world.slurm.comments[8] = world.slurm.comments[7]  # as slurmctld copies it
    job(world, 7, array=7, tasks=9)
    job(world, 8, "RUNNING", array=7, task=1, nodes=("pub1",))
    run(world, notes, 100)
    assert note(world, 7) == note(world, 8) == ""
    world.ledger.directives.end(number)
    run(world, notes, 100)
    assert note(world, 7) == ""


def test_tasks_with_different_comments_are_not_made_equal(world: World) -> None:
    job(world, 7, array=7, tasks=10)
    pause(world)
    notes = part(world)
    notes.look()
    world.slurm.comments[8] = f"own {world.slurm.comments[7]}"
    job(world, 8, "RUNNING", array=7, task=1, nodes=("pub1",))
    run(world, notes, 100)
    assert world.slurm.comments[8] == "own"


def test_a_job_that_slurm_refuses_to_change_does_not_stop_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    job(world, 7)
    job(world, 8)
    pause(world)
    write: Callable[[int, str], None] = world.slurm.set_admin_comment

    def refuse(number: int, text: str) -> None:
        if number == 7:
            raise SlurmError(("scontrol", "update"), 1, "Job has already finished")
        write(number, text)

    world.slurm.set_admin_comment = refuse  # type: ignore[method-assign]
    caplog.set_level("INFO")
    part(world).look()
    assert updates(world) == [8]
    assert "wait not noted job=7" in caplog.text


def test_an_array_of_which_tasks_have_ended_loses_its_note_as_well(world: World) -> None:
    """Slurm changes the other tasks and answers with an error about those that have ended."""
    job(world, 7, array=7, tasks=10)
    number = pause(world)
    write: Callable[[int, str], None] = world.slurm.set_admin_comment

    def partly(number: int, text: str) -> None:
        write(number, text)
        raise SlurmError(("scontrol", "update"), 1, "7_1: Job has already finished")

    world.slurm.set_admin_comment = partly  # type: ignore[method-assign]
    notes = part(world)
    notes.look()
    assert note(world, 7)
    world.ledger.directives.end(number)
    run(world, notes, 100)
    assert note(world, 7) == ""
    assert updates(world) == [7, 7]


def test_while_slurm_does_not_answer_the_change_waits(world: World) -> None:
    job(world, 7)
    pause(world)
    notes = part(world)
    world.slurm.fail_next.append(SlurmError(("squeue",), None, "no answer in 60 s"))
    run(world, notes, 100)
    assert updates(world) == [7]


def test_an_idle_site_is_not_asked_for_its_queue(world: World) -> None:
    notes = part(world)
    notes.look()
    state = world.ledger.state()
    assert notes._is_idle(state)
    pause(world)
    assert not notes._is_idle(world.ledger.state()), "a job may wait for the pause to end"
    job(world, 7)
    run(world, notes, 60)
    assert note(world, 7)
    assert not notes._is_idle(state), "a note is to be removed"


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    made = World(tmp_path, slurm=SlurmSettings(wait_notes=False))
    try:
        assert wait_notes.join(made.site) is None
    finally:
        made.close()
