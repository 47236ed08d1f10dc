"""Users save their own jobs by the door: no jobs of others, not too often, and with a record."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import msgspec
import needs
import pytest
from cost_cases import book, config_file
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state import statedir
from slurm_elastic.state.ckptstate.orders import DROPS, NoticeOrder, SaveOrder, WithdrawOrder
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.door.answers import DoorAnswers
from slurm_elastic.watch.door.questions import DoorAnswer, Lane, SaveAsk, lane_of
from slurm_elastic.watch.door.saves import MAX_SAVES, REPEAT_S, SPAN_S
from slurm_elastic.watch.door.server import Door

NOBODY, BEN, NOW = 65534, 1001, 1_800_000_000.0
RUN = (
    "import sys; sys.path[:0] = {path!r}; from slurm_elastic.cli.main import main; sys.exit(main())"
)
OWN = SlurmJob(
    id=7, states=frozenset({"RUNNING"}), uid=NOBODY, user="nobody", nodes=("pub1",),
    comment="ckpt=signal,saved=file:state", start=NOW - 60,
)  # fmt: skip
NO_RIGHT = "job {} is not your job: only its owner, root and root may save it"


class Site:
    def __init__(self, root: Path) -> None:
        self.root, self.file, self.now = root, config_file(root), NOW
        with statedir.private_umask():
            book(root / "state" / "ledger.db").close()
            (root / "state" / DROPS).mkdir()
        (root / "state" / "slurm.conf").write_text("ClusterName=alps\nPrivateData=jobs\n")
        self.slurm = FakeSlurm(jobs=[
            OWN,
            *(replace(OWN, id=100 + n) for n in range(20)),
            replace(OWN, id=8, uid=BEN, user="ben"),
            replace(OWN, id=9, states=frozenset({"PENDING"}), nodes=()),
            replace(OWN, id=10, comment=""),
        ])  # fmt: skip
        self.answers = DoorAnswers(self.config, self.slurm, lambda: self.now)

    @property
    def config(self) -> Config:
        return configfile.load(self.file)

    def told(self, job: int, uid: int = NOBODY) -> DoorAnswer:
        line = msgspec.json.encode(SaveAsk(job=job))
        return msgspec.json.decode(self.answers(Peer(uid=uid), line), type=DoorAnswer)

    def orders(self) -> list[SaveOrder]:
        paths = sorted((self.root / "state" / DROPS).glob("*.json"))
        kinds = SaveOrder | NoticeOrder | WithdrawOrder
        return [msgspec.json.decode(path.read_bytes(), type=kinds) for path in paths]

    def recorded(self, job: int) -> list[Decision]:
        path = self.root / "state" / "ledger.db"
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            found = ledger.decisions.about(f"job:{job}")
        return [decision for decision in found if decision.kind == "ckpt-ordered"]


@pytest.fixture
def site(open_path: Path) -> Site:
    return Site(open_path)


def test_an_owner_orders_a_save_and_is_recorded(site: Site) -> None:
    assert site.told(7).lines == (
        "slurm-elastic-ckptman is asked to save job 7; see: slurm-elastic ckpt explain 7",
    )
    assert site.orders() == [SaveOrder(job=7, who="nobody")]
    (decision,) = site.recorded(7)
    assert str(decision.reason) == "nobody asks to save the job now"


@pytest.mark.parametrize("job", [8, 999])
def test_jobs_of_others_and_unknown_jobs_are_refused_in_the_same_words(
    site: Site, job: int
) -> None:
    assert site.told(job).error == NO_RIGHT.format(job)
    assert (site.orders(), site.recorded(job)) == ([], [])


def test_a_job_that_cannot_be_saved_says_why(site: Site) -> None:
    assert site.told(9).error == "job 9 is not running"
    assert "job 10 is NOT saved: neither its comment" in site.told(10).error
    assert site.orders() == []


def test_an_owner_does_not_run_a_suspended_job_by_saves(site: Site) -> None:
    """Only an operator may resume it, and each save runs it for as long as the save takes."""
    site.slurm.set_job(7, "SUSPENDED", priority=0, suspended=NOW)
    assert site.told(7).error == (
        "job 7 is suspended, and a save resumes it: only root and root may order that"
    )
    assert site.orders() == []
    assert site.told(7, uid=0).lines


def test_root_saves_every_job_as_often_as_wanted(site: Site) -> None:
    for _ in range(3):
        assert site.told(8, uid=0).lines
    assert site.told(999, uid=0).error == "job 999 is not running"
    assert site.orders() == [SaveOrder(job=8, who="root")] * 3


def test_a_user_may_not_order_a_save_again_and_again(site: Site) -> None:
    assert site.told(7).lines
    site.now += 10
    assert site.told(7).error == "job 7 was just ordered to be saved: wait 50s"
    site.now += REPEAT_S
    assert site.told(7).lines
    for number in range(100, 100 + MAX_SAVES - 2):
        assert site.told(number).lines
    said = f"you ordered {MAX_SAVES} saves in 10m, the most that a user may: wait 8m 50s"
    assert site.told(119).error == said
    assert site.told(8, uid=BEN).lines, "each user has a count"
    site.now += SPAN_S
    assert site.told(119).lines
    assert len(site.orders()) == MAX_SAVES + 2


def test_without_slurm_or_the_service_nothing_is_ordered(site: Site) -> None:
    (site.root / "state" / DROPS).rmdir()
    assert "slurm-elastic-ckptman has never run" in site.told(7).error
    site.slurm.broken = SlurmError(("squeue",), 1, "Unable to contact slurm controller")
    site.answers = DoorAnswers(site.config, site.slurm, lambda: site.now)
    assert "Unable to contact slurm controller" in site.told(7).error


def test_an_order_without_a_user_is_read() -> None:
    assert msgspec.json.decode('{"kind":"save","job":7}', type=SaveOrder) == SaveOrder(job=7)
    assert lane_of(b'{"ask": "save", "job": 7}', trusted=False) is Lane.RECORDS


@needs.ROOT
def test_the_kernel_says_who_asks_by_the_socket(site: Site) -> None:
    (site.root / "state").chmod(0o700)
    door = Door(site.config.read_socket, site.answers, site.answers.trusts)
    path = [p for p in sys.path if p]
    command = [sys.executable, "-Es", "-c", RUN.format(path=path), "--config", str(site.file)]

    def told(job: int, uid: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "ckpt", "now", str(job)], user=uid, group=NOBODY, extra_groups=[], cwd="/",
            capture_output=True, text=True, timeout=patience(120), check=False,
        )  # fmt: skip

    door.start()
    try:
        own, others = told(7, NOBODY), told(7, BEN)
    finally:
        door.close()
    assert own.returncode == 0, own.stderr
    assert own.stdout.startswith("slurm-elastic-ckptman is asked to save job 7")
    assert "slurm-elastic-ckptman is NOT RUNNING" in own.stderr
    assert (others.returncode, others.stdout) == (1, "")
    assert others.stderr == f"slurm-elastic: {NO_RIGHT.format(7)}\n"
    assert site.orders() == [SaveOrder(job=7, who="nobody")]
