"""Users get mail about the moves of their jobs, if --mail-type asks for it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ckpt_cases import migration_of
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.features.news import telling
from slurm_elastic.features.news.telling import MAX_PER_HOUR, MAX_USER_MAILS_PER_HOUR, Teller
from slurm_elastic.features.news.user_mail import UserMail, UserMails, is_wanted, key_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.slurm import JobMail
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.slurm.client.answers import job_mail
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ckptstate.schema import FILE
from tests.controller.world import World
from tests.features.test_telling import handed_over, paused, program, teller


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def mail(*types: str, address: str = "ann@example.org") -> JobMail:
    return JobMail(address=address, types=frozenset(types))


def move(job: int = 42, *, at: float = 0.0, saved: bool = False, limit: bool = False) -> Migration:
    made = replace(
        migration_of(job, 1000), step=MigrationStep.BACK, changed=at, note=Quoted(text="it runs on pub2"),
        cause=ThreatCause.LIMIT if limit else ThreatCause.RECLAIM,
        reached={str(MigrationStep.REQUEUED): at},
    )  # fmt: skip
    image = Image(
        job=job, label=str(job), attempt=0, number=1, method="fake", node="pub1", taken=at,
        seconds=1.0,
    )  # fmt: skip
    return replace(made, image=image if saved or limit else None)


def moved(world: World, *moves: Migration) -> None:
    state = CheckpointState(world.dir / FILE)
    state.put(*moves)
    state.close()


@pytest.mark.parametrize(
    ("types", "events"),
    [
        ((), ""),
        (("NONE",), ""),
        (("BEGIN", "END"), ""),
        (("REQUEUE",), "moved lost limit"),
        (("FAIL",), "lost"),
        (("ALL",), "moved lost limit"),
        (("END", "TIME_LIMIT_80"), "limit"),
        (("TIME_LIMIT",), "limit"),
    ],
)
def test_the_jobs_own_mail_type_decides(types: tuple[str, ...], events: str) -> None:
    moves = {"moved": move(saved=True), "lost": move(), "limit": move(limit=True)}
    assert {name for name, one in moves.items() if is_wanted(one, mail(*types))} == {
        *events.split()
    }


@pytest.mark.parametrize(
    ("address", "is_sent"),
    [
        ("ann", True), ("ann.b-c@x.example", True), ("-s", False), ("--help@x", False),
        ("a b@x", False), ("a@x,b@y", False), ("a\nb", False), ("", False),
    ],
)  # fmt: skip
def test_an_address_is_never_an_option_of_the_mail_program(address: str, is_sent: bool) -> None:
    assert is_wanted(move(), mail("ALL", address=address)) is is_sent


def test_each_move_is_mailed_once_also_after_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(world, move(42, at=world.now), move(43, at=world.now), move(44, at=world.now))
    world.slurm.mail = {42: mail("ALL"), 43: mail("END")}
    made, keys = handed_over(world, monkeypatch, users=True)
    made.look()
    made.look()
    assert keys == [key_of(move(42, at=world.now))]
    again, later = handed_over(world, monkeypatch, users=True)
    world.now += 3600
    again.look()
    assert later == []


def test_administrators_and_users_have_bounds_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [move(number, at=world.now) for number in range(1, 301)]
    moved(world, *moves)
    world.slurm.mail = {one.run.job: mail("ALL") for one in moves}
    made, keys = handed_over(world, monkeypatch, users=True, mail=("root",))
    for number in range(30):
        paused(world, f"p{number}")
    for _ in range(10):
        made.look()
    users = [key for key in keys if key.startswith("user/")]
    assert len(users) == MAX_USER_MAILS_PER_HOUR
    assert len([key for key in keys if key.startswith("paused/")]) == MAX_PER_HOUR
    world.now += 3600
    for _ in range(5):
        made.look()
    assert len({key for key in keys if key.startswith("user/")}) == 300, "the others follow"


def test_a_mail_program_that_hangs_costs_no_message(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of administrators keep their room, and the others wait without being recorded."""
    deliver, goes_on, subjects = Teller._deliver, threading.Event(), list[str]()
    monkeypatch.setattr(
        Teller, "_deliver", lambda self: goes_on.wait(patience(60)) and deliver(self)
    )
    monkeypatch.setattr(telling, "send_mail", lambda *words: subjects.append(words[2]))
    moves = [move(number, at=world.now) for number in range(1, 151)]
    moved(world, *moves)
    world.slurm.mail = {one.run.job: mail("ALL") for one in moves}
    made = teller(world, users=True, mail=("root",))
    for _ in range(5):
        made.look()
    paused(world)
    made.look()
    goes_on.set()

    def has_sent_all() -> bool:
        made.look()
        to_users = [subject for subject in subjects if ": job " in subject]
        return len(to_users) == 150 and "slurm-elastic alps: paused" in subjects

    eventually(has_sent_all)
    made.close()
    place = subjects.index("slurm-elastic alps: paused")
    assert place < 100, "before the mails of users that had no room"
    assert "notification dropped" not in caplog.text


def test_only_users_are_told_where_no_administrator_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused(world)
    moved(world, move(42, at=world.now))
    world.slurm.mail = {42: mail("ALL")}
    made, keys = handed_over(world, monkeypatch, users=True)
    made.look()
    assert [key.partition("/")[0] for key in keys] == ["user"]


def test_a_slurm_that_does_not_answer_is_asked_again() -> None:
    answers: list[Any] = [SlurmError(("scontrol",), None, "no answer"), mail("ALL")]

    def read(_: int) -> JobMail:
        answer = answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer  # type: ignore[no-any-return]

    mails = UserMails(read, "alps")
    assert list(mails.find([move()])) == []
    assert [one.address for one in mails.find([move()])] == ["ann@example.org"]
    assert list(mails.find([move()])) == []
    assert answers == []


def test_it_goes_by_the_sites_own_program_to_the_address_of_the_job(
    world: World, tmp_path: Path
) -> None:
    sender = program(tmp_path, "mailer")
    moved(world, move(42, at=world.now))
    world.slurm.mail = {42: mail("REQUEUE", address="ann")}
    made = teller(world, users=True, mail_program=str(sender))
    made.look()
    assert eventually(lambda: (tmp_path / "mailer.args").exists())
    assert eventually(lambda: "explain" in (tmp_path / "mailer.stdin").read_text())
    args = (tmp_path / "mailer.args").read_text().splitlines()
    assert args == ["-s", "slurm-elastic alps: job 42 lost its work and started over", "ann"]
    text = (tmp_path / "mailer.stdin").read_text()
    assert ": reclaimed\n" in text
    assert ": it runs on pub2\n" in text
    made.close()


def test_a_program_that_fails_is_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, ["mail"])

    monkeypatch.setattr(telling, "_call", fails)
    made = teller(world, users=True)
    made._deliver_to_user(UserMail(key="user/1", address="ann", subject="x", text="y"))
    assert "no mail to a user key=user/1" in caplog.text
    made.close()


def test_the_mail_of_a_job_is_read_from_the_end_of_its_record() -> None:
    forged = "JobId=7 JobName=x MailUser=eve MailType=ALL UserId=ann(1) StdOut=/o Power= "
    assert job_mail(f"{forged}\n", 7) is None
    asked = job_mail(f"{forged}MailUser=ann MailType=FAIL,REQUEUE \n", 7)
    assert asked == mail("FAIL", "REQUEUE", address="ann")
    for more in (
        "NtasksPerTRES=2",
        "Container=/c ContainerID=7",
        "SELinuxContext=u",
        "ResvPorts=9",
    ):
        assert job_mail(f"{forged}MailUser=ann MailType=FAIL,REQUEUE {more} \n", 7) == asked
    assert job_mail("JobId=8 JobName=y MailUser=b MailType=END \n", 7) is None
