"""A job whose number comes again, and a run that works on although Slurm has given it up."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot import starting
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.image_wait import RunEnded
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.site import HelperSite
from slurm_elastic.machine.ckptroot.store import JobStore, Replaced

from .helpers import ROOT
from .test_session import KEY, Bed

pytestmark = ROOT


class TwoRuns:
    """The first run's node has lost its network, and with it the lock. The second run works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.old = Bed(monkeypatch, directory, attempt=1)
        self.old.session.begin()
        self.old.save()
        self.new = Bed(monkeypatch, directory, attempt=2)
        self.new.session.begin()
        self.new.node.content = b"hour 9"
        self.new.request("r2", "checkpoint", within=60.0)
        self.new.session.serve(self.new.store.request())
        self.before = self.content()

    def content(self) -> list[object]:
        """What the next run finds."""
        images = [
            (path.name, manifests.read(path, KEY).attempt, (path / "pages").read_bytes())
            for path in self.new.store.images()
        ]
        return [images, (self.new.store.path / "status.json").read_bytes()]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TwoRuns:
    return TwoRuns(monkeypatch, tmp_path)


def test_a_replaced_run_does_not_carry_out_the_next_runs_request(runs: TwoRuns) -> None:
    runs.old.node.content = b"hour 1"
    with pytest.raises(Replaced):
        runs.old.session.serve(runs.old.store.request())
    assert runs.content() == runs.before


def test_a_replaced_run_publishes_no_image_that_it_had_begun(runs: TwoRuns) -> None:
    with pytest.raises(RunEnded):
        runs.old.save()
    assert runs.content() == runs.before


def test_a_replaced_run_ends_its_program(runs: TwoRuns) -> None:
    runs.new.request("r3", "checkpoint", within=60.0)
    assert runs.old.session.run() == 15
    runs.old.session.leave(15)
    assert runs.old.node.did[-1] == "close"
    assert runs.content() == runs.before


def test_a_replaced_runs_own_end_removes_nothing(runs: TwoRuns) -> None:
    runs.old.session.leave(0)
    assert runs.content() == runs.before


@pytest.mark.parametrize(
    "answer", [None, JobState("PENDING", 0, 2), JobState("RUNNING", 0, 2), JobState("GONE", -1, 0)]
)
def test_images_stay_unless_slurm_says_that_the_ended_run_is_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: JobState | None
) -> None:
    bed = Bed(monkeypatch, tmp_path)
    bed.session.begin()
    bed.save()
    bed.answers = [answer]
    bed.session.leave(0)
    assert [path.name for path in bed.store.images()] == ["1"]


def test_a_request_for_another_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bed = Bed(monkeypatch, tmp_path)
    bed.session.begin()
    bed.request("a", "checkpoint", within=60.0, run="f" * 32)
    bed.session.serve(bed.store.request())
    assert not bed.status()["answer"]["ok"]
    bed.request("b", "checkpoint", within=60.0, run=bed.status()["run"])
    bed.session.serve(bed.store.request())
    assert bed.status()["answer"]["ok"]


def test_nothing_is_done_while_it_cannot_be_read_whose_the_directory_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bed = Bed(monkeypatch, tmp_path)
    bed.session.begin()
    (bed.store.path / "run").rename(bed.store.path / "away")
    bed.request("a", "checkpoint", within=60.0)
    bed.session.serve(bed.store.request())
    assert bed.store.images() == []
    (bed.store.path / "away").rename(bed.store.path / "run")
    bed.session.serve(bed.store.request())
    assert [path.name for path in bed.store.images()] == ["1"]


def test_a_job_does_not_continue_from_the_images_of_an_earlier_job_with_its_number(
    tmp_path: Path,
) -> None:
    """Its first run did not reach the launcher, because its node did not boot."""
    site = HelperSite(cluster="t", directory=tmp_path, key=KEY, reader=(0, 0))
    caller = Caller(job=7, uid=0, gid=0, user="root", groups=(0,), environment={})
    script = tmp_path / "slurm_script"
    stores = []
    for restarts, token in ((0, "january"), (1, "november")):
        text = f"# job {token}\n#__SLURM_ELASTIC_SCRIPT__\n#!/bin/sh\necho {token}\n"
        script.write_text(text)
        store = JobStore(site, 7)
        store.open()
        store.claim(restarts)
        state = JobState("RUNNING", 0, restarts)
        starting.meta_of(site, caller, store, state, "criu", str(script))
        store.close()
        stores.append(store)
        if token == "january":
            (store.path / "images" / "7").mkdir()
    assert stores[1].images() == []
    assert "november" in (stores[1].path / "script").read_text()
    for restarts in (2, 0):  # 0: slurmctld was restored from older state
        (stores[1].path / "images" / "8").mkdir(exist_ok=True)
        again = JobStore(site, 7)
        again.open()
        again.claim(restarts)
        state = JobState("RUNNING", 0, restarts)
        meta = starting.meta_of(site, caller, again, state, "criu", str(script))
        again.close()
        assert meta == stores[1].meta(), "its own later runs keep the directory"
        assert [path.name for path in again.images()] == ["8"]
