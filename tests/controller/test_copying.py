"""When files are copied, repeated, given up, and what is written down of it."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from patience import eventually

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config.copying import Data
from slurm_elastic.features import copy_part
from slurm_elastic.features.copy_orders import CopyResult
from slurm_elastic.features.copying import GO, Copies, CopyRequest
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.copying import CopyState
from slurm_elastic.slurm.client.job_files import JobFiles, parse
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
        return self.copies.serve(request, threading.Event())

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
    assert stage.orders[1]["outputs"] == [{"path": FILES.outputs[0], "base": 5}]
    assert stage.orders[1]["groups"] == [pwd.getpwnam("nobody").pw_gid]
    assert stage.causes == [
        f"copied-back: 2 files (0.0 MB) came back from {stage.world.ledger.copies.of(1)[0].machine}"
    ]
    assert stage.serve(BACK) == GO
    assert len(stage.orders) == 2


def test_a_copy_is_repeated_and_a_final_refusal_holds_the_job(stage: Stage) -> None:
    stage.results = [CopyResult(reason="no answer"), CopyResult(reason="too large", final=True)]
    assert "cannot be copied to its machine: too large" in stage.serve(OUT)
    assert stage.states == ["refused"]
    assert [text.partition(":")[0] for text in stage.causes] == ["copy-retried", "copy-refused"]
    # Slurm requeues the job, because its prolog fails.
    stage.world.slurm.requeue(1)
    stage.files = replace(FILES, states=frozenset({"PENDING"}), nodes=())
    eventually(lambda: stage.world.slurm.calls["hold"] == 1)
    eventually(lambda: "data: held: the files" in stage.world.slurm.admin_comments([1])[1])


def test_a_job_that_is_no_longer_about_to_start_waits_for_nothing(stage: Stage) -> None:
    for files in (None, replace(FILES, nodes=()), replace(FILES, states=frozenset({"COMPLETING"}))):
        stage.files = files
        assert stage.serve(OUT) == GO
    assert stage.orders == []


def test_without_slurm_a_copy_waits(stage: Stage) -> None:
    stage.files = SlurmError(("scontrol",), 1, "away")
    gone = threading.Event()
    thread = threading.Thread(target=lambda: stage.copies.serve(OUT, gone))
    thread.start()
    stage.files = FILES
    thread.join(30)
    assert stage.states == ["there"]


def test_what_does_not_come_back_in_time_is_lost_and_said(stage: Stage) -> None:
    stage.serve(OUT)
    stage.results = [CopyResult(reason="Disk quota exceeded")]
    copies = Copies(stage.world.site, stage.run, stage.read, pause=30.0)
    began = stage.world.now
    copies.bring_back(1)
    assert stage.states == ["lost"]
    assert 570 <= stage.world.now - began <= 600
    assert stage.causes[-1].endswith("did not come back to /home/a/w: Disk quota exceeded")


def test_the_bound_goes_on_over_a_restart(stage: Stage) -> None:
    stage.serve(OUT)
    (row,) = stage.world.ledger.copies.of(1)
    since = stage.world.now - 590
    stage.world.ledger.copies.put(replace(row, state=CopyState.OWED, since=since))
    stage.world.restart()
    stage.results = [CopyResult(reason="no answer")]
    copies = Copies(stage.world.site, stage.run, stage.read, pause=5.0)
    began = stage.world.now
    copies.bring_back(1)
    assert stage.states == ["lost"]
    assert stage.world.now - began <= 10


def test_a_machine_that_has_ended_is_not_waited_for(stage: Stage) -> None:
    stage.serve(OUT)
    stage.world.slurm.finish(1)
    stage.world.advance(900, step=20)
    assert stage.world.ledger.machines.live() == ()
    stage.copies.bring_back(1)
    assert stage.states == ["lost"]
    assert "its machine has ended" in stage.causes[-1]


def test_a_machine_with_files_does_not_end(stage: Stage) -> None:
    """Neither by Slurm's suspend, nor for another machine when its node is powered up again."""
    world = stage.world
    world.site.extensions.find_unfinished.append(
        lambda machines: copy_part.find_unfinished(world.site, machines)
    )
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


def test_old_rows_are_forgotten(stage: Stage) -> None:
    stage.serve(OUT)
    stage.world.ledger.copies.forget(stage.world.now + 1)
    assert stage.states == ["there"], "not before they are over"
    stage.serve(BACK)
    stage.world.ledger.copies.forget(stage.world.now + 1)
    assert stage.states == []


@pytest.fixture
def part(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[copy_part.CopyPart]:
    monkeypatch.setattr(copy_part, "read_job_files", lambda _, job: stage.read(job))
    made = copy_part.CopyPart(stage.world.site, stage.copies, Inline())
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


def test_clients_at_the_socket(stage: Stage, part: copy_part.CopyPart) -> None:
    def ask(line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as answer:
            link.connect(str(stage.world.site.config.state / copy_part.SOCKET))
            link.sendall(line)
            return answer.read().replace(b".\n", b"")

    job = b'{"job": 1, "nodes": "pub1", "partition": "pub", "phase": "%s"}\n'
    assert ask(job % b"out") == b"go\n"
    assert ask(job % b"back") == b"go\n"
    assert stage.states == ["back"]
    assert ask(b"nonsense\n") == b""
    stage.files = replace(FILES, restarts=1)
    stage.results = [CopyResult(reason="too large", final=True)]
    assert ask(job % b"out").startswith(b"no held: the files of /home/a/w cannot be copied")


SHOWN = """JobId=12 ArrayJobId=10 ArrayTaskId=2 JobName=x y
   UserId=alice(1001) GroupId=users(100) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=3 BatchFlag=1 Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=pub[1-2]
   BatchHost=pub1
   WorkDir=/home/alice/a b
   StdErr=/home/alice/a b/err
   StdIn=/dev/null
   StdOut=/home/alice/a b/slurm-10_2.out
   Power=

JobId=10 ArrayJobId=10 ArrayTaskId=3-9 JobName=x
   UserId=alice(1001) GroupId=users(100) MCS_label=N/A
   JobState=PENDING Reason=Resources Dependency=(null)
   NodeList=
   WorkDir=/home/alice
   StdErr=/dev/null
   StdOut=/home/alice/%N.out
"""


def test_slurms_answer_is_read() -> None:
    assert parse(SHOWN, 12) == JobFiles(
        job=12, label="10_2", uid=1001, restarts=3, states=frozenset({"RUNNING"}),
        nodes=("pub1", "pub2"), directory="/home/alice/a b",
        outputs=("/home/alice/a b/slurm-10_2.out", "/home/alice/a b/err"),
    )  # fmt: skip
    waiting = parse(SHOWN, 10)
    assert waiting is not None
    assert (waiting.label, waiting.nodes, waiting.outputs, waiting.restarts) == ("10", (), (), 0)
    assert parse(SHOWN, 1) is None
    assert os.path.isabs(waiting.directory)
