"""``slurm-elastic ckpt``: what is seen, and what is left for the service."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.ckptman.sources import DropDirectory
from slurm_elastic.ckptman.unannounced_ends import SUBJECT, detail_of
from slurm_elastic.cli.jobs import ckpt
from slurm_elastic.cli.main import main
from slurm_elastic.config.configfile import load
from slurm_elastic.config.job_checkpoint import resolve, resolve_for
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.hindrances import JobHindered, SaveObstacleKind
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import (
    Migration,
    MigrationStep,
    RecordedNotice,
    UnsavableRun,
)
from slurm_elastic.state.ckptstate.orders import NoticeOrder, SaveOrder
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.heartbeat import CKPTMAN
from slurm_elastic.state.ledger import Decision, Ledger
from tests.controller.world import make_config

YAML = """
cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}
state_dir: {state}
checkpoint: {{method: fake}}
clouds:
  - name: onp
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4096, price: 0.1}}}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", cpus: 2, memory: 4G}}
"""
RUN = JobRun(
    job=7, label="7", attempt=0, user="ann", uid=1001, gid=100, nodes=("op1",), partition="onp",
    started=0.0,
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "state"
    state.mkdir()
    path = tmp_path / "slurm-elastic.yaml"
    own = "" if os.geteuid() == 0 else f"slurm: {{user: {pwd.getpwuid(os.geteuid()).pw_name}}}\n"
    path.write_text(YAML.format(state=state) + own)
    slurm = FakeSlurm(
        [SlurmNode(name="op1", states=frozenset({"ALLOCATED"}))],
        [
            SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("op1",)),
            SlurmJob(id=8, states=frozenset({"RUNNING"}), nodes=("op1",), comment="ckpt=none"),
            SlurmJob(id=9, states=frozenset({"PENDING"}), comment="ckpt=signal,saved=soon"),
            SlurmJob(id=6, states=frozenset({"RUNNING"}), nodes=("op1",), array=3, task=2),
            SlurmJob(id=32, states=frozenset({"RUNNING"}), nodes=("op1",)),
        ],
    )
    monkeypatch.setattr(ckpt, "PromptCli", lambda _settings: slurm)
    return path


def service(path: Path) -> Path:
    """Leave the files that the service would have left; its drop directory."""
    now, state = time.time(), path.parent / "state"
    memory = CheckpointState(state / "checkpoints.db")
    image = FakeCheckpointer(lambda: now - 90).checkpoint(RUN, deadline=now, stop=False)
    memory.add_image(image)
    notice = Notice(
        instance="", node="op1", kind=NoticeKind.INTERRUPTION, seen=now, deadline=now + 100,
        reason="fan broken",
    )  # fmt: skip
    memory.add_notices(RecordedNotice(key="k", notice=notice, source="a person"), now=0.0)
    memory.put(
        Migration(
            run=RUN,
            method="fake",
            threatened=("op1",),
            reason=Quoted(text="fan broken"),
            step=MigrationStep.SAVED,
            began=now - 3,
            changed=now,
            deadline=now + 100,
            image=image,
        )
    )
    memory.close()
    ledger = Ledger(state / "ledger.db")
    ledger.health.beat(CKPTMAN, now, os.getpid())
    for kind in ("ckpt-saved", "ranked"):
        ledger.decisions.record(
            Decision(
                at=now,
                correlation="c",
                kind=kind,
                subjects=("job:7",),
                cause=Quoted(text=f"as {kind}"),
            )
        )
    ledger.close()
    DropDirectory(state / "notices", create=True)
    return state / "notices"


def run(config: Path, *words: str) -> int:
    return main(["--config", str(config), "ckpt", *words])


def test_list_shows_notices_moves_and_images(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service(config)
    assert run(config, "list") == 0
    said = capsys.readouterr().out
    shown = ("alive", "op1", "interruption", "saved", "from save 1", "1024 B")
    for wanted in ("Told by", "a person: fan broken", *shown):
        assert wanted in said, wanted
    assert run(config, "list", "--json") == 0
    view = json.loads(capsys.readouterr().out)
    assert view["version"] == 1
    assert view["saved"][0]["size_bytes"] == 1024
    assert view["moves"][0]["step"] == "saved"


def test_list_shows_ends_without_a_notice_which_only_a_decision_knows(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    service(config)
    now = time.time()
    end = Migration(
        run=replace(RUN, job=8, label="8", started=now - 700), method="fake", threatened=("op2",),
        reason=Quoted(text="the machine of op2 was lost without a notice"), step=MigrationStep.BACK,
        began=now - 60, changed=now, note=Quoted(text="it runs on op1, from its start"),
        reached={"requeued": now - 60},
    )  # fmt: skip
    ledger = Ledger(config.parent / "state" / "ledger.db")
    foreign = {"move": {"of": "another release"}}
    for detail in (detail_of(end), foreign, None):
        ledger.decisions.record(
            Decision(
                at=now, correlation="c", kind="ckpt-back", subjects=("job:8", SUBJECT),
                cause=Quoted(text="x"), detail=detail,
            )
        )  # fmt: skip
    ledger.close()
    assert run(config, "list", "--json") == 0
    moves = json.loads(capsys.readouterr().out)["moves"]
    assert [(move["job"], move["started_over"]) for move in moves] == [(7, False), (8, True)]
    assert run(config, "list") == 0
    (row,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("8 "))
    assert "op2" in row
    assert "started over" in row
    assert "10m" in row


def test_list_says_which_jobs_started_over_and_how_much_work_each_lost(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    service(config)
    now = time.time()
    run_ = replace(RUN, job=6, label="6", started=now - 700)
    image = FakeCheckpointer(lambda: now - 160).checkpoint(run_, deadline=now, stop=False)
    over = Migration(
        run=run_, method="fake", threatened=("op1",), reason=Quoted(text="fan broken"), step=MigrationStep.BACK,
        began=now - 110, changed=now, reached={str(MigrationStep.REQUEUED): now - 100},
    )  # fmt: skip
    with contextlib.closing(CheckpointState(config.parent / "state" / "checkpoints.db")) as memory:
        memory.put(over)
        saved = replace(run_, job=5, label="5")
        memory.put(replace(over, run=saved, image=image))
    assert run(config, "list") == 0
    moved = capsys.readouterr().out.split("Moved in the last 24 hours")[1]
    rows = {line.split()[0]: line for line in moved.splitlines() if line[:1] in "56"}
    assert "started over" in rows["6"]
    assert "10m" in rows["6"], "since its start"
    assert " back " in rows["5"]
    assert "60s" in rows["5"] or "1m" in rows["5"], "since its save"


def test_list_says_so_where_there_is_nothing(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CheckpointState(config.parent / "state" / "checkpoints.db").close()
    assert run(config, "list") == 0
    nothing = "No job is saved or being moved, and no machine will be taken away."
    assert nothing in capsys.readouterr().out


def test_a_move_that_is_over_is_told_as_over_and_since_is_a_time(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service(config)
    began = time.time() - 3600
    with contextlib.closing(CheckpointState(config.parent / "state" / "checkpoints.db")) as memory:
        (standing,) = memory.migrations()
        over = replace(standing, run=replace(RUN, job=6, label="6"), step=MigrationStep.BACK)
        memory.put(replace(over, began=began, changed=began + 6))
    assert run(config, "list") == 0
    whole = capsys.readouterr().out
    on_the_way, moved = whole.split("Moved in the last 24 hours")
    clock = time.strftime("%H:%M:%S", time.localtime(began))
    assert moved.splitlines()[2].split()[:6] == ["6", "reclaim", "op1", "back", clock, "6s"]
    (row,) = [line.split() for line in on_the_way.splitlines() if line.startswith("7    reclaim")]
    assert row[4] == time.strftime("%H:%M:%S", time.localtime(standing.began))


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        (
            "ckpt=fake,limit=3",
            "is saved: by fake, by policy; at its time limit it continues, at most 3 times",
        ),
        ("ckpt=fake", "is saved: by fake, by policy"),
        ("ckpt=none", "is NOT saved: its comment says ckpt=none"),
        ("", "is NOT saved: neither its comment nor the configuration names a method"),
        ("ckpt=fake,limit=x", "is NOT saved: ckpt=fake,limit=x: limit is 'x'"),
    ],
)
def test_how_a_job_is_saved_names_its_time_limit(comment: str, said: str) -> None:
    found = resolve(comment, "", PoolCheckpoint(), CheckpointSettings())
    assert ckpt.how(found).startswith(said)
    assert ckpt.how(found).endswith("at most 3 times") is ("limit=3" in comment)


@pytest.mark.parametrize("method", ["criu", "dmtcp", "blcr"])
def test_a_method_without_the_sites_directory_saves_no_job(method: str, tmp_path: Path) -> None:
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), batch=True, comment=f"ckpt={method}")
    said = ckpt.how(resolve_for(job, None, make_config(tmp_path)))
    assert said == (
        f"is NOT saved: method {method} keeps images in checkpoint.directory, which is not set here"
    )
    there = CheckpointSettings(directory="/shared/images")
    config = make_config(tmp_path, checkpoint=there)
    assert resolve_for(job, None, config).method == method


def test_list_says_which_jobs_cannot_be_saved_and_what_would_help(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    service(config)
    with contextlib.closing(CheckpointState(config.parent / "state" / "checkpoints.db")) as memory:
        memory.put_verdict(
            UnsavableRun(
                job=8, label="8_3", attempt=0, method="criu", at=time.time(),
                cause=JobHindered(obstacle=SaveObstacleKind.FILE_LOCK),
            )
        )  # fmt: skip
    assert run(config, "list") == 0
    said = capsys.readouterr().out
    assert "Jobs that cannot be saved" in said
    assert "8_3  criu" in said
    assert "it holds a" in said
    assert max(len(line) for line in said.splitlines()) <= 80
    assert run(config, "list", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["unsavable"]
    assert one["job"] == 8
    assert one["advice"].startswith("run it without the lock")


def test_a_service_that_never_ran_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "list") == 1
    assert "has never run" in capsys.readouterr().err
    assert run(config, "notice", "op1") == 1
    assert "has never run" in capsys.readouterr().err


def test_records_that_cannot_be_read_are_said_with_the_next_step(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load(config).state
    state.mkdir(exist_ok=True)
    (state / FILE).write_text("no database, whatever its name says")
    assert run(config, "list") == 1
    said = capsys.readouterr().err
    assert f"the records of saves cannot be read: {state / FILE} is damaged" in said
    assert "slurm-elastic doctor --quick says what to do" in said


def test_a_notice_is_left_for_the_service(config: Path) -> None:
    place, began = service(config), time.time()
    assert run(config, "notice", "op1", "--in", "2m", "--reason", "fan broken") == 0
    (told,) = DropDirectory(place).read(time.time())
    assert isinstance(told.order, NoticeOrder)
    assert told.order.deadline is not None
    assert began <= told.order.deadline - 120 <= time.time()
    assert run(config, "notice", "op1", "--withdraw") == 0


def test_who_would_not_be_heard_is_told(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service(config)
    for words in (("notice", "op1"), ("notice", "op1", "--withdraw"), ("now", "7")):
        assert run(config, *words) == 0
        assert capsys.readouterr().err == ""
    monkeypatch.setattr("slurm_elastic.watch.door.records.process_exists", lambda _pid: False)
    for words in (("notice", "op1"), ("notice", "op1", "--withdraw"), ("now", "7")):
        assert run(config, *words) == 0
        said = "slurm-elastic-ckptman is NOT RUNNING: it does this when it starts\n"
        assert capsys.readouterr().err == said
    assert run(config, "list") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "slurm-elastic-ckptman is NOT RUNNING (heartbeat " in said
    assert "ago, and there is no such process on this host); no job is saved" in said


def test_a_notice_that_makes_no_sense_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = service(config)
    for more in (("--in", "2m"), ("--rebalance",), ("--reason", "x")):
        assert run(config, "notice", "op1", "--withdraw", *more) == 2
        said = capsys.readouterr().err
        assert "--withdraw cannot be combined with --in, --reason or --rebalance" in said
    with pytest.raises(SystemExit) as end:
        run(config, "notice", "op1", "--in", "999999999999d")
    assert end.value.code == 2
    assert "--in: '999999999999d' is more than 366d" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(config, "notice", "op1", "--in", "10")
    assert "'10' has no unit: write 10m or 10s" in capsys.readouterr().err
    assert not list(place.iterdir())


def test_a_node_that_slurm_does_not_have(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service(config)
    assert run(config, "notice", "op99") == 1
    assert "no node 'op99'" in capsys.readouterr().err


def test_a_job_is_saved_now_if_it_can_be(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = service(config)
    assert run(config, "now", "7") == 0
    (told,) = DropDirectory(place).read(time.time())
    assert told.order == SaveOrder(job=7, who="root")
    assert run(config, "now", "8") == 1
    assert "its comment says ckpt=none" in capsys.readouterr().err
    assert run(config, "now", "9") == 1
    assert "is not running" in capsys.readouterr().err


def test_a_task_of_an_array_is_no_job_of_another_number(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python reads 3_2 as 32."""
    place = service(config)
    assert run(config, "now", "3_2") == 0
    (told,) = DropDirectory(place).read(time.time())
    assert told.order == SaveOrder(job=6, who="root")
    capsys.readouterr()
    assert run(config, "explain", "3_2") == 0
    assert "Job 3_2 is saved: by fake, by policy" in capsys.readouterr().out


@pytest.mark.parametrize("tasks", ["6_9", "6_[3-5]"])
def test_a_task_that_is_over_is_not_the_last_one_of_its_array(
    config: Path, capsys: pytest.CaptureFixture[str], tasks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last task has the number of the array."""
    last = SlurmJob(id=6, states=frozenset({"RUNNING"}), nodes=("op1",), array=6, task=2)
    monkeypatch.setattr(ckpt, "PromptCli", lambda _settings: FakeSlurm([], [last]))
    place = service(config)
    assert run(config, "now", tasks) == 1
    assert f"{tasks} is not in Slurm's queue" in capsys.readouterr().err
    assert DropDirectory(place).read(time.time()) == []
    assert run(config, "now", "6_2") == 0


@pytest.mark.parametrize("word", ["-7", "7,5", "", "seven", "7_", "\u0667", "99999999999"])
def test_a_word_that_is_no_job_is_wrong_use(
    config: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    for command in (("ckpt", "now", word), ("ckpt", "explain", word), ("offers", f"--job={word}")):
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(config), *command])
        assert ended.value.code == 2
        assert "is no job such as 18 or 18_3" in capsys.readouterr().err


def test_explain_says_how_a_job_is_saved_and_what_was_decided(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service(config)
    assert run(config, "explain", "7") == 0
    said = capsys.readouterr().out
    assert "Job 7 is saved: by fake, by policy" in said
    assert "as ckpt-saved" in said
    assert "as ranked" not in said
    assert run(config, "explain", "9") == 0
    said = capsys.readouterr().out
    assert "Job 9 would NOT be saved: " in said
    assert "saved=soon" in said
    assert "slurm-elastic-ckptman has not acted on this job." in said
    assert "Why it gets no machine" not in said
    assert run(config, "explain", "7", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["subject"]) == (1, "7")
    assert document["headline"].startswith("Job 7 is saved: by fake, by policy")
    assert "ckpt-saved" in {row["kind"] for row in document["decisions"]}
    assert all(row["reason"] for row in document["decisions"])


def test_explain_of_an_ended_job_begins_with_its_end_and_whether_it_was_saved(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    service(config)
    slurm = FakeSlurm()
    for number, state, comment in (
        (7, "COMPLETED", "ckpt=fake"), (31, "FAILED", "ckpt=criu"), (32, "TIMEOUT", "ckpt=fake")
    ):  # fmt: skip
        slurm.set_job(number, state, nodes=("op1",), comment=comment)
    monkeypatch.setattr(ckpt, "PromptCli", lambda _settings: slurm)
    with contextlib.closing(Ledger(config.parent / "state" / "ledger.db")) as ledger:
        ledger.decisions.record(
            Decision(
                at=time.time(), correlation="c", kind="ckpt-saved", subjects=("op1", "job:99"),
                cause=Quoted(text="a save of another job on its node"),
            )
        )  # fmt: skip

    def headline(number: int) -> str:
        assert run(config, "explain", str(number)) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert headline(7).startswith("Job 7 has ended as COMPLETED and was saved 1 time, last at ")
    assert headline(31) == (
        "Job 31 has ended as FAILED and was NOT saved: method criu keeps images in "
        "checkpoint.directory, which is not set here"
    )
    assert headline(32) == (
        "Job 32 has ended as TIMEOUT and was NOT saved: the records have no save by method fake"
    )
    slurm.remove_job(7)
    assert headline(7).startswith("Job 7 has ended and was saved 1 time, last at ")
