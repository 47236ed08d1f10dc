"""When files are copied, repeated, given up, and what is written down of it."""

from __future__ import annotations

import contextlib
import dataclasses
import pwd
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.features.files import copy_part, copying
from slurm_elastic.features.files.copy_orders import CopyResult
from slurm_elastic.features.files.copying import GO, Copies, CopyRequest
from slurm_elastic.machine.jobfiles.copier import CopierRefusalError, GroupMemory
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.job_files import JobFiles, files_of
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.testing.in_memory import Inline
from tests.controller.world import World, make_config

UID = pwd.getpwnam("nobody").pw_uid
FILES = JobFiles(
    job=1, label="1", uid=UID, restarts=0, states=frozenset({"CONFIGURING"}), nodes=("pub1",),
    directory="/home/a/w", outputs=("/home/a/w/slurm-1.out",),
)  # fmt: skip
OUT = CopyRequest(job=1, nodes=("pub1",), back=False)
BACK = CopyRequest(job=1, nodes=("pub1",), back=True)
DONE = CopyResult(files=2, bytes=10, bases={FILES.outputs[0]: 5})


class Stage:
    """A job on pub1, whose copies end as ``results`` says, the last one again and again."""

    def __init__(self, place: Path) -> None:
        plain = make_config(place)
        clouds = tuple(replace(c, data=Data.COPY) if c.name == "pub" else c for c in plain.clouds)
        self.world = World(place, clouds=clouds)
        self.files: JobFiles | SlurmError | None = FILES
        self.results = [DONE]
        self.orders: list[Mapping[str, Any]] = []
        self.copies = self.make()
        self.world.slurm.submit(1, ("pub1",))
        self.world.advance(60)
        assert [m.instance.node for m in self.world.ledger.machines.live()] == ["pub1"]

    def make(self) -> Copies:
        return Copies(self.world.site, self.run, self.read, pause=0.01)

    def read(self, _: int) -> JobFiles | None:
        if isinstance(self.files, SlurmError):
            raise self.files
        return self.files

    def run(
        self, instance: Instance, order: Mapping[str, Any], until: float, gone: threading.Event
    ) -> CopyResult:
        assert instance.node == "pub1"
        self.orders.append(order)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]

    def serve(self, request: CopyRequest) -> str:
        """As the server does it."""
        with self.copies.claim(request.job):
            if request.back:
                self.copies.owe(request.job)
            while (answer := self.copies.attempt(request, threading.Event())) is None:
                time.sleep(self.copies.pause)
        return answer

    def bring_back(self, copies: Copies) -> None:
        copies.owe(1)
        while not copies.bring_back(1):
            self.world.now += copies.pause

    @property
    def states(self) -> list[str]:
        return [str(row.state) for row in self.world.ledger.copies.of(1)]

    @property
    def causes(self) -> list[str]:
        return [f"{d.kind}: {d.cause}" for d in self.world.ledger.decisions.about("job:1")
                if d.correlation == "copy"]  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.world.close()


def test_files_go_and_come_back(stage: Stage) -> None:
    assert stage.serve(OUT) == GO
    assert stage.states == ["there"]
    assert stage.serve(OUT) == GO, "a restarted slurmctld runs the prolog again"
    assert [order["do"] for order in stage.orders] == ["out"]
    assert stage.serve(BACK) == GO
    assert stage.states == ["back"]
    (output,) = stage.orders[1]["outputs"]
    assert output == {"path": FILES.outputs[0], "base": 5, "late": False, "restored": False}
    assert stage.orders[1]["groups"] == [pwd.getpwnam("nobody").pw_gid]
    machine = stage.world.ledger.copies.of(1)[0].machine
    assert stage.causes == [
        f"copied-out: 2 files (0.0 MB) went to {machine}",
        f"copied-back: 2 files (0.0 MB) came back from {machine}",
    ]


def test_files_that_were_left_out_are_named(stage: Stage) -> None:
    """As one that its owner may not read."""
    stage.results = [replace(DONE, notes=("a: Permission denied",))]
    stage.serve(OUT)
    assert stage.causes[0].endswith("; a: Permission denied")
    assert stage.serve(BACK) == GO
    assert len(stage.orders) == 2


def test_a_copy_is_repeated_and_a_final_refusal_holds_the_job(stage: Stage) -> None:
    stage.results = [CopyResult(reason="no answer"), CopyResult(reason="too large", final=True)]
    assert "cannot be copied to its machine: too large" in stage.serve(OUT)
    assert stage.states == ["unsent"]
    assert [text.partition(":")[0] for text in stage.causes] == ["copy-retried", "copy-refused"]
    # Slurm requeues the job, because its prolog fails.
    stage.world.slurm.requeue(1)
    stage.files = replace(FILES, states=frozenset({"PENDING"}), nodes=())
    eventually(lambda: stage.world.slurm.calls["hold"] == 1)
    eventually(lambda: "data: held: the files" in stage.world.slurm.admin_comments([1])[1])
    eventually(lambda: stage.states == ["refused"])


def may_not_requeue(stage: Stage) -> None:
    """As with ``--no-requeue``, or by JobRequeue=0 of the site."""
    stage.world.slurm.set_job(1, "RUNNING", "CONFIGURING", requeue=False)
    stage.files = replace(FILES, requeue=False)


@pytest.mark.parametrize("has_time", [True, False])
def test_a_job_that_slurm_may_not_requeue_is_held_too(stage: Stage, has_time: bool) -> None:
    """slurmctld cancels it when its prolog fails."""
    may_not_requeue(stage)
    stage.results = [TOO_LARGE]
    if has_time:
        stage.serve(OUT)
    else:
        stage.copies.refuse(OUT, "no time left")
    stage.world.slurm.requeue(1)
    stage.files = replace(FILES, states=frozenset({"PENDING"}), nodes=(), requeue=False)
    eventually(lambda: stage.states == ["refused"])
    assert job(stage).reason == "JobHeldUser"
    stage.world.advance(60)
    assert not job(stage).requeue, "its user's setting is back"
    assert stage.world.ledger.requeues.lifted() == ()


def test_a_job_gets_its_no_requeue_back_when_it_runs(stage: Stage) -> None:
    may_not_requeue(stage)
    assert stage.serve(OUT) == GO
    site = stage.world.site
    site.requeues.tick(site.slurm, site.ledger, site.now() + 3600, site.monotonic() + 3600)
    assert job(stage).requeue, "its prolog may still fail"
    stage.world.advance(60)
    assert job(stage).states == {"RUNNING"}
    assert not job(stage).requeue
    assert stage.world.ledger.requeues.lifted() == ()


def test_a_copy_waits_until_slurm_has_answered_whether_the_job_may_be_requeued(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_not_requeue(stage)
    with monkeypatch.context() as patched:

        def fail(job: int, *, requeue: bool) -> None:
            raise SlurmError(("scontrol", "update", f"{job}", f"requeue={requeue}"), None, "")

        patched.setattr(stage.world.slurm, "set_requeue", fail)
        assert stage.copies.attempt(OUT, threading.Event()) is None
    assert stage.orders == []
    assert stage.serve(OUT) == GO


TOO_LARGE = CopyResult(reason="too large", final=True)


def refused(stage: Stage) -> None:
    """The job's files cannot be sent, and Slurm requeues it after the daemon has ended."""
    stage.results = [TOO_LARGE]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "in_background", lambda *_: None)
        stage.serve(OUT)
    stage.world.slurm.requeue(1)


def job(stage: Stage) -> SlurmJob:
    return stage.world.slurm.queue()[1]


def note(stage: Stage) -> str:
    return stage.world.slurm.admin_comments([1])[1]


def test_a_job_that_an_admin_holds_stays_held_by_the_admin(stage: Stage) -> None:
    """Slurm would turn the hold into a user's hold, which the user may release."""
    stage.results = [TOO_LARGE]
    stage.serve(OUT)
    stage.world.slurm.requeue(1)
    stage.world.slurm.set_job(1, reason="JobHeldAdmin", priority=0)
    stage.files = replace(FILES, states=frozenset({"PENDING"}), nodes=())
    eventually(lambda: "data: held: the files" in note(stage))
    eventually(lambda: stage.states == ["refused"])
    assert stage.world.slurm.calls["hold"] == 0
    assert job(stage).reason == "JobHeldAdmin"


def test_a_restarted_daemon_holds_the_job_that_it_has_refused(stage: Stage) -> None:
    """Else the job would start again, on another paid machine."""
    refused(stage)
    stage.world.restart()
    stage.make().hold_unsent()
    assert job(stage).reason == "JobHeldUser"
    assert "data: held: the files of /home/a/w cannot be copied to its machine: too large" in note(
        stage
    )
    assert stage.states == ["refused"]


def test_a_restarted_daemon_holds_the_job_for_which_no_copy_began(stage: Stage) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "in_background", lambda *_: None)
        stage.copies.refuse(OUT, "no time is left")
    stage.world.slurm.requeue(1)
    stage.world.restart()
    stage.make().hold_unsent()
    assert job(stage).reason == "JobHeldUser"
    assert stage.states == ["refused"]


def test_a_look_holds_a_refused_job_once(stage: Stage, part: copy_part.CopyPart) -> None:
    """Its user may release it afterwards."""
    refused(stage)
    part.look()
    assert job(stage).reason == "JobHeldUser"
    stage.world.slurm.release(1)
    part.look()
    assert not job(stage).is_held
    assert stage.world.slurm.calls["hold"] == 1


def test_a_look_leaves_the_hold_of_an_admin(stage: Stage, part: copy_part.CopyPart) -> None:
    refused(stage)
    stage.world.slurm.set_job(1, reason="JobHeldAdmin", priority=0)
    part.look()
    assert job(stage).reason == "JobHeldAdmin"
    stage.world.slurm.release(1)
    part.look()
    assert stage.world.slurm.calls["hold"] == 0, "it may try once more"


@pytest.mark.parametrize("states", [("CONFIGURING", "RUNNING"), ("PENDING", "COMPLETING")])
def test_a_refused_job_is_held_once_it_waits(
    stage: Stage, part: copy_part.CopyPart, states: tuple[str, ...]
) -> None:
    refused(stage)
    stage.world.slurm.set_job(1, *states)
    part.look()
    assert (stage.world.slurm.calls["hold"], stage.states) == (0, ["unsent"])
    stage.world.slurm.set_job(1, "PENDING")
    part.look()
    assert (stage.world.slurm.calls["hold"], stage.states) == (1, ["refused"])


def test_a_job_that_has_run_since_is_not_held(stage: Stage, part: copy_part.CopyPart) -> None:
    refused(stage)
    stage.world.slurm.set_job(1, restarts=2)
    part.look()
    assert (stage.world.slurm.calls["hold"], stage.states) == (0, ["refused"])


def test_a_refused_job_that_has_left_the_queue_is_done_with(
    stage: Stage, part: copy_part.CopyPart
) -> None:
    refused(stage)
    stage.world.slurm.remove_job(1)
    part.look()
    assert (stage.world.slurm.calls["hold"], stage.states) == (0, ["refused"])


def test_a_job_that_slurm_does_not_hold_keeps_no_other_free(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(stage)
    (row,) = stage.world.ledger.copies.of(1)
    stage.world.ledger.copies.put(replace(row, job=2))
    stage.world.slurm.set_job(2, "PENDING", restarts=1)
    hold = stage.world.slurm.hold

    def refuses(number: int) -> None:
        if number == 1:
            raise SlurmError(("scontrol", "uhold"), 1, "Access denied")
        hold(number)

    with monkeypatch.context() as patched:
        patched.setattr(stage.world.slurm, "hold", refuses)
        part.look()
    assert stage.world.slurm.queue()[2].reason == "JobHeldUser"
    assert stage.states == ["unsent"]
    part.look()
    assert stage.states == ["refused"]


def test_old_rows_of_refused_jobs_are_forgotten(stage: Stage) -> None:
    refused(stage)
    (row,) = stage.world.ledger.copies.of(1)
    stage.world.ledger.copies.put(replace(row, job=2, since=row.since + 100))
    stage.world.ledger.copies.forget(row.since + 100, 50)
    assert stage.states == []


def test_a_job_that_is_no_longer_about_to_start_waits_for_nothing(stage: Stage) -> None:
    for files in (None, replace(FILES, nodes=()), replace(FILES, states=frozenset({"COMPLETING"}))):
        stage.files = files
        assert stage.serve(OUT) == GO
    assert stage.orders == []


def test_without_slurm_a_copy_waits(stage: Stage) -> None:
    stage.files = SlurmError(("scontrol",), 1, "away")
    gone = threading.Event()
    assert stage.copies.attempt(OUT, gone) is None
    stage.files = FILES
    assert stage.copies.attempt(OUT, gone) == GO
    assert stage.states == ["there"]


def test_what_does_not_come_back_in_time_is_lost_and_said(stage: Stage) -> None:
    stage.serve(OUT)
    stage.results = [CopyResult(reason="Disk quota exceeded")]
    copies = Copies(stage.world.site, stage.run, stage.read, pause=30.0)
    began = stage.world.now
    stage.bring_back(copies)
    assert stage.states == ["lost"]
    assert 570 <= stage.world.now - began <= 600
    assert stage.causes[-1].endswith("did not come back to /home/a/w: Disk quota exceeded")


def test_a_directory_service_that_knows_no_user_for_a_moment_costs_no_files(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while sssd restarts: neither is the job held, nor are its results given up."""
    account, unanswered = pwd.getpwuid(UID), [True]

    def look_up(uid: int) -> pwd.struct_passwd:
        if unanswered:
            unanswered.pop()
            raise KeyError(uid)
        return account

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    assert stage.serve(OUT) == GO
    unanswered.append(True)
    assert stage.serve(BACK) == GO
    assert stage.states == ["back"]


def test_the_files_go_to_the_machine_that_slurm_has(stage: Stage) -> None:
    """A double, a late or an adopted machine may stand beside it."""
    world = stage.world
    (machine,) = world.ledger.machines.live()
    instance = replace(machine.instance, id="i-other", generation="zz9", address="10.9.9.9")
    world.ledger.machines.adopt(instance, machine.pool, world.now)
    world.slurm.update_nodes(["pub1"], address="10.9.9.8")
    assert stage.copies.attempt(OUT, threading.Event()) is None
    assert stage.causes[-1].endswith("pub1 has no machine at the address that Slurm has")
    world.slurm.update_nodes(["pub1"], address="10.9.9.9")
    assert stage.serve(OUT) == GO
    assert [row.machine for row in world.ledger.copies.of(1)] == ["i-other"]


def test_a_machine_that_was_replaced_during_the_copy_starts_no_job(stage: Stage) -> None:
    world, run = stage.world, stage.run
    (machine,) = world.ledger.machines.live()
    instance = replace(machine.instance, id="i-other", generation="zz9", address="10.9.9.9")

    def replaced(*arguments: Any) -> CopyResult:
        world.ledger.machines.adopt(instance, machine.pool, world.now)
        world.slurm.update_nodes(["pub1"], address="10.9.9.9")
        return run(*arguments)

    copies = Copies(world.site, replaced, stage.read, pause=0.01)
    assert copies.attempt(OUT, threading.Event()) is None
    assert stage.causes[-1].endswith("another machine serves pub1 now")


def test_the_time_in_which_another_copy_is_in_the_way_does_not_count(stage: Stage) -> None:
    stage.serve(OUT)
    busy = CopyResult(reason="another copy has used it for too long", busy=True)
    stage.results = [*[busy] * 40, DONE]
    copies = Copies(stage.world.site, stage.run, stage.read, pause=30.0)
    stage.bring_back(copies)
    assert stage.states == ["back"]


def test_a_directory_that_stays_busy_gives_its_machine_up(stage: Stage) -> None:
    """The busy process may hang, or be a program of the user's that keeps our lock."""
    world = stage.world
    unfinished = copy_part.Unfinished(world.site)
    stage.serve(OUT)
    stage.results = [CopyResult(reason="another copy has used it for too long", busy=True)]
    stage.copies.owe(1)
    machines = world.ledger.machines.live()
    began, settings = world.now, world.site.config.copy
    while unfinished(machines):
        world.now += 120.0
        stage.copies.bring_back(1)
    assert stage.states == ["lost"]
    bound_s = settings.out_within + settings.back_within
    assert settings.out_within <= world.now - began <= bound_s


def test_a_machine_is_not_kept_for_a_busy_directory_that_nobody_looks_at(stage: Stage) -> None:
    world = stage.world
    unfinished = copy_part.Unfinished(world.site)
    stage.serve(OUT)
    stage.copies.owe(1)
    machines = world.ledger.machines.live()
    settings = world.site.config.copy
    most_s = settings.out_within + 2 * settings.back_within
    for _ in range(int(most_s / 120.0)):
        assert unfinished(machines)
        world.now += 120.0
        (row,) = world.ledger.copies.of(1)
        world.ledger.copies.set_state(replace(row, since=world.now))
    assert not unfinished(machines)


def test_the_last_try_waits_for_no_end_of_the_job(stage: Stage) -> None:
    """Its results so far are worth more than none."""
    stage.copies.pause = 100.0
    stage.serve(OUT)
    stage.results = [CopyResult(reason="no answer")]
    stage.bring_back(stage.copies)
    waits = [order["end_wait"] for order in stage.orders[1:]]
    assert waits[0] == 240
    assert waits[-1] < 240


def test_groups_that_go_missing_are_doubted_for_a_time() -> None:
    memory = GroupMemory()
    memory.check(UID, [1])
    memory.check(UID, [1, 2])
    with pytest.raises(CopierRefusalError, match=r"fewer groups .* without 2: its directory"):
        memory.check(UID, [1])
    memory.check(UID + 1, [1])
    memory.check(UID, [1, 2, 3])
    memory.check(UID, [1], doubt_s=0.0)


def test_the_bound_goes_on_over_a_restart(stage: Stage) -> None:
    stage.serve(OUT)
    (row,) = stage.world.ledger.copies.of(1)
    since = stage.world.now - 590
    stage.world.ledger.copies.put(replace(row, state=CopyState.OWED, since=since))
    stage.world.restart()
    stage.results = [CopyResult(reason="no answer")]
    copies = Copies(stage.world.site, stage.run, stage.read, pause=5.0)
    began = stage.world.now
    stage.bring_back(copies)
    assert stage.states == ["lost"]
    assert stage.world.now - began <= 10


def test_a_machine_that_has_ended_is_not_waited_for(stage: Stage) -> None:
    stage.serve(OUT)
    stage.world.slurm.finish(1)
    stage.world.advance(900, step=20)
    assert stage.world.ledger.machines.live() == ()
    stage.bring_back(stage.copies)
    assert stage.states == ["lost"]
    assert "its machine has ended" in stage.causes[-1]


def add_image(stage: Stage, attempt: int, method: str) -> Image:
    image = Image(job=1, label="1", attempt=attempt, number=1, method=method, node="pub1",
                  taken=0.0, seconds=1.0, uid=UID)  # fmt: skip
    state = CheckpointState(stage.world.site.config.state / FILE)
    state.add_image(image)
    state.close()
    return image


def begin_of_output(stage: Stage, restarts: int) -> int:
    """Of the run with so many restarts, which finds all earlier output in its file."""
    stage.files = replace(FILES, restarts=restarts)
    size = 5 + 100 * restarts
    stage.results = [CopyResult(files=2, bytes=10, bases={FILES.outputs[0]: size})]
    stage.serve(OUT)
    stage.serve(BACK)
    return stage.orders[-1]["outputs"][0]["base"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "begins"), [("criu", 5), ("signal", 205)])
def test_a_restored_run_continues_the_output_of_the_saved_run(
    stage: Stage, method: str, begins: int
) -> None:
    """A restore writes the saved run's output into the machine's file again, also where the run in
    between ended before it was saved.
    """
    assert begin_of_output(stage, 0) == 5
    add_image(stage, 0, method)
    begin_of_output(stage, 1)
    assert begin_of_output(stage, 2) == begins


def test_a_restored_run_may_append_its_output_once(stage: Stage) -> None:
    begin_of_output(stage, 0)
    add_image(stage, 0, "criu")
    stage.files = replace(FILES, restarts=1)
    stage.results = [CopyResult(files=2, bytes=10, bases={FILES.outputs[0]: 105})]
    stage.serve(OUT)
    for expected in (True, False):
        row = stage.world.ledger.copies.of(1)[-1]
        stage.copies.pull_outputs(row)
        assert stage.orders[-1]["outputs"][0]["restored"] is expected


@pytest.mark.parametrize(("attempt", "method", "is_held"), [
    (0, "criu", True), (0, "signal", False), (1, "criu", False),
])  # fmt: skip
def test_a_job_whose_image_is_not_forgotten_is_held_until_a_person_releases_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, attempt: int, method: str, is_held: bool
) -> None:
    """A restored program would go on as if the files of its run were there."""
    monkeypatch.setattr(copying, "FORGET_WITHIN_S", 0.0)
    lose_files(stage, attempt, method)
    assert ("its image needs them" in stage.serve(OUT)) is is_held
    stage.files = replace(FILES, restarts=2)  # released
    assert stage.serve(OUT) == GO


def lose_files(stage: Stage, attempt: int = 0, method: str = "criu") -> Image:
    """The files of the job's first run are lost, and it was saved in that attempt."""
    stage.serve(OUT)
    stage.results = [CopyResult(reason="no space", final=True)]
    stage.serve(BACK)
    assert stage.states == ["lost"]
    stage.results = [DONE]
    image = add_image(stage, attempt, method)
    stage.files = replace(FILES, restarts=1)
    return image


def test_a_job_waits_until_the_image_without_its_files_is_forgotten(stage: Stage) -> None:
    image = lose_files(stage)
    with stage.copies.claim(1):
        assert stage.copies.attempt(OUT, threading.Event()) is None
        with closing(CheckpointState(stage.world.site.config.state / FILE)) as state:
            state.forget_image(image)
        assert stage.copies.attempt(OUT, threading.Event()) == GO


def test_a_job_waits_while_its_images_cannot_be_read(stage: Stage) -> None:
    stage.serve(OUT)
    stage.results = [CopyResult(reason="no space", final=True)]
    stage.serve(BACK)
    (stage.world.site.config.state / FILE).write_bytes(b"no database" * 1000)
    stage.files = replace(FILES, restarts=1)
    with stage.copies.claim(1):
        assert stage.copies.attempt(OUT, threading.Event()) is None


def test_a_machine_with_files_does_not_end(stage: Stage) -> None:
    """Neither by Slurm's suspend, nor for another machine when its node is powered up again."""
    world = stage.world
    world.site.extensions.find_unfinished.append(copy_part.Unfinished(world.site))
    stage.serve(OUT)
    (row,) = world.ledger.copies.of(1)
    world.ledger.copies.put(replace(row, state=CopyState.OWED))
    world.slurm.finish(1)
    world.advance(900, step=20)
    assert [m.instance.id for m in world.ledger.machines.live()] == [row.machine]
    world.slurm.submit(2, ("pub1",))
    world.advance(120)
    assert [m.instance.id for m in world.ledger.machines.live()] == [row.machine]
    world.ledger.copies.put(replace(row, state=CopyState.BACK))
    world.advance(200)
    (other,) = world.ledger.machines.live()
    assert other.instance.id != row.machine
    assert other.instance.node == "pub1"


def test_files_of_an_earlier_run_come_first(stage: Stage) -> None:
    stage.serve(OUT)
    stage.files = replace(FILES, restarts=1)
    assert stage.serve(OUT) == GO
    assert [order["do"] for order in stage.orders] == ["out", "back", "out"]
    assert stage.states == ["back", "there"]


def test_a_later_job_of_the_same_number_gets_its_own_files(stage: Stage) -> None:
    """Slurm begins with the first number again after a loss of its state."""
    stage.serve(OUT)
    stage.files = replace(FILES, directory="/home/b/w")
    assert stage.serve(OUT) == GO
    assert [order["directory"] for order in stage.orders] == ["/home/a/w", "/home/b/w"]
    assert stage.states == ["there"]
    assert stage.causes[1].endswith(
        "did not come back to /home/a/w: another job has got its number"
    )


def test_a_late_try_takes_no_files_of_the_next_run(stage: Stage) -> None:
    """A try of the first run's epilog may get a thread when the second run already runs."""
    stage.serve(OUT)
    stage.serve(BACK)
    stage.files = replace(FILES, restarts=1)
    stage.serve(OUT)
    assert stage.copies.attempt(BACK, threading.Event()) == GO
    assert stage.states == ["back", "there"]
    assert [order["do"] for order in stage.orders] == ["out", "back", "out"]


def test_a_look_takes_no_files_of_a_run_that_starts_meanwhile(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.serve(OUT)
    stage.world.slurm.finish(1)

    def read(_: object, job: int) -> None:
        # The job was pending at Slurm's answer, and a second run has its files now.
        stage.files = replace(FILES, restarts=1)
        stage.serve(OUT)

    monkeypatch.setattr(copy_part, "read_job_files", read)
    part.look()
    eventually(lambda: not part._returns or all(f.done() for f in part._returns.values()))
    assert stage.states == ["back", "there"]


def test_outputs_that_come_back_change_no_state(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may end while its output comes: nobody may then write its old state."""
    stage.serve(OUT)
    (row,) = stage.world.ledger.copies.of(1)
    stage.results = [CopyResult(bases={FILES.outputs[0]: 9})]
    written: list[object] = []
    monkeypatch.setattr(type(stage.world.ledger.copies), "put", lambda _, row: written.append(row))
    stage.copies.pull_outputs(row)
    assert written == []
    (row,) = stage.world.ledger.copies.of(1)
    assert dict(row.outputs) == {FILES.outputs[0]: 9}


def test_an_output_that_another_machine_writes_too_is_brought_by_the_last_copy(
    stage: Stage,
) -> None:
    stage.serve(OUT)
    (row,) = stage.world.ledger.copies.of(1)
    stage.results = [CopyResult(late=(FILES.outputs[0],)), DONE]
    for _ in range(2):
        stage.copies.pull_outputs(row)
    assert stage.serve(BACK) == GO
    orders = [(order["do"], order["outputs"][0]["late"]) for order in stage.orders[1:]]
    assert orders == [("outputs", False), ("outputs", True), ("back", False)]
    assert stage.copies._late_outputs == {}


def task(number: int) -> CopyRequest:
    return replace(OUT, job=number)


def bases_of(stage: Stage, job: int) -> list[int]:
    return list(stage.world.ledger.copies.of(job)[-1].outputs.values())


def start_tasks(stage: Stage) -> None:
    """Two tasks of an array on one machine, which write one file. The head has 95 bytes of it when
    the second task starts.
    """
    stage.serve(OUT)
    stage.files = replace(FILES, job=2)
    stage.results = [replace(DONE, bases={FILES.outputs[0]: 100}, joined=FILES.outputs)]
    stage.serve(task(2))
    stage.results = [DONE]


def test_tasks_that_write_one_file_of_a_machine_have_one_base(stage: Stage) -> None:
    """With the size of the head's file as base, each task brought the text of all earlier ones."""
    start_tasks(stage)
    assert bases_of(stage, 2) == [5]
    stage.files = replace(FILES, job=3)
    stage.results = [replace(DONE, bases={FILES.outputs[0]: 100})]
    stage.serve(task(3))
    assert bases_of(stage, 3) == [100], "the last of them has removed it from the machine"


def test_a_task_that_ends_during_a_copy_leaves_its_base(stage: Stage) -> None:
    """Its file stays on the machine for the task that starts."""
    stage.serve(OUT)
    run = stage.copies._run
    stage.results = [replace(DONE, bases={FILES.outputs[0]: 100}, joined=FILES.outputs)]

    def end_first(*args: Any) -> CopyResult:
        (row,) = stage.world.ledger.copies.of(1)
        stage.world.ledger.copies.set_state(replace(row, state=CopyState.BACK))
        return run(*args)

    stage.copies._run = end_first
    stage.files = replace(FILES, job=2)
    stage.serve(task(2))
    assert bases_of(stage, 2) == [5]


def test_an_output_that_is_appended_begins_there_for_all_tasks(stage: Stage) -> None:
    start_tasks(stage)
    stage.results = [CopyResult(bases={FILES.outputs[0]: 300})]
    (first,) = stage.world.ledger.copies.of(1)
    (second,) = stage.world.ledger.copies.of(2)
    stage.copies.pull_outputs(first)
    assert bases_of(stage, 1) == bases_of(stage, 2) == [300]
    stage.copies.pull_outputs(second)
    assert stage.orders[-1]["outputs"][0]["base"] == 300, "its row was read before"


def test_copies_of_one_output_of_a_machine_take_turns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would append it, with the base from before."""
    monkeypatch.setattr(copying, "_TURN_WAIT_S", 0.0)
    start_tasks(stage)
    (second,) = stage.world.ledger.copies.of(2)
    stage.copies.owe(2)
    run, orders = stage.copies._run, []

    def run_during(*args: Any) -> CopyResult:
        stage.copies._run = run
        stage.copies.pull_outputs(second)
        assert not stage.copies.bring_back(2)
        orders.extend(stage.orders)
        return run(*args)

    stage.copies._run = run_during
    (first,) = stage.world.ledger.copies.of(1)
    stage.copies.pull_outputs(first)
    assert [order["do"] for order in orders] == ["out", "out"]
    assert stage.copies.bring_back(2)
    assert [order["do"] for order in stage.orders] == ["out", "out", "outputs", "back"]


def test_old_rows_are_forgotten(stage: Stage) -> None:
    stage.serve(OUT)
    book, now = stage.world.ledger.copies, stage.world.now
    (row,) = book.of(1)
    book.put(replace(row, job=2, since=now + 100))
    book.forget(now + 100, 50)
    assert stage.states == ["there"], "not before they are over"
    stage.serve(BACK)
    (row,) = book.of(1)
    book.put(replace(row, since=now))
    book.forget(now + 10**9, 150)
    assert stage.states == ["back"], "a clock that is ahead makes no row old"
    book.forget(now + 100, 50)
    assert stage.states == []


@pytest.mark.parametrize("step", [900, -5 * 86400, 5 * 86400])
def test_files_have_their_time_whatever_is_done_to_the_clock(stage: Stage, step: float) -> None:
    """The clock is set a second after the run's end (NTP, or a virtual machine that is resumed)."""
    world, behind = stage.world, [0.0]
    site = dataclasses.replace(world.site, monotonic=lambda: world.now - behind[0])
    unfinished, copies = copy_part.Unfinished(site), Copies(site, stage.run, stage.read, pause=30.0)
    stage.serve(OUT)
    copies.owe(1)
    machines = world.ledger.machines.live()
    assert unfinished(machines) == list(machines)
    world.now += 1 + step
    behind[0] = step
    stage.results = [CopyResult(reason="connection reset")]
    began = site.monotonic()
    assert not copies.bring_back(1)
    assert stage.states == ["owed"], "one failed try does not lose them"
    while not copies.bring_back(1):
        assert unfinished(machines) == list(machines)
        world.now += 30
    assert stage.states == ["lost"]
    assert 540 <= site.monotonic() - began <= 600
    (row,) = world.ledger.copies.of(1)
    world.ledger.copies.put(replace(row, state=CopyState.OWED))
    world.now += 2 * world.site.config.copy.back_within
    assert unfinished(machines) == [], "no machine is kept for ever"


def test_a_machine_that_may_have_results_waits_for_a_look_of_the_part(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was away at the job's end: its row is still THERE, and nothing proves that the run
    has not ended. Without any look, the machine is kept for ``back_within``.
    """
    world = stage.world
    unfinished = copy_part.Unfinished(world.site)
    stage.serve(OUT)
    machines = world.ledger.machines.live()
    assert unfinished(machines) == list(machines)
    unfinished.live_runs = {(1, 0)}
    assert unfinished(machines) == []
    unfinished.live_runs = frozenset()
    assert unfinished(machines) == list(machines)
    world.now += world.site.config.copy.back_within - 1
    assert unfinished(machines) == list(machines)
    world.now += 2
    assert unfinished(machines) == []


def test_a_look_tells_runs_that_live_from_ended_ones(
    stage: Stage, unfinished: copy_part.Unfinished, part: copy_part.CopyPart
) -> None:
    stage.serve(OUT)
    machines = stage.world.ledger.machines.live()
    part.look()
    assert unfinished(machines) == [], "its job runs"
    stage.world.slurm.finish(1)
    stage.files = None
    stage.results = [CopyResult(reason="cut off")]
    part.look()
    assert stage.states == ["owed"]
    assert unfinished(machines) == list(machines)
    stage.results = [DONE]
    eventually(lambda: (part.look(), stage.states == ["back"])[1])
    assert unfinished(machines) == []


def test_a_part_joins_for_open_copies_of_a_cloud_that_no_longer_copies(stage: Stage) -> None:
    site = stage.world.site
    assert site.config.join.ssh is None
    ssh = Ssh(key=str(stage.world.dir / "login"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh.key], check=True)
    stage.serve(OUT)
    shared = {n: replace(c, data=Data.SHARED) for n, c in site.clouds.items()}
    later = dataclasses.replace(site, clouds=shared, config=replace(
        site.config, join=replace(site.config.join, ssh=ssh)))  # fmt: skip
    assert copy_part.join(later) is not None
    stage.serve(BACK)
    assert copy_part.join(later) is None


def test_without_join_ssh_machines_with_files_are_kept(stage: Stage) -> None:
    site = stage.world.site
    assert site.config.join.ssh is None
    assert copy_part.join(site) is None
    stage.serve(OUT)
    joined = copy_part.join(site)
    assert joined is not None
    assert joined.parts == []
    (find,) = joined.find_unfinished
    machines = stage.world.ledger.machines.live()
    (row,) = site.ledger.copies.of(1)
    assert [machine.instance.id for machine in find(machines)] == [row.machine]
    stage.world.advance(2 * site.config.copy.back_within + 60, step=60)
    assert not find(machines), "for a while, not for ever"


@pytest.fixture
def unfinished(stage: Stage) -> copy_part.Unfinished:
    return copy_part.Unfinished(stage.world.site)


@pytest.fixture
def part(
    stage: Stage, unfinished: copy_part.Unfinished, monkeypatch: pytest.MonkeyPatch
) -> Iterator[copy_part.CopyPart]:
    monkeypatch.setattr(copy_part, "read_job_files", lambda _, job: stage.read(job))
    made = copy_part.CopyPart(stage.world.site, stage.copies, unfinished, Inline())
    yield made
    made.close()


def test_a_part_brings_the_output_of_running_jobs(stage: Stage, part: copy_part.CopyPart) -> None:
    stage.serve(OUT)
    assert {j.id for j in stage.world.slurm.jobs() if "RUNNING" in j.states} == {1}
    for expected in (0, 1, 1, 2):  # each minute, after a first one soon
        part.look()
        eventually(lambda: len(stage.orders) == 1 + expected)  # noqa: B023
        stage.world.now += 30.0
    assert [order["do"] for order in stage.orders] == ["out", "outputs", "outputs"]
    assert stage.states == ["there"]


def test_a_part_brings_back_what_no_epilog_waits_for(
    stage: Stage, part: copy_part.CopyPart
) -> None:
    """As when slurmctld was restarted with the job's end."""
    stage.serve(OUT)
    stage.world.slurm.finish(1)
    part.look()
    assert stage.states == ["there"], "the job may still be about to start"
    stage.files = None
    part.look()
    eventually(lambda: stage.states == ["back"])


def test_a_job_that_slurm_still_shows_after_its_end_keeps_its_machine(
    stage: Stage, unfinished: copy_part.Unfinished, part: copy_part.CopyPart
) -> None:
    """For MinJobAge, with its nodes."""
    stage.serve(OUT)
    stage.world.slurm.finish(1)
    stage.files = replace(FILES, states=frozenset({"COMPLETED"}))
    stage.results = [CopyResult(reason="cut off")]
    machines = stage.world.ledger.machines.live()
    part.look()
    assert stage.states == ["owed"]
    assert unfinished(machines) == list(machines)


@pytest.mark.parametrize("state", ["STOPPED", "SUSPENDED"])
def test_a_job_that_stands_still_has_not_ended(
    stage: Stage, part: copy_part.CopyPart, state: str
) -> None:
    """Slurm 22.05 shows this one word after ``scancel -s STOP``, and RUNNING after CONT."""
    stage.serve(OUT)
    stage.world.slurm.set_job(1, state)
    stage.files = replace(FILES, states=frozenset({state}))
    part.look()
    assert stage.states == ["there"]
    assert stage.serve(BACK) == GO
    assert stage.states == ["back"]


def test_a_waiting_job_that_slurm_shows_as_stopped_has_ended_its_run(
    stage: Stage, part: copy_part.CopyPart
) -> None:
    stage.serve(OUT)
    stage.world.slurm.set_job(1, "STOPPED", nodes=(), restarts=1)
    stage.files = replace(FILES, states=frozenset({"STOPPED"}), nodes=(), restarts=1)
    part.look()
    eventually(lambda: stage.states == ["back"])


def test_files_of_an_earlier_run_come_back_while_the_job_runs_elsewhere(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.serve(OUT)
    (job,) = (job for job in stage.world.slurm.jobs() if job.id == 1)
    running = frozenset({"RUNNING"})
    later = replace(job, restarts=1, nodes=("own1",), states=running)
    monkeypatch.setattr(stage.world.slurm, "jobs", lambda: [later])
    stage.files = replace(FILES, restarts=1, nodes=("own1",), states=running)
    part.look()
    eventually(lambda: stage.states == ["back"])
    assert [order["do"] for order in stage.orders] == ["out", "back"]


def ask(stage: Stage, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as answer:
        link.connect(str(stage.world.site.config.state / copy_part.SOCKET))
        link.sendall(line)
        return answer.read().replace(b".\n", b"")


def test_clients_at_the_socket(stage: Stage, part: copy_part.CopyPart) -> None:
    job = b'{"job": 1, "nodes": "pub1", "partition": "pub", "phase": "%s"}\n'
    assert ask(stage, job % b"out") == b"go\n"
    assert ask(stage, job % b"back") == b"go\n"
    assert stage.states == ["back"]
    assert ask(stage, b"nonsense\n") == b""
    stage.files = replace(FILES, restarts=1)
    stage.results = [CopyResult(reason="too large", final=True)]
    assert ask(stage, job % b"out").startswith(b"no held: the files of /home/a/w cannot be copied")


def test_a_job_whose_time_is_over_in_the_queue_is_held(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Slurm would requeue it again and again, each time on a paid machine."""
    stage.results = [CopyResult(reason="no answer")]
    line = b'{"job": 1, "nodes": "pub1", "phase": "out", "remaining": %d}\n'
    for remaining, error in ((3, b"no time left"), (11, b"no answer"), (11, b"no time left")):
        if (remaining, error) == (11, b"no time left"):
            # All threads have other work.
            monkeypatch.setattr(stage.copies, "attempt", lambda *_: time.sleep(8) or GO)
        assert error in ask(stage, line % remaining)
    stage.world.slurm.requeue(1)
    stage.files = replace(FILES, states=frozenset({"PENDING"}), nodes=())
    eventually(lambda: stage.world.slurm.calls["hold"] >= 1)
    assert [text.partition(":")[0] for text in stage.causes if "retried" not in text] == (
        ["copy-refused"] * 3
    )


def test_machines_that_do_not_answer_hold_up_no_other_job(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job gives its thread back between two tries. An ended job's machine is kept at once, even
    if no thread has time for it.
    """
    stage.serve(OUT)
    attempt = stage.copies.attempt
    monkeypatch.setattr(stage.copies, "pause", 0.1)
    monkeypatch.setattr(
        stage.copies, "attempt",
        lambda request, gone: attempt(request, gone) if request.job == 1 else None,
    )  # fmt: skip
    with contextlib.ExitStack() as clients:
        for job in range(2, 102):
            link = clients.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(str(stage.world.site.config.state / copy_part.SOCKET))
            phase = b"out" if job % 2 else b"back"
            link.sendall(b'{"job": %d, "nodes": "pub1", "phase": "%s"}\n' % (job, phase))
        eventually(lambda: len(stage.copies.busy_jobs) == 100)
        assert ask(stage, b'{"job": 1, "nodes": "pub1", "phase": "back"}\n') == b"go\n"
    assert stage.states == ["back"]


@pytest.mark.parametrize("back", [False, True])
def test_a_user_whose_copies_take_long_has_half_of_the_threads(stage: Stage, back: bool) -> None:
    """A user's directory may not answer. The others' jobs would be held, one after the other."""
    if back:
        stage.serve(OUT)
        stage.copies.owe(1)
    with contextlib.ExitStack() as others:
        for number in range(copying.BACK_AT_ONCE if back else copying.OUT_AT_ONCE):
            has_place = others.enter_context(stage.copies._share(UID, back=back))
            assert has_place is (number < (24 if back else 8))
            assert others.enter_context(stage.copies._share(UID + 1 + number, back=back))
        orders = len(stage.orders)
        assert stage.copies.attempt(BACK if back else OUT, threading.Event()) is None
        assert len(stage.orders) == orders
    assert stage.copies.attempt(BACK if back else OUT, threading.Event()) == GO


def test_slurm_is_asked_once_for_jobs_that_wait_for_a_place_of_their_user(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of tasks of one array wait, and each is tried again every few seconds."""
    asked: list[int] = []
    monkeypatch.setattr(stage.copies, "_read", lambda job: asked.append(job) or FILES)
    with stage.copies.claim(1), contextlib.ExitStack() as others:
        for _ in range(copying.OUT_AT_ONCE // 2):
            others.enter_context(stage.copies._share(UID, back=False))
        for _ in range(5):
            assert stage.copies.attempt(OUT, threading.Event()) is None
        assert asked == [1]
        others.close()
        assert stage.copies.attempt(OUT, threading.Event()) == GO
    assert asked == [1, 1]


def test_outputs_of_one_user_that_take_long_leave_threads_to_others(stage: Stage) -> None:
    stage.serve(OUT)
    (row,) = stage.world.ledger.copies.of(1)
    begun: list[int] = []
    go_on = threading.Event()

    def pull(row: JobCopy) -> None:
        begun.append(row.job)
        if row.uid == UID:
            assert go_on.wait(patience(60))

    pulls = copy_part.OutputPulls(pull)
    for job in range(100):
        pulls.add(replace(row, job=job))
    pulls.add(replace(row, job=200, uid=UID + 1))
    eventually(lambda: 200 in begun and len(begun) == 9)
    pulls.add(replace(row, job=begun[0]))  # it is being pulled
    go_on.set()
    eventually(lambda: sorted(begun) == [*range(100), 200])
    pulls.close()


def test_an_ended_job_is_owed_its_files_before_a_thread_has_time(
    stage: Stage, part: copy_part.CopyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.serve(OUT)
    free = threading.Event()
    monkeypatch.setattr(stage.copies, "attempt", lambda *_: free.wait(60) and GO)
    asking = threading.Thread(
        target=ask, args=(stage, b'{"job": 1, "nodes": "pub1", "phase": "back"}\n')
    )
    asking.start()
    eventually(lambda: stage.states == ["owed"])
    free.set()
    asking.join(30)


def test_the_files_of_a_job_come_from_its_record_in_the_queue() -> None:
    job = SlurmJob(
        id=12, array=10, task=2, uid=1001, restarts=3, states=frozenset({"RUNNING"}),
        nodes=("pub1", "pub2"), directory="/home/alice/a b",
        output="/home/alice/a b/slurm-10_2.out", error_output="/home/alice/a b/err",
    )  # fmt: skip
    assert files_of(job) == JobFiles(
        job=12, label="10_2", uid=1001, restarts=3, states=frozenset({"RUNNING"}),
        nodes=("pub1", "pub2"), directory="/home/alice/a b",
        outputs=("/home/alice/a b/slurm-10_2.out", "/home/alice/a b/err"),
    )  # fmt: skip
    assert (
        files_of(replace(job, output="/home/alice/%N.out", error_output="/dev/null")).outputs == ()
    )


def test_the_end_of_a_run_keeps_where_its_output_begins(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output may be copied at the same moment: the last copy would write it a second time."""
    stage.serve(OUT)
    copies = stage.world.ledger.copies
    rows = copies.of(1)
    copies.set_outputs(rows[0], {FILES.outputs[0]: 9})
    with monkeypatch.context() as patch:
        patch.setattr(copies, "of", lambda _: rows)
        stage.copies.owe(1)
    assert stage.states == ["owed"]
    assert copies.of(1)[0].outputs == {FILES.outputs[0]: 9}
